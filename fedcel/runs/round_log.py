"""A run's log: a line of JSON about each round. It writes and decides nothing."""

import json
import math
from collections.abc import Mapping
from pathlib import Path

from fedcel.errors import DivergedError, RunError
from fedcel.federation import (
    KEPT_SHARE,
    RoundReport,
    ServerState,
)
from fedcel.files import write_whole
from fedcel.losses import SERVER_METRICS
from fedcel.posterior import Diagnosis

EVENTS = "events.jsonl"
Event = dict[str, object]
"""The values of a line by their names."""


class RoundLog:
    """Writes the events of one run folder; of one that goes on, up to its last complete round.

    Args:
        folder: The run's folder.
        last: The last complete round; later lines are of a round in which the run was killed.

    Raises:
        RunError: The events are damaged.
    """

    def __init__(self, folder: Path, last: int) -> None:
        self._path = folder / EVENTS
        self._lines: list[str] = []
        if not last:
            return
        try:
            lines = self._path.read_text().splitlines()
            self._lines = [line for line in lines if json.loads(line)["round"] <= last]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{self._path} is damaged: {error}; start the run anew") from None

    def write_event(self, event: Event) -> None:
        """Add a round's line."""
        self._lines.append(json.dumps(event, allow_nan=False))
        write_whole(self._path, "\n".join(self._lines) + "\n")


def read_last_event(folder: str | Path) -> Event | None:
    """Read what a run told of its last round.

    Args:
        folder: The run's.

    Returns:
        The event; None where there is no whole line.
    """
    path = Path(folder) / EVENTS
    lines = path.read_text().splitlines() if path.exists() else []
    try:
        event: Event = json.loads(lines[-1])
    except (IndexError, ValueError):
        return None
    return event


def summarise_kept_shares(folder: Path) -> dict[str, object]:
    """Count a run's rounds without some clients; find the least and the mean weight that was kept.

    Where clients lacked their state and started without it, `lost-states` says how often; where two
    nodes had one key, `shared-keys` names them by client.
    """
    events = [json.loads(line) for line in (folder / EVENTS).read_text().splitlines()]
    shares = [float(event.get(KEPT_SHARE, 1.0)) for event in events]
    lost_states = sum(len(event.get("lost-states", ())) for event in events)
    shared_keys = {k: v for event in events for k, v in event.get("shared-keys", {}).items()}
    return {
        **({"lost-states": lost_states} if lost_states else {}),
        **({"shared-keys": shared_keys} if shared_keys else {}),
        "incomplete-rounds": sum(bool(event["rejected"]) for event in events),
        "least-kept-share": min(shares, default=1.0),
        "mean-kept-share": sum(shares) / len(shares) if shares else 1.0,
    }


def describe_round(
    state: ServerState,
    report: RoundReport,
    scores: Mapping[str, float],
    *,
    diagnosis: Diagnosis | None,
    seconds: float,
) -> Event:
    """Gather the line of the log about the round that led to `state`.

    `scores` are of the new model on validation images, `diagnosis` is of the chain, where there is
    one. DivergedError where a score is not finite, though the model is.
    """
    plan = report.plan
    event: Event = {
        # First: what clients tell never replaces what the server measured.
        **{key: value for key, value in report.metrics.items() if key not in SERVER_METRICS},
        "round": state.round,
        **scores,
        "clients": len(report.clients),
        "rejected": [
            {"client": rejection.client, "reason": rejection.reason}
            for rejection in report.rejected
        ],
        "rate": plan.rate,
        "temperature": plan.temperature,
        "cel-weight": plan.weights.get("cel", 0.0),
        "pull": plan.rate * plan.pull,
        "seconds": seconds,
    }
    if report.unused_metrics:
        event["metrics-left-out"] = [
            {"client": client, "reason": reason} for client, reason in report.unused_metrics
        ]
    if report.lost_states:
        event["lost-states"] = list(report.lost_states)
    if report.shared_keys:
        event["shared-keys"] = {str(k): list(names) for k, names in report.shared_keys.items()}
    if (share := report.share) < 1:
        event[KEPT_SHARE] = share
    if state.threshold is not None:
        event["cel-threshold"] = state.threshold
    if diagnosis:
        event |= {"r-hat": diagnosis.r_hat, "ess": diagnosis.ess, "geweke": diagnosis.geweke}
    undefined = [k for k, v in event.items() if isinstance(v, float) and not math.isfinite(v)]
    if undefined:
        raise DivergedError(
            f"{', '.join(undefined)} are not finite after round {state.round}, though the model "
            f"is; lower local.rate ({plan.local.step_size.rate})"
        )
    return event
