"""The local engine runs any strategy: the code of ServerApp and ClientApp without processes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedcel.errors import FedcelError
from fedcel.files import read_json
from fedcel.flower_messages import allow_messages
from fedcel.settings import parse_settings
from sims.engines.simulate import simulate
from sims.engines.simulated_grid import InMemoryGrid
from strategies import PosteriorStrategy
from tests.sims.small import CLUSTERED, FEDAVG
from tests.sims.trained import model, run, stop_after


class Still(PosteriorStrategy):
    """Takes no step, and trusts nobody but client 1."""

    def fault(self, reply: Message) -> str | None:
        """Leave out all but one."""
        is_first = self.registry.partitions[reply.metadata.src_node_id] == 1
        return None if is_first else "it is not client 1"

    def step(self, delta: ArrayRecord) -> ArrayRecord:
        return super().step(ArrayRecord([0 * array for array in delta.to_numpy_ndarrays()]))


def test_the_built_in_strategy_by_import_string_is_the_local_engine_to_the_bit(
    tmp_path: Path, measured_leaks: None
) -> None:
    """Messages, checks and records in between change no bit; nor does a stop after round 3."""
    calls, messages = run(tmp_path / "calls", **{"local.at-once": 1}), tmp_path / "own"
    settings = stop_after(3, messages, **{"strategy.name": "strategies:PosteriorStrategy"})
    simulate(settings, messages, resume=True)
    assert torch.equal(model(calls), model(messages))
    results: list[Any] = [read_json(folder / "result.json") for folder in (calls, messages)]
    assert results[0]["bits-beyond-label"] == results[1]["bits-beyond-label"]


def test_an_own_strategy_decides(tmp_path: Path) -> None:
    """Its step moves nothing, its reasons are in the log of the run."""
    change: dict[str, Any] = {"rounds": 2, "cel.kind": "none"}
    change["strategy.name"] = f"{__name__}:Still"
    change["strategy.least-share"] = 0.0  # it leaves most of them out on purpose
    folder = run(tmp_path / "still", **change, **{"chain.burn-in": 1.0})
    begun = run(tmp_path / "begun", **{"rounds": 1, "local.rate": 1e-30, "cel.kind": "none"})
    torch.testing.assert_close(model(folder), model(begun))
    assert (folder / "events.jsonl").read_text().count("it is not client 1") == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"strategy.name": "pathlib:Path"}, "is no Flower Strategy"),
        (
            {"strategy.name": f"{__name__}:Still", "strategy.upload": "weights"},
            "upload is 'weights', which .*Still does not aggregate; .* to 'delta'",
        ),
        ({"strategy.name": "builtins:dict", "strategy.upload": "weights"}, "is no Flower Strategy"),
        (
            {"strategy.name": "flwr.serverapp.strategy:DifferentialPrivacyClientSideFixedClipping"},
            "missing .* 'noise_multiplier' and 'clipping_norm'",
        ),
        ({"strategy.name": "builtins:repr"}, "cannot be made"),
        ({"strategy.name": FEDAVG, "strategy.momentum": 0.9}, "momentum is 0.9 and .*arguments"),
        ({"strategy.name": FEDAVG, "strategy.gain": 2.0}, "gain is 2 and .* strategy.gain to 1"),
        ({"local.sampler": "math:pi"}, "cannot be called"),
        (
            {"defence.name": "math:sqrt", "defence.strength": 1},
            "called with .Settings, tuple., fail",
        ),
        ({"cel.kind": "builtins:print"}, "made None, which lacks refresh"),
        ({"privacy.mechanism": "builtins:max"}, "called with .OwnAnswers, int., failed"),
        (
            {"attack.names": "fedcel.attacks.averaging:Averaging"},
            "called with .., failed: .*missing",
        ),
    ],
    ids=str,
)
def test_a_wrong_part_is_refused_before_a_folder_is_made(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    """With its setting and what is missing."""
    stock = {"strategy.upload": "weights", "temperature": 0.0, "chain.scope": "full"}
    raw = CLUSTERED | (stock if "strategy.name" in change else {}) | change
    with pytest.raises(FedcelError, match=message):
        simulate(parse_settings(raw), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_nodes_failure_is_an_answer_and_no_node_changes_anothers_message() -> None:
    """An exception comes back as an error of its node; what one writes, the next does not read."""
    app, received = ClientApp(), []

    @app.train()
    def train(message: Message, context: Context) -> Message:
        k = context.node_config["partition-id"]
        received.append(sorted(message.content))
        message.content[f"from-{k}"] = ArrayRecord()
        if k == 1:
            raise RuntimeError("out of memory")
        return Message(message.content, reply_to=message)

    with allow_messages():
        content, grid = RecordDict({"arrays": ArrayRecord()}), InMemoryGrid(app, 3)
        messages = [Message(content, node, "train") for node in grid.get_node_ids()]
        replies = [*grid.send_and_receive(messages)]
    assert received == [["arrays"]] * 3
    assert [reply.has_error() for reply in replies] == [False, True, False]
    assert "out of memory" in str(replies[1].error.reason)
    assert [reply.metadata.src_node_id for reply in replies] == [2, 3, 4]
