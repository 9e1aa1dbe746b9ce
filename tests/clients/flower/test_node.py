"""A deployed node: images of its own, what it refuses, and whose state it keeps."""

from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict

from clients import make_client_app
from fedcel.errors import DataError, SettingsError
from fedcel.federation import digest_code, record_names
from fedcel.nets.flat_net import to_arrays
from fedcel.run_parts import build_workspace_net, select_client_images
from fedcel.runs import ClientStateFolder
from fedcel.settings import Scalar, dump_settings, flatten_settings, parse_settings

RAW = {"clients": 4, "local.steps": 3, "cel.kind": "cluster", "cel.warm-up": 0, "rounds": 10}
SERVED = parse_settings({**RAW, "data.source": "npz", "data.path": "/the/servers/own.npz"})
"""The operator's settings: a path that no node has."""
FITS = {record_names.SHAPE: [1, 8, 8], record_names.CLASSES: 10}


def node(folder: Path, out: str = "/runs/a", **config: Scalar) -> Context:
    """Return a deployed node that holds in a file what client 1 of the simulation holds."""
    x, y = select_client_images(parse_settings(RAW), 1)
    np.savez(folder / "own.npz", x_train=x[:, 0].numpy(), y_train=y.numpy())
    node_config: dict[str, Scalar] = {
        "partition-id": 1,
        "data-path": str(folder / "own.npz"),
        **config,
    }
    return Context(
        1,
        101,
        dict(node_config),
        RecordDict(),
        {**flatten_settings(dump_settings(SERVED)), "out": out},
    )


def ask(kind: str, at: Context, number: int = 5, fits: dict[str, object] | None = None) -> Message:
    """Send the server's message of a round through the app, as the SuperNode does."""
    flat = build_workspace_net(parse_settings(RAW))
    config = {
        record_names.ROUND: number,
        record_names.WEIGHT: 0.25,
        record_names.TOTAL: 997,
        **(FITS if fits is None else fits),
    }
    arrays = ArrayRecord(to_arrays(flat.vector.clone().fill_(0.01), flat.shapes))
    content = RecordDict({record_names.ARRAYS: arrays, record_names.CONFIG: ConfigRecord(config)})
    return make_client_app()(Message(content, dst_node_id=101, message_type=kind), at)


def test_a_node_answers_as_the_simulated_client_with_the_same_images(tmp_path: Path) -> None:
    """Bit for bit, without a look at the server's data, which is not there."""
    simulated, deployed = (
        ask("train", node(tmp_path)),
        Context(1, 101, {"partition-id": 1}, RecordDict(), {}),
    )
    deployed.run_config = flatten_settings(dump_settings(parse_settings(RAW)))
    pairs = zip(
        simulated.content[record_names.DELTA].to_numpy_ndarrays(),
        ask("train", deployed).content[record_names.DELTA].to_numpy_ndarrays(),
        strict=True,
    )
    assert all(np.array_equal(a, b) and a.any() for a, b in pairs)
    metrics = ask("query.count", node(tmp_path)).content[record_names.METRICS]
    examples = len(select_client_images(parse_settings(RAW), 1).y)
    assert metrics == {
        record_names.EXAMPLES: examples,
        record_names.PARTITION: 1,
        record_names.HAS_NODE_DATA: 1,
        record_names.CODE: digest_code(),
    }
    assert (
        ask("evaluate", node(tmp_path)).content[record_names.METRICS][record_names.EXAMPLES]
        == examples
    )


@pytest.mark.parametrize(
    ("change", "fits", "error", "words"),
    [
        ({"data_path": "/own"}, None, SettingsError, "'data_path'.*did you mean 'data-path'"),
        ({"zebra": 1, "apple": 1, "lion": 1}, None, SettingsError, "unknown key 'apple'"),
        ({}, {}, SettingsError, "no 'image-shape' and 'classes'"),
        ({}, {**FITS, record_names.SHAPE: [1, 9, 9]}, DataError, r"the net takes \(1, 9, 9\)"),
        ({}, {**FITS, record_names.CLASSES: 9}, DataError, r"labels are in 0..9, must be in 0..8"),
        ({"partition-id": 4}, None, DataError, r"partition-id is 4, must be in 0..3"),
        ({"data-path": "own.npz"}, None, DataError, "must be the absolute path"),
    ],
    ids=str,
)
def test_a_node_refuses_at_the_door(
    tmp_path: Path,
    change: dict[str, Scalar],
    fits: dict[str, object] | None,
    error: type[Exception],
    words: str,
) -> None:
    """The first question before round 1 brings the reason back."""
    with pytest.raises(Exception, match=words) as refusal:
        ask("query.count", node(tmp_path, **change), fits=fits)
    assert isinstance(refusal.value.__cause__ or refusal.value.__context__ or refusal.value, error)


def test_a_node_says_before_round_one_that_its_state_path_takes_no_state(tmp_path: Path) -> None:
    """Else it would train in each round, and each time lose what it learned of its statistics."""
    (tmp_path / "state").mkdir()
    ask("query.count", node(tmp_path, **{"state-path": str(tmp_path / "state" / "deeper")}))
    assert list((tmp_path / "state" / "deeper").iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(SettingsError, match=r"file', which takes no files \(\[Errno 17"):
        ask("query.count", node(tmp_path, **{"state-path": str(tmp_path / "file")}))


def test_a_node_without_a_number_is_refused(tmp_path: Path) -> None:
    at = node(tmp_path)
    del at.node_config["partition-id"]
    with pytest.raises(Exception, match="no partition-id"):
        ask("query.count", at)


def test_each_run_has_its_state_and_a_new_start_forgets_it(tmp_path: Path) -> None:
    """Another run folder: another state. The same: what is after the round it begins at goes."""
    path = {"state-path": str(tmp_path / "state")}
    for number in (5, 6):
        ask("train", node(tmp_path, **path), number)
    (first,) = (tmp_path / "state").iterdir()
    ask("train", node(tmp_path, "/runs/b", **path), 2)
    (second,) = set((tmp_path / "state").iterdir()) - {first}
    assert [f.stem for f in sorted(first.iterdir())] == ["000005", "000006"]
    assert [f.stem for f in second.iterdir()] == ["000002"]
    ask("query.count", node(tmp_path, **path), 5)  # it goes on after round 5
    assert ClientStateFolder(first).find_newest(9) == 5
    assert [f.stem for f in first.iterdir()] == ["000005"]
    ask("query.count", node(tmp_path, **path), 0)
    assert list(first.iterdir()) == []
    for number in (7, 1):  # a strategy of Flower's own does not ask before round 1
        ask("train", node(tmp_path, **path), number)
    assert [f.stem for f in first.iterdir()] == ["000001"]


def test_two_nodes_with_one_state_path_keep_their_states_apart(tmp_path: Path) -> None:
    """A line copied from one start script to the next: neither reads or deletes the other's."""
    path = {"state-path": str(tmp_path / "state")}
    for partition in (1, 0):
        ask("train", node(tmp_path, **path, **{"partition-id": partition}), 5)
    folders = sorted((tmp_path / "state").iterdir())
    assert [[f.stem for f in folder.iterdir()] for folder in folders] == [["000005"]] * 2
    ask("query.count", node(tmp_path, **path), 0)
    assert sorted(len(list(folder.iterdir())) for folder in folders) == [0, 1]
