"""Progress of a bench: its cells done and left, and the time that the rest may take."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedcel.files import read_toml
from fedcel.runs import find_writer, read_settings
from sims.results.file_names import BENCH_FILE, FAILED_FILE, PLAN_FILE
from sims.results.record_files import read_record, read_records
from sims.results.records import BenchPlan, BenchRow, FailedCell
from sims.results.worst_attack import hold_to_common
from sims.watch.run_state import REPORT_FILE, read_result, read_rounds

RUNS_FOLDER = "runs"
ENDED = ("finished", "failed")
"""Phases of a cell after which nothing comes in this call."""


def is_bench(folder: Path) -> bool:
    """Whether a folder is a bench's, and not a run's."""
    return (folder / RUNS_FOLDER).is_dir() or (folder / "scenario.toml").exists()


def describe_bench(folder: Path) -> dict[str, Any]:
    """Describe how far a bench is, as JSON for the page; RunError where a file is damaged."""
    plan = read_plan(folder)
    rows = hold_to_common(read_records(folder / BENCH_FILE, BenchRow))
    finished = {Path(row.run).name: row for row in rows}
    failed = {f.cell: f.reason for f in read_records(folder / FAILED_FILE, FailedCell)}
    is_going = find_writer(folder) is not None
    names = list(dict.fromkeys((*plan.cells, *finished, *list_folders(folder))))
    cells = [
        describe_cell(folder / RUNS_FOLDER / name, finished.get(name), failed, is_going)
        for name in names
    ]
    phases = {cell["name"]: cell["phase"] for cell in cells}
    done = sum(phases[name] in ENDED for name in plan.missing)
    ended = sum(phase in ENDED for phase in phases.values())
    scenario, report = folder / "scenario.toml", folder / REPORT_FILE
    title = read_toml(scenario).get("title") if scenario.exists() else None
    return {
        "kind": "bench",
        "name": folder.name,
        "folder": str(folder),
        "title": str(title or folder.name),
        "phase": "training" if is_going else "finished" if ended == len(cells) else "stopped",
        "cells": cells,
        "done": ended,
        "jobs": plan.jobs,
        "seconds-left": estimate_seconds(plan, done, time.time()) if is_going else None,
        "done-now": done,
        "left": len(plan.missing) - done if is_going else len(cells) - ended,
        "report": str(report) if report.exists() else None,
    }


def read_plan(folder: Path) -> BenchPlan:
    """Return what the last call was to do; of a bench of an earlier version, nothing."""
    path = folder / PLAN_FILE
    if not path.exists():
        return BenchPlan(began=0.0, cells=(), missing=(), jobs=1)
    return read_record(path, BenchPlan, "run the same `fedcel bench` again")


def list_folders(folder: Path) -> list[str]:
    """Return the names of the runs of a bench, those that were not asked for last as well."""
    runs = folder / RUNS_FOLDER
    if not runs.is_dir():
        return []
    return sorted(path.name for path in runs.iterdir() if (path / "settings.toml").exists())


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
    if (result := read_result(folder)) is not None:
        cell |= {"accuracy": result.accuracy, "bits": result.bits_beyond_label}
        cell["phase"] = "attacking" if is_going else "stopped"
    if row is not None:
        cell["phase"] = "finished"
        if row.worst is not None:
            cell |= {"worst": row.worst.attack, "picked": row.worst.identification_1}
    elif name in failed and cell["phase"] != "training":
        cell |= {"phase": "failed", "reason": failed[name]}
    return cell
