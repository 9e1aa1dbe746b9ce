"""Laplace and Gaussian noise on clipped logits, drawn by OpenDP where no other source is named.

q(x) = clip(logits) + Laplace(Delta_1 / epsilon), Dwork et al., TCC 2006, proposition 1, or
+ Gaussian(sigma) with sigma of `fedcel.privacy.gaussian_calibration`. The noise is discrete,
because textbook sampling leaks through low bits (Mironov, CCS 2012), on a grid of 2^-80 of its
scale: four times as fast to draw as on the grid of doubles, and still so fine that the discrete
Gaussian's delta is that of the continuous one to within the calibration's slack (Canonne, Kamath
and Steinke, NeurIPS 2020). It comes from the system's secure generator and cannot be seeded.
"""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, cached_property
from typing import Any, ClassVar, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.extras import import_optional
from fedcel.privacy.array_kind import Array, match_kind, to_tensor
from fedcel.privacy.clip import check_finite, check_logits, clip_rows
from fedcel.privacy.epsilon_range import check_epsilon
from fedcel.privacy.gaussian_calibration import SLACK, calibrate_sigma
from fedcel.privacy.noise_grid import choose_opendp_grid
from fedcel.privacy.protocol import PROTECTS
from fedcel.privacy.sensitivity import ClipKind, check_classes, noise_sensitivity
from fedcel.ranges import FRACTION, POSITIVE

Unit = Literal["logits", "probabilities"]
EXACT_DISTANCES = "donot_use_mm_for_euclid_dist"
Disturb = Callable[[Tensor, float, float], Tensor]
"""Clipped rows, epsilon, sensitivity to disturbed rows, as `perturb_rows`."""


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
    opendp = import_opendp()
    space = row_domain(clipped.numel()), opendp.l1_distance(T=float)
    mechanism = opendp.m.make_laplace(*space, scale=scale, k=choose_opendp_grid(scale, sensitivity))
    return draw_noise(mechanism, clipped, sensitivity, epsilon)


@dataclass(frozen=True)
class ClippedNoise:
    """Answers that are clipped logits plus noise; what noise, `Laplace` and `Gaussian` say.

    Attributes:
        epsilon: Privacy loss of one answer, in nats.
        classes: Logits of an answer.
        clip_kind: How rows are clipped, see `clip_rows`.
        clip: Largest value or norm, see `clip_rows`.
        sensitivity: Distance that the noise covers, at least `clip_sensitivity`, which is taken
            where none is given.
        name: The setting's word for it.
        delta: Chance by which epsilon may be exceeded.
        protects: What is protected against whom.
    """

    epsilon: float
    classes: int
    _: KW_ONLY
    clip_kind: ClipKind = "l1"
    clip: float = 1.0
    sensitivity: float = field(default=None)  # type: ignore[assignment]  # None: the clip's
    name: str
    delta: float
    protects: str = PROTECTS
    norm: ClassVar[int]

    def __post_init__(self) -> None:
        """Refuse a sensitivity that the clip exceeds, and what cannot be kept: ValueError."""
        check_classes(self.classes)
        kind, clip, stated = self.clip_kind, self.clip, self.sensitivity
        used = noise_sensitivity(kind, clip, self.classes, self.norm, stated=stated)
        object.__setattr__(self, "sensitivity", used)
        check_epsilon(self.epsilon, self.name)

    @property
    def unit(self) -> Unit:
        """What the values of an answer are."""
        return clip_unit(self.clip_kind)

    def answer_without_noise(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return the clipped rows, before the noise.

        Args:
            logits: (B, C).

        Returns:
            Rows (B, C), in double precision.

        Raises:
            ValueError: Logits are undefined, or of another number of classes.
        """
        check_logits(logits, self.classes)
        return clip_rows(logits, self.clip_kind, self.clip)


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
        disturb: What draws the noise: `perturb_rows`, or another sampler of the same law.
    """

    name: str = "laplace"
    delta: float = 0.0
    disturb: Disturb = perturb_rows
    norm = 1

    def answer(self, logits: Array) -> Array:
        """Return clipped rows plus noise, in double precision.

        Args:
            logits: Tensor or NumPy array (B, C); each row is one answer.

        Returns:
            Noisy rows (B, C), an array of the same kind.

        Raises:
            ValueError: Logits are undefined, or of another number of classes.
        """
        clipped = self.answer_without_noise(to_tensor(logits))
        return match_kind(self.disturb(clipped, self.epsilon, self.sensitivity), logits)

    def log_density(
        self, answers: Float[Tensor, "Q C"], rows: Float[Tensor, "M C"]
    ) -> Float[Tensor, "Q M"]:
        """Return -|answer - row|_1 epsilon / sensitivity.

        The noise is taken as continuous: its grid is far finer than its scale.

        Args:
            answers: (Q, C), as `answer` gives them.
            rows: (M, C), as `answer_without_noise` gives them.

        Returns:
            Log-densities (Q, M) in nats, up to one number for all pairs.
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

    def answer(self, logits: Array) -> Array:
        """Return clipped rows plus noise, in double precision.

        Args:
            logits: Tensor or NumPy array (B, C); each row is one answer.

        Returns:
            Noisy rows (B, C), an array of the same kind.

        Raises:
            ValueError: Logits are undefined, or of another number of classes.
        """
        clipped = self.answer_without_noise(to_tensor(logits))
        sigma = self.sigma
        mechanism = gaussian_measurement(clipped.numel(), sigma, self.sensitivity)
        allowed = (self.sensitivity * SLACK / sigma) ** 2 / 2
        return match_kind(draw_noise(mechanism, clipped, self.sensitivity, allowed), logits)

    def log_density(
        self, answers: Float[Tensor, "Q C"], rows: Float[Tensor, "M C"]
    ) -> Float[Tensor, "Q M"]:
        """Return -|answer - row|^2 / (2 sigma^2).

        The noise is taken as continuous: its grid is far finer than its scale.

        Args:
            answers: (Q, C), as `answer` gives them.
            rows: (M, C), as `answer_without_noise` gives them.

        Returns:
            Log-densities (Q, M) in nats, up to one number for all pairs.
        """
        distances = torch.cdist(answers.double(), rows.double(), compute_mode=EXACT_DISTANCES)
        return (distances / self.sigma).square() / -2


def clip_unit(kind: str) -> Unit:
    """Return what a row is after a clip of that kind."""
    return "probabilities" if kind == "probabilities" else "logits"


@cache
def import_opendp() -> Any:
    """Return OpenDP's prelude, with consent to constructors whose proofs are written.

    Raises:
        MissingExtraError: OpenDP is not installed.
    """
    opendp = import_optional("opendp.prelude")
    opendp.enable_features("contrib")
    return opendp


def row_domain(values: int) -> Any:
    """Return OpenDP's domain of so many finite values."""
    opendp = import_opendp()
    return opendp.vector_domain(opendp.atom_domain(T=float, nan=False), size=values)


def gaussian_measurement(values: int, sigma: float, sensitivity: float) -> Any:
    """Return OpenDP's discrete Gaussian noise on so many values, by their L2 distance."""
    opendp = import_opendp()
    space = row_domain(values), opendp.l2_distance(T=float)
    return opendp.m.make_gaussian(*space, scale=sigma, k=choose_opendp_grid(sigma, sensitivity))


def draw_noise(
    mechanism: Any,
    clipped: Float[Tensor, "..."],
    sensitivity: float,
    allowed: float,
) -> Float[Tensor, "..."]:
    """Return what OpenDP makes of the values, where it states a loss of at most `allowed`.

    The loss is epsilon for Laplace noise, rho of zero-concentrated privacy for Gaussian noise.
    """
    check_finite(clipped)
    spent = mechanism.map(sensitivity)
    if spent > allowed:
        raise RuntimeError(f"OpenDP states a privacy loss of {spent}, more than {allowed}")
    noisy = mechanism(clipped.double().flatten().tolist())
    return torch.tensor(noisy, dtype=torch.float64).reshape(clipped.shape)
