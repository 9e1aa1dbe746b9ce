"""Progress of a run or a bench, from the files in its folder; none is written or locked here."""

import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from fedcel.files import read_toml
from fedcel.posterior import MAX_R_HAT
from fedcel.runs import find_writer, read_settings
from fedcel.settings import MIN_ESS, MIN_SAMPLED_ROUNDS, Settings, burn_in_rounds
from sims.results.bench_rows import hold_to_common
from sims.results.records import (
    BENCH_FILE,
    EVENTS_FILE,
    FAILED_FILE,
    PLAN_FILE,
    RESULT_FILE,
    BenchPlan,
    BenchRow,
    FailedCell,
    RoundEvent,
    RunResult,
    parse_events,
    parse_file,
    read_record,
    read_records,
)

MAX_POINTS = 400
"""Rounds that a curve shows; of more, every second, third and so on."""
MAX_ROWS = 60
"""Last rounds, and reasons, that stand in a table."""
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")
RECENT_ROUNDS = 10
"""By whose median the time that is left is estimated."""
REPORT_FILE = "report.html"
RUNS_FOLDER = "runs"
CURVES = ("accuracy", "spread", "bits", "kept", "r-hat", "ess")
"""Keys of `describe_event` that are drawn over the rounds."""
ENDED = ("finished", "failed")
"""Phases of a cell after which nothing comes in this call."""
Parsed = TypeVar("Parsed")


def describe_run(folder: Path) -> dict[str, Any]:
    """Describe how far a run is, as JSON; RunError where it is none, or a file is damaged."""
    settings = read_settings(folder)
    events = read_rounds(folder)
    result = read_file(folder / RESULT_FILE, RunResult.model_validate_json)
    number = events[-1].round if events else 0
    phase = "measuring" if number >= settings.rounds else "training"
    if result is not None:
        phase = "finished"
    elif find_writer(folder) is None:
        phase = "stopped"
    recent = [event.seconds for event in events[-RECENT_ROUNDS:] if event.seconds is not None]
    pace = statistics.median(recent) if recent and phase == "training" else None
    return {
        "kind": "run",
        **describe_place(folder),
        "phase": phase,
        "round": number,
        "rounds": settings.rounds,
        "burn-in": burn_in_rounds(settings) if settings.temperature > 0 else None,
        "bits-every": settings.bits_every,
        "judged-from": MIN_SAMPLED_ROUNDS,
        "least-ess": MIN_ESS,
        "most-r-hat": MAX_R_HAT,
        "clients": settings.clients_per_round or settings.clients,
        "setup": describe_setup(settings),
        "seconds": sum(event.seconds or 0.0 for event in events),
        "seconds-left": None if pace is None else pace * (settings.rounds - number),
        "latest": describe_latest(events),
        "curves": describe_curves(events),
        "rows": [describe_event(event) for event in reversed(events[-MAX_ROWS:])],
        "left-out": count_left_out(events),
        "result": describe_result(result),
    }


def describe_place(folder: Path) -> dict[str, str | None]:
    """Return name and path of a folder, and its report's path where there is one."""
    report = folder / REPORT_FILE
    shown = str(report) if report.exists() else None
    return {"name": folder.name, "folder": str(folder), "report": shown}


def read_rounds(folder: Path) -> tuple[RoundEvent, ...]:
    """Return the rounds so far; RunError where the log is damaged."""
    return read_file(folder / EVENTS_FILE, parse_events) or ()


def read_file(path: Path, parse: Callable[[str], Parsed]) -> Parsed | None:
    """Return what a file is parsed to, once for each version of it; None where there is none."""
    if not path.exists():
        return None
    facts = path.stat()
    parsed: Parsed = _parse_version(path, parse, facts.st_ino, facts.st_mtime_ns, facts.st_size)
    return parsed


@lru_cache(512)
def _parse_version(path: Path, parse: Callable[[str], Any], *_: int) -> Any:
    return parse_file(path, parse)


def describe_setup(settings: Settings) -> str:
    """Return in a line what is trained."""
    loss = "no loss" if settings.cel.kind == "none" else f"{settings.cel.kind} loss"
    parts = [settings.data.source.kind_name, settings.net.name, f"{settings.clients} clients", loss]
    if settings.defence.name != "none":
        parts.append(f"defence {settings.defence.name}")
    parts.append(f"noise {settings.defence.find_sigma(settings.net):g}")
    return ", ".join([*parts, f"engine {settings.engine}"])


def describe_latest(events: Sequence[RoundEvent]) -> dict[str, Any] | None:
    """Return the last round, and the last measured bits with their round."""
    if not events:
        return None
    latest: dict[str, Any] = describe_event(events[-1])
    measured = next((event for event in reversed(events) if event.bits_cap is not None), None)
    if measured is not None:
        latest |= {
            "bits": measured.bits_beyond_label,
            "bits-half-width": measured.bits_half_width,
            "bits-cap": measured.bits_cap,
            "bits-round": measured.round,
        }
    return latest


def describe_event(event: RoundEvent) -> dict[str, Any]:
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
    curves, rows = {}, [describe_event(event) for event in events]
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
    """Return scores of a finished run on its test images."""
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


def is_bench(folder: Path) -> bool:
    """Whether a folder is a bench's, and not a run's."""
    return (folder / RUNS_FOLDER).is_dir() or (folder / "scenario.toml").exists()


def describe_bench(folder: Path) -> dict[str, Any]:
    """Describe how far a bench is, as JSON for the page; RunError where a file is damaged."""
    plan = BenchPlan(began=0.0, cells=(), missing=(), jobs=1)  # of a bench of an earlier version
    if (folder / PLAN_FILE).exists():
        plan = read_record(folder / PLAN_FILE, BenchPlan, "run the same `fedcel bench` again")
    rows = hold_to_common(read_records(folder / BENCH_FILE, BenchRow))
    finished = {Path(row.run).name: row for row in rows}
    failed = {f.cell: f.reason for f in read_records(folder / FAILED_FILE, FailedCell)}
    is_going = find_writer(folder) is not None
    runs = folder / RUNS_FOLDER
    others = sorted(path.parent.name for path in runs.glob("*/settings.toml"))
    cells = [
        describe_cell(runs / name, finished.get(name), failed, is_going)
        for name in dict.fromkeys((*plan.cells, *finished, *others))
    ]
    phases = {cell["name"]: cell["phase"] for cell in cells}
    done = sum(phases[name] in ENDED for name in plan.missing)
    ended = sum(phase in ENDED for phase in phases.values())
    scenario = folder / "scenario.toml"
    title = read_toml(scenario).get("title") if scenario.exists() else None
    return {
        "kind": "bench",
        **describe_place(folder),
        "title": str(title or folder.name),
        "phase": "training" if is_going else "finished" if ended == len(cells) else "stopped",
        "cells": cells,
        "done": ended,
        "jobs": plan.jobs,
        "seconds-left": estimate_seconds(plan, done, time.time()) if is_going else None,
        "done-now": done,
        "left": len(plan.missing) - done if is_going else len(cells) - ended,
    }


def estimate_seconds(plan: BenchPlan, done: int, now: float) -> float | None:
    """Return the seconds that are left, each cell as long as those that ended in this call.

    None before the first of its cells has ended, and after the last.
    """
    cells_left = len(plan.missing) - done
    return max(0.0, now - plan.began) / done * cells_left if done and cells_left else None


def describe_cell(
    folder: Path, row: BenchRow | None, failed: Mapping[str, str], is_going: bool
) -> dict[str, Any]:
    """Describe one cell; its scores are of test images, and there are none before it is trained."""
    name = folder.name
    cell: dict[str, Any] = {"name": name, "phase": "waiting", "has-run": False}
    if (folder / "settings.toml").exists():
        settings = read_settings(folder)
        events = read_rounds(folder)
        number = events[-1].round if events else 0
        cell |= {"has-run": True, "round": number, "rounds": settings.rounds}
        cell["phase"] = "training" if is_going and find_writer(folder) else "stopped"
    if (result := read_file(folder / RESULT_FILE, RunResult.model_validate_json)) is not None:
        cell |= {"accuracy": result.accuracy, "bits": result.bits_beyond_label}
        cell["phase"] = "attacking" if is_going else "stopped"
    if row is not None:
        cell["phase"] = "finished"
        if row.worst is not None:
            cell |= {"worst": row.worst.attack, "picked": row.worst.identification_1}
    elif name in failed and cell["phase"] != "training":
        cell |= {"phase": "failed", "reason": failed[name]}
    return cell
