"""Robust rules against closed forms, their symmetries, and a third of hostile clients."""

from pathlib import Path

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedcel.data import load_splits
from fedcel.errors import RoundError, SettingsError
from fedcel.federation import (
    aggregation,
    begin_round,
    client_update,
    finish_round,
    init_server_state,
    robust_aggregation,
)
from fedcel.federation.robust_aggregation import (
    combine_deltas,
    geometric_median,
    krum,
    trimmed_mean,
)
from fedcel.settings import StrategySettings, parse_settings
from sims.engines.client_trainers import LocalTrainer

RULES = ["clipped", "median", "trimmed", "krum", "multi-krum", "geometric-median"]
SEEDS = st.integers(0, 2**32 - 1)


def rule(name: str, trim: float = 0.3, byzantine: int = 3) -> StrategySettings:
    """Return the settings of a rule, for 3 hostile of 10 unless said otherwise."""
    return parse_settings(
        {
            "temperature": 0.0,
            "clients": 10,
            "strategy.aggregation": name,
            "strategy.trim": trim,
            "strategy.byzantine": byzantine,
        }
    ).strategy


def some(seed: int, m: int = 10, width: int = 4) -> torch.Tensor:
    """Return m honest deltas of doubles: 1 in each coordinate, give or take a half."""
    stream = torch.Generator().manual_seed(seed)
    return 1 + 0.5 * torch.randn(m, width, generator=stream, dtype=torch.float64)


def combined(name: str, deltas: torch.Tensor, weights: list[float] | None = None) -> torch.Tensor:
    """Return what a rule makes of deltas, of equal weights unless said otherwise."""
    return combine_deltas(rule(name), list(deltas), weights or [1 / len(deltas)] * len(deltas))


def equal(m: int) -> torch.Tensor:
    """Return m equal shares."""
    return torch.full((m,), 1 / m, dtype=torch.float64)


def test_mean_is_the_weighted_sum_to_the_bit() -> None:
    """The default: weights as they are, also where they do not add up to 1."""
    deltas, weights = list(some(0).float()), [0.05 * k for k in range(1, 11)]
    expected = aggregation.weighted_sum(deltas, weights)
    assert torch.equal(combine_deltas(parse_settings({}).strategy, deltas, weights), expected)


def test_medians_by_hand() -> None:
    """The middle of three, the mean of the middle two of four, and by weight: half is 4's."""
    three = torch.tensor([[1.0, 9.0], [2.0, -5.0], [100.0, 0.0]])
    assert combined("median", three).tolist() == [2.0, 0.0]
    four = torch.tensor([[1.0], [2.0], [4.0], [1e6]])
    assert combined("median", four).item() == pytest.approx(3.0)
    assert combined("median", four, [0.1, 0.2, 0.6, 0.1]).item() == 4.0


@settings(deadline=None, max_examples=25)
@given(SEEDS, st.integers(3, 12))
def test_with_equal_weights_the_median_is_numpys(seed: int, m: int) -> None:
    """Odd or even, to rounding."""
    torch.testing.assert_close(
        combined("median", some(seed, m)), some(seed, m).quantile(0.5, dim=0)
    )


def test_trimmed_means_by_hand() -> None:
    """A fifth off five at each end: (2 + 3 + 4)/3; a tenth: (.5 * 1 + 2 + 3 + 4 + .5 * 90)/4.

    By weight: of .5, .3, .2 the trim .25 leaves .25, .25, 0.
    """
    five = torch.tensor([[90.0], [3.0], [1.0], [4.0], [2.0]])
    assert trimmed_mean(five, equal(5), 0.2).item() == pytest.approx(3.0)
    assert trimmed_mean(five, equal(5), 0.1).item() == pytest.approx(54.5 / 4)
    share = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    assert trimmed_mean(torch.tensor([[1.0], [3.0], [1e9]]), share, 0.25).item() == pytest.approx(
        2.0
    )


def test_blocks_of_coordinates_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three columns at a time or all at once."""
    deltas, names = some(1, width=8), ["median", "trimmed", "krum", "multi-krum"]
    in_one_block = {name: combined(name, deltas) for name in names}
    monkeypatch.setattr(robust_aggregation, "_BLOCK", 3)
    for name in names:
        torch.testing.assert_close(combined(name, deltas), in_one_block[name])


def test_clipping_by_hand() -> None:
    """Norms 1, 2, 50: the last becomes 2 long, and the sum is weighted."""
    deltas = torch.tensor([[1.0, 0.0], [0.0, 2.0], [30.0, 40.0]])
    combination = combined("clipped", deltas)
    torch.testing.assert_close(combination, torch.tensor([1 + 1.2, 2 + 1.6]) / 3)


def test_krum_picks_the_cluster() -> None:
    """Of 7, 2 hostile: the middle of the five on a line has the 3 nearest nearest to it.

    Squared distances to the 3 nearest: 0: 1 + 4 + 9 = 14, 1: 1 + 1 + 4 = 6, 2: 1 + 1 + 4 = 6,
    3: 1 + 1 + 4 = 6; 4: 14. With 2.1 for 2, the lowest is its own: 1.1^2 + .9^2 + 1.9^2 = 5.63.
    """
    x = torch.tensor([[0.0], [1.0], [2.1], [3.0], [4.0], [50.0], [50.0]])
    assert krum(x, equal(7), byzantine=2, best=1).item() == pytest.approx(2.1)
    assert krum(x, equal(7), byzantine=2, best=5).item() == pytest.approx(10.1 / 5)
    with pytest.raises(RoundError, match="6 updates .* needs 7 or more"):
        krum(x[:6], equal(6), byzantine=2, best=1)


def test_geometric_medians_by_hand() -> None:
    """On a line the middle point; of four corners the crossing of the diagonals; more than half."""
    line = torch.arange(5.0)[:, None] ** 2 * torch.tensor([1.0, -2.0])
    torch.testing.assert_close(geometric_median(line, equal(5)), line[2], rtol=1e-5, atol=1e-5)
    corners = torch.tensor([[-1.0, -1.0], [3.0, 3.0], [1.0, -1.0], [-9.0, 9.0]]) + 5.0
    torch.testing.assert_close(geometric_median(corners, equal(4)), torch.tensor([5.0, 5.0]))
    heavy = torch.tensor([0.1, 0.6, 0.2, 0.1], dtype=torch.float64)
    torch.testing.assert_close(geometric_median(corners, heavy), corners[1])


@settings(deadline=None, max_examples=25)
@given(SEEDS)
def test_at_the_geometric_median_the_unit_vectors_cancel(seed: int) -> None:
    """Its first-order condition, with weights, wherever it is at none of the points."""
    x, share = some(seed), torch.arange(1.0, 11.0, dtype=torch.float64) / 55
    gap = x - geometric_median(x, share)
    away = gap.norm(dim=1, keepdim=True)
    assume(away.min() > 0.05)
    assert (share[:, None] * gap / away).sum(0).norm() < 1e-4


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.permutations(range(10)), st.sampled_from(RULES))
def test_the_order_of_clients_does_not_matter(seed: int, order: list[int], name: str) -> None:
    """Weights go with their deltas."""
    x, weights = some(seed), [k / 55 for k in range(1, 11)]
    mixed = combined(name, x[order], [weights[k] for k in order])
    torch.testing.assert_close(mixed, combined(name, x, weights))


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.floats(-9, 9), st.floats(1e-6, 1e6), st.sampled_from(RULES))
def test_shift_and_scale_go_through(seed: int, shift: float, scale: float, name: str) -> None:
    """f(a x + b) = a f(x) + b; clipping, which measures from 0, only scales."""
    x, offset = some(seed), 0.0 if name == "clipped" else shift
    expected = scale * (combined(name, x) + offset)
    torch.testing.assert_close(
        combined(name, scale * (x + offset)), expected, rtol=1e-4, atol=1e-4 * scale
    )


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.floats(1e6, 3e38), st.booleans(), st.sampled_from(RULES))
def test_three_hostile_of_ten_do_not_carry_a_rule_away(
    seed: int, size: float, together: bool, name: str
) -> None:
    """Each rule keeps its own promise; the mean is three tenths of the hostile size away.

    Median, trimmed mean and Krum stay in the box of the honest; the geometric median within
    2 (1 - .3)/(1 - .6) = 3.5 of their farthest from any point; clipping within their norms.
    """
    x = some(seed).float()
    x[7:] = size * (1 if together else torch.tensor([[1.0], [-0.5], [0.25]]))
    honest, combination = x[:7], combined(name, x)
    assert aggregation.weighted_sum(list(x), [0.1] * 10).abs().max() > 1e4
    if name == "clipped":
        assert combination.norm() <= honest.norm(dim=1).max() * (1 + 1e-5)
    elif name == "geometric-median":
        middle = honest.mean(0)
        assert (combination - middle).norm() <= 3.5 * (honest - middle).norm(dim=1).max()
    else:
        assert (combination >= honest.amin(0) - 1e-5).all()
        assert (combination <= honest.amax(0) + 1e-5).all()


def test_a_median_of_noise_is_half_again_as_hot() -> None:
    """Variance of the median of 9 standard normals .1661, of their mean .1111: 1.49 times as hot.

    So a chain over medians does not sample at the temperature that is set; it is refused.
    """
    noise = torch.randn(9, 200_000, generator=torch.Generator().manual_seed(0))
    assert trimmed_mean(noise, equal(9), robust_aggregation._HALF).var().item() == pytest.approx(
        0.1661, rel=0.02
    )
    assert noise.mean(0).var().item() == pytest.approx(1 / 9, rel=0.02)
    with pytest.raises(SettingsError, match="the noise is right for the mean alone"):
        parse_settings({"temperature": 1.0, "strategy.aggregation": "median"})


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"local.control": "fresh"}, "local.control is 'fresh' .* what that sends"),
        ({"strategy.aggregation": "krum", "strategy.byzantine": 3}, "must be 9 or more"),
        ({"strategy.aggregation": "trimmed", "strategy.trim": 0.1}, "must be 10 or more"),
        ({"clients-per-round": 2}, "2 clients train in a round, must be 3 or more"),
        ({"strategy.upload": "weights", "strategy.name": "a:B"}, "strategy.upload is 'weights'"),
        ({"cel.kind": "cluster", "cel.penalty": "log", "cel.target": "spread"}, "cel.target"),
    ],
    ids=str,
)
def test_what_would_undo_a_rule_is_refused(raw: dict[str, object], reason: str) -> None:
    """Other ways into the model that one client can bend, and too few clients to outvote one."""
    base = {"temperature": 0.0, "clients": 8, "strategy.aggregation": "median"}
    base |= {"chain.scope": "full", "prior.mode": "none"}
    assert parse_settings(base).strategy.aggregation == "median"
    with pytest.raises(SettingsError, match=reason):
        parse_settings(base | raw)


@pytest.mark.parametrize("name", ["mean", "median"])
def test_the_local_engine_steps_by_the_rule(name: str, tmp_path: Path) -> None:
    """To the bit what the rule makes of the clients' own deltas."""
    raw = {"engine": "local", "clients": 3, "local.steps": 2, "temperature": 0.0}
    s = parse_settings({**raw, "strategy.momentum": 0.0, "strategy.aggregation": name})
    flat, splits = client_update.build_workspace_net(s), load_splits(s.data, s.clients, s.seed)
    examples = {client: len(part.y) for client, part in enumerate(splits.clients)}
    state, clients = init_server_state(flat.vector), LocalTrainer(s, tmp_path)
    request = begin_round(s, state, examples)
    after, _ = finish_round(s, state, request, clients.train(request), cut=flat.cut)
    deltas = [update.delta for update in clients.train(request)]
    step = combine_deltas(s.strategy, deltas, list(request.weights.values()))
    assert torch.equal(after.model, state.model + step)
    assert step.any()


@pytest.mark.parametrize("name", RULES)
def test_of_two_nobody_can_say_who_is_odd(name: str) -> None:
    """Whatever the rule, a round with fewer than three updates ends the run and says so."""
    with pytest.raises(RoundError, match="2 updates can be used"):
        combine_deltas(rule(name), list(some(0, 2)), [0.5, 0.5])
