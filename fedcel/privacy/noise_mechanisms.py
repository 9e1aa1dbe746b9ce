"""Laplace and Gaussian noise on clipped logits, drawn by OpenDP where no other source is named.

q(x) = clip(logits) + Laplace(Delta_1 / epsilon), Dwork et al., TCC 2006, proposition 1, or
+ Gaussian(sigma) with sigma of `fedcel.privacy.gaussian_calibration`. The noise is discrete,
because textbook sampling leaks through low bits (Mironov, CCS 2012), on a grid of 2^-80 of its
scale: four times as fast to draw as on the grid of doubles, and still so fine that the discrete
Gaussian's delta is that of the continuous one to within the calibration's slack (Canonne, Kamath
and Steinke, NeurIPS 2020). It comes from the system's secure generator and cannot be seeded.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.extras import import_optional
from fedcel.privacy.clip import (
    ClipKind,
    check_finite,
    check_logits,
    clip_rows,
    clip_sensitivity,
)
from fedcel.privacy.epsilon_range import check_epsilon
from fedcel.privacy.gaussian_calibration import SLACK, calibrate_sigma
from fedcel.privacy.protocol import PROTECTS, Unit
from fedcel.ranges import FRACTION, POSITIVE, check_whole
from fedcel.tensors import Array, match_kind, to_tensor

EXACT_DISTANCES = "donot_use_mm_for_euclid_dist"
OPENDP_BITS = 80
"""OpenDP's step is 2^-80 of the noise's scale, or of the sensitivity where that is smaller."""
SMALLEST_EXPONENT = -1074
"""The smallest exponent of a double."""


def perturb_rows(
    clipped: Float[Tensor, "B C"], epsilon: float, sensitivity: float
) -> Float[Tensor, "B C"]:
    """Add Laplace noise: each row's release is epsilon-DP in that row.

    Args:
        clipped: (B, C); no two possible rows are further apart than `sensitivity`.
        epsilon: Privacy loss of each row, above 0.
        sensitivity: Largest L1 distance of two rows, in their unit.

    Returns:
        Noisy rows in double precision; no seed repeats them.

    Raises:
        ValueError: A value is not finite, or epsilon or sensitivity is out of range.
        RuntimeError: OpenDP does not confirm epsilon.

    References:
        Dwork et al., TCC 2006, proposition 1.
    """
    check_epsilon(epsilon)
    POSITIVE.check("sensitivity", sensitivity)
    scale = SLACK * sensitivity / epsilon  # rounding to the grid moves two rows apart
    if scale == math.inf:
        raise ValueError(f"epsilon is {epsilon}, too small for any finite noise; try 0.5")
    return _add_noise("laplace", clipped, scale, sensitivity, epsilon=epsilon)


def add_gaussian_noise(
    values: Float[Tensor, "..."], sigma: float, sensitivity: float
) -> Float[Tensor, "..."]:
    """Add Gaussian noise of sigma to values within `sensitivity` in L2; in double precision.

    ValueError on undefined values, RuntimeError where OpenDP states a larger loss than it has.
    """
    rho = (SLACK * sensitivity / sigma) ** 2 / 2
    return _add_noise("gaussian", values, sigma, sensitivity, epsilon=rho)


def _add_noise(
    kind: Literal["laplace", "gaussian"],
    values: Float[Tensor, "..."],
    scale: float,
    sensitivity: float,
    *,
    epsilon: float,
) -> Float[Tensor, "..."]:
    """Return what OpenDP makes of the values, where it states a loss of at most epsilon.

    The loss of Gaussian noise is rho of zero-concentrated privacy.
    """
    check_finite(values)
    domains, measurements, metrics = map(import_opendp, ("domains", "measurements", "metrics"))
    domain = domains.vector_domain(domains.atom_domain(T=float, nan=False), size=values.numel())
    make, metric = measurements.make_laplace, metrics.l1_distance
    if kind == "gaussian":
        make, metric = measurements.make_gaussian, metrics.l2_distance
    mechanism = make(domain, metric(T=float), scale=scale, k=choose_grid(scale, sensitivity))
    spent = mechanism.map(sensitivity)
    if spent > epsilon:
        raise RuntimeError(f"OpenDP states a privacy loss of {spent}, more than {epsilon}")
    noisy = mechanism(values.double().flatten().tolist())
    return torch.tensor(noisy, dtype=torch.float64).reshape(values.shape)


def choose_grid(scale: float, sensitivity: float) -> int:
    """Return the exponent of OpenDP's step, which is fine against the scale and the sensitivity."""
    return max(math.frexp(min(scale, sensitivity))[1] - OPENDP_BITS, SMALLEST_EXPONENT)


@cache
def import_opendp(part: str) -> Any:
    """Import a module of OpenDP, with consent to constructors whose proofs are written.

    OpenDP's prelude has them all, and imports scikit-learn and pandas beside, which takes seconds.
    """
    import_optional("opendp.mod").enable_features("contrib")
    return import_optional(f"opendp.{part}")


@dataclass(frozen=True)
class ClippedNoise(ABC):
    """Answers that are clipped logits plus the noise of `Laplace` or `Gaussian`.

    Attributes:
        epsilon: Privacy loss of one answer, in nats.
        classes: Logits of an answer.
        clip_kind: How rows are clipped, see `clip_rows`.
        clip: Largest value or norm, see `clip_rows`.
        sensitivity: Distance that the noise covers: the clip's, in the norm of the noise.
        name: The setting's word for it.
        delta: Chance by which epsilon may be exceeded.
        protects: Sentence that says what is protected against whom.
    """

    epsilon: float
    classes: int
    _: KW_ONLY
    clip_kind: ClipKind = "l1"
    clip: float = 1.0
    sensitivity: float = field(init=False)
    name: str
    delta: float
    protects: str = PROTECTS
    norm: ClassVar[int]

    def __post_init__(self) -> None:
        """Refuse what cannot be kept: ValueError."""
        check_whole("classes", self.classes, 2)
        sensitivity = clip_sensitivity(self.clip_kind, self.clip, self.classes, self.norm)
        object.__setattr__(self, "sensitivity", sensitivity)
        check_epsilon(self.epsilon, self.name)

    @property
    def unit(self) -> Unit:
        """Unit of an answer's values."""
        return "probabilities" if self.clip_kind == "probabilities" else "logits"

    def answer_without_noise(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return the clipped rows; see `KnownLaw.answer_without_noise`."""
        check_logits(logits, self.classes)
        return clip_rows(logits, self.clip_kind, self.clip)

    def answer(self, logits: Array) -> Array:
        """Return clipped rows plus noise; see `Mechanism.answer`."""
        clipped = self.answer_without_noise(to_tensor(logits, "logits"))
        return match_kind(self.add_noise(clipped), logits)

    @abstractmethod
    def add_noise(self, clipped: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return the rows with noise, in double precision."""


@final
@dataclass(frozen=True, kw_only=True)
class Laplace(ClippedNoise):
    """Pure epsilon-DP answers: clipped logits plus Laplace noise.

    Example::

        mechanism = Laplace(epsilon=4, classes=10, clip_kind="l1", clip=1.0)
        noisy = mechanism.answer(logits)

    Attributes:
        sensitivity: Sensitivity in L1.
        delta: 0.
        disturb: Sampler of the noise: `perturb_rows`, or another of the same law.
    """

    name: str = "laplace"
    delta: float = 0.0
    disturb: Callable[[Tensor, float, float], Tensor] = perturb_rows
    norm = 1

    def add_noise(self, clipped: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return the rows with noise, in double precision."""
        return self.disturb(clipped, self.epsilon, self.sensitivity)

    def log_density(
        self, answers: Float[Tensor, "Q C"], rows: Float[Tensor, "M C"]
    ) -> Float[Tensor, "Q M"]:
        """Return -|answer - row|_1 epsilon / sensitivity; see `KnownLaw.log_density`.

        The noise is taken as continuous: its grid is far finer than its scale.
        """
        distances = torch.cdist(answers.double(), rows.double(), p=1)
        return distances * (-self.epsilon / self.sensitivity)


@final
@dataclass(frozen=True, kw_only=True)
class Gaussian(ClippedNoise):
    """(epsilon, delta)-DP answers: clipped logits plus Gaussian noise.

    Example::

        mechanism = Gaussian(epsilon=4, classes=10, delta=1e-6)
        noisy = mechanism.answer(logits)

    Attributes:
        sensitivity: Sensitivity in L2.
        delta: Above 0 and below 1.
    """

    name: str = "gaussian"
    delta: float = 1e-6
    norm = 2

    def __post_init__(self) -> None:
        """Refuse what cannot be kept: ValueError."""
        super().__post_init__()
        FRACTION.check("delta", self.delta)

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of the noise, in units of a clipped row."""
        return calibrate_sigma(self.epsilon, self.delta, self.sensitivity)

    def add_noise(self, clipped: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return the rows with noise, in double precision."""
        return add_gaussian_noise(clipped, self.sigma, self.sensitivity)

    def log_density(
        self, answers: Float[Tensor, "Q C"], rows: Float[Tensor, "M C"]
    ) -> Float[Tensor, "Q M"]:
        """Return -|answer - row|^2 / (2 sigma^2); see `KnownLaw.log_density`.

        The noise is taken as continuous: its grid is far finer than its scale.
        """
        distances = torch.cdist(answers.double(), rows.double(), compute_mode=EXACT_DISTANCES)
        return (distances / self.sigma).square() / -2
