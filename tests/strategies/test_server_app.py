"""The ServerApp over real ClientApps in this process: nodes with own images, resume, timeouts."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID

from clients import make_client_app
from fedcel.data import load_splits
from fedcel.errors import PluginError, RunError
from fedcel.federation import record_names
from fedcel.files import read_tensors
from fedcel.losses import Batch, ClientLoss
from fedcel.losses.cel import State, Term
from fedcel.run_parts import build_client_parts, select_client_images
from fedcel.settings import (
    CONNECTED_NODES,
    UNSET,
    Scalar,
    dump_settings,
    flatten_settings,
    parse_settings,
)
from strategies import PosteriorStrategy, make_server_app, node_registry, server_app

RAW: dict[str, Scalar] = {
    "clients": 3,
    "rounds": 4,
    "local.steps": 2,
    "cel.kind": "cluster",
    "cel.warm-up": 0,
    "cel.ramp": 0.2,
    "chain.burn-in": 0.5,
    "prior.mode": "fixed",
    "strategy.timeout": 7.0,
}


class Wire:
    """Hands messages to ClientApps, as a deployed grid does: it goes through them twice."""

    def __init__(self, folder: Path, out: Path, *, own: bool = False) -> None:
        self.app = make_client_app()
        self.nodes: dict[int, Context] = {}
        self.asked: list[tuple[str, int]] = []  # kinds of messages, and to which node
        self.timeouts: dict[str, float] = {}
        self.dead: set[int] = set()
        for k in range(3):
            state = {"partition-id": k, "state-path": str(folder / f"state-{k}")}
            x, y = select_client_images(parse_settings(RAW), k)
            np.savez(folder / f"{k}.npz", x_train=x[:, 0].numpy(), y_train=y.numpy())
            node_data = {"data-path": str(folder / f"{k}.npz")} if own else {}
            source = {"data.source": "npz", "data.path": str(folder / "none.npz")} if own else {}
            config = {
                **flatten_settings(dump_settings(parse_settings(RAW | source))),
                "out": str(out),
                "resume": False,
            }
            self.nodes[101 + k] = Context(1, 101 + k, {**state, **node_data}, RecordDict(), config)

    def get_node_ids(self) -> list[int]:
        """Return all nodes, the dead as well: they are noticed late."""
        return list(self.nodes)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float) -> list[Message]:
        """Return every living node's answer, the SuperLink's for the others."""
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"{len(self.asked)}-{number}"
        replies = []
        for message in messages:
            kind, node = message.metadata.message_type, message.metadata.dst_node_id
            self.asked.append((kind, node))
            self.timeouts[kind] = timeout
            if node in self.dead:
                replies.append(Message(Error(5, "Node Unavailable"), reply_to=message))
                replies[-1].metadata.__dict__["_src_node_id"] = SUPERLINK_NODE_ID
            else:
                replies.append(self.app(message, self.nodes[node]))
        return replies


def run(
    grid: Wire, out: Path | str, *, resume: bool = False, recount: bool = False, **raw: Scalar
) -> None:
    """Start the ServerApp as Flower does."""
    clients = raw.pop("clients", RAW["clients"])
    config = {
        **flatten_settings(dump_settings(parse_settings(RAW | raw))),
        "clients": clients,
        "out": str(out),
        "resume": resume,
        "recount": recount,
    }
    make_server_app()(grid, Context(1, 1, {}, RecordDict(), config))  # type: ignore[arg-type]


def model(out: Path) -> torch.Tensor:
    """Return a finished run's model."""
    return read_tensors(out / "model.safetensors")[0]["model"]


def events(out: Path) -> list[dict[str, Any]]:
    """Return a run's rounds."""
    return [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]


FINISHED: list[Path] = []


@pytest.fixture
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing disturbed, made once; Flower's task identity is there in a test alone."""
    if not FINISHED:
        folder = tmp_path_factory.mktemp("whole")
        run(Wire(folder, folder / "run"), folder / "run")
        FINISHED.append(folder / "run")
    return FINISHED[0]


def served(folder: Path) -> dict[str, Scalar]:
    """Write images of the server's own; return the settings that name them."""
    x, y = torch.rand(600, 8, 8, generator=torch.Generator().manual_seed(0)), np.arange(600) % 10
    np.savez(folder / "server.npz", x_train=x.numpy(), y_train=y)
    small_splits = {"data.validation": 20, "data.auxiliary": 20, "data.test": 60}
    return {"data.source": "npz", "data.path": str(folder / "server.npz"), **small_splits}


def test_nodes_with_images_of_their_own_train_the_same_model(tmp_path: Path, whole: Path) -> None:
    """To the bit, whatever the server holds; N is the nodes', and no figure is of others' images.

    eta kappa of the fixed prior of width 1 is eta/N.
    """
    run(Wire(tmp_path, tmp_path / "run", own=True), tmp_path / "run", **served(tmp_path))
    assert torch.equal(model(tmp_path / "run"), model(whole))
    examples = sum(len(select_client_images(parse_settings(RAW), k).y) for k in range(3))
    (first, *_), result = (
        events(tmp_path / "run"),
        json.loads((tmp_path / "run/result.json").read_text()),
    )
    assert float(str(first["rate"])) / float(str(first["pull"])) == pytest.approx(examples)
    assert result["between-client-spread"] is None
    assert json.loads((whole / "result.json").read_text())["between-client-spread"] > 0


def test_a_run_resumed_after_its_last_round_knows_that_the_images_were_the_nodes_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed while the result was measured: no node is asked any more."""
    out, measure = tmp_path / "run", server_app.evaluate_run
    monkeypatch.setattr(server_app, "evaluate_run", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        run(Wire(tmp_path, out, own=True), out, **served(tmp_path))
    assert len(events(out)) == 4
    monkeypatch.setattr(server_app, "evaluate_run", measure)
    again = Wire(tmp_path, out, own=True)
    run(again, out, resume=True, **served(tmp_path))
    assert again.asked == []
    assert json.loads((out / "result.json").read_text())["between-client-spread"] is None


def test_a_run_resumed_by_its_run_config_ends_with_the_same_bits(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after round 2 with round 3 half done: nodes have states of round 3 already."""
    out = tmp_path / "run"
    grid = Wire(tmp_path, out)
    answer = grid.send_and_receive

    def killed(messages: Iterable[Message], *, timeout: float) -> list[Message]:
        replies = answer(messages, timeout=timeout)
        if sum(kind == "train" for kind, _ in grid.asked) == 9:
            raise KeyboardInterrupt
        return replies

    monkeypatch.setattr(grid, "send_and_receive", killed)
    with pytest.raises(KeyboardInterrupt):
        run(grid, out)
    assert len(events(out)) == 2 and not (out / "result.json").exists()
    again = Wire(tmp_path, out)
    with pytest.raises(RunError, match=r"not empty.*resume=true"):
        run(again, out)
    with pytest.raises(RunError, match="made with other settings"):
        run(again, out, resume=True, rounds=5)
    run(again, out, resume=True)
    assert len(events(out)) == 4 and torch.equal(model(out), model(whole))
    assert sum(kind == "train" for kind, _ in again.asked) == 6
    with pytest.raises(RunError, match="finished; there is nothing to resume"):
        run(again, out, resume=True)
    with pytest.raises(RunError, match="not a folder"):
        run(again, tmp_path / "other", resume=True)


def test_a_run_config_that_says_nothing_takes_the_nodes_there_are_and_makes_a_folder(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The folder is named; nodes keep their state under its name, by which it is resumed."""
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(node_registry, "_SETTLE_SECONDS", 0.0)
    grid = Wire(tmp_path, tmp_path)
    for context in grid.nodes.values():
        context.run_config |= {"out": UNSET, "clients": CONNECTED_NODES}
    answer = grid.send_and_receive

    def killed(messages: Iterable[Message], *, timeout: float) -> list[Message]:
        replies = answer(messages, timeout=timeout)
        if sum(kind == "train" for kind, _ in grid.asked) == 9:
            raise RuntimeError("the disk is full")
        return replies

    monkeypatch.setattr(grid, "send_and_receive", killed)
    bare = {"clients": CONNECTED_NODES}
    with pytest.raises(RuntimeError):
        run(grid, UNSET, **bare)
    out = tmp_path / "home" / "fedcel-runs" / "run-1"
    shown = capsys.readouterr().out
    assert "clients: 3\n" in shown and f"run folder: {out}\n" in shown
    assert shown.splitlines()[-1].endswith("the disk is full") and "run FAILED" in shown
    assert len(events(out)) == 2
    with pytest.raises(RunError, match="exists and is not empty"):
        run(grid, UNSET, **bare)
    with pytest.raises(RunError, match="resume=true needs the run folder"):
        run(grid, UNSET, resume=True, **bare)
    again = Wire(tmp_path, out)
    again.nodes = {node: context for node, context in again.nodes.items() if node != 103}
    again.nodes[103] = grid.nodes[103]
    for context in again.nodes.values():
        context.run_config |= {"out": str(out), "clients": CONNECTED_NODES}
    run(again, out, resume=True, **bare)
    assert torch.equal(model(out), model(whole))
    assert capsys.readouterr().out.splitlines()[-1] == f"the run is complete; its folder: {out}"


def forget_images() -> None:
    load_splits.cache_clear()
    build_client_parts.cache_clear()


def test_a_node_that_holds_other_images_takes_part_again_once_its_run_recounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Node 102 has ten images more from round 3 on; N of the last rounds counts them."""
    out = tmp_path / "run"
    grid = Wire(tmp_path, out, own=True)
    answer, path = grid.send_and_receive, tmp_path / "1.npz"

    def growing(messages: Iterable[Message], *, timeout: float) -> list[Message]:
        trained = sum(kind == "train" for kind, _ in grid.asked)
        if trained == 6 and list(messages):
            with np.load(path) as images:
                more = {name: np.concatenate([images[name], images[name][:10]]) for name in images}
            np.savez(path, **more)
            forget_images()  # a node's next message is another process
        if trained == 12:
            raise KeyboardInterrupt
        return answer(messages, timeout=timeout)

    monkeypatch.setattr(grid, "send_and_receive", growing)
    settings = served(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run(grid, out, **settings)
    assert "it claims" in str(events(out)[2]["rejected"])
    monkeypatch.setattr(node_registry, "WAIT_SECONDS", 0.0)
    with pytest.raises(RunError, match="recount=true is for a run that is resumed"):
        run(grid, out, recount=True, **settings)
    images = path.read_bytes()
    again = Wire(tmp_path, out, own=True)
    path.write_bytes(images)
    forget_images()
    run(again, out, resume=True, recount=True, **settings)
    log = events(out)
    assert ["it claims" in str(event["rejected"]) for event in log] == [False, False, True, False]
    assert [event["clients"] for event in log] == [3, 3, 2, 3]
    before, after = (float(str(e["rate"])) / float(str(e["pull"])) for e in (log[0], log[3]))
    assert round(after) == round(before) + 10


def test_a_dead_node_is_named_and_waited_for_as_long_as_asked(
    tmp_path: Path,
) -> None:
    """The SuperLink answers for it, under its own id."""
    grid = Wire(tmp_path, tmp_path / "run")
    answer = grid.send_and_receive

    def dying(messages: Iterable[Message], *, timeout: float) -> list[Message]:
        if len(grid.asked) >= 6:  # all counted, all trained once
            grid.dead = {102}
        return answer(messages, timeout=timeout)

    grid.send_and_receive = dying  # type: ignore[method-assign]
    run(grid, tmp_path / "run")
    assert [e["rejected"] for e in events(tmp_path / "run")] == [
        [],
        *[[{"client": 1, "reason": "the client failed: Node Unavailable"}]] * 3,
    ]
    assert grid.timeouts["train"] == 7.0
    assert not any(kind == "evaluate" for kind, _ in grid.asked)
    assert record_names.COUNT_QUERY in grid.asked[0][0]


def test_the_node_that_holds_a_partition_later_has_its_state_of_the_round_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """102 leaves after round 1; 104 comes, who has its folder, and a stranger who says nothing.

    In the folder is a state of a round that this run has not come to.
    """
    grid = Wire(tmp_path, tmp_path / "run")
    answer, states = grid.send_and_receive, list[list[str]]()

    def moving(messages: Iterable[Message], *, timeout: float) -> list[Message]:
        if [kind for kind, _ in grid.asked].count("train") == 3 and 102 in grid.nodes:
            gone = grid.nodes.pop(102)
            (state,) = (tmp_path / "state-1").glob("run-*/000001.safetensors")
            shutil.copy(state, state.with_stem("000009"))
            grid.nodes[104] = Context(1, 104, gone.node_config, RecordDict(), gone.run_config)
            grid.nodes[105], grid.dead = grid.nodes[104], {105}
        replies = answer(messages, timeout=timeout)
        if (f"query.{record_names.COUNT_QUERY}", 104) in grid.asked[-2:]:
            states.append(sorted(p.stem for p in (tmp_path / "state-1").glob("run-*/*")))
        return replies

    monkeypatch.setattr(grid, "send_and_receive", moving)
    run(grid, tmp_path / "run")
    log = [(event["clients"], event["rejected"]) for event in events(tmp_path / "run")]
    assert log[0] == log[2] == log[3] == (3, [])
    assert states == [["000001"]]
    queried = [node for kind, node in grid.asked if kind == f"query.{record_names.COUNT_QUERY}"]
    assert queried == [101, 102, 103, 104, 105]


class Crashing(ClientLoss):
    """A loss that raises always, in a text that would clear a terminal."""

    def __init__(self, *arguments: object) -> None:
        """Take anything."""

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        raise LookupError("no \x1b[2Jbatch")


class Judging(PosteriorStrategy):
    """Judges replies by no reason in words."""

    def fault(self, reply: Message) -> str | None:
        return 3  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("key", "name", "words"),
    [
        ("cel.kind", "Crashing", r"failed: LookupError: no \x1b[2Jbatch ("),
        (
            "strategy.name",
            "Judging",
            "breaks its contract: `fault` must give a reason in words",
        ),
    ],
)
def test_a_part_of_a_users_own_is_held_to_its_contract_before_a_node_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, name: str, words: str
) -> None:
    """The run fails by the part and the line of its contract, and leaves no folder."""
    grid = Wire(tmp_path, tmp_path / "run")
    with pytest.raises(PluginError):
        run(grid, tmp_path / "run", **{key: f"{__name__}:{name}"})  # type: ignore[arg-type]
    (line,) = capsys.readouterr().out.splitlines()
    assert (
        line.startswith("the run FAILED, whatever") and f"{key} '{__name__}:{name}' {words}" in line
    )
    assert grid.asked == [] and not (tmp_path / "run").exists()


def test_a_reply_that_comes_a_round_later_is_left_out_of_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """102 is slower than the timeout in round 2; its reply is there before that to round 3.

    In round 3 it is used, by its second reply, so nobody is rejected.
    """
    grid = Wire(tmp_path, tmp_path / "run")
    answer, late = grid.send_and_receive, list[Message]()

    def slow(messages: Iterable[Message], *, timeout: float) -> list[Message]:
        replies = late + answer(messages, timeout=timeout)
        late.clear()
        if [kind for kind, _ in grid.asked].count("train") == 6:
            late.extend(r for r in replies if r.metadata.src_node_id == 102)
        return [reply for reply in replies if reply not in late]

    monkeypatch.setattr(grid, "send_and_receive", slow)
    run(grid, tmp_path / "run")
    assert [(e["clients"], e["rejected"]) for e in events(tmp_path / "run")] == [
        (3, []),
        (2, [{"client": 1, "reason": "no reply"}]),
        (3, []),
        (3, []),
    ]
