"""The learned weighting: closed forms, the four modes, the collapse."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcel.cel.base import ConditionalEntropy, State, pieces
from fedcel.cel.gated import Attention, Gated, attend, hidden_size, scores
from fedcel.cel.penalty import linear, log, shares
from fedcel.cel.plain import Plain
from fedcel.cel.spread import means, members, spread
from fedcel.testing import CELContract

MODES: list[Attention] = ["ascend", "minimise", "detach", "floor"]


def gated(
    attention: Attention, hidden: int = 5, rate: float = 0.1, floor: float = 0.5, features: int = 4
) -> Gated:
    """Return the linear loss; its value is the share-weighted spread itself."""
    return Gated(linear, "batch-share", 3, features, attention, floor, hidden, rate)


class TestAscend(CELContract):
    """The contract, for the default mode."""

    def build(self) -> ConditionalEntropy:
        """Return the loss whose attention climbs."""
        return gated("ascend")


class TestMinimise(CELContract):
    """The contract, for the mode kept for comparison."""

    def build(self) -> ConditionalEntropy:
        """Return the loss whose attention descends."""
        return gated("minimise")


class TestDetach(CELContract):
    """The contract, for the fixed attention."""

    def build(self) -> ConditionalEntropy:
        """Return the loss whose attention stays."""
        return gated("detach")


class TestFloor(CELContract):
    """The contract, for the attention mixed with the uniform one."""

    def build(self) -> ConditionalEntropy:
        """Return the loss with half of the weight shared evenly."""
        return gated("floor")


def by_hand(points: list[list[float]], y: Tensor, gate: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return alpha, means and spreads for V = I, U = gate I, w = 1 and no normalisation."""
    z, eye = torch.tensor(points).double(), torch.eye(2).double()
    group = members(y, int(y.max()) + 1, z)
    theta = torch.cat([eye.flatten(), gate * eye.flatten(), torch.ones(2).double()])
    alpha = attend(scores(theta, z, 2), group)
    centre = means(z, alpha)
    return alpha, centre, spread(z, centre[y], alpha)


def close(value: Tensor, hand: list[float], atol: float) -> None:
    """Compare with printed digits."""
    torch.testing.assert_close(value, torch.tensor(hand).double(), rtol=0, atol=atol)


def test_worked_example_of_twelve_points() -> None:
    """V = U = I, w = 1, class 1 in the order of the printed weights."""
    points: list[list[float]] = [[0.2, 0.1], [0.15, -0.05], [0, 0], [-0.1, 0.05]]
    points += [[1, 1], [1.2, 1.1], [0.8, 0.9], [1.1, 0.95]]
    points += [[1, -1], [0.8, -0.9], [1.1, -1.2], [0.9, -1.05]]
    alpha, centre, v = by_hand(points, torch.arange(12) // 4, 1.0)
    close(alpha[:4, 0], [0.2790, 0.2511, 0.2375, 0.2324], 5e-5)
    close(centre[0], [0.07022, 0.02696], 5e-6)
    close(v, [0.017474, 0.026496, 0.024330], 5e-7)
    close(log(v, 0.002)[:1], [2.1671], 5e-5)


def test_worked_example_of_six_points() -> None:
    """V = I, U = I/2, w = 1, two classes; only the second is above tau .02."""
    points: list[list[float]] = [[0, 0], [0.2, 0.1], [-0.1, 0.05]]
    points += [[1, 1], [0.9, 1.1], [1.2, 0.8]]
    alpha, centre, v = by_hand(points, torch.arange(6) // 3, 0.5)
    close(alpha[:3, 0], [0.318038, 0.371247, 0.310714], 5e-7)
    close(centre[0], [0.04318, 0.05266], 5e-6)
    close(v, [0.017809, 0.031006], 5e-7)
    penalty = log(v, 0.02)
    close(penalty, [0, 0.43842], 5e-6)
    loss = shares(torch.tensor([3.0, 3.0]).double(), "batch-share") @ penalty
    assert abs(loss.item() - 0.21921) < 5e-6


def example(seed: int, count: int = 9) -> tuple[Tensor, Tensor, State]:
    """Return codes in float64, labels of 3 classes, and a state that fits them."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(count, 4, generator=generator).double()
    y = torch.arange(count) % 3
    return z, y, gated("ascend").refresh(None, pieces(z, y), generator)


def slopes(attention: Attention, z: Tensor, y: Tensor, state: State) -> tuple[Tensor, Tensor]:
    """Return the gradients of the loss at z and theta."""
    loss = gated(attention).loss(state, z, y).loss
    first, second = torch.autograd.grad(loss, (z, state["theta"]))
    return first, second


def test_gradcheck() -> None:
    """Codes see the true gradient, through the scores too; theta's is reversed in `ascend`."""
    z, y, state = example(0)
    z.requires_grad_()
    for attention in ("minimise", "floor"):
        mine = gated(attention)
        assert torch.autograd.gradcheck(
            lambda z, theta, m=mine: m.loss({**state, "theta": theta}, z, y).loss,
            (z, state["theta"]),
        )
    assert torch.autograd.gradcheck(lambda z: gated("ascend").loss(state, z, y).loss, z)
    up, down = slopes("ascend", z, y, state), slopes("minimise", z, y, state)
    torch.testing.assert_close(up[0], down[0])
    torch.testing.assert_close(up[1], -down[1])


def test_detach_is_the_gradient_of_fixed_weights() -> None:
    """With alpha frozen: 2 beta_c alpha_i (z_i - zbar); nothing reaches theta."""
    z, y, state = example(1)
    z.requires_grad_()
    mine, group = gated("detach"), members(y, 3, z)
    normal = torch.nn.functional.layer_norm(z, (4,))
    alpha = mine.weigh(state["theta"], normal, group)
    loss = mine.loss(state, z, y).loss
    torch.testing.assert_close(loss, gated("minimise").loss(state, z, y).loss)
    torch.autograd.backward(loss)
    hand = 2 / 3 * alpha.sum(1, keepdim=True) * (z - means(z, alpha)[y])
    torch.testing.assert_close(z.grad, hand.detach())
    assert state["theta"].grad is None
    assert mine.step(state, z, y) is state


def climb(attention: Attention) -> dict[str, Tensor]:
    """Return the metrics after 50 steps of the attention on fixed codes, 16 a class."""
    generator = torch.Generator().manual_seed(2)
    z = torch.rand(48, 64, generator=generator)
    y, mine = torch.arange(48) % 3, gated(attention, hidden=0, features=64)
    state = mine.refresh(None, pieces(z, y), generator)
    for _ in range(50):
        torch.autograd.backward(mine.loss(state, z, y).loss)
        state = mine.step(state, z, y)
    return mine.loss(state, z, y).metrics


def test_minimising_attention_collapses() -> None:
    """The trap: one member a class gets all the weight, and the spread is gone, codes untouched."""
    metrics = climb("minimise")
    assert 16 * metrics["attention-share"] < 1.1
    assert metrics["weighted-spread"] < 0.05 * metrics["plain-spread"]


def test_climbing_attention_does_not_collapse() -> None:
    """At its best it weighs the far members: no less than the plain spread, on many members."""
    metrics = climb("ascend")
    assert metrics["weighted-spread"] > metrics["plain-spread"]
    assert 16 * metrics["attention-share"] > 4


def test_the_floor_holds_the_spread() -> None:
    """Half of the weight shared evenly keeps half of the spread against any attention."""
    metrics = climb("floor")
    assert metrics["weighted-spread"] >= 0.5 * metrics["plain-spread"]
    assert 16 * metrics["attention-share"] > 3


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.floats(0, 50))
def test_floor_bounds_the_spread(seed: int, floor: float, sharpness: float) -> None:
    """At least r * plain for any attention, however sharp; r = 1 is plain."""
    z, y, state = example(seed)
    state = {**state, "theta": state["theta"].detach() * sharpness}
    plain = Plain(linear, "batch-share", 3).loss({}, z, y).loss
    assert gated("floor", floor=floor).loss(state, z, y).loss >= floor * plain - 1e-12
    torch.testing.assert_close(gated("floor", floor=1.0).loss(state, z, y).loss, plain)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32 - 1), st.sampled_from(MODES))
def test_even_attention_is_plain(seed: int, attention: Attention) -> None:
    """A theta of 0 weighs all members alike: the plain loss, and a share of 1."""
    z, y, state = example(seed, count=10)
    term = gated(attention).loss({**state, "theta": torch.zeros_like(state["theta"])}, z, y)
    plain = Plain(linear, "batch-share", 3).loss({}, z, y)
    torch.testing.assert_close(term.loss, plain.loss)
    torch.testing.assert_close(term.metrics["spread"], plain.metrics["spread"])
    assert abs(term.metrics["attention-share"] - 1) < 1e-9


def test_single_members_take_no_share() -> None:
    """Two pairs and a lone code: the lone one changes nothing."""
    z, y, state = example(3, count=7)
    y = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    alone = gated("minimise").loss(state, z, y)
    without = gated("minimise").loss(state, z[:6], y[:6])
    torch.testing.assert_close(alone.loss, without.loss)
    torch.testing.assert_close(alone.metrics, without.metrics)


@pytest.mark.parametrize("weight", [1.0, 1e-4])
def test_step_is_adam_and_blind_to_the_weight(weight: float) -> None:
    """Against torch's Adam on the unweighted gradient, three steps; the gradient is cleared."""
    z, y, state = example(4)
    oracle = state["theta"].detach().clone().requires_grad_()
    adam = torch.optim.Adam([oracle], lr=0.1, eps=1e-16)
    for _ in range(3):
        before = state["theta"]
        torch.autograd.backward(weight * gated("minimise").loss(state, z, y).loss)
        state = gated("minimise").step(state, z, y)
        adam.zero_grad()
        torch.autograd.backward(gated("minimise").loss({**state, "theta": oracle}, z, y).loss)
        adam.step()
        assert before.grad is None
        assert state["theta"].is_leaf
        assert state["theta"].requires_grad
        torch.testing.assert_close(state["theta"].detach(), oracle.detach(), rtol=1e-6, atol=1e-9)


def test_no_gradient_no_step() -> None:
    """A zero gradient, as a loss weighed by 0 leaves behind, moves nothing and is cleared."""
    z, y, state = example(5)
    torch.autograd.backward(0.0 * gated("ascend").loss(state, z, y).loss)
    assert gated("ascend").step(state, z, y) is state
    assert state["theta"].grad is None


def test_refresh_makes_unpacked_attention_learn() -> None:
    """Values stay, and theta is a leaf that requires its gradient again."""
    z, y, state = example(6)
    unpacked = {name: tensor.detach().clone() for name, tensor in state.items()}
    again = gated("ascend").refresh(unpacked, pieces(z, y), torch.Generator())
    assert torch.equal(again["theta"], state["theta"])
    assert again["theta"].is_leaf
    assert again["theta"].requires_grad


@pytest.mark.parametrize(
    ("features", "hidden", "size"), [(8, 0, 64), (400, 0, 100), (4096, 0, 256), (64, 3, 3)]
)
def test_hidden_size(features: int, hidden: int, size: int) -> None:
    """A quarter of the features, from 64 to 256, unless set."""
    assert hidden_size(features, hidden) == size
