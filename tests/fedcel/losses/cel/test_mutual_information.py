"""Pairwise bounds of the information: limits, direct mixtures, precision."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcel.errors import DataError, SettingsError
from fedcel.losses.cel.conditional_entropy import class_members
from fedcel.losses.cel.mutual_information import (
    InformationBound,
    MutualInformation,
    squared_distances,
)
from tests.fedcel.losses.single import single


def information(
    sigma: float = 1.0, classes: int = 3, bound: InformationBound = "upper"
) -> MutualInformation:
    """Return the loss in batch shares."""
    return single(MutualInformation(share="batch-share", bound=bound), classes, sigma=sigma)


def fresh(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 3), min_size=1, max_size=20),
    st.floats(0.05, 5),
    st.sampled_from(["upper", "lower"]),
)
def test_equals_the_definition(
    seed: int, labels: list[int], sigma: float, bound: InformationBound
) -> None:
    """Class by class through differences and logsumexp; invariant to rotation and shift."""
    z, y = torch.randn(len(labels), 3, generator=fresh(seed)).double(), torch.tensor(labels)
    scale, total, count = {"upper": 2, "lower": 8}[bound] * sigma**2, 0.0, 0
    for c in range(4):
        own = z[y == c]
        if len(own) > 1:
            gap = (own[:, None] - own).square().sum(2) / scale
            total += float((math.log(len(own)) - torch.logsumexp(-gap, 1)).sum())
            count += len(own)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=fresh(seed)).double())[0]
    for moved in (z, z @ turn + 3):
        term = information(sigma, 4, bound).loss({}, moved, y)
        assert abs(float(term.loss) - total / max(count, 1)) < 1e-9
        if count:
            torch.testing.assert_close(term.loss, term.metrics["information"])
            assert term.loss <= term.metrics["information-cap"] + 1e-12


def test_cap_is_reached_by_far_features() -> None:
    """Features many sigma apart are all told from each other: log n_c, and no gradient is left."""
    z = torch.eye(5).double().requires_grad_()
    y = torch.tensor([0, 0, 0, 1, 1])
    term = information(0.01).loss({}, z, y)
    hand = (3 * math.log(3) + 2 * math.log(2)) / 5
    assert abs(term.loss.item() - hand) < 1e-12
    assert abs(float(term.metrics["information-cap"]) - hand) < 1e-12
    assert not torch.autograd.grad(term.loss, z)[0].any()


@pytest.mark.parametrize(("bound", "share"), [("upper", 1.0), ("lower", 0.25)])
def test_small_spread_limit(bound: InformationBound, share: float) -> None:
    """I goes to v / sigma^2, the mean over pairs of |z_i - z_j|^2 / (2 sigma^2)."""
    z = 1e-3 * torch.randn(8, 4, generator=fresh(1)).double()
    y, sigma = torch.zeros(8, dtype=torch.long), 0.7
    term = information(sigma, bound=bound).loss({}, z, y)
    pairs = float((z[:, None] - z).square().sum(2).mean()) / (2 * sigma**2)
    spread = float(term.metrics["spread"]) / sigma**2
    assert abs(pairs / spread - 1) < 1e-12
    assert abs(float(term.loss) / (share * spread) - 1) < 1e-4


@pytest.mark.parametrize("scale", [0.3, 1.0, 3.0])
def test_bounds_hold_the_truth_between_them(scale: float) -> None:
    """A Monte Carlo estimate of the mixture's information lies in between, 4 errors aside."""
    z = scale * torch.randn(10, 3, generator=fresh(2)).double()
    y = torch.zeros(10, dtype=torch.long)
    xi = torch.randn(20_000, 10, 3, generator=fresh(3)).double()
    gap = torch.cdist(z + xi, z).square() / 2
    ratio = xi.square().sum(2) / -2 - (torch.logsumexp(-gap, 2) - math.log(10))
    truth, error = float(ratio.mean()), float(ratio.std()) / ratio.numel() ** 0.5
    upper, lower = (float(information(bound=b).loss({}, z, y).loss) for b in ("upper", "lower"))
    assert lower < truth - 4 * error
    assert truth + 4 * error < upper


@pytest.mark.parametrize("bound", ["upper", "lower"])
def test_gradcheck(bound: InformationBound) -> None:
    """Through float64, with equal features among them."""
    z = torch.randn(8, 3, generator=fresh(4)).double()
    z[1] = z[0]
    y = torch.tensor([0, 0, 0, 1, 1, 2, 0, 1])
    mine = information(0.8, bound=bound)
    assert torch.autograd.gradcheck(lambda z: mine.loss({}, z, y).loss, z.requires_grad_())


def two_groups() -> tuple[Tensor, Tensor]:
    """Return float32 features in [0, 1]^4096: two far corners, members 1e-3 a value around them."""
    corner = (torch.rand(2, 4096, generator=fresh(5)) > 0.5).float().repeat(8, 1)
    return corner + 1e-3 * torch.randn(16, 4096, generator=fresh(6)), torch.zeros(16).long()


def test_distances_of_near_features_in_a_wide_class() -> None:
    """Float64 products agree with exact differences to 1e-9; float32 ones would be off by 1 %."""
    z, y = two_groups()
    exact = (z.double()[:, None] - z.double()).square().sum(2)
    near = (exact > 0) & (exact < 1)
    ours = squared_distances(z, y, class_members(y, 1, z))
    assert not ours.diagonal().any()
    torch.testing.assert_close(ours[near], exact[near], rtol=1e-9, atol=0)
    centred = z - z.mean(0)
    power = centred.square().sum(1)
    naive = power[:, None] + power - 2 * centred @ centred.T
    assert (naive[near].double() / exact[near] - 1).abs().max() > 0.01
    # At a sigma that resolves the groups only: half of log 16 would be lost to such errors.
    mine = information(1e-3, 1)
    hand = (math.log(16) - torch.logsumexp(-exact / 2e-6, 1)).mean()
    torch.testing.assert_close(mine.loss({}, z, y).loss.double(), hand, rtol=1e-6, atol=0)


@pytest.mark.parametrize("share", ["batch-share", "mean-present", "none"])
def test_shares(share: str) -> None:
    """Class means 0 and log 2 of 4 and 2 members, a lone one aside."""
    z = torch.tensor([[0.0], [0], [0], [0], [0], [100], [7]])
    y = torch.tensor([0, 0, 0, 0, 1, 1, 2])
    hand = {"batch-share": 1 / 3, "mean-present": 1 / 2, "none": 1.0}[share] * math.log(2)
    term = single(MutualInformation(share=share), 3, sigma=1.0).loss({}, z, y)
    assert abs(term.loss.item() - hand) < 1e-6


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan])
def test_no_noise_is_refused(sigma: float) -> None:
    """The message names the setting and the remedy."""
    with pytest.raises(SettingsError, match=r"net\.noise is .*, must be above 0.*'plain'"):
        information(sigma)


def test_bad_features_and_labels() -> None:
    """A NaN, of a pair or alone in its class, shows in the loss; a label out of range is named."""
    z = torch.zeros(4, 2)
    z[3, 0] = torch.nan
    for labels in ([0, 0, 1, 1], [0, 0, 0, 1]):
        assert information().loss({}, z, torch.tensor(labels)).loss.isnan()
    with pytest.raises(DataError, match=r"labels are in 0\.\.3, must be in 0\.\.2"):
        information().loss({}, z, torch.tensor([0, 1, 2, 3]))
