"""Processes of clients that die on Ray: replaced, and the client trained again."""

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from queue import Queue
from threading import Event, Lock, Thread
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce import vce_api
from flwr.server.superlink.fleet.vce.backend import raybackend
from ray._private import worker
from ray.exceptions import OutOfMemoryError, RayTaskError, WorkerCrashedError

from clients import make_client_app
from fedcel.errors import FailedError
from fedcel.federation import record_names
from fedcel.files import read_json
from fedcel.runs import run_folder
from fedcel.settings import Settings, parse_settings
from sims.engines import client_processes, ray
from sims.engines.in_memory_grid import allow_messages
from tests.sims.small import CLUSTERED
from tests.sims.trained import events, model, run

Processes = list[tuple[int, str]]
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


@pytest.fixture(scope="module")
def one_ray() -> Iterator[Processes]:
    """Keep one Ray for the trainings of this module; return its processes."""
    with ray.keep_ray():
        yield client_processes.list_ray_processes()
    assert client_processes.list_ray_processes() == []


def test_ray_gives_the_result_of_the_local_engine(tmp_path: Path, one_ray: Processes) -> None:
    """Real Ray workers, cluster CEL, a drawn part of the clients, Langevin noise at the end."""
    change = {"clients-per-round": 2, "clients": 4}
    local = run(tmp_path / "local", **change, **{"local.at-once": 1})
    on_ray = run(tmp_path / "ray", engine="ray", **change)
    assert client_processes.list_ray_processes() == one_ray
    torch.testing.assert_close(model(local), model(on_ray), rtol=0, atol=1e-6)
    for name in (local, on_ray):
        assert run_folder.open_chain(name, parse_settings(CLUSTERED)).list_rounds() == [6]
    results: list[Any] = [read_json(folder / "result.json") for folder in (local, on_ray)]
    for key in ("accuracy", "bits-beyond-label", "identification-optimal", "certificate-bits"):
        assert results[0][key] == pytest.approx(results[1][key], abs=1e-4), key


def test_killed_processes_change_no_bit(
    tmp_path: Path,
    one_ray: Processes,
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
    assert client_processes.list_ray_processes() == one_ray
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
    one_ray: Processes,
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
    assert len(list(marks.iterdir())) == client_processes.ATTEMPTS
    assert "lost in each of 3 attempts; the last time: its process ended" in reasons[0]
    assert "SystemExit: enough" in reasons[1]
    assert r"ValueError: not a letter: \ud800" in reasons[2]
    assert "ValueError: much much" in reasons[3] and len(reasons[3]) < 1000
    assert [event["rejected"] for event in (first, *rest)] == [[]] * 3
    assert len(caplog.text) < 30_000
    assert "characters left out ...]" in caplog.text and "too much" in caplog.text


def test_what_ray_says_is_a_line_of_the_log(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """But for lost processes of clients, of which each client's own line tells; nothing is raw."""
    printer = getattr(worker, client_processes.PRINTER)
    with caplog.at_level("WARNING", "flwr"), client_processes.log_ray_messages():
        for text in (
            "A worker died or was killed while executing a task by an unexpected system error.",
            "Raylet is terminated.\x1b[2J Last 20 lines of the Raylet logs:\n    [state-dump] 1",
        ):
            message = {"lines": [text], "pid": "raylet", "is_err": False}
            getattr(worker, client_processes.PRINTER)(message, ignore_prefix=False)
    assert getattr(worker, client_processes.PRINTER) is printer
    assert capsys.readouterr().out == ""
    assert [record.getMessage() for record in caplog.records] == [
        r"Ray: Raylet is terminated.\x1b[2J Last 20 lines of the Raylet logs:"
    ]


def test_another_flower_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Flower's simulation no longer makes its backend of this name, nothing would be ours."""
    monkeypatch.delattr(raybackend, client_processes.CHOICE)
    with (
        pytest.raises(FailedError, match="has no flwr.*raybackend.RayBackend.*--engine local"),
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
    waits = Waits()
    processes = make_processes(monkeypatch, waits)

    def get(outcomes: list[client_processes.Outcome]) -> list[client_processes.Outcome]:
        if answers:
            raise answers.pop()
        return outcomes

    monkeypatch.setattr(client_processes.ray, "get", get)
    monkeypatch.setattr(
        processes, "_task", SimpleNamespace(remote=lambda *_: [outcome]), raising=False
    )
    order = client_processes.Order(SimpleNamespace(), outcome.context, Future())
    (found,) = processes._run_together([order])
    assert (found is outcome) == is_trained
    assert waits.seconds == list(client_processes.MEMORY_PAUSES)


def make_processes(
    monkeypatch: pytest.MonkeyPatch, over: object
) -> client_processes.ClientProcesses:
    """Return a backend without Ray."""
    processes = client_processes.ClientProcesses.__new__(client_processes.ClientProcesses)
    monkeypatch.setattr(processes, "_over", over, raising=False)
    monkeypatch.setattr(processes, "_app", None, raising=False)
    return processes


@pytest.mark.parametrize(
    ("error", "together"), [(WorkerCrashedError(), 1), (RayTaskError("f", "", ValueError()), 0)]
)
def test_who_is_lost_in_company_is_tried_alone(
    monkeypatch: pytest.MonkeyPatch, error: Exception, together: int
) -> None:
    """Each of them; one that takes every process along is left out after as many attempts."""
    contexts = [Context(0, 0, {"partition-id": k}, RecordDict(), {}) for k in range(3)]
    orders = [client_processes.Order(SimpleNamespace(), c, Future()) for c in contexts]
    tried = list[list[int]]()

    def run(_: object, contents: list[tuple[object, Context]]) -> list[client_processes.Outcome]:
        tried.append([int(context.node_config["partition-id"]) for _, context in contents])
        if len(contents) > 1:
            raise error
        if tried[-1] == [1]:
            raise WorkerCrashedError
        return [client_processes.Outcome(Message(RecordDict(), 1, "train"), contents[0][1])]

    with allow_messages():
        processes = make_processes(monkeypatch, Waits())
        monkeypatch.setattr(client_processes.ray, "get", lambda outcomes: outcomes)
        monkeypatch.setattr(processes, "_task", SimpleNamespace(remote=run), raising=False)
        outcomes = list(processes._run_together(orders))
    assert tried == [[0, 1, 2], [0], *[[1]] * (client_processes.ATTEMPTS - together), [2]]
    assert [outcome.reply is None for outcome in outcomes] == [False, True, False]
    assert "lost in each of 3 attempts" in outcomes[1].reason


def test_messages_are_handed_on_as_they_come() -> None:
    """Those of before, and those that are sent later, without a look at any other node."""
    sent = {7: ["a"], 8: list[str](), 9: list[str]()}
    looks = list[int]()

    class State:
        """Of Flower's, as far as it is used."""

        def store_message_ins(self, message: Any) -> str:
            """Take a message."""
            sent[message.metadata.dst_node_id].append("b")
            return "b"

        def get_message_ins(self, *, node_id: int, limit: int) -> list[str]:
            """Hand out a node's messages once."""
            looks.append(node_id)
            taken, sent[node_id] = sent[node_id][:limit], []
            return taken

    state, queue, stop = State(), Queue[Any](), Event()
    arguments = (state, queue, {7: 0, 8: 1, 9: 2}, stop)
    thread = Thread(target=client_processes.forward_messages, args=arguments)
    thread.start()
    assert queue.get(timeout=10) == "a"
    message = SimpleNamespace(metadata=SimpleNamespace(dst_node_id=9))
    assert state.store_message_ins(message) == "b"
    assert queue.get(timeout=10) == "b"
    stop.set()
    thread.join(10)
    assert not thread.is_alive() and looks == [7, 8, 9, 9]


def test_flower_has_what_is_replaced_to_be_quick() -> None:
    """Where it does not, nothing is replaced and nothing breaks."""
    earlier = dict(vars(vce_api))
    with client_processes.use_forwarding():
        assert vce_api.add_messages_to_queue is client_processes.forward_messages
    assert vars(vce_api) == earlier


def test_another_flower_is_as_slow_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its function of that name takes other arguments."""
    monkeypatch.setattr(vce_api, client_processes.FORWARDER, lambda state: None)
    earlier = dict(vars(vce_api))
    with client_processes.use_forwarding():
        assert vars(vce_api) == earlier


@pytest.mark.parametrize(("values", "shares"), [(1, [4, 2, 1, 1, 0]), (5 * 2**20, [1, 1, 1])])
def test_a_process_takes_its_share_but_few_large_messages(
    monkeypatch: pytest.MonkeyPatch, values: int, shares: list[int]
) -> None:
    """Half of what waits, for two processes; arrays of 20 MB go one by one."""
    processes = make_processes(monkeypatch, Waits())
    with allow_messages():
        message = Message(
            RecordDict({"arrays": ArrayRecord([np.zeros(values, np.float32)])}), 1, "train"
        )
    order = client_processes.Order(message, Context(0, 0, {}, RecordDict(), {}), Future())
    monkeypatch.setattr(processes, "_slots", 2, raising=False)
    monkeypatch.setattr(processes, "_lock", Lock(), raising=False)
    monkeypatch.setattr(processes, "_waiting", deque([order] * 8), raising=False)
    assert [len(processes._take_share()) for _ in shares] == shares
