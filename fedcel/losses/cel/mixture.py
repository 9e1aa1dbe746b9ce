"""Gaussian mixtures of one class's smashed data by EM (Dempster, Laird and Rubin, JRSS B 1977).

All in float64, in the log domain. A covariance is kept as what scoring needs, so that a batch
factorises nothing: diagonal ones as variances (K, D), full ones as whitening matrices
W (K, D, D), W = L^-1 of the Cholesky factor L L' of the covariance.

Own code beside scikit-learn's: a component may be out of use here, the floor follows the class's
own variance, and one M step serves EM and members that are known.
"""

from math import log, pi
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.losses.cel.class_spread import Members, uniform_weights

FLOOR = 1e-3
"""What EM adds to each variance (full: to the diagonal), as a share of the mean variance per
value of the class: no component can shrink onto one point."""

LEAST = 1e-9
"""Added as well, in units of z squared, for a class without any variance."""

SWEEPS = 100
"""EM iterations at most."""

TOLERANCE = 1e-4
"""Nats per example that an iteration must gain for another one to follow."""


class Mixture(NamedTuple):
    """Weights (K,), centres (K, D) in units of z, and variances (K, D) or whitenings (K, D, D).

    A component of weight 0 is out of use and stays so.
    """

    weights: Float[Tensor, " K"]
    centres: Float[Tensor, "K D"]
    scale: Float[Tensor, "K *shape"]


def log_joint(z: Float[Tensor, "N D"], mixture: Mixture) -> Float[Tensor, "N K"]:
    """Return log pi_k + log N(z_i; mu_k, Sigma_k) in nats, -inf for components out of use."""
    weights, centres, scale = (part.double() for part in mixture)
    z = z.double()
    if scale.dim() == 2:
        precision = 1 / scale
        quadratic = z.square() @ precision.T - 2 * z @ (centres * precision).T
        quadratic += (centres.square() * precision).sum(1)
        volume = -scale.log().sum(1) / 2
    else:
        white = [(z - centre) @ whiten.T for centre, whiten in zip(centres, scale, strict=True)]
        quadratic = torch.stack([some.square().sum(1) for some in white], 1)
        volume = scale.diagonal(dim1=1, dim2=2).log().sum(1)
    return weights.log() + volume - quadratic / 2 - z.shape[1] / 2 * log(2 * pi)


def maximise_likelihood(
    z: Float[Tensor, "N D"], share: Float[Tensor, "N K"], floor: float, full: bool
) -> Mixture:
    """Return the mixture of responsibilities `share`; each covariance has floor * I added.

    z is centred, in float64: variances are E z^2 - (E z)^2, whose rounding is far below `floor`.
    """
    held = share.sum(0)[:, None]
    mean = share.T / held.clamp_min(torch.finfo(held.dtype).tiny)
    centres = mean @ z
    if not full:
        scale = mean @ z.square() - centres.square() + floor
        return Mixture(held[:, 0] / len(z), centres, scale)
    eye = torch.eye(z.shape[1], dtype=z.dtype)
    whitenings = []
    for centre, part in zip(centres, mean, strict=True):
        gap = z - centre
        factor = torch.linalg.cholesky((gap * part[:, None]).T @ gap + floor * eye)
        whitenings.append(torch.linalg.solve_triangular(factor, eye, upper=False))
    return Mixture(held[:, 0] / len(z), centres, torch.stack(whitenings))


def variance_floor(z: Float[Tensor, "N D"]) -> float:
    """Return what is added to the variances of a class, in units of z squared; z is centred."""
    return FLOOR * z.square().mean().item() + LEAST


def fit_mixture(z: Float[Tensor, "N D"], start: Mixture) -> Mixture:
    """Return the mixture that EM climbs to from `start`; z is centred, and so is start.

    A component that no example answers to gets weight 0. Without examples: `start`.
    """
    if not len(z):
        return start
    z = z.double()
    floor, full, reached = variance_floor(z), start.scale.dim() == 3, -torch.inf
    mixture = start
    for _ in range(SWEEPS):
        joint = log_joint(z, mixture)
        evidence = joint.logsumexp(1)
        likelihood = evidence.mean().item()
        if likelihood - reached < TOLERANCE:
            break
        reached = likelihood
        mixture = maximise_likelihood(z, (joint - evidence[:, None]).exp(), floor, full)
    return mixture


def assign_components(
    z: Float[Tensor, "N D"], y: Int[Tensor, " N"], classes: list[Mixture]
) -> Int[Tensor, " N"]:
    """Return the slot c K + k of the largest posterior among the own class's components."""
    slot = torch.empty_like(y)
    for c, mixture in enumerate(classes):
        own = torch.eq(y, c)
        if own.any():
            slot[own] = c * len(mixture.weights) + log_joint(z[own], mixture).argmax(1)
    return slot


def mixture_of_members(
    z: Float[Tensor, "N D"], slot: Int[Tensor, " N"], each: int, full: bool
) -> Mixture:
    """Return the mixture of `each` components whose members are known; z is centred."""
    shape = (z.shape[1], z.shape[1]) if full else (z.shape[1],)
    if not len(z):
        scale = torch.eye(z.shape[1]) if full else torch.ones(shape)
        return Mixture(torch.zeros(each), torch.zeros(each, z.shape[1]), scale.expand(each, *shape))
    wide = z.double()
    return maximise_likelihood(
        wide, torch.eye(each, dtype=wide.dtype)[slot], variance_floor(wide), full
    )


def stack_components(classes: list[Mixture], dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return all classes' weights (C, K), centres (C, K, D) and scales (C, K, ...)."""
    weights, centres, scale = (
        torch.stack([p.to(dtype) for p in ps]) for ps in zip(*classes, strict=True)
    )
    return weights, centres, scale


def diagonal_nats(gap: Float[Tensor, "B D"], held: Members, sigma: float) -> Float[Tensor, " S"]:
    """Return 1/2 sum_d ln(1 + s_kd / sigma^2) of each slot, 0 of empty ones.

    s_kd is the mean square of `gap`, the differences to the slot's centre: the information in
    nats that parallel Gaussian channels of that power carry (Cover and Thomas, eq. 9.73), an upper
    bound for any other law of these moments.
    """
    here = held.counts > 0
    mean = uniform_weights(held)[:, here].T @ gap.square()
    nats = torch.log1p(mean / sigma**2).sum(1) / 2
    return torch.zeros_like(held.counts).masked_scatter(here, nats)


def full_nats(gap: Float[Tensor, "B D"], held: Members, sigma: float) -> Float[Tensor, " S"]:
    """Return 1/2 ln det(I + S_k / sigma^2) of each slot, 0 of empty ones.

    S_k is the mean of g g' over the slot's members, g the differences to its centre. By Sylvester's
    identity the determinant is that of the members' small Gram matrix; all slots share one
    block-diagonal Cholesky factor. In float64: next to a large Gram matrix I would be lost.
    """
    wide = gap.double()
    weights = uniform_weights(held).double()
    gram = (weights @ held.one_hot.double().T) * (wide @ wide.T) / sigma**2
    factor: Tensor = torch.linalg.cholesky(gram + torch.eye(len(wide)).to(gram))
    return factor.diagonal().log().to(gap.dtype) @ held.one_hot
