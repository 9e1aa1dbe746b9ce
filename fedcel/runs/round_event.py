"""One line of a run's log: what is known about a round."""

import math
from collections.abc import Mapping

from fedcel.errors import DivergedError
from fedcel.federation import RoundReport, ServerState, drop_unknown_classes
from fedcel.posterior import Diagnosis, plan_round
from fedcel.settings import Settings

Event = dict[str, object]
"""The values of a line by their names, as JSON has them."""


def describe_round(
    settings: Settings,
    state: ServerState,
    report: RoundReport,
    scores: Mapping[str, float],
    *,
    classes: int,
    diagnosis: Diagnosis | None,
    seconds: float,
) -> Event:
    """Gather the line of the log about the round that led to `state`.

    Args:
        settings: Of the run.
        state: After the round.
        report: Who took part, and the clients' mean metrics.
        scores: Of the new model on validation images.
        classes: Number of classes of the run; metrics of others are left out.
        diagnosis: Of the chain, where this round gave one.
        seconds: That the round took.

    Raises:
        DivergedError: A score is not finite, though the model is.
    """
    plan = plan_round(settings, state.round, 1.0, report.total_examples)
    event: Event = {
        # First: what clients tell never replaces what the server measured.
        **drop_unknown_classes(report.metrics, classes),
        "round": state.round,
        **scores,
        "clients": len(report.clients),
        "rejected": [{"client": r.client, "reason": r.reason} for r in report.rejected],
        "rate": plan.rate,
        "temperature": plan.temperature,
        "cel-weight": plan.cel_weight,
        "nominal-temperature": plan.nominal_temperature,
        "pull": plan.rate * plan.pull,
        "seconds": seconds,
    }
    if state.threshold:
        event["cel-threshold"] = state.threshold.threshold
    if diagnosis:
        event |= {"r-hat": diagnosis.r_hat, "ess": diagnosis.ess, "geweke": diagnosis.geweke}
    undefined = [k for k, v in event.items() if isinstance(v, float) and not math.isfinite(v)]
    if undefined:
        raise DivergedError(
            f"{', '.join(undefined)} are not finite after round {state.round}, though the model "
            f"is; lower local.rate ({settings.local.rate})"
        )
    return event
