"""The geometric median against closed forms, its symmetries, and a third of hostile clients."""

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
    finish_round,
    init_server_state,
)
from fedcel.federation.aggregation import combine_deltas, geometric_median
from fedcel.run_parts import (
    build_client_parts,
    build_server_parts,
    build_workspace_net,
)
from fedcel.settings import parse_settings
from sims.engines.local import LocalTrainer

RULE = "geometric-median"
SEEDS = st.integers(0, 2**32 - 1)


def some(seed: int, m: int = 10, width: int = 4) -> torch.Tensor:
    """Return m honest deltas of doubles: 1 in each coordinate, give or take a half."""
    stream = torch.Generator().manual_seed(seed)
    return 1 + 0.5 * torch.randn(m, width, generator=stream, dtype=torch.float64)


def combined(deltas: torch.Tensor, weights: list[float] | None = None) -> torch.Tensor:
    """Return what the rule makes of deltas, of equal weights unless said otherwise."""
    return combine_deltas(RULE, list(deltas), weights or [1 / len(deltas)] * len(deltas))


def equal(m: int) -> torch.Tensor:
    return torch.full((m,), 1 / m, dtype=torch.float64)


def test_blocks_of_coordinates_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three columns at a time or all at once."""
    deltas = some(1, width=8)
    in_one_block = combined(deltas)
    monkeypatch.setattr(aggregation, "_BLOCK", 3)
    assert torch.equal(combined(deltas), in_one_block)


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
@given(SEEDS, st.permutations(range(10)))
def test_the_order_of_clients_does_not_matter(seed: int, order: list[int]) -> None:
    """Weights go with their deltas."""
    x, weights = some(seed), [k / 55 for k in range(1, 11)]
    mixed = combined(x[order], [weights[k] for k in order])
    torch.testing.assert_close(mixed, combined(x, weights))


@settings(deadline=None, max_examples=40)
@given(SEEDS, st.floats(-9, 9), st.floats(1e-6, 1e6))
def test_shift_and_scale_go_through(seed: int, shift: float, scale: float) -> None:
    """f(a x + b) = a f(x) + b."""
    x = some(seed)
    expected = scale * (combined(x) + shift)
    torch.testing.assert_close(
        combined(scale * (x + shift)), expected, rtol=1e-4, atol=1e-4 * scale
    )


@settings(deadline=None, max_examples=60)
@given(SEEDS, st.floats(1e6, 3e38), st.booleans())
def test_three_hostile_of_ten_do_not_carry_it_away(seed: int, size: float, together: bool) -> None:
    """The mean is three tenths of the hostile size away.

    The geometric median stays within 2 (1 - .3)/(1 - .6) = 3.5 of the honest's farthest from any
    point.
    """
    x = some(seed).float()
    x[7:] = size * (1 if together else torch.tensor([[1.0], [-0.5], [0.25]]))
    honest = x[:7]
    assert aggregation.weighted_sum(list(x), [0.1] * 10).abs().max() > 1e4
    middle = honest.mean(0)
    assert (combined(x) - middle).norm() <= 3.5 * (honest - middle).norm(dim=1).max()


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"temperature": 1.0}, "the Langevin noise is only right for the mean"),
        ({"clients-per-round": 2}, "2 clients train in a round, must be 3 or more"),
        (
            {"strategy.upload": "weights", "strategy.name": "a:B"},
            "strategy.aggregation is 'geometric-median' and strategy.upload 'weights'",
        ),
        ({"cel.kind": "cluster", "cel.penalty": "log", "cel.target": "spread"}, "cel.target"),
    ],
    ids=str,
)
def test_what_would_undo_the_rule_is_refused(raw: dict[str, object], reason: str) -> None:
    """Other ways into the model that one client can bend, and too few clients to outvote one."""
    base = {"temperature": 0.0, "clients": 8, "strategy.aggregation": RULE}
    base |= {"chain.scope": "full", "prior.mode": "none"}
    assert parse_settings(base).strategy.aggregation == RULE
    with pytest.raises(SettingsError, match=reason):
        parse_settings(base | raw)


@pytest.mark.parametrize("name", ["mean", RULE])
def test_the_local_engine_steps_by_the_rule(name: str, tmp_path: Path) -> None:
    """To the bit what the rule makes of the clients' own deltas."""
    raw = {"engine": "local", "clients": 3, "local.steps": 2, "temperature": 0.0}
    s = parse_settings({**raw, "strategy.momentum": 0.0, "strategy.aggregation": name})
    flat, splits = build_workspace_net(s), load_splits(s.data, s.clients, s.seed)
    examples = {client: len(part.y) for client, part in enumerate(splits.clients)}
    state, clients = init_server_state(flat.vector), LocalTrainer(build_client_parts(s), tmp_path)
    request = begin_round(build_server_parts(s), state, examples)
    after, _ = finish_round(
        build_server_parts(s), state, request, clients.train(request), device_size=flat.device_size
    )
    deltas = [update.delta for update in clients.train(request)]
    step = combine_deltas(name, deltas, list(request.weights.values()))
    assert torch.equal(after.model, state.model + step)
    assert step.any()


def test_of_two_nobody_can_say_who_is_odd() -> None:
    """A round with fewer than three updates ends the run and says so."""
    with pytest.raises(RoundError, match="2 updates can be used"):
        combine_deltas(RULE, list(some(0, 2)), [0.5, 0.5])
