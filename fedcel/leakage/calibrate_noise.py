"""Gaussian noise calibrated to a leak: the least with which a message tells no more than wanted."""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf, log, sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.errors import NetError
from fedcel.leakage.feature_noise import PRECISION, measure_sensitivity, spread_noise
from fedcel.leakage.image_prior import ImagePrior, fit_image_prior, read_pixels
from fedcel.leakage.linearised import LinearisedChannels, LinearisedLeak, linearise
from fedcel.leakage.local_channel import LocalChannel, is_computable, ready_encoder
from fedcel.nets import Encoder, as_module, encode_images, evaluation_mode, place_images
from fedcel.ranges import POSITIVE
from fedcel.short_repr import show_shapes
from fedcel.tensors import ArrayLike
from fedcel.torch_state import usual_torch_state

LEAST_SCALE, MOST_SCALE = 1e-15, 1e15
"""Range of the search, in units of the noise that channels are linearised with."""
MAX_FITS, NEAR = 4, 1.5
"""Linearisations to find noise where traces are estimated, and the factor by which it hardly
changes."""
KEPT_VALUES = 2**27
"""Values of the Jacobians of all images, which noise of each feature is found with."""
LEAST_IMAGES = 8
"""Images that these Jacobians are of, at least."""


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
        """Whether channels tell no more at a gain, which is 1 / noise_scale^2."""
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
    seed: int = 0,
) -> CalibratedNoise:
    """Find the least Gaussian noise with which a message leaks no more than a target.

    Where Jacobians are computed, the encoder is linearised once: singular values of J C^(1/2) do
    not depend on the noise. Where traces are estimated, it is linearised again with the noise that
    was found. Bits fall and errors rise with one noise for all features, so the least that meets
    the target is found by bisection. n messages of one image, each with fresh noise, meet the same
    target together with sqrt(n) times the noise.

    With noise of each feature, the variances v minimise sum_i w_i v_i, the harm to the answer,
    subject to the target. w_i is the Fisher information of the head's answer about feature i, with
    the noise that is right for all: the sum is then twice the KL divergence by which noise changes
    the answers, to second order. Without a head w_i is 1, and the sum the power of the noise.

    Example:
        >>> noise, leak = fedcel.calibrate_noise(encoder, images, labels, target_bits=25)
        >>> print(noise, leak)

    Args:
        encoder: As of `measure_linearised`, and so are `prior`, `count` and `seed`.
        images: (M, ...).
        labels: Integers from 0, (M,), for the prior within classes; not beside `prior`.
        target_bits: Linearised bits that a message may tell, above 0.
        target_mse: Squared error a pixel that the best reconstruction must have, instead of bits.
        per_feature: Whether each feature has noise of its own.
        head: Classifier of features in the encoder's own shape, for `per_feature`.
        prior: Law of the images; None: fitted to these images.
        count: The most images that are measured: the target is met in the mean over these.
        seed: Draws images and probes.

    Returns:
        The noise, and the leak with it.

    Raises:
        ValueError: No noise, or any, meets the target; or an argument is not allowed.
        NetError: The encoder has no gradient, or one that is not finite.
    """
    target = LeakTarget(bits=target_bits, mse=target_mse)
    if head is not None and not per_feature:
        raise ValueError("a head is given, and one noise for all features needs none; leave it out")
    stack = read_pixels(images)
    if prior is None:
        prior, labels = fit_image_prior(stack, labels), None
    shape = find_feature_shape(encoder, stack) if per_feature else torch.Size()
    if per_feature:
        count = limit_count(count, shape.numel(), stack[0].numel())

    def linearise_at(noise: float | Tensor) -> LinearisedChannels:
        return linearise(encoder, stack, labels, noise=noise, prior=prior, count=count, seed=seed)

    channels, unit, scale = fit_noise(linearise_at, target, 1.0)
    refuse_unreachable(channels, target, scale)
    sigma = unit * scale
    if not per_feature:
        return CalibratedNoise(sigma, channels.measure(noise_scale=scale))
    harms = torch.ones(shape.numel(), dtype=torch.float64)
    if head is not None:
        features = encode_images(encoder, stack).cpu()
        harms = measure_sensitivity(head, features, shape=shape, sigma=sigma, seed=seed)
    root = prior.variances.sqrt()
    jacobians = compute_jacobians(encoder, stack[channels.places.to(stack.device)], prior)
    if target.bits is not None:
        allowed = target.bits * log(2)
    else:
        allowed = float(prior.variances.sum()) - (target.mse or 0.0) * len(root)
    noise = spread_noise(
        jacobians * root, root, harms, sigma, allowed=allowed, is_error=target.bits is None
    )
    return CalibratedNoise(noise, linearise_at(noise).measure())


def find_feature_shape(encoder: Encoder, images: Float[Tensor, "N *shape"]) -> torch.Size:
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
        raise NetError("the encoder gives no single tensor, which noise of each feature needs")
    return features.shape[1:]


def limit_count(count: int, features: int, values: int) -> int:
    """Limit the images to as many as memory has room for the Jacobians of; ValueError if few."""
    room = KEPT_VALUES // (features * values)
    if room < LEAST_IMAGES or not is_computable(features, values):
        raise ValueError(
            f"messages have {features} values and images {values}, too many for noise of each "
            "feature; give one noise for all, or cut at a layer of fewer values"
        )
    return min(count, room)


def compute_jacobians(
    encoder: Encoder, images: Float[Tensor, "n *shape"], prior: ImagePrior
) -> Float[Tensor, "n D d"]:
    """Compute the Jacobian of each image in the prior's directions."""
    function, dtype = ready_encoder(encoder, images)
    parts = torch.split(images.to(dtype), 1)
    return torch.cat([LocalChannel(function, part, noise=1.0).jacobians(prior) for part in parts])


def fit_noise(
    linearise_at: Callable[[float], LinearisedChannels], target: LeakTarget, unit: float
) -> tuple[LinearisedChannels, float, float]:
    """Find the least noise with which channels meet a target.

    Returns channels, the standard deviation of the noise that they were linearised with, and the
    factor of it that meets the target: 0 where any does, infinity where none does.

    Estimated traces are accurate near the noise that channels were linearised with, so these are
    linearised again with the noise that was found, until it hardly changes. `unit` is the standard
    deviation to begin with.
    """
    for number in range(MAX_FITS):
        channels = linearise_at(unit)
        scale = find_noise_scale(channels, target)
        is_near = channels.is_exact or 1 / NEAR < scale < NEAR
        if is_near or not 0 < scale < inf or number == MAX_FITS - 1:
            break
        unit *= scale
    return channels, unit, scale


def find_noise_scale(channels: LinearisedChannels, target: LeakTarget) -> float:
    """Find the least factor of all noise with which channels meet a target.

    It is 0 where any noise meets the target, infinity where none does.
    """

    def is_met(scale: float) -> bool:
        return target.is_met(channels, 1 / scale**2)

    if is_met(LEAST_SCALE):
        return 0.0
    if not is_met(MOST_SCALE):
        return inf
    low, high = LEAST_SCALE, MOST_SCALE
    while high > low * (1 + PRECISION):
        middle = sqrt(low * high)
        low, high = (low, middle) if is_met(middle) else (middle, high)
    return high


def refuse_unreachable(channels: LinearisedChannels, target: LeakTarget, scale: float) -> None:
    """Raise ValueError where any noise meets the target, or none, with the nearest value."""
    if 0 < scale < inf:
        return
    gain = 1 / (LEAST_SCALE if scale == 0 else MOST_SCALE) ** 2
    if target.bits is not None:
        bits = channels.mean_bits(gain)
        limit, words = "below" if scale == 0 else "above", "with next to no noise"
        words = words if scale == 0 else "with any noise"
        raise ValueError(
            f"target bits are {target.bits:g}, must be {limit} {bits:.4g}, which one message "
            f"tells {words}"
        )
    if scale == inf:
        raise ValueError(
            f"target MSE is {target.mse:g}, must be below {channels.prior.variance:.4g}: who gets "
            "no message has that error"
        )
    raise ValueError(
        f"target MSE is {target.mse:g}, must be above {channels.mean_mmse(gain):.4g}: one message "
        "without noise leaves that error already"
    )
