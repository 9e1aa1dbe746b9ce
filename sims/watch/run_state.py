"""Progress of a run, from the files in its folder; none of them is written or locked here."""

import re
import statistics
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from fedcel.runs import find_writer, read_settings
from fedcel.settings import MIN_ESS, MIN_SAMPLED_ROUNDS, Settings, burn_in_rounds
from sims.results.file_names import EVENTS_FILE, RESULT_FILE
from sims.results.record_files import parse_events, parse_file, read_record
from sims.results.records import RoundEvent, RunResult

MAX_POINTS = 400
"""Rounds that a curve shows; of more, every second, third and so on."""
MAX_ROWS = 60
"""Last rounds, and reasons, that stand in a table."""
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")
RECENT_ROUNDS = 10
"""By whose median the time that is left is estimated."""
REPORT_FILE = "report.html"
CURVES = ("accuracy", "spread", "bits", "kept", "r-hat", "ess")
"""Keys of `describe_row` that are drawn over the rounds."""


def describe_run(folder: Path, *, may_begin: bool = False) -> dict[str, Any]:
    """Describe how far a run is, as JSON for the page.

    Args:
        folder: Of the run; it need not exist yet.
        may_begin: A process is about to begin it: it is waited for where there is nothing yet.

    Raises:
        RunError: The folder is no run, and nobody is about to make it one; or a file is damaged.
    """
    if may_begin and not (folder / "settings.toml").exists():
        return {"kind": "run", "name": folder.name, "folder": str(folder), "phase": "waiting"}
    settings = read_settings(folder)
    events = read_rounds(folder)
    result = read_result(folder)
    number = events[-1].round if events else 0
    phase = "measuring" if number >= settings.rounds else "training"
    if result is not None:
        phase = "finished"
    elif find_writer(folder) is None:
        phase = "stopped"
    recent = [event.seconds for event in events[-RECENT_ROUNDS:] if event.seconds is not None]
    pace = statistics.median(recent) if recent and phase == "training" else None
    report = folder / REPORT_FILE
    return {
        "kind": "run",
        "name": folder.name,
        "folder": str(folder),
        "phase": phase,
        "round": number,
        "rounds": settings.rounds,
        "burn-in": burn_in_rounds(settings) if settings.temperature > 0 else None,
        "bits-every": settings.bits_every,
        "judged-from": MIN_SAMPLED_ROUNDS,
        "least-ess": MIN_ESS,
        "clients": settings.clients_per_round or settings.clients,
        "setup": describe_setup(settings),
        "seconds": sum(event.seconds or 0.0 for event in events),
        "seconds-left": None if pace is None else pace * (settings.rounds - number),
        "latest": describe_latest(events),
        "curves": describe_curves(events),
        "rows": [describe_row(event) for event in reversed(events[-MAX_ROWS:])],
        "left-out": count_left_out(events),
        "result": describe_result(result),
        "report": str(report) if report.exists() else None,
    }


def read_rounds(folder: Path) -> tuple[RoundEvent, ...]:
    """Return the rounds so far; RunError where the log is damaged."""
    path = folder / EVENTS_FILE
    return _parse_rounds(*_identify(path)) if path.exists() else ()


def read_result(folder: Path) -> RunResult | None:
    """Return what a run ended with; None before that. RunError where the file is damaged."""
    path = folder / RESULT_FILE
    return _parse_result(*_identify(path)) if path.exists() else None


def _identify(path: Path) -> tuple[Path, int, int, int]:
    """Return what differs for a file that was replaced."""
    facts = path.stat()
    return path, facts.st_ino, facts.st_mtime_ns, facts.st_size


@lru_cache(64)
def _parse_rounds(path: Path, *_: int) -> tuple[RoundEvent, ...]:
    return parse_file(path, parse_events)


@lru_cache(512)
def _parse_result(path: Path, *_: int) -> RunResult:
    return read_record(path, RunResult)


def describe_setup(settings: Settings) -> str:
    """Return in a line what is trained."""
    loss = "no loss" if settings.cel.kind == "none" else f"{settings.cel.kind} loss"
    parts = [settings.data.source.kind_name, settings.net.name, f"{settings.clients} clients", loss]
    if settings.defence.name != "none":
        parts.append(f"defence {settings.defence.name}")
    parts.append(f"noise {settings.defence.find_sigma(settings.net):g}")
    return ", ".join([*parts, f"engine {settings.engine}"])


def describe_latest(events: Sequence[RoundEvent]) -> dict[str, Any] | None:
    """Return the last round, and the last bits and diagnosis of the chain, with their rounds."""
    if not events:
        return None
    latest: dict[str, Any] = describe_row(events[-1])
    measured = next((event for event in reversed(events) if event.bits_cap is not None), None)
    if measured is not None:
        latest |= {
            "bits": measured.bits_beyond_label,
            "bits-half-width": measured.bits_half_width,
            "bits-cap": measured.bits_cap,
            "bits-round": measured.round,
        }
    return latest


def describe_row(event: RoundEvent) -> dict[str, Any]:
    """Return a round as a line of a table."""
    return {
        "round": event.round,
        "accuracy": event.accuracy,
        "spread": event.within_class_spread,
        "bits": event.bits_beyond_label,
        "r-hat": event.r_hat,
        "ess": event.ess,
        "clients": event.clients,
        "left-out": len(event.rejected),
        "kept": event.share,
        "seconds": event.seconds,
    }


def describe_curves(events: Sequence[RoundEvent]) -> dict[str, list[tuple[int, float]]]:
    """Return points (round, value) of each curve; the last one is always there."""
    curves, rows = {}, [describe_row(event) for event in events]
    for name in CURVES:
        points = [(row["round"], row[name]) for row in rows if row[name] is not None]
        step = -(-len(points) // MAX_POINTS) or 1
        curves[name] = points[::-1][::step][::-1]
    return curves


def count_left_out(events: Sequence[RoundEvent]) -> list[dict[str, Any]]:
    """Return each kind of reason why clients were left out, the most frequent first.

    Reasons that differ only in numbers are one kind. Each has its last reason in full, its count,
    its clients, and its last round.
    """
    kinds: dict[str, dict[str, Any]] = {}
    for event in events:
        for rejected in event.rejected:
            kind = NUMBER.sub("#", rejected.reason)
            entry = kinds.setdefault(kind, {"reason": "", "count": 0, "clients": {}, "last": 0})
            entry |= {"reason": rejected.reason, "count": entry["count"] + 1, "last": event.round}
            entry["clients"][str(rejected.client)] = None
    ordered = sorted(kinds.values(), key=lambda entry: -entry["count"])[:MAX_ROWS]
    return [{**entry, "clients": sorted(entry["clients"])} for entry in ordered]


def describe_result(result: RunResult | None) -> dict[str, Any] | None:
    """Return what a finished run is worth on its test images."""
    if result is None:
        return None
    return {
        "accuracy": result.accuracy,
        "bits": result.bits_beyond_label,
        "bits-cap": result.bits_cap,
        "identification": result.identification_optimal,
        "certificate": result.certificate_bits,
        "candidates": result.candidates,
        "convergence": result.convergence,
    }
