"""The log of a run, line by line."""

import json
from pathlib import Path

import pytest
import torch

from fedcel.errors import DivergedError, RunError
from fedcel.federation import Rejection, RoundReport, init_server_state
from fedcel.posterior import RoundOrder
from fedcel.run_parts import build_schedule
from fedcel.runs.round_log import EVENTS, Event, RoundLog, describe_round
from fedcel.settings import parse_settings


def event(score: float, **metrics: float) -> Event:
    """Return the line about round 3, of two clients and one that was left out."""
    state = init_server_state(torch.zeros(2))._replace(round=3)
    unused = [Rejection(1, "'loss' is nan")]
    plan = build_schedule(parse_settings({})).plan(RoundOrder(3, 100))
    report = RoundReport([0, 1], [Rejection(2, "it is late")], metrics, plan, unused)
    return describe_round(
        state,
        report,
        {"accuracy": score},
        diagnosis=None,
        seconds=0.5,
    )


def test_what_clients_report_never_replaces_what_the_server_measured() -> None:
    """Whose metrics do not count stands beside who was left out."""
    forged = {"spread-3": 0.1, "bits-beyond-label": 0.0, "r-hat": 1.0}
    line = event(0.5, accuracy=1.0, loss=2.0, **forged)
    assert "bits-beyond-label" not in line and "r-hat" not in line
    assert (line["accuracy"], line["loss"], line["spread-3"]) == (0.5, 2.0, 0.1)
    assert line["metrics-left-out"] == [{"client": 1, "reason": "'loss' is nan"}]
    assert line["rejected"] == [{"client": 2, "reason": "it is late"}]


def test_a_score_that_is_not_finite_ends_the_run() -> None:
    """By its name, with what to change."""
    with pytest.raises(DivergedError, match=r"accuracy are not finite after round 3.*local\.rate"):
        event(float("nan"))


def test_a_log_that_goes_on_drops_rounds_that_were_not_completed(tmp_path: Path) -> None:
    """A round whose state was not written is played again."""
    log = RoundLog(tmp_path, 0)
    for number in (1, 2, 3):
        log.write_event({"round": number})
    RoundLog(tmp_path, 2).write_event({"round": 3, "again": True})
    lines = [json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines()]
    assert lines == [{"round": 1}, {"round": 2}, {"round": 3, "again": True}]


def test_a_damaged_log_is_refused_by_name(tmp_path: Path) -> None:
    """Where there is a complete round, there must be its line."""
    (tmp_path / EVENTS).write_text("{")
    with pytest.raises(RunError, match=r"events\.jsonl is damaged"):
        RoundLog(tmp_path, 1)
