"""Clients on Ray: one whose process dies is trained again, in another process."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, TextIO, cast
from unittest.mock import Mock

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from ray import cloudpickle, is_initialized
from ray.exceptions import OutOfMemoryError, RaySystemError, RayTaskError, WorkerCrashedError

from clients import make_client_app
from fedcel.errors import EngineError
from fedcel.federation import record_names
from fedcel.flower_messages import allow_messages
from fedcel.settings import Settings
from sims.engines import ray, ray_grid
from sims.engines.ray_grid import RayGrid
from sims.engines.simulated_grid import Outcome
from tests.sims.trained import events, model, run

Disturb = Callable[[int, int], None]
"""What befalls a client in a round, by partition and round, before or after its training."""


def make_disturbed_app(settings: Settings, *, before: Disturb, after: Disturb) -> ClientApp:
    """Return our ClientApp with accidents around the training."""
    inner, outer = make_client_app(settings), ClientApp()

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


@pytest.fixture(scope="module")
def one_ray() -> Iterator[None]:
    with ray.keep_ray():
        yield
    assert not is_initialized()


def test_killed_processes_change_no_bit(
    tmp_path: Path,
    one_ray: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
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
    assert "worker died" not in caplog.text and "(raylet)" not in "".join(capfd.readouterr())
    assert [event["rejected"] for event in events(disturbed)] == [[]] * 4
    assert is_initialized()
    calm = run(tmp_path / "calm", **change, **{"local.at-once": 1})
    assert model(disturbed).equal(model(calm))
    kept = [
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("partition-*/*")}
        for folder in (disturbed, calm)
    ]
    assert kept[0] == kept[1] and len(kept[0]) >= 4


@pytest.mark.long
def test_a_client_that_fails_in_whichever_way_is_left_out_alone(
    tmp_path: Path,
    one_ray: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An exit at every attempt, SystemExit, what cannot be encoded, megabytes: one round each."""
    marks = tmp_path / "marks"
    marks.mkdir()
    use_disturbed_app(monkeypatch, partial(fail, marks=marks), keep_calm)
    change = {"clients": 6, "rounds": 4, "strategy.least-share": 0.0}
    first, second, *rest = events(run(tmp_path / "run", engine="ray", **change))
    reasons = {rejection["client"]: rejection["reason"] for rejection in second["rejected"]}
    assert reasons.keys() == {0, 1, 2, 3}
    assert len(list(marks.iterdir())) == ray_grid.ATTEMPTS
    assert "lost in each of 3 attempts; the last time: its process ended" in reasons[0]
    assert "SystemExit: enough" in reasons[1]
    assert r"ValueError: not a letter: \ud800" in reasons[2]
    assert "ValueError: much much" in reasons[3] and len(reasons[3]) < 1000
    assert [event["rejected"] for event in (first, *rest)] == [[]] * 3
    assert len(caplog.text) < 30_000
    assert "characters left out ...]" in caplog.text and "too much" in caplog.text


def test_whoever_is_late_is_ended(one_ray: None) -> None:
    """The answer of the other is there; the next message finds a process that is free."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        seconds = float(message.content.config_records["config"]["seconds"])
        time.sleep(seconds)
        return Message(RecordDict(), reply_to=message)

    def ask(seconds: dict[int, float], timeout: float) -> list[int]:
        contents = {
            n: RecordDict({"config": ConfigRecord({"seconds": s})}) for n, s in seconds.items()
        }
        messages = [Message(content, node, "train") for node, content in contents.items()]
        replies = grid.send_and_receive(messages, timeout=timeout)
        return [reply.metadata.src_node_id for reply in replies]

    with allow_messages(), RayGrid(app, 2) as grid:
        assert sorted(ask({2: 0, 3: 0}, 60)) == [2, 3]
        assert ask({2: 600, 3: 0}, 5) == [3]
        assert sorted(ask({2: 0, 3: 0}, 60)) == [2, 3]


def test_what_ray_says_is_a_line_of_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """But for lost processes of clients, of which each client's own line tells; nothing is raw."""
    texts = (
        "(raylet) A worker died or was killed while executing a task by an unexpected error.",
        "\x1b[33m(raylet, ip=192.0.2.1)\x1b[0m Raylet is terminated.\x1b[2J "
        "Last 20 lines of the logs:\n    [state-dump] 1",
    )
    lines = cast(TextIO, ray.RayLines(sys.stdout))
    with caplog.at_level("WARNING", "flwr"), redirect_stdout(lines):
        for text in texts:
            print(text)
        print("accuracy 0.9\n")
    assert capsys.readouterr().out == "accuracy 0.9\n\n"
    assert [record.getMessage() for record in caplog.records] == [
        r"Ray: Raylet is terminated.\x1b[2J Last 20 lines of the logs:"
    ]


Answer = Callable[[list[int]], None]
"""What becomes of the clients of a task, by partition: nothing, or an error is raised."""


class FakeRay:
    """Ray without processes, in a time of its own: tasks end in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Answer) -> None:
        self.answer, self.processors, self.now = answer, 2, 0.0
        self.tried: list[list[int]] = []
        """Clients of each task that was handed over."""
        self.most = 0
        """Tasks that were there at the same time."""
        monkeypatch.setattr(ray_grid, "ray", self)
        monkeypatch.setattr(ray_grid, "_make_task", lambda: self)
        monkeypatch.setattr(ray_grid, "time", self)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.processors}

    def is_initialized(self) -> bool:
        return True

    def nodes(self) -> list[dict[str, Any]]:
        return []

    def put(self, value: bytes) -> bytes:
        """Store nothing."""
        return value

    def remote(self, *arguments: Any) -> Iterator[Any]:
        contents = arguments[-1]
        pairs = cloudpickle.loads(contents)
        self.tried.append([context.node_config["partition-id"] for _, context in pairs])
        return iter([f"machine-{len(self.tried)}", (len(self.tried) - 1, contents)])

    def wait(self, tasks: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        self.most = max(self.most, len(tasks))
        return tasks[:1], tasks[1:]

    def get(self, task: Any) -> Any:
        """Return the machine or the replies, or raise what befell the clients."""
        if isinstance(task, str):
            return task
        self.answer(self.tried[task[0]])
        return [
            Outcome(Message(RecordDict(), reply_to=m), c) for m, c in cloudpickle.loads(task[1])
        ]


def send(clients: int, arrays: int = 1) -> dict[int, str]:
    """Let a grid's clients train; return what their replies' errors say, by partition."""
    content = RecordDict({"arrays": ArrayRecord([np.zeros(arrays, np.float32)])})
    with allow_messages(), RayGrid(ClientApp(), clients) as grid:
        messages = [Message(content, node, "train") for node in grid.get_node_ids()]
        return {
            reply.metadata.src_node_id - 2: str(reply.error.reason) if reply.has_error() else ""
            for reply in grid.send_and_receive(messages)
        }


@pytest.mark.parametrize("shortages", [2, 3])
def test_a_client_whose_memory_was_taken_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch, shortages: int
) -> None:
    """At once it would be taken again: what else the machine does has to end first."""
    errors = [OutOfMemoryError("the node runs low on memory")] * shortages

    def answer(clients: list[int]) -> None:
        if errors:
            raise errors.pop()

    fake = FakeRay(monkeypatch, answer)
    failures = send(1)
    assert ("runs low on memory" in failures[0]) == (shortages == ray_grid.ATTEMPTS)
    assert fake.now == pytest.approx(sum(ray_grid.MEMORY_PAUSES))


@pytest.mark.parametrize(
    ("error", "together"), [(WorkerCrashedError(), 1), (RayTaskError("f", "", ValueError()), 0)]
)
def test_who_is_lost_in_company_is_tried_alone(
    monkeypatch: pytest.MonkeyPatch, error: Exception, together: int
) -> None:
    """Each of them; one that takes every process along is left out after as many attempts."""

    def answer(clients: list[int]) -> None:
        if len(clients) > 1:
            raise error
        if clients == [1]:
            raise WorkerCrashedError

    fake = FakeRay(monkeypatch, answer)
    fake.processors = 1
    failures = send(3)
    assert fake.tried[0] == [0, 1, 2]
    assert sorted(fake.tried[1:]) == [[0], *[[1]] * (ray_grid.ATTEMPTS - together), [2]]
    assert failures[0] == failures[2] == ""
    assert "lost in each of 3 attempts" in failures[1]


def test_an_answer_that_cannot_travel_is_an_error_of_its_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In Ray's words for it."""

    def answer(clients: list[int]) -> None:
        raise RayTaskError("f", "", TypeError("cannot pickle 'generator' object"))

    FakeRay(monkeypatch, answer)
    assert send(1) == {0: "TypeError: cannot pickle 'generator' object"}


class CutRay(FakeRay):
    """A cluster whose first machine loses its power: what it was to answer never comes."""

    def wait(self, tasks: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        ready = [task for task in tasks if task is not self.lost or not self.is_lost]
        self.is_lost = True  # once it has told where it runs
        self.now += timeout * (not ready)
        return ready[:1], []

    def remote(self, *arguments: Any) -> Iterator[Any]:
        task = super().remote(*arguments)
        self.lost = self.lost or task
        return task

    def nodes(self) -> list[dict[str, Any]]:
        """Return the machines; Ray marks the lost one as dead after a minute."""
        return [
            {
                "NodeID": f"machine-{k}",
                "Alive": k != 1 or self.now < 60,
                "NodeManagerAddress": f"192.0.2.{k}",
                "NodeManagerPort": 1,
            }
            for k in (1, 2, 3)
        ]

    def cancel(self, task: Any, force: bool) -> None:
        self.cancelled.append(task)

    lost: Any = None
    is_lost = False
    cancelled: list[Any]


def test_clients_of_a_machine_without_power_are_trained_elsewhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody else's; the log says first that the machine is silent, and who is waited for."""
    fake = CutRay(monkeypatch, lambda clients: None)
    fake.cancelled = []
    monkeypatch.setattr(
        ray_grid, "takes_connections", lambda machine: machine["NodeID"] != "machine-1"
    )
    assert set(send(4).values()) == {""}
    assert fake.tried == [[0, 1], [2], [3], [0], [1]] and fake.cancelled == [fake.lost]
    assert fake.now < 90
    assert "192.0.2.1 of the Ray cluster is silent. Waiting for clients 0, 1; Ray" in caplog.text
    assert "Client 1 was lost in attempt 1 of 3: NodeDiedError: 192.0.2.1 is lost" in caplog.text


def test_a_ray_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its errors in the place of any task's end the run."""
    fake = FakeRay(monkeypatch, lambda clients: None)
    monkeypatch.setattr(fake, "wait", Mock(side_effect=RaySystemError("Broken pipe")))
    monkeypatch.setattr(fake, "cancel", Mock(), raising=False)
    with pytest.raises(EngineError, match="Ray broke down: RaySystemError: .*Broken pipe"):
        send(1)


@pytest.mark.parametrize(
    ("arrays", "shares"),
    [(1, [[0, 1, 2, 3], [4, 5], [6], [7]]), (5 * 2**20, [[k] for k in range(8)])],
)
def test_a_process_takes_its_share_but_few_large_messages(
    monkeypatch: pytest.MonkeyPatch, arrays: int, shares: list[list[int]]
) -> None:
    """Half of what waits, for two processors; arrays of 20 MB go one by one."""
    fake = FakeRay(monkeypatch, lambda clients: None)
    assert set(send(8, arrays).values()) == {""}
    assert fake.tried == shares
    assert fake.most == fake.processors + 1


def test_a_machine_that_joins_is_used_in_the_same_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processors have tasks as soon as one of the others' has ended."""

    def answer(clients: list[int]) -> None:
        fake.processors = 16

    fake = FakeRay(monkeypatch, answer)
    assert set(send(40).values()) == {""}
    assert fake.most >= 10
