"""Spread of features, by hand and by the law of total variance."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.metrics import between_group_spread, within_class_spread
from tests.fedcel.seeded import seeded


def test_spread_by_hand() -> None:
    """The mean |z - class mean|^2 of four points is .01734375; a far class adds nothing to it."""
    z = torch.tensor([[0, 0], [0.2, 0.1], [-0.1, 0.05], [0.15, -0.05]], dtype=torch.float64)
    y = torch.tensor([2, 2, 2, 2])
    assert abs(within_class_spread(z, y).item() - 0.01734375) < 1e-12
    both = torch.cat([z, z + 10])
    labels = torch.cat([y, 0 * y])
    assert abs(within_class_spread(both, labels).item() - 0.01734375) < 1e-12


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_total_spread_is_within_plus_between(seed: int) -> None:
    """Law of total variance, any class sizes."""
    stream = seeded(seed)
    z = torch.randn(30, 3, generator=stream, dtype=torch.float64)
    y = torch.randint(4, (30,), generator=stream)
    between = sum(
        (y == c).double().mean() * (z[y == c].mean(0) - z.mean(0)).square().sum()
        for c in y.unique()
    )
    total = within_class_spread(z, y) + between
    torch.testing.assert_close((z - z.mean(0)).square().sum(1).mean(), total)


def test_spread_between_groups_by_hand() -> None:
    """Class 0: means 0 (three images) and 4 (one), pooled 1; class 1 in one group alone: 0."""
    z = torch.tensor([[-1.0], [0.0], [1.0], [4.0], [7.0], [9.0]])
    y, group = torch.tensor([0, 0, 0, 0, 1, 1]), torch.tensor([0, 0, 0, 2, 2, 2])
    spread = between_group_spread(z, y, group)
    assert spread.item() == pytest.approx((3 * 1 + 1 * 9) / 6)
    assert between_group_spread(z, y, 0 * group).item() == 0


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32 - 1))
def test_within_class_is_within_group_plus_between(seed: int) -> None:
    """Law of total variance in each class."""
    stream = seeded(seed)
    z = torch.randn(30, 3, generator=stream, dtype=torch.float64)
    y, group = torch.randint(4, (2, 30), generator=stream)
    inside = within_class_spread(z, y * 4 + group)
    between = between_group_spread(z, y, group)
    torch.testing.assert_close(within_class_spread(z, y), inside + between)


def test_labels_may_be_numbers_of_people() -> None:
    """Only which are alike counts."""
    z, y = torch.tensor([[0.0], [2.0], [7.0], [7.0]]), torch.tensor([0, 0, 10**12, 10**12])
    assert within_class_spread(z, y).item() == 0.5
    group = torch.tensor([0, 5, 5, 10**15])
    assert between_group_spread(z, y, group).item() == 0.5
