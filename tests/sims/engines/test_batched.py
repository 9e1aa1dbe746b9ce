"""The engines that train many clients at once, or choose: the loop's model, and who trained it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedcel.errors import SettingsError
from fedcel.files import read_json
from fedcel.settings import parse_settings
from sims.bench import scenario
from sims.engines import choose_engine as choosing
from sims.engines.choose_engine import choose_engine
from sims.engines.simulate import simulate
from tests.sims.small import CLUSTERED
from tests.sims.trained import events, model, run


def trained_by(folder: Path) -> object:
    """Return which engine a run's result names."""
    result: Any = read_json(folder / "result.json")
    return result["engine"]


def test_many_clients_at_once_give_the_loop_s_model(tmp_path: Path) -> None:
    """A drawn part of the clients, class centres kept from round to round, sampled heads."""
    change = {"clients": 7, "clients-per-round": 5}
    loop = run(tmp_path / "loop", **change)
    batched = run(tmp_path / "batched", engine="batched", **change)
    torch.testing.assert_close(model(loop), model(batched), rtol=0, atol=1e-5)
    assert (trained_by(loop), trained_by(batched)) == ("loop", "batched")
    for expected, actual in zip(events(loop), events(batched), strict=True):
        assert expected.keys() == actual.keys()
        assert expected.get("spread") == pytest.approx(actual.get("spread"), abs=1e-4)


def test_a_batched_run_goes_on_as_a_loop_run(tmp_path: Path) -> None:
    """Its clients' states are on the disk as any engine leaves them."""
    settings = parse_settings(CLUSTERED | {"engine": "local"})
    whole = run(tmp_path / "whole")
    part = tmp_path / "part"

    def stop(event: Any) -> None:
        if event["round"] == 3:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sims.progress.show_rounds", lambda title, total: _Shown(stop))
        with pytest.raises(KeyboardInterrupt):
            simulate(settings, part)
    simulate(settings.model_copy(update={"engine": "local"}), part, resume=True)
    torch.testing.assert_close(model(whole), model(part), rtol=0, atol=1e-5)


class _Shown:
    """Shows every round's event to a function."""

    def __init__(self, show: Any) -> None:
        self.show = show

    def __enter__(self) -> Any:
        return self.show

    def __exit__(self, *_: object) -> None:
        return None


def test_what_cannot_be_computed_at_once_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mixtures are fitted one client at a time: to the loop's bits, and the result says so."""
    change = {"cel.clustering": "diagonal", "rounds": 4}
    batched = run(tmp_path / "batched", engine="batched", **change)
    told = capsys.readouterr()
    assert (told.out + told.err).count("trained one after the other: cel.kind 'cluster'") == 1
    assert trained_by(batched) == "loop"
    assert torch.equal(model(batched), model(run(tmp_path / "loop", **change)))


LARGE = "tests.bench.batched:large_images"


@pytest.mark.parametrize(
    ("change", "engine"),
    [
        ({}, "batched"),
        ({"clients": 2}, "loop"),
        ({"clients-per-round": 3}, "loop"),
        ({"net.width": 1100}, "loop"),
        ({"net.width": 9000}, "loop"),
        ({"net.name": "strided"}, "batched"),
        ({"net.name": "strided", "data.source": LARGE}, "loop"),
        ({"cel.kind": "cluster", "cel.clustering": "diagonal"}, "loop"),
        ({"strategy.name": "flwr.serverapp.strategy:FedAvg"}, "loop"),
        ({"engine": "local", "net.name": "strided"}, "batched"),
    ],
    ids=[
        *("many", "few", "few a round", "large", "no room", "small convolutions", "convolutions"),
        *("mixture", "Flower's", "named"),
    ],
)
def test_auto_takes_what_is_faster(change: dict[str, Any], engine: str) -> None:
    """Many small nets at once; else one after the other. A named engine stays."""
    if "strategy.name" in change:
        change |= {"strategy.upload": "weights", "temperature": 0.0, "chain.scope": "full"}
    assert choose_engine(parse_settings({"engine": "auto", "clients": 8, **change})) == engine


@pytest.mark.parametrize(("largest", "engine"), [(2**20, "batched"), (100, "loop")])
def test_auto_on_a_gpu_leaves_large_nets_to_the_loop(
    largest: int, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convolutions go there at once where the net is small; images of any size."""
    monkeypatch.setattr(choosing, "fastest_device", lambda net: torch.device("cuda"))
    monkeypatch.setattr(choosing, "LARGEST_DEVICE_NET", largest)
    change = {"engine": "auto", "clients": 8, "net.name": "strided"}
    assert choose_engine(parse_settings(change)) == engine


def test_auto_trains_with_flower_s_strategies_too(tmp_path: Path) -> None:
    """They are trained over nodes that are function calls, as by the loop."""
    change = {
        "rounds": 2,
        "cel.kind": "none",
        "temperature": 0.0,
        "prior.mode": "none",
        "strategy.momentum": 0.0,
        "strategy.upload": "weights",
        "chain.scope": "full",
        "strategy.name": "flwr.serverapp.strategy:FedAvg",
    }
    folders = [run(tmp_path / name, engine=name, **change) for name in ("loop", "auto")]
    assert torch.equal(model(folders[0]), model(folders[1]))


def test_a_bench_takes_the_fastest_engine_unless_one_is_named() -> None:
    """The demo stays on Ray; what Ray alone obeys stays there."""
    demo = scenario.read_scenario("digits")
    assert scenario.choose_default_engine(demo, {}).settings["engine"] == "ray"
    other = scenario.read_scenario("defences")
    assert scenario.choose_default_engine(other, {}).settings["engine"] == "auto"
    for overrides in ({"engine": "local"}, {"strategy.max-norm": 1.0}):
        assert "engine" not in scenario.choose_default_engine(other, overrides).settings
    with pytest.raises(SettingsError, match="set engine to 'ray'"):
        parse_settings({"engine": "auto", "strategy.max-norm": 1.0})
