"""Gaussian mixtures of one class, and the information of Gaussian clusters."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.mixture import GaussianMixture
from torch import Tensor

from fedcel.losses.cel import mixture
from fedcel.losses.cel.class_spread import Members
from fedcel.losses.cel.mixture import (
    Mixture,
    diagonal_nats,
    fit_mixture,
    full_nats,
    log_joint,
    mixture_of_members,
)

KINDS = pytest.mark.parametrize("full", [False, True])


def fresh(seed: int = 0) -> torch.Generator:
    """Return a generator."""
    return torch.Generator().manual_seed(seed)


def drawn(seed: int = 0, apart: float = 2.0) -> tuple[Tensor, Tensor]:
    """Return 90 centred points (90, 3) of three stretched groups, and their groups."""
    slot = torch.arange(90) % 3
    shape = torch.randn(3, 3, 3, generator=fresh(seed)).double() / 2
    z = torch.einsum(
        "nd,nde->ne", torch.randn(90, 3, generator=fresh(seed + 1)).double(), shape[slot]
    )
    z += apart * torch.randn(3, 3, generator=fresh(seed + 2)).double()[slot]
    return z - z.mean(0), slot


def members(slot: Tensor, slots: int) -> Members:
    """Return the members of each slot."""
    one_hot = torch.eye(slots, dtype=torch.float64)[slot]
    return Members(one_hot, one_hot.sum(0))


def covariances(fitted: Mixture) -> Tensor:
    """Return the covariance matrices (K, D, D)."""
    if fitted.scales.dim() == 2:
        return fitted.scales.diag_embed()
    return torch.linalg.inv(fitted.scales.mT @ fitted.scales)


@KINDS
def test_log_joint_is_the_density(full: bool) -> None:
    """Against torch's own Gaussians; a component of weight 0 is impossible."""
    z, slot = drawn()
    fitted = mixture_of_members(z, slot, 4, full)
    law = torch.distributions.MultivariateNormal(fitted.centres, covariances(fitted))
    expected = law.log_prob(z[:, None]) + fitted.weights.log()
    torch.testing.assert_close(log_joint(z, fitted), expected)
    assert log_joint(z, fitted)[:, 3].eq(-torch.inf).all()


@KINDS
def test_against_scikit_learn(full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same start, with the same floor, to the same fixed point."""
    monkeypatch.setattr(mixture, "TOLERANCE", 1e-12)
    monkeypatch.setattr(mixture, "MAX_ITERATIONS", 2000)
    z, slot = drawn(seed=4)
    start = mixture_of_members(z, slot, 3, full)
    inverse = torch.linalg.inv(covariances(start))
    other = GaussianMixture(
        3,
        covariance_type="full" if full else "diag",
        tol=1e-12,
        reg_covar=mixture.variance_floor(z),
        max_iter=2000,
        weights_init=start.weights.numpy(),
        means_init=start.centres.numpy(),
        precisions_init=(inverse if full else inverse.diagonal(dim1=1, dim2=2)).numpy(),
    ).fit(z.numpy())
    fitted = fit_mixture(z, start)
    near = {"rtol": 1e-5, "atol": 1e-5}
    theirs = torch.from_numpy(other.covariances_)
    torch.testing.assert_close(fitted.weights, torch.from_numpy(other.weights_), **near)
    torch.testing.assert_close(fitted.centres, torch.from_numpy(other.means_), **near)
    torch.testing.assert_close(covariances(fitted), theirs if full else theirs.diag_embed(), **near)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31), st.booleans())
def test_likelihood_never_falls(seed: int, full: bool) -> None:
    """Each iteration gains, up to what the floor costs."""
    z, slot = drawn(seed, apart=0.5)
    fitted, reached = mixture_of_members(z, slot, 3, full), -torch.inf
    for _ in range(10):
        joint = log_joint(z, fitted)
        evidence = joint.logsumexp(1)
        assert float(evidence.mean()) >= reached - 1e-7
        reached = float(evidence.mean())
        fitted = mixture.maximise_likelihood(z, (joint - evidence[:, None]).exp(), 1e-10, full)


@KINDS
def test_no_variance_below_the_floor(full: bool) -> None:
    """A lone point has a Gaussian of the floor's width; equal points one of the least."""
    z, _ = drawn()
    slot = (torch.arange(90) == 0).long()
    floor = mixture.variance_floor(z)
    widths = torch.linalg.eigvalsh(covariances(mixture_of_members(z, slot, 2, full)))
    assert abs(floor - 1e-3 * z.square().mean() - 1e-9) < 1e-15
    torch.testing.assert_close(widths[1], torch.full((3,), floor).double())
    same = fit_mixture(
        torch.zeros(5, 2), mixture_of_members(torch.zeros(5, 2), torch.zeros(5).long(), 2, full)
    )
    torch.testing.assert_close(covariances(same)[0], mixture.MIN_FLOOR * torch.eye(2).double())
    assert same.weights.tolist() == [1, 0]
    assert all(part.isfinite().all() for part in same)


@KINDS
def test_a_class_without_examples(full: bool) -> None:
    """Weighs nothing and is finite."""
    none = mixture_of_members(torch.zeros(0, 3), torch.zeros(0).long(), 2, full)
    assert fit_mixture(torch.zeros(0, 3), none) is none
    assert not none.weights.any()
    assert covariances(none).eq(torch.eye(3)).all()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**31), st.integers(1, 12), st.floats(0.01, 2))
def test_information_of_a_cluster(seed: int, features: int, sigma: float) -> None:
    """Determinants by hand; full is at most diagonal (Hadamard); one value: the same."""
    gap = torch.randn(9, features, generator=fresh(seed)).double()
    slot = torch.tensor([0, 2, 2, 0, 2, 2, 2, 0, 3])
    held = members(slot, 5)
    full, diagonal = full_nats(gap, held, sigma), diagonal_nats(gap, held, sigma)
    eye = torch.eye(features).double()
    for k in range(5):
        own = gap[slot == k]
        matrix = eye + own.T @ own / max(1, len(own)) / sigma**2
        torch.testing.assert_close(full[k], matrix.logdet() / 2, rtol=1e-7, atol=1e-9)
        torch.testing.assert_close(diagonal[k], matrix.diagonal().log().sum() / 2)
    assert (full <= diagonal + 1e-9).all()


def test_information_gradcheck() -> None:
    """Both, with an empty slot."""
    gap = torch.randn(6, 4, generator=fresh(3)).double().requires_grad_()
    held = members(torch.tensor([0, 2, 2, 0, 2, 2]), 3)
    for nats in (full_nats, diagonal_nats):
        assert torch.autograd.gradcheck(lambda g, f=nats: f(g, held, 0.5), gap)


def test_little_noise_in_float32() -> None:
    """Members on one line: next to their large Gram matrix, I keeps its digits."""
    gap = torch.rand(20, 1, generator=fresh(1)) * torch.rand(500, generator=fresh(2))
    held = members(torch.zeros(20).long(), 1)
    exact = torch.log1p(gap.double().square().sum() / 20 / 1e-6) / 2
    nats = full_nats(gap, Members(held.one_hot.float(), held.counts.float()), 1e-3)
    torch.testing.assert_close(nats[0].double(), exact, rtol=1e-4, atol=0)
