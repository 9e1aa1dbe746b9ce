"""Many clients at once give what one after the other gives; who chooses, and what is said."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedcel.data import Images
from fedcel.files import read_json
from fedcel.losses import Batch, ClientLoss
from fedcel.losses.cel import State, Term
from fedcel.run_parts import count_clients_at_once
from fedcel.settings import parse_settings
from sims.bench import scenario
from sims.engines import choose_engine as choosing
from sims.engines.choose_engine import choose_clients_at_once, choose_engine
from sims.engines.simulate import simulate
from tests.fedcel.seeded import seeded
from tests.sims.small import CLUSTERED, STOCK
from tests.sims.trained import events, model, run, stop_after


def read_training(folder: Path) -> tuple[object, object]:
    """Return which engine trained a run and how many clients at once, as its result says."""
    result: Any = read_json(folder / "result.json")
    return result["engine"], result["clients-at-once"]


def test_many_clients_at_once_give_the_model_of_one_after_the_other(tmp_path: Path) -> None:
    """A drawn part of the clients, class centres kept from round to round, sampled heads."""
    change = {"clients": 7, "clients-per-round": 5}
    alone = run(tmp_path / "alone", **change, **{"local.at-once": 1})
    together = run(tmp_path / "together", **change, **{"local.at-once": 5})
    torch.testing.assert_close(model(alone), model(together), rtol=0, atol=1e-5)
    assert (read_training(alone), read_training(together)) == (("local", 1), ("local", 5))
    for expected, actual in zip(events(alone), events(together), strict=True):
        assert expected.keys() == actual.keys()
        assert expected.get("spread") == pytest.approx(actual.get("spread"), abs=1e-4)


def test_a_run_of_many_at_once_goes_on_one_after_the_other(tmp_path: Path) -> None:
    """Its clients' states are on the disk as any engine leaves them."""
    whole, part = run(tmp_path / "whole", **{"local.at-once": 1}), tmp_path / "part"
    stop_after(3, part, **{"local.at-once": 3})
    simulate(parse_settings(CLUSTERED | {"local.at-once": 1}), part, resume=True)
    torch.testing.assert_close(model(whole), model(part), rtol=0, atol=1e-5)


class OneClient(ClientLoss):
    """A loss of one's own, which knows one client's batch."""

    def __init__(self, *_: object) -> None:
        """Take what a loss is built of."""

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        return Term(batch.z.square().mean(), {})


ONE_CLIENT = {"cel.kind": f"{__name__}:OneClient"}


def test_what_cannot_be_computed_at_once_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A loss of one's own takes one client at a time: to the bit, and the result says so."""
    change = {**ONE_CLIENT, "rounds": 4}
    asked = run(tmp_path / "asked", **change, **{"local.at-once": 3})
    told = capsys.readouterr()
    words = f"clients are trained one after the other: cel.kind '{__name__}:OneClient'"
    assert (told.out + told.err).count(words) == 1
    assert read_training(asked) == ("local", 1)
    alone = run(tmp_path / "alone", **change, **{"local.at-once": 1})
    assert torch.equal(model(asked), model(alone))
    told = capsys.readouterr()
    assert "one after the other" not in told.out + told.err


def draw_large_images(data: object) -> tuple[Images, None]:
    """Draw 28x28 images with labels."""
    stream = seeded(0)
    x = torch.rand(1300, 1, 28, 28, generator=stream)
    return Images(x, torch.randint(0, 10, (len(x),), generator=stream)), None


LARGE = f"{__name__}:draw_large_images"


@pytest.mark.parametrize(
    ("change", "is_at_once"),
    [
        ({}, True),
        ({"clients": 2}, False),
        ({"clients-per-round": 3}, False),
        ({"net.width": 1100}, False),
        ({"net.width": 9000}, False),
        ({"net.name": "strided"}, True),
        ({"net.name": "strided", "data.source": LARGE}, False),
        ({"cel.kind": "cluster", "cel.clustering": "diagonal"}, True),
        (ONE_CLIENT, False),
    ],
    ids=[
        *("many", "few", "few a round", "large", "no room", "small convolutions", "convolutions"),
        *("mixture", "own loss"),
    ],
)
def test_auto_takes_what_is_faster(change: dict[str, Any], is_at_once: bool) -> None:
    """Many small nets at once, as many as there is room for; else one after the other."""
    settings = parse_settings({"engine": "local", "clients": 8, **change})
    fitting = count_clients_at_once(settings) if is_at_once else 1
    assert choose_clients_at_once(settings) == fitting
    assert (fitting > 8) == is_at_once


@pytest.mark.parametrize("number", [1, 2, 500])
def test_a_number_of_clients_at_once_is_obeyed(number: int) -> None:
    """Whatever is faster."""
    settings = parse_settings({"clients": 8, "net.width": 1100, "local.at-once": number})
    assert choose_clients_at_once(settings) == number


@pytest.mark.parametrize(("largest", "is_at_once"), [(2**20, True), (100, False)])
def test_auto_on_a_gpu_trains_large_nets_one_after_the_other(
    largest: int, is_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Convolutions go there at once where the net is small; images of any size."""
    monkeypatch.setattr(choosing, "fastest_device", lambda net: torch.device("cuda"))
    monkeypatch.setattr(choosing, "LARGEST_DEVICE_NET", largest)
    settings = parse_settings({"clients": 8, "net.name": "strided", "data.source": LARGE})
    assert (choose_clients_at_once(settings) > 1) == is_at_once


def test_auto_trains_with_flower_s_strategies_too(tmp_path: Path) -> None:
    """They are trained over nodes that are function calls, one after the other."""
    change = {**STOCK, "rounds": 2, "cel.kind": "none"}
    folders = [run(tmp_path / name, engine=name, **change) for name in ("local", "auto")]
    assert torch.equal(model(folders[0]), model(folders[1]))


def test_the_demo_stays_on_ray_and_nothing_else_names_an_engine() -> None:
    """It shows Flower on Ray."""
    assert scenario.read_scenario("digits").settings["engine"] == "ray"
    assert "engine" not in scenario.read_scenario("defences").settings


@pytest.mark.parametrize(
    ("change", "engine"),
    [
        ({"engine": "local"}, "local"),
        ({"engine": "ray"}, "ray"),
        ({}, "local"),
        (STOCK, "local"),
    ],
    ids=["named", "ray", "auto", "Flower's"],
)
def test_auto_is_this_process(
    change: dict[str, Any], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named engine stays."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert choose_engine(parse_settings(change)).name == engine


def test_auto_takes_the_cluster_that_ray_address_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert choose_engine(parse_settings({})) == ("ray", "RAY_ADDRESS names a cluster")
    assert choose_engine(parse_settings({"engine": "local"})).name == "local"
