"""Processes of clients that die on Ray: replaced, and the client trained again."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce.backend import raybackend
from ray.exceptions import OutOfMemoryError

from clients import make_client_app
from fedcel.errors import FailedError
from fedcel.federation import record_names
from fedcel.settings import Settings
from sims.engines import client_processes, ray
from tests.sims.trained import events, model, run

Disturb = Callable[[int, int], None]
"""What befalls a client in a round, by partition and round, before or after its training."""


def make_disturbed_app(
    settings: Settings, folder: Path, *, before: Disturb, after: Disturb
) -> ClientApp:
    """Return our ClientApp with accidents around the training."""
    inner, outer = make_client_app(settings, folder), ClientApp()

    @outer.train()
    def train(message: Message, context: Context) -> Message:
        place = (
            int(context.node_config["partition-id"]),
            int(message.content.config_records[record_names.CONFIG][record_names.ROUND]),
        )
        before(*place)
        reply = inner(message, context)
        after(*place)
        return reply

    outer.query(record_names.COUNT_QUERY)(inner)
    outer.evaluate()(inner)
    return outer


def kill_once(partition: int, number: int, *, marks: Path, place: tuple[int, int]) -> None:
    """End this process as want of memory does, the first time that a client comes here."""
    mark = marks / f"{partition}-{number}"
    if (partition, number) == place and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def fail(partition: int, number: int, *, marks: Path) -> None:
    """Let four clients fail in round 2, each in its way."""
    if number != 2:
        return
    if partition == 0:
        (marks / f"attempt-{len(list(marks.iterdir()))}").touch()
        os._exit(3)
    if partition == 1:
        raise SystemExit("enough")
    if partition == 2:
        raise ValueError("not a letter: \ud800")
    if partition == 3:
        raise ValueError("much " * 1_000_000 + "too much")


def keep_calm(partition: int, number: int) -> None:
    """Do nothing."""


def use_disturbed_app(monkeypatch: pytest.MonkeyPatch, before: Disturb, after: Disturb) -> None:
    """Let the Ray engine train clients to whom this happens."""
    app = partial(make_disturbed_app, before=before, after=after)
    monkeypatch.setattr(ray, "make_client_app", app)


def test_killed_processes_change_no_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One is killed before a training, one after: the state that it wrote is not trained upon."""
    change: dict[str, Any] = {"clients": 4, "rounds": 4, "net.width": 16}
    marks = tmp_path / "marks"
    marks.mkdir()
    before = partial(kill_once, marks=marks, place=(0, 2))
    use_disturbed_app(monkeypatch, before, partial(kill_once, marks=marks, place=(1, 3)))
    disturbed = run(tmp_path / "ray", engine="ray", **change)
    assert {mark.name for mark in marks.iterdir()} == {"0-2", "1-3"}
    assert "Client 0 was lost in attempt 1 of 3: its process ended without an" in caplog.text
    assert [event["rejected"] for event in events(disturbed)] == [[]] * 4
    calm = run(tmp_path / "loop", **change)
    assert model(disturbed).equal(model(calm))
    kept = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("partition-*/*")}
        for folder in (disturbed, calm)
    ]
    assert kept[0] == kept[1] and len(kept[0]) >= 4


@pytest.mark.long
def test_a_client_that_fails_in_whichever_way_is_left_out_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An exit at every attempt, SystemExit, what cannot be encoded, megabytes: one round each."""
    marks = tmp_path / "marks"
    marks.mkdir()
    use_disturbed_app(monkeypatch, partial(fail, marks=marks), keep_calm)
    change = {"clients": 6, "rounds": 4, "strategy.least-share": 0.0}
    first, second, *rest = events(run(tmp_path / "run", engine="ray", **change))
    reasons = {rejection["client"]: rejection["reason"] for rejection in second["rejected"]}
    assert reasons.keys() == {0, 1, 2, 3}
    assert len(list(marks.iterdir())) == client_processes.ATTEMPTS
    assert "lost in each of 3 attempts; the last time: its process ended" in reasons[0]
    assert "SystemExit: enough" in reasons[1]
    assert r"ValueError: not a letter: \ud800" in reasons[2]
    assert "ValueError: much much" in reasons[3] and len(reasons[3]) < 1000
    assert [event["rejected"] for event in (first, *rest)] == [[]] * 3
    assert len(caplog.text) < 30_000
    assert "characters left out ...]" in caplog.text and "too much" in caplog.text


def test_another_flower_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Flower's simulation no longer makes its backend of this name, nothing would be ours."""
    monkeypatch.delattr(raybackend, client_processes.CHOICE)
    with (
        pytest.raises(FailedError, match="has no flwr.*raybackend.RayBackend.*--engine processes"),
        client_processes.use_client_processes(),
    ):
        pass


class Waits:
    """An event that never comes; it notes how long it was waited for."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def is_set(self) -> bool:
        """Say that nobody has stopped the run."""
        return False

    def wait(self, seconds: float) -> None:
        """Note the pause."""
        self.seconds.append(seconds)


@pytest.mark.parametrize(("shortages", "is_trained"), [(2, True), (3, False)])
def test_a_client_whose_memory_was_taken_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, shortages: int, is_trained: bool
) -> None:
    """At once it would be taken again: what else the machine does has to end first."""
    outcome = client_processes.Outcome(None, Context(0, 0, {}, RecordDict(), {}), "as it was")
    answers = [OutOfMemoryError("the node runs low on memory")] * shortages

    def get(_task: object) -> client_processes.Outcome:
        if answers:
            raise answers.pop()
        return outcome

    monkeypatch.setattr(client_processes.ray, "get", get)
    processes = client_processes.ClientProcesses.__new__(client_processes.ClientProcesses)
    waits = Waits()
    monkeypatch.setattr(processes, "_over", waits, raising=False)
    monkeypatch.setattr(processes, "_app", None, raising=False)
    monkeypatch.setattr(processes, "_task", SimpleNamespace(remote=lambda *_: None), raising=False)
    found = processes._run_repeatedly(SimpleNamespace(), outcome.context, 0)
    assert (found is outcome) == is_trained
    assert waits.seconds == list(client_processes.MEMORY_PAUSES)
