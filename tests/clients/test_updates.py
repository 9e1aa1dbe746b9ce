"""Updates under noise through the real client and both engines that the tests can start fast."""

from pathlib import Path

import pytest
import torch

from clients import holder
from clients.app import guarded
from fedcel import runs
from fedcel.errors import SettingsError
from fedcel.files import read_json
from fedcel.settings import parse
from sims.simulate import simulate
from tests.sims.small import CLUSTERED

QUIET: dict[str, object] = {
    **CLUSTERED,
    "rounds": 4,
    "temperature": 0.0,
    "update.clip": 0.5,
    "update.noise": 0.1,
}


STOCK: dict[str, object] = {
    "strategy.name": "package.module:Stock",
    "strategy.upload": "weights",
    "chain.scope": "full",
    "cel.kind": "none",
    "update.noise": 0.0,
}


def update(**change: object) -> holder.Update:
    """Return one holder's first update."""
    s = parse(QUIET | change)
    flat = holder.workspace(s)
    received = flat.vector.clone()
    return holder.train(s, flat, 0, received, 1, 1.0, 1000, None)


def test_the_update_is_clipped_and_noisy_and_says_nothing_else() -> None:
    """Noise makes the same update another one; the clip alone bounds it and keeps its metrics."""
    one, two, short = update(), update(), update(**{"update.noise": 0.0})
    free = update(**{"update.noise": 0.0, "update.clip": "none"})
    assert float(free.delta.norm()) > 0.5
    assert float(short.delta.norm()) == pytest.approx(0.5, rel=1e-5)
    assert short.metrics == free.metrics
    assert short.metrics
    assert one.metrics == {}
    count = one.delta.numel()
    for noisy in (one, two):
        assert float((noisy.delta - short.delta).norm()) == pytest.approx(
            0.05 * count**0.5, rel=0.05
        )
    assert not torch.equal(one.delta, two.delta)


@pytest.mark.parametrize("strategy", ["posterior", "strategies:PosteriorStrategy"])
def test_a_run_says_what_its_updates_cost(tmp_path: Path, strategy: str) -> None:
    """The server sees each update, others the mean of three; as many rounds as were run."""
    simulate(parse(QUIET | {"strategy.name": strategy}), tmp_path / "run")
    found = read_json(tmp_path / "run" / "result.json")
    assert found["update-rounds"] == 4
    assert 0 < found["update-epsilon-of-models"] < found["update-epsilon"]
    assert runs.read(tmp_path / "run").model.isfinite().all()


def test_without_noise_nothing_is_claimed(tmp_path: Path) -> None:
    """A clip bounds; it gives no epsilon."""
    simulate(parse(QUIET | {"update.noise": 0.0}), tmp_path / "run")
    assert "update-epsilon" not in read_json(tmp_path / "run" / "result.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"update.clip": "none"}, "set update.clip to the norm"),
        ({"local.control": "fresh"}, "local.control is 'fresh'"),
        ({"cel.centres": "averaged"}, "cel.centres is 'averaged'"),
        (STOCK, "only a 'delta'"),
    ],
)
def test_what_would_go_past_the_noise_is_refused(change: dict[str, object], message: str) -> None:
    """At the door."""
    with pytest.raises(SettingsError, match=message):
        parse(QUIET | change)


def test_nothing_else_is_told_under_noise() -> None:
    """Neither scores nor a gradient of the holder's images."""
    with pytest.raises(SettingsError, match="tells nothing else"):
        guarded(parse(QUIET))
    assert guarded(parse(QUIET | {"update.noise": 0.0})).update.noise == 0
