"""Gaussian mixtures of one class: their density, and what scikit-learn's EM makes of them."""

import warnings

import pytest
import torch
from torch import Tensor

from fedcel.losses.cel import mixture
from fedcel.losses.cel.mixture import Mixture, fit_mixture, log_joint, mixture_of_members

KINDS = pytest.mark.parametrize("full", [False, True])


def fresh(seed: int = 0) -> torch.Generator:
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


def covariances(fitted: Mixture) -> Tensor:
    """Return the covariance matrices (S, D, D)."""
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
def test_a_known_mixture_is_recovered(full: bool) -> None:
    """4 000 draws of two overlapping Gaussians, from a start that is off: within 4 errors."""
    weights, centres = torch.tensor([0.3, 0.7]).double(), torch.tensor([[0.0, 3], [0, -1]]).double()
    factors = torch.tensor([[[2.0, 0], [1, 0.5]], [[0.5, 0], [-0.3, 1]]]).double()
    if not full:
        factors = factors.diagonal(dim1=1, dim2=2).diag_embed()
    slot = (torch.rand(4000, generator=fresh()) > weights[0]).long()
    noise = torch.randn(4000, 2, generator=fresh(1)).double()
    z = centres[slot] + torch.einsum("nd,ned->ne", noise, factors[slot])
    mean = z.mean(0)
    start = mixture_of_members(z - mean, (z[:, 1] < 0.5).long(), 3, full)
    fitted = fit_mixture(z - mean, start)
    torch.testing.assert_close(fitted.weights[:2], weights, rtol=0, atol=0.03)
    torch.testing.assert_close(fitted.centres[:2] + mean, centres, rtol=0, atol=0.25)
    exact = factors @ factors.mT
    torch.testing.assert_close(covariances(fitted)[:2], exact, rtol=0.15, atol=0.1)
    assert fitted.weights[2] == 0


@KINDS
@pytest.mark.parametrize("count", [1, 2, 90])
def test_one_component_has_the_mean_and_the_covariance(full: bool, count: int) -> None:
    """Of any number of examples, one included, from any start; with the floor."""
    z, _ = drawn()
    z = z[:count] - z[:count].mean(0)
    scale = torch.eye(3).double() if full else torch.ones(3).double()
    start = Mixture(torch.tensor([0.0, 1.0]), torch.ones(2, 3), scale.expand(2, *scale.shape))
    fitted = fit_mixture(z, start)
    assert fitted.weights.tolist() == [0, 1]
    torch.testing.assert_close(fitted.centres[1], torch.zeros(3).double())
    covariance = z.T @ z / count + mixture.variance_floor(z) * torch.eye(3).double()
    expected = covariance if full else covariance.diagonal().diag()
    torch.testing.assert_close(covariances(fitted)[1], expected)


@KINDS
def test_a_fit_that_has_not_converged_warns_nobody(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next refresh goes on from it."""
    monkeypatch.setattr(mixture, "TOLERANCE", 0.0)
    z, slot = drawn(apart=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit_mixture(z, mixture_of_members(z, slot, 3, full))


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
