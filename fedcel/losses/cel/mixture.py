"""Gaussian mixtures of one class's features, fitted by scikit-learn's EM, scored in PyTorch.

All in float64, in the log domain. A covariance is kept as what scoring needs, so that a batch
factorises nothing: diagonal ones as variances (S, D), full ones as whitening matrices
W (S, D, D), W = L^-1 of the Cholesky factor L L' of the covariance.
"""

import warnings
from math import log, pi
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.losses.cel import kmeans
from fedcel.losses.cel.kmeans import ClusteringProblem, FittedClusters
from fedcel.losses.protocol import State
from fedcel.short_repr import show_shapes

FLOOR_SHARE = 1e-3
"""Added by EM to each variance (full: to the diagonal), as a share of the mean variance per
value of the class: no component can shrink onto one point."""

MIN_FLOOR = 1e-9
"""Added as well, in units of z squared, for a class without any variance."""

TOLERANCE = 1e-4
"""Nats per example that an iteration of EM must gain for another one to follow."""


MAX_COVARIANCE_VALUES = 2**27
"""Values of a client's full covariances at most, C S D D: half a gigabyte in float32."""


@show_shapes
class Mixture(NamedTuple):
    """Weights (S,), centres (S, D) in units of z, and variances (S, D) or whitenings (S, D, D).

    A component of weight 0 is out of use and stays so.
    """

    weights: Float[Tensor, " S"]
    centres: Float[Tensor, "S D"]
    scales: Float[Tensor, "S *shape"]


def log_joint(z: Float[Tensor, "N D"], mixture: Mixture) -> Float[Tensor, "N S"]:
    """Return log pi_s + log N(z_i; mu_s, Sigma_s) in nats, -inf for components out of use."""
    weights, centres, scales = (part.double() for part in mixture)
    z = z.double()
    if scales.dim() == 2:
        precision = 1 / scales
        quadratic = z.square() @ precision.T - 2 * z @ (centres * precision).T
        quadratic += (centres.square() * precision).sum(1)
        log_volume = -scales.log().sum(1) / 2
    else:
        white = [(z - mu) @ whitening.T for mu, whitening in zip(centres, scales, strict=True)]
        quadratic = torch.stack([rows.square().sum(1) for rows in white], 1)
        log_volume = scales.diagonal(dim1=1, dim2=2).log().sum(1)
    return weights.log() + log_volume - quadratic / 2 - z.shape[1] / 2 * log(2 * pi)


def variance_floor(z: Float[Tensor, "N D"]) -> float:
    """Return what is added to the variances of a class, in units of z squared; z is centred."""
    return FLOOR_SHARE * z.square().mean().item() + MIN_FLOOR


def fit_mixture(z: Float[Tensor, "N D"], start: Mixture) -> Mixture:
    """Return the mixture that EM climbs to from `start`; z is centred, and so is start.

    Without examples: `start`.
    """
    from sklearn.exceptions import ConvergenceWarning  # a second that most commands need not wait
    from sklearn.mixture import GaussianMixture

    if not len(z):
        return start
    z = z.double()
    used = start.weights > 0
    weights, centres, scales = (part[used].double() for part in start)
    is_full = scales.dim() == 3
    model = GaussianMixture(
        len(weights),
        covariance_type="full" if is_full else "diag",
        tol=TOLERANCE,
        reg_covar=variance_floor(z),
        weights_init=(weights / weights.sum()).numpy(),
        means_init=centres.numpy(),
        precisions_init=(scales.mT @ scales if is_full else 1 / scales).numpy(),
        random_state=0,  # draws nothing: the start is given
    )
    with warnings.catch_warnings():
        # After the most iterations the next refresh goes on from here.
        warnings.simplefilter("ignore", ConvergenceWarning)
        # scikit-learn refuses a single example; two equal ones have the same mixture.
        model.fit((z.expand(2, -1) if len(z) == 1 else z).numpy())
    whitenings = model.precisions_cholesky_.swapaxes(1, -1)
    fitted = model.weights_, model.means_, whitenings if is_full else model.covariances_
    return Mixture(
        *(
            before.double().index_put((used,), torch.from_numpy(part))
            for before, part in zip(start, fitted, strict=True)
        )
    )


def assign_components(
    z: Float[Tensor, "N D"], y: Int[Tensor, " N"], mixtures: list[Mixture]
) -> Int[Tensor, " N"]:
    """Return the slot c S + s of the largest posterior in each example's class."""
    slots = torch.empty_like(y)
    for c, mixture in enumerate(mixtures):
        members = torch.eq(y, c)
        if members.any():
            best = log_joint(z[members], mixture).argmax(1)
            slots[members] = c * len(mixture.weights) + best
    return slots


def mixture_of_members(
    z: Float[Tensor, "N D"], components: Int[Tensor, " N"], count: int, full: bool
) -> Mixture:
    """Return the mixture of `count` components whose members are known; z is centred."""
    features = z.shape[1]
    eye = torch.eye(features, dtype=torch.float64)
    if not len(z):
        scale = eye if full else torch.ones(features)
        return Mixture(
            torch.zeros(count), torch.zeros(count, features), scale.expand(count, *scale.shape)
        )
    z = z.double()
    sizes = components.bincount(minlength=count)
    averaging = torch.eye(count, dtype=z.dtype)[:, components] / sizes.clamp_min(1)[:, None]
    weights, centres, floor = sizes.to(z.dtype) / len(z), averaging @ z, variance_floor(z)
    gap = z - centres[components]
    if not full:
        return Mixture(weights, centres, averaging @ gap.square() + floor)
    factors = [
        torch.linalg.cholesky((gap * part[:, None]).T @ gap + floor * eye) for part in averaging
    ]
    return Mixture(
        weights,
        centres,
        torch.stack([torch.linalg.solve_triangular(part, eye, upper=False) for part in factors]),
    )


class GaussianMixtures(NamedTuple):
    """Clustering of each class by a Gaussian mixture.

    EM starts from the clusters of K-means, later from the last covariances; a class that lacks a
    component starts from K-means again.

    Attributes:
        covariance: Of each component.
    """

    covariance: Literal["diagonal", "full"]

    @property
    def scale_name(self) -> str:
        """Name of the covariances in the state."""
        return {"diagonal": "variances", "full": "whitenings"}[self.covariance]

    def fit(self, problem: ClusteringProblem, last: State | None) -> FittedClusters:
        """Fit all mixtures; SettingsError where full covariances are too large."""
        z, y, active, _ = problem
        size = active.numel() * z.shape[1] ** 2 // len(problem.generators)
        if self.covariance == "full" and size > MAX_COVARIANCE_VALUES:
            raise SettingsError(
                f"cel.clustering 'full' keeps C S D^2 = {size} values, must be at most "
                f"{MAX_COVARIANCE_VALUES}; use 'diagonal', or lower net.features"
            )
        members = torch.split(z, problem.class_sizes.tolist())
        starts = self._choose_starts(problem, last)
        fits = [fit_mixture(part, start) for part, start in zip(members, starts, strict=True)]
        weights, centres, scales = (
            torch.stack([part.to(z.dtype) for part in parts]) for parts in zip(*fits, strict=True)
        )
        clusters = kmeans.make_clusters(z, assign_components(z, y, fits), centres)
        return clusters, weights, {self.scale_name: scales.contiguous()}

    def assign(
        self, state: State, z: Float[Tensor, "K B D"], y: Int[Tensor, "K B"]
    ) -> Int[Tensor, "K B"]:
        """Return the slot c S + s of each example's component of the largest posterior."""
        names = "weights", "centres", self.scale_name
        mixtures = _unstack_mixtures(*(state[name].flatten(0, 1) for name in names))
        classes, per_class = state["weights"].shape[1:]
        first = torch.arange(len(y), device=y.device)[:, None] * classes
        slots = assign_components(z.flatten(0, 1), (y + first).flatten(), mixtures)
        return slots.view(y.shape) - first * per_class

    def _choose_starts(self, problem: ClusteringProblem, last: State | None) -> list[Mixture]:
        """Return where EM starts in each class: the stored mixture if complete, else K-means."""
        z, y, active, _ = problem
        stored: list[Mixture] = []
        is_complete = active.new_zeros(len(active))
        if last is not None and self.scale_name in last:
            names = "weights", "centres", self.scale_name
            stored = _unstack_mixtures(*(last[name] for name in names))
            is_complete = torch.eq((last["weights"] > 0) & active, active).all(1)
        if is_complete.all():
            return stored
        slots = kmeans.find_clusters(problem, last, None).slots
        per_class, is_full = active.shape[1], self.covariance == "full"
        return [
            stored[c]
            if is_complete[c]
            else mixture_of_members(z[y == c], slots[y == c] % per_class, per_class, is_full)
            for c in range(len(active))
        ]


def _unstack_mixtures(
    weights: Float[Tensor, "C S"], centres: Float[Tensor, "C S D"], scales: Float[Tensor, "C S ..."]
) -> list[Mixture]:
    return [Mixture(*parts) for parts in zip(weights, centres, scales, strict=True)]
