"""The engines agree, with our strategies and with Flower's."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch

from fedcel.errors import SettingsError
from fedcel.federation import (
    RoundRequest,
)
from fedcel.files import read_json
from fedcel.posterior import RoundOrder
from fedcel.run_parts import (
    build_client_nets,
    build_client_parts,
    build_terms,
    build_workspace_net,
)
from fedcel.runs import run_folder
from fedcel.settings import parse_settings
from sims.engines.local import LocalTrainer
from sims.engines.simulate import simulate
from tests.fedcel.test_torch_state import float64_default
from tests.sims.small import CLUSTERED
from tests.sims.trained import FOLLOWING, events, model, run

ONE_BY_ONE = {"local.at-once": 1}


def test_noisy_updates_always_leave_a_state(tmp_path: Path) -> None:
    """Whether a client kept one goes to the server, and must not tell how its training went."""
    noisy = {"clients": 2, "temperature": 0.0, "update.clip": 1.0, "update.noise": 1.0}
    for change, expected in ((noisy, [1, 1]), ({"clients": 2}, [0, 0])):
        s = parse_settings({**change, "cel.kind": "none", "local.steps": 1})
        parts = build_client_parts(s)
        plan = parts.schedule.plan(RoundOrder(1, 997))
        request = RoundRequest(plan, parts.workspace().vector.clone(), {0: 0.5, 1: 0.5})
        updates = LocalTrainer(parts, tmp_path / str(expected)).train(request)
        assert [update.state_round for update in updates] == expected


@pytest.mark.parametrize(
    "other",
    [
        {"local.at-once": 3},
        {"strategy.name": "strategies:PosteriorStrategy"},
        pytest.param({"engine": "ray"}, marks=pytest.mark.long),
    ],
    ids=["at once", "messages", "ray"],
)
def test_a_weight_that_follows_a_spread_is_the_same_on_all_engines(
    tmp_path: Path, other: dict[str, Any]
) -> None:
    """It moves after each round up to the chain; it is another than the ramp, and acts."""
    folders = [
        run(tmp_path / "alone", **FOLLOWING, **ONE_BY_ONE),
        run(tmp_path / "other", **FOLLOWING | ONE_BY_ONE | other),
    ]
    weights = [[event["cel-weight"] for event in events(folder)] for folder in folders]
    assert weights[0] == pytest.approx(weights[1], abs=1e-5)
    assert weights[0][0] == weights[0][-1] == 0
    assert len(set(weights[0])) == 5
    torch.testing.assert_close(model(folders[0]), model(folders[1]), rtol=0, atol=1e-5)
    fixed = run(tmp_path / "fixed", **FOLLOWING | {"cel.schedule": "ramp", "cel.target": "none"})
    assert (model(folders[0]) - model(fixed)).abs().max() > 1e-4


@pytest.mark.parametrize(
    ("change", "other"),
    [
        pytest.param({"local.clip": 1.0}, {"engine": "ray"}, marks=pytest.mark.long),
        ({"local.clip": 1.0}, {"strategy.name": "strategies:PosteriorStrategy"}),
    ],
    ids=["ray", "messages"],
)
def test_clipped_chains_are_the_same_by_function_calls_and_messages(
    tmp_path: Path, change: dict[str, Any], other: dict[str, Any]
) -> None:
    """Noise and clipped gradients; one on Ray."""
    change = {"cel.kind": "none", "chain.burn-in": 0.5, **change}
    calls, messages = (
        run(tmp_path / "calls", **change),
        run(tmp_path / "messages", **change, **other),
    )
    torch.testing.assert_close(model(calls), model(messages), rtol=0, atol=1e-6)
    plain = {**change, "local.clip": "none"}
    assert (model(calls) - model(run(tmp_path / "plain", **plain))).abs().max() > 1e-4
    assert 0 < events(calls)[0]["clipped"] <= 1


def test_a_chain_stops_and_thins_itself_and_says_why(tmp_path: Path) -> None:
    """A head on frozen codes mixes in a few rounds: it ends early, samples apart."""
    change = {
        "cel.kind": "none",
        "rounds": 500,
        "chain.burn-in": 0.02,
        "chain.stop": True,
        "chain.thin": 0,
        "chain.samples": 8,
        "local.schedule": "constant",
        "prior.scale": 0.1,
        "local.steps": 10,
        "prior.mode": "none",
        "strategy.momentum": 0.0,
    }
    finished = run_folder.read_run(run(tmp_path / "run", **change))
    log = events(finished.folder)
    assert 100 < len(log) < 500
    assert log[-1]["ess"] >= 100
    result: Any = read_json(finished.folder / "result.json")
    assert result["convergence"].startswith("no evidence against convergence")
    sampled = run_folder.open_chain(finished.folder, finished.settings).list_rounds()
    assert 0 < sampled[-1] - sampled[-2] <= 2 * math.ceil(len(log[10:]) / log[-1]["ess"])


def test_an_error_in_the_server_app_reaches_the_caller(tmp_path: Path) -> None:
    """A strategy that cannot be loaded ends a Ray run with its own words."""
    settings = parse_settings(CLUSTERED | {"engine": "ray", "strategy.name": "math:pi"})
    with pytest.raises(SettingsError, match="'math:pi' is no Flower Strategy"):
        simulate(settings, tmp_path / "run")


@pytest.mark.parametrize("mode", [float64_default, torch.inference_mode])
def test_what_a_caller_switched_off_changes_no_run(
    tmp_path: Path, mode: Callable[[], AbstractContextManager[None]]
) -> None:
    """A notebook computes in double precision, or without gradients: the same bits."""
    change = {"rounds": 2, "cel.warm-up": 0, "cel.kind": "gated"}
    expected = model(run(tmp_path / "plain", **change))
    build_workspace_net.cache_clear()
    build_client_nets.cache_clear()
    build_terms.cache_clear()
    with mode():
        folder = run(tmp_path / "mode", **change)
    assert torch.equal(model(folder), expected)
