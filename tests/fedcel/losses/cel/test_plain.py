"""The spread around the batch's own means."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.losses.cel.conditional_entropy import channel_penalty
from fedcel.losses.cel.plain import Plain
from tests.fedcel.losses.single import single

PLAIN = single(Plain(penalty="linear"), 3)


def test_spread_by_hand() -> None:
    """Three points around (.05, .0): squares .0025 + .0125 + .0175 make .0108333 in all."""
    z = torch.tensor([[0.0, 0.0], [0.2, 0.0], [-0.05, 0.0], [7.0, 7.0]])
    y = torch.tensor([1, 1, 1, 0])
    term = PLAIN.loss({}, z, y)
    hand = (0.05**2 + 0.15**2 + 0.1**2) / 3
    assert abs(term.loss.item() - hand) < 1e-8, "a single member takes no share"
    assert abs(term.metrics["spread"].item() - hand) < 1e-8


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.integers(1, 6),
)
def test_equals_the_definition(seed: int, labels: list[int], features: int) -> None:
    """Class by class with torch.var, and invariant to rotation and shift."""
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(len(labels), features, generator=generator).double()
    y, mine = (
        torch.tensor(labels),
        single(Plain(share="mean-present"), 4, features, sigma=0.3),
    )
    spreads = [z[y == c].var(0, correction=0).sum() for c in range(4) if labels.count(c) > 1]
    hand = channel_penalty(torch.stack(spreads), features, 0.3).mean() if spreads else 0.0
    turn = torch.linalg.qr(torch.randn(features, features, generator=generator).double())[0]
    for moved in (z, z @ turn, z + torch.randn(features, generator=generator)):
        assert abs(mine.loss({}, moved, y).loss - hand) < 1e-9


def test_gradcheck() -> None:
    """The centre is a constant to autograd, and still the gradient is exact."""
    z = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    y = torch.tensor([0, 0, 0, 1, 1, 2, 0, 1])
    mine = single(Plain(), 3, 3, sigma=0.3)
    assert torch.autograd.gradcheck(lambda z: mine.loss({}, z, y).loss, z)


def test_no_cancellation_far_from_zero() -> None:
    """Around 1000 in single precision, E|z|^2 - |E z|^2 would be off by more than the spread."""
    z = 1000 + 0.1 * torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    y = torch.zeros(32, dtype=torch.long)
    exact = PLAIN.loss({}, z.double(), y).loss
    torch.testing.assert_close(PLAIN.loss({}, z, y).loss.double(), exact, rtol=1e-4, atol=0)
