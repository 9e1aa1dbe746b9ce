"""Updates under noise through the real client and both engines that the tests can start fast."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fedcel.errors import FedcelError, SettingsError
from fedcel.federation import (
    ClientUpdate,
)
from fedcel.federation.server_round import measure_heaviest
from fedcel.files import read_json
from fedcel.privacy.update_noise import NoisyRound, account_updates
from fedcel.run_parts import (
    build_server_parts,
    build_workspace_net,
)
from fedcel.runs import run_folder
from fedcel.settings import parse_settings
from sims.engines import local
from sims.engines.simulate import simulate
from tests.fedcel.train_one import update_one
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


def update(**change: object) -> ClientUpdate:
    """Return one client's first update."""
    s = parse_settings(QUIET | change)
    return update_one(s, 0, 1.0, number=1, total=1000)


def test_the_update_is_clipped_and_noisy_and_says_nothing_else() -> None:
    """Noise makes the same update another one; the clip alone bounds it and keeps its metrics."""
    first, second, clipped = update(), update(), update(**{"update.noise": 0.0})
    free = update(**{"update.noise": 0.0, "update.clip": "none"})
    assert float(free.delta.norm()) > 0.5
    assert float(clipped.delta.norm()) == pytest.approx(0.5, rel=1e-5)
    assert clipped.metrics == free.metrics
    assert clipped.metrics
    assert first.metrics == {}
    count = first.delta.numel()
    for noisy in (first, second):
        assert float((noisy.delta - clipped.delta).norm()) == pytest.approx(
            0.05 * count**0.5, rel=0.05
        )
    assert not torch.equal(first.delta, second.delta)


@pytest.mark.parametrize("own", [False, True])
def test_a_run_says_what_its_updates_cost(tmp_path: Path, own: bool) -> None:
    """The server sees each update, others the mean of three; an own strategy may take any one."""
    change = {"strategy.name": "strategies:PosteriorStrategy"} if own else {}
    simulate(parse_settings(QUIET | {"net.width": 16} | change), tmp_path / "run")
    result: Any = read_json(tmp_path / "run" / "result.json")
    assert result["update-rounds"] == 4
    of_all = account_updates(0.1, [NoisyRound([0], 1.0)] * 4, 1e-6).server
    assert result["update-epsilon"] == of_all
    assert 0 < result["update-epsilon-of-models"] <= of_all
    assert (result["update-epsilon-of-models"] == of_all) == own


@pytest.mark.long
def test_a_round_begun_again_is_paid_for_again(tmp_path: Path) -> None:
    """Clients sent six noisy updates for four rounds."""
    folder, settings = tmp_path / "run", parse_settings(QUIET)

    def stopped(event: dict[str, object]) -> None:
        raise KeyboardInterrupt

    run_folder.create_run(folder, settings)
    for resume in (False, True):
        with pytest.raises(KeyboardInterrupt):
            local.train_locally(settings, folder, stopped, resume=resume)
    simulate(settings, folder, resume=True)
    assert run_folder.read_requested_rounds(folder) == [1, 2, 2, 3, 3, 4]
    result: Any = read_json(folder / "result.json")
    assert result["update-rounds"] == 6
    assert result["update-epsilon"] == account_updates(0.1, [NoisyRound([0], 1.0)] * 6, 1e-6).server


def test_a_failure_is_not_told() -> None:
    """How many codes are not finite is a count of the images; the reason stays with the client."""
    s = parse_settings(QUIET | {"cel.warm-up": 0})
    evil = build_workspace_net(s).vector.clone()
    evil[: 2 * 64] = 3e38
    open_one = parse_settings(QUIET | {"cel.warm-up": 0, "update.noise": 0.0})
    with pytest.raises(FedcelError):
        update_one(open_one, 0, 1.0, number=2, total=1000, model=evil)
    with pytest.warns(UserWarning, match="counts as 0"):
        sent = update_one(s, 0, 1.0, number=2, total=1000, model=evil)
    assert sent.metrics == sent.state == {}
    state = {"centres": torch.ones(2)}
    with pytest.warns(UserWarning, match="counts as 0"):
        sent = update_one(s, 0, 1.0, number=2, total=1000, model=evil, state=state)
    assert sent.state == state
    assert float(sent.delta.norm()) == pytest.approx(0.05 * sent.delta.numel() ** 0.5, rel=0.05)


def test_weights_are_accounted_by_the_heaviest() -> None:
    """Of the mean; where one update may decide what is taken, as if it stood alone."""
    s = parse_settings(QUIET)
    assert measure_heaviest([0.6, 0.0, 0.8], takes_mean=True) == pytest.approx(0.8)
    assert measure_heaviest([0.6, 0.8], takes_mean=False) == 1
    assert build_server_parts(s).has_noisy_updates
    assert build_server_parts(s).takes_mean
    assert not build_server_parts(parse_settings(QUIET | {"update.noise": 0.0})).has_noisy_updates
    robust = parse_settings(QUIET | {"strategy.aggregation": "geometric-median"})
    assert not build_server_parts(robust).takes_mean


def test_without_noise_nothing_is_claimed(tmp_path: Path) -> None:
    """A clip bounds; it gives no epsilon."""
    simulate(parse_settings(QUIET | {"update.noise": 0.0}), tmp_path / "run")
    assert "update-epsilon" not in read_json(tmp_path / "run" / "result.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"update.clip": "none"}, "set update.clip to the norm"),
        ({"cel.target": "spread", "cel.penalty": "log"}, "cel.target is 'spread'"),
        ({"temperature": 1.0}, "would not sample the posterior"),
        ({"update.clip": 1e39}, "single precision"),
        ({"update.clip": 1e-10, "update.noise": 1e-15}, "single precision"),
        (STOCK, "only deltas are clipped"),
    ],
)
def test_what_would_go_past_the_noise_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_settings(QUIET | change)
