"""Gaussian noise calibrated to a leak: the least with which a message tells no more than wanted."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.errors import NetError
from fedcel.leakage.channel_numbers import factor_gram, is_computable
from fedcel.leakage.image_prior import ImagePrior, fit_image_prior, read_pixels
from fedcel.leakage.linearised import LinearisedChannels, LinearisedLeak, linearise
from fedcel.leakage.noisy_head import measure_sensitivity
from fedcel.nets import Encoder, as_module, encode_images, evaluation_mode, place_images
from fedcel.ranges import POSITIVE, check_whole
from fedcel.short_repr import show_shapes
from fedcel.tensors import ArrayLike
from fedcel.torch_state import usual_torch_state

LEAST_SCALE, MOST_SCALE = 1e-15, 1e15
"""Range of the search, in units of the noise that channels are linearised with."""
PRECISION = 1e-12
"""Relative precision of the noise."""
RANGE = 10.0
"""Factor by which a feature's noise is at most above or below the one that is right for all."""
MAX_ROUNDS = 100
CONVERGED = 1e-4
"""Relative change of the variances at which noise of each feature is found."""
MAX_FITS, NEAR = 4, 1.5
"""Linearisations to find noise where traces are estimated, and the factor by which it hardly
changes."""
KEPT_VALUES = 2**27
"""Values of the Jacobians of all images, which noise of each feature is found with."""
LEAST_IMAGES = 8
"""Images that these Jacobians are of, at least."""
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, kw_only=True)
class LeakTarget:
    """Leak that a message may have at most: bits, or else the error that it has to leave.

    Raises:
        ValueError: Both are given or neither, or a number is not above 0.
    """

    bits: float | int | None = None
    """Bits of the linearised channel, mean over images."""
    mse: float | int | None = None
    """Squared error a pixel of the best reconstruction, mean over images."""

    def __post_init__(self) -> None:
        """Refuse a target that is none."""
        if (self.bits is None) == (self.mse is None):
            count = "neither is" if self.bits is None else "both are"
            raise ValueError(f"target bits and target MSE: {count} given; give one of them")
        for name, value in (("target bits", self.bits), ("target MSE", self.mse)):
            if value is not None:
                POSITIVE.check(name, float(value))

    def is_met(self, channels: LinearisedChannels, gain: float) -> bool:
        """Whether channels tell no more at a gain, which is messages / noise_scale^2."""
        if self.bits is not None:
            return channels.mean_bits(gain) <= self.bits
        return self.mse is None or channels.mean_mmse(gain) >= self.mse


@show_shapes
class CalibratedNoise(NamedTuple):
    """Noise that meets a target, and the leak that is left.

    Attributes:
        noise: Standard deviation, in units of the features; (D,) where each feature has its own.
        leak: Leak with this noise.
    """

    noise: float | Float[Tensor, " D"]
    leak: LinearisedLeak


@usual_torch_state()
def calibrate_noise(
    encoder: Encoder,
    images: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    target_bits: float | int | None = None,
    target_mse: float | int | None = None,
    per_feature: bool = False,
    head: nn.Module | None = None,
    prior: ImagePrior | None = None,
    count: int = 30,
    messages: int = 1,
    differences: bool = False,
    seed: int = 0,
) -> CalibratedNoise:
    """Find the least Gaussian noise with which messages leak no more than a target.

    Where Jacobians are computed, the encoder is linearised once: singular values of J C^(1/2) do
    not depend on the noise. Where traces are estimated, it is linearised again with the noise that
    was found. With one standard deviation for all features, bits fall and errors rise with it, so
    the least that meets the target is found by bisection.

    With one a feature, the variances v minimise sum_i w_i v_i, the harm to the answer, subject to
    the target. Both the bits (Diggavi and Cover 2001) and the error that a message takes off are
    convex in v, so this is the one best choice. w_i is the Fisher information of the head's answer
    about feature i, with the noise that is right for all: the sum is then twice the KL divergence
    by which noise changes the answers, to second order. Without a head w_i is 1, and the sum the
    power of the noise. No feature gets less than a tenth, or more than ten times, of the noise that
    is right for all: features that are silent on these images may speak on others.

    Example:
        >>> noise, leak = fedcel.calibrate_noise(encoder, images, labels, target_bits=25)
        >>> print(noise, leak)

    Args:
        encoder: As of `measure_linearised`, and so are `prior`, `count`, `differences` and `seed`.
        images: (M, ...).
        labels: Integers from 0, (M,), for the prior within classes; not beside `prior`.
        target_bits: Linearised bits that messages may tell, above 0.
        target_mse: Squared error a pixel that the best reconstruction must have, instead of bits.
        per_feature: Whether each feature has noise of its own.
        head: Classifier of features in the encoder's own shape, for `per_feature`.
        prior: Law of the images; None: fitted to these images.
        count: The most images that are measured: the target is met in the mean over these.
        messages: Messages of each image, which meet the target together.
        differences: Whether derivatives may be central differences.
        seed: Draws images and probes.

    Returns:
        The noise, and the leak with it.

    Raises:
        ValueError: No noise, or any, meets the target; or an argument is not allowed.
        NetError: The encoder has no gradient, or one that is not finite.

    References:
        Diggavi and Cover, The Worst Additive Noise Under a Covariance Constraint, IEEE Trans.
        Inf. Theory 2001: convexity of the bits. Hunter and Lange, A Tutorial on MM Algorithms,
        2004: the iteration.
    """
    target = LeakTarget(bits=target_bits, mse=target_mse)
    check_whole("messages", messages, 1)
    if head is not None and not per_feature:
        raise ValueError("a head is given, and one noise for all features needs none; leave it out")
    stack = read_pixels(images)
    if prior is None:
        prior = fit_image_prior(stack, labels)
    elif labels is not None:
        raise ValueError("labels are given beside a prior, which has its own; leave them out")
    table = encode_images(encoder, stack).cpu()
    if per_feature:
        count = limit_count(count, table.shape[1], stack[0].numel())

    def linearise_at(noise: float | Tensor) -> LinearisedChannels:
        return linearise(
            encoder,
            stack,
            noise=noise,
            prior=prior,
            count=count,
            differences=differences,
            has_jacobians=per_feature,
            seed=seed,
        )

    fit = fit_noise(linearise_at, target, 1.0, messages=messages)
    channels, sigma = fit.channels, fit.unit * fit.scale
    refuse_unreachable(channels, target, fit.scale, messages)
    if not per_feature:
        return CalibratedNoise(sigma, channels.measure(noise_scale=fit.scale, messages=messages))
    harms = torch.ones(table.shape[1], dtype=torch.float64)
    if head is not None:
        shape = find_feature_shape(encoder, stack)
        harms = measure_sensitivity(head, table, shape=shape, sigma=sigma, seed=seed)
    noise = spread_noise(channels, target, harms, sigma, messages=messages)
    return CalibratedNoise(noise, linearise_at(noise).measure(messages=messages))


class FittedNoise(NamedTuple):
    """Noise that meets a target: `scale` times that with which channels were linearised.

    Attributes:
        channels: Of the last linearisation.
        unit: Standard deviation of their noise.
        scale: The factor; 0 where any noise meets the target, infinity where none does.
    """

    channels: LinearisedChannels
    unit: float
    scale: float


def fit_noise(
    linearise_at: Callable[[float], LinearisedChannels],
    target: LeakTarget,
    unit: float,
    *,
    messages: int = 1,
) -> FittedNoise:
    """Find the least noise with which channels meet a target.

    Estimated traces are accurate near the noise that channels were linearised with, so these are
    linearised again with the noise that was found, until it hardly changes.

    Args:
        linearise_at: Linearises with a standard deviation.
        target: The leak that is allowed.
        unit: Standard deviation to begin with.
        messages: Messages of each image, which meet the target together.

    Returns:
        The noise.
    """
    for number in range(MAX_FITS):
        channels = linearise_at(unit)
        scale = find_noise_scale(channels, target, messages)
        is_near = channels.is_exact or 1 / NEAR < scale < NEAR
        if is_near or not 0 < scale < inf or number == MAX_FITS - 1:
            break
        unit *= scale
    return FittedNoise(channels, unit, scale)


def find_noise_scale(channels: LinearisedChannels, target: LeakTarget, messages: int = 1) -> float:
    """Find the least factor of all noise with which channels meet a target.

    Args:
        channels: As `linearise` gives them, with noise that is no function.
        target: The leak that is allowed.
        messages: Messages of each image, which meet the target together.

    Returns:
        The factor; 0 where any noise meets the target, infinity where none does.
    """

    def is_met(scale: float) -> bool:
        return target.is_met(channels, messages / scale**2)

    if is_met(LEAST_SCALE):
        return 0.0
    if not is_met(MOST_SCALE):
        return inf
    low, high = LEAST_SCALE, MOST_SCALE
    while high > low * (1 + PRECISION):
        middle = sqrt(low * high)
        low, high = (low, middle) if is_met(middle) else (middle, high)
    return high


def refuse_unreachable(
    channels: LinearisedChannels, target: LeakTarget, scale: float, messages: int
) -> None:
    """Raise ValueError where any noise meets the target, or none, with the nearest value."""
    if 0 < scale < inf:
        return
    gain = messages / (LEAST_SCALE if scale == 0 else MOST_SCALE) ** 2
    subject = "one message" if messages == 1 else f"{messages} messages"
    if target.bits is not None:
        bits = channels.mean_bits(gain)
        limit, words = "below" if scale == 0 else "above", "with next to no noise"
        words = words if scale == 0 else "with any noise"
        raise ValueError(
            f"target bits are {target.bits:g}, must be {limit} {bits:.4g}, which {subject} "
            f"tell{'s' * (messages == 1)} {words}"
        )
    if scale == inf:
        raise ValueError(
            f"target MSE is {target.mse:g}, must be below {channels.prior.variance:.4g}: who gets "
            "no message has that error"
        )
    raise ValueError(
        f"target MSE is {target.mse:g}, must be above {channels.mean_mmse(gain):.4g}: {subject} "
        f"without noise leave{'s' * (messages == 1)} that error already"
    )


def limit_count(count: int, features: int, values: int) -> int:
    """Limit the images to as many as memory has room for the Jacobians of; ValueError if few."""
    room = KEPT_VALUES // (features * values)
    if room < LEAST_IMAGES or not is_computable(features, values):
        raise ValueError(
            f"messages have {features} values and images {values}, too many for noise of each "
            "feature; give one noise for all, or cut at a layer of fewer values"
        )
    return min(count, room)


def find_feature_shape(encoder: Encoder, images: Float[Tensor, "N *shape"]) -> tuple[int, ...]:
    """Find the shape in which an encoder gives the features of one image.

    Args:
        encoder: As of `measure_linearised`.
        images: (N, ...).

    Returns:
        The shape, without that of the batch.

    Raises:
        NetError: The encoder gives something else than one tensor.
    """
    module = as_module(encoder)
    with evaluation_mode(module), torch.no_grad():
        features = encoder(place_images(images[:1].clone(), module))
    if not isinstance(features, Tensor):
        raise NetError("the encoder gives no single tensor that a head could take; leave head out")
    return tuple(features.shape[1:])


def spread_noise(
    channels: LinearisedChannels,
    target: LeakTarget,
    harms: Float[Tensor, " D"],
    sigma: float,
    *,
    messages: int = 1,
) -> Float[Tensor, " D"]:
    """Spread noise over the features so that it does the least harm and meets a target.

    The constraint is concave in the precisions 1 / v, so that its tangent in these bounds it from
    above. Each round minimises the harm under the tangent, which has a closed form: every round
    meets the target, and none does more harm than the one before.

    Args:
        channels: With Jacobians, linearised with noise 1.
        target: The leak that is allowed.
        harms: Harm of each feature's noise by its variance, 0 or more.
        sigma: Standard deviation that meets the target if all features have it.
        messages: Messages of each image, which meet the target together.

    Returns:
        Standard deviations, (D,), within a factor of 10 from `sigma`.
    """
    assert channels.jacobians is not None
    root = channels.prior.variances.sqrt()
    scaled = channels.jacobians * (root * sqrt(messages))
    has_bits = target.bits is not None
    if target.bits is not None:
        limit = target.bits * log(2)
    else:
        limit = float(root.square().sum()) - (target.mse or 0.0) * len(root)
    low, high = (sigma / RANGE) ** 2, (sigma * RANGE) ** 2
    variances = torch.full_like(harms, sigma**2)
    for _ in range(MAX_ROUNDS):
        measure = differentiate_bits if has_bits else differentiate_error
        leaks, slopes = zip(*(measure(part, 1 / variances, root) for part in scaled), strict=True)
        slope = torch.stack(slopes).mean(0).clamp_min(0)
        room = limit - sum(leaks) / len(leaks) + float((slope / variances).sum())
        ideal = (slope / harms.clamp_min(TINY)).sqrt()
        factor = find_factor(ideal, slope, room, low=low, high=high)
        changed = (factor * ideal).clamp(low, high)
        change = float((changed / variances).log().abs().max())
        variances = changed
        if change < CONVERGED:
            break
    return variances.sqrt()


def find_factor(
    ideal: Float[Tensor, " D"], slope: Float[Tensor, " D"], room: float, *, low: float, high: float
) -> float:
    """Find the least factor of variances, then limited, with sum(slope / variances) <= room."""
    least, most = sqrt(TINY), 1 / sqrt(TINY)
    while most > least * (1 + PRECISION):
        middle = sqrt(least) * sqrt(most)
        is_little = float((slope / (middle * ideal).clamp(low, high)).sum()) > room
        least, most = (middle, most) if is_little else (least, middle)
    return most


def differentiate_bits(
    scaled: Float[Tensor, "D d"], precisions: Float[Tensor, " D"], root: Float[Tensor, " d"]
) -> tuple[float, Float[Tensor, " D"]]:
    """Compute 1/2 log det(I + M^T T M) of M = J C^(1/2), and its slope in the precisions T."""
    weighted = scaled * precisions.sqrt()[:, None]
    factor, nats = factor_gram(weighted[None])
    if len(factor[0]) == len(precisions):
        inverse = torch.linalg.solve_triangular(
            factor[0], torch.eye(len(precisions), dtype=factor.dtype), upper=False
        )
        slope = (1 - inverse.square().sum(0)) / precisions
    else:
        slope = torch.linalg.solve_triangular(factor[0], scaled.T, upper=False).square().sum(0)
    return float(nats), slope / 2


def differentiate_error(
    scaled: Float[Tensor, "D d"], precisions: Float[Tensor, " D"], root: Float[Tensor, " d"]
) -> tuple[float, Float[Tensor, " D"]]:
    """Compute tr C - tr(C^(1/2) (I + M^T T M)^-1 C^(1/2)), and its slope in the precisions T."""
    weighted = scaled * precisions.sqrt()[:, None]
    factor, _ = factor_gram(weighted[None])
    if len(factor[0]) == len(precisions):
        solution = torch.cholesky_solve(weighted, factor[0]) * root
        value = float((solution * weighted * root).sum())
        return value, solution.square().sum(1) / precisions
    remainder = torch.cholesky_solve(torch.diag(root), factor[0])
    value = float(root.square().sum() - (remainder.diagonal() * root).sum())
    return value, (scaled @ remainder).square().sum(1)
