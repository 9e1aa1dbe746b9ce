"""Leak of an encoder seen as a linear channel: how much of the picture goes out."""

from dataclasses import dataclass, field, fields
from math import inf, log, log10
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import NetError
from fedcel.leakage.channel_numbers import (
    ChannelNumbers,
    QuadratureRule,
    compute_errors,
    compute_fsinfo,
    compute_nats,
    count_passes,
    estimate_numbers,
    join_rules,
    solve_exactly,
    van_trees_bound,
)
from fedcel.leakage.gaussian_noise import Noise
from fedcel.leakage.image_prior import ImagePrior, fit_image_prior, read_pixels
from fedcel.leakage.local_channel import LocalChannel, is_computable, ready_encoder
from fedcel.metrics import mean_half_width, round_up
from fedcel.nets import Encoder, count_operations, encode_images
from fedcel.progress import tell_progress
from fedcel.ranges import POSITIVE, check_whole
from fedcel.tensors import ArrayLike, check_features
from fedcel.torch_state import make_generator, map_on_threads, usual_torch_state

VALUES_AT_ONCE = 2**22
"""Values of Jacobians in memory, of images that are measured at once."""
GROUPS = 10
"""Groups of images of the jackknife."""

LEAST_IMAGES, MOST_IMAGES = 6, 200
"""Images that are measured by default."""
SEQUENCES = (1, 4, 16, 64, 256)
"""Messages of one image, whose leak together is told."""

ESTIMATE_WORDS = (
    "an estimate, not a bound: the encoder is taken as linear around the image, and images of a "
    "class as Gaussian"
)
BOUND_WORDS = (
    "a bound for any attacker and any encoder if images of a class are Gaussian: who knows more of "
    "images than mean and covariance may come below it"
)
MEASURE_NAMES = {
    "bits": "bits of the picture",
    "mmse": "least MSE",
    "psnr": "PSNR, dB",
    "bound": "van Trees bound, MSE",
    "dfil": "dFIL",
    "fsinfo": "FSInfo, nats",
}
"""Short name of each number."""
MEASURE_WORDS = {
    "bits": f"Bits about the picture in one message; {ESTIMATE_WORDS}",
    "mmse": f"Smallest mean squared error of a pixel in the best reconstruction; {ESTIMATE_WORDS}",
    "psnr": "The same error as a peak signal-to-noise ratio in dB",
    "bound": f"Van Trees' lower bound on the mean squared error of a pixel; {BOUND_WORDS}",
    "dfil": "Fisher information per pixel (Hannun et al., 2021); its inverse bounds the error of "
    "unbiased attackers only",
    "fsinfo": "Fisher-approximated Shannon information (Deng et al., 2025): -h(image | message) of "
    "a Gaussian, in nats, times 2 per pixel; comparable between encoders of the same images only",
}
"""Meaning of each number, for tables and pages."""


class SequenceLeak(NamedTuple):
    """Leak of several messages of one image, each with fresh noise, to one attacker.

    Attributes:
        messages: Messages of the image.
        bits: Information about the image in all of them, in bits.
        mse: Mean squared error of a pixel in the best reconstruction from all of them.
    """

    messages: int
    bits: float
    mse: float


@dataclass(frozen=True, repr=False, eq=False)
class LinearisedLeak:
    """Leak of a message, the encoder taken as linear around each image and images as Gaussian.

    Unlike exact bits, which count among M images, these have no cap. Half widths are of 95 %
    intervals over images, by Student's t. `print` shows three lines, `to_dict` gives numbers.
    """

    bits: float
    """Information about the image, in bits; beyond its label if the prior knows labels."""
    mmse: float
    """Mean squared error of a pixel in the best reconstruction."""
    psnr: float
    """The same in dB, for pixels in [0, 1]."""
    bound: float
    """Van Trees' lower bound on that error, for Gaussian images and whatever encoder."""
    dfil: float
    """tr I(x) / d, diagonal Fisher information leakage."""
    fsinfo: float
    """(1/d) log det(I(x) + C^-1) - log(2 pi e), in nats, over the directions that C has."""
    bits_half_width: float
    mmse_half_width: float
    bound_half_width: float
    dfil_half_width: float
    fsinfo_half_width: float
    prior_variance: float
    """The error without any message, of an attacker who knows only the class."""
    is_beyond_label: bool
    """Whether the prior knows labels: else the bits are about the image, its class included."""
    images: int
    """Number of images that are measured."""
    prior: str
    """Estimate of the images' covariance, in words."""
    estimator: str
    """`exact`, or `lanczos` where traces are estimated, by random vectors drawn for each image."""
    bits_error: float
    """Half the distance of the bounds between which the mean bits lie; 0 where they are exact."""
    mmse_error: float
    """The same of the mean squared error."""
    image_bits: Float[Tensor, " n"] = field(kw_only=True)
    """Bits of each image that is measured."""
    image_mmse: Float[Tensor, " n"] = field(kw_only=True)
    """Mean squared error of each image."""
    places: Int[Tensor, " n"] = field(kw_only=True)
    """Positions of these images among those given."""
    sequences: tuple[SequenceLeak, ...] = field(kw_only=True)
    """Leak of 1, 4, 16, 64 and 256 messages of one image together."""

    @property
    def bits_uncertainty(self) -> float:
        """Half width of the bits' interval over images, and the error of Lanczos' estimate."""
        return self.bits_half_width + self.bits_error

    @property
    def mmse_uncertainty(self) -> float:
        """The same of the mean squared error."""
        return self.mmse_half_width + self.mmse_error

    @property
    def psnr_half_width(self) -> float:
        """Half width of the interval of the PSNR, to first order in that of the error; in dB."""
        return 10 / log(10) * self.mmse_half_width / self.mmse if self.mmse > 0 else inf

    def to_measures(self) -> dict[str, object]:
        """Give the numbers by their keys in `result.json` and in rows of a bench.

        Returns:
            Numbers by kebab-case keys.
        """
        return {
            "linearised-bits": self.bits,
            "linearised-bits-half-width": self.bits_half_width,
            "linearised-mse": self.mmse,
            "linearised-mse-half-width": self.mmse_half_width,
            "linearised-psnr": self.psnr,
            "linearised-psnr-half-width": self.psnr_half_width,
            "van-trees-mse": self.bound,
            "van-trees-mse-half-width": self.bound_half_width,
            "dfil": self.dfil,
            "dfil-half-width": self.dfil_half_width,
            "fsinfo": self.fsinfo,
            "fsinfo-half-width": self.fsinfo_half_width,
            "linearised-images": self.images,
            "linearised-bits-error": self.bits_error,
            "linearised-mse-error": self.mmse_error,
            "linearised-sequences": self.list_sequences(),
        }

    def list_sequences(self) -> list[dict[str, float | int]]:
        """List the leak of several messages together, as JSON holds it.

        Returns:
            Dictionaries of `messages`, `bits` and `mse`.
        """
        return [part._asdict() for part in self.sequences]

    def to_dict(self) -> dict[str, float | int | str]:
        """Give all numbers but those of single images.

        Returns:
            Numbers and words, which JSON can hold, by the names of the attributes.
        """
        names = (part.name for part in fields(self) if not part.kw_only)
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        """Show the three numbers that are asked for first."""
        return (
            f"LinearisedLeak(bits={self.bits:.4g}, mmse={self.mmse:.4g}, bound={self.bound:.4g}, "
            f"images={self.images})"
        )

    def __str__(self) -> str:
        """Describe information, error and the other measures, a line each."""
        of_image = "beyond its label" if self.is_beyond_label else "its label included"
        baseline = "its label" if self.is_beyond_label else "the mean image"
        return "\n".join(
            [
                f"One message tells about {self.bits:.1f} ± {round_up(self.bits_uncertainty, 1)} "
                f"bits of the picture, {of_image}, and leaves a mean squared error of "
                f"{self.mmse:.4f} ± {round_up(self.mmse_uncertainty, 4)} a pixel (PSNR "
                f"{self.psnr:.1f} dB), where {baseline} alone leaves {self.prior_variance:.4f}. "
                f"This is {ESTIMATE_WORDS}.",
                f"The error is {self.bound:.4f} or more by van Trees' inequality. This is "
                f"{BOUND_WORDS}.",
                f"Fisher information per pixel (dFIL) {self.dfil:.4g}, FSInfo {self.fsinfo:.4g}; "
                f"of {self.images} images; {self.prior}.",
            ]
        )


@usual_torch_state()
def measure_linearised(
    encoder: Encoder,
    images: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    noise: Noise,
    prior: ImagePrior | None = None,
    count: int = 30,
    seed: int = 0,
) -> LinearisedLeak:
    """Estimate how much of the picture a message gives away, without an attacker or training.

    Around each image x the encoder is a linear channel A = S^(-1/2) df/dx, and images are Gaussian
    of covariance C within their class. Then the message has 1/2 log2 det(I + A C A^T) bits about
    the image, and the best reconstruction the error tr(C - C A^T (I + A C A^T)^-1 A C) / d. Both
    are exact for a linear encoder and Gaussian images, and estimates otherwise.

    Where Jacobians take too many passes through the encoder, both are estimated by Lanczos' method.
    It ends when the bounds on an image's traces are within 10 % of their middle, or after 120
    passes, forwards or backwards; `bits_error` and `mmse_error` say how far apart the bounds are
    then. Random vectors are drawn for each image, so that their chance is part of the interval over
    images.

    Example:
        >>> leak = fedcel.measure_linearised(encoder, images, labels, noise=0.3)
        >>> print(leak)
        >>> leak.bits, leak.mmse, leak.bound

    Args:
        encoder: Images (n, ...) to features (n, D), without its noise: a PyTorch module, or a
            function of tensors that has a gradient.
        images: (M, ...), floating numbers in the form that the encoder takes.
        labels: Integers from 0, (M,), for the prior within classes; not beside `prior`.
        noise: Standard deviation of the Gaussian noise, above 0, in units of the features: one
            number, one for each feature, or a differentiable function of features (B, D) to (B, D).
        prior: Law of the images; None: fitted to these images. Other images of the same kind make
            a better one: `fit_image_prior(reference_images, reference_labels)`.
        count: The most images that are measured, drawn from the M; 30 give a useful interval.
        seed: Draws images and probes.

    Returns:
        Bits, errors and their intervals.

    Raises:
        ValueError: A shape, a number or a combination is not allowed, or features are not finite.
        NetError: The encoder has no gradient, or one that is not finite.

    References:
        Cover and Thomas, Elements of Information Theory, 2006, section 9.4: a Gaussian channel.
        Kay, Estimation Theory, 1993, theorem 10.3: the posterior of a Bayesian linear model.
        Gill and Levit, Bernoulli 1995, theorem 1: van Trees' inequality. Golub and
        Meurant, Matrices, Moments and Quadrature, 2010, chapter 6: bounds by Lanczos' method.
    """
    return linearise(
        encoder, images, labels, noise=noise, prior=prior, count=count, seed=seed
    ).measure()


@usual_torch_state()
def linearise(
    encoder: Encoder,
    images: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    noise: Noise,
    prior: ImagePrior | None = None,
    count: int = 30,
    dense: bool | None = None,
    seed: int = 0,
) -> "LinearisedChannels":
    """Linearise an encoder around images once, to read its leak at any noise.

    Example:
        >>> channels = linearise(encoder, images, labels, noise=1.0)
        >>> [channels.measure(noise_scale=sigma).bits for sigma in (0.1, 0.3, 1.0)]

    Args:
        encoder: As of `measure_linearised`, and so are `prior`, `count` and `seed`.
        images: (M, ...).
        labels: Integers from 0, (M,); not beside `prior`.
        noise: Standard deviation that is the unit of `noise_scale`.
        prior: Law of the images; None: fitted to these images.
        count: The most images that are measured.
        dense: Whether Jacobians are computed, or else traces estimated; None: as is faster.
        seed: Draws images and probes.

    Returns:
        The channels around up to `count` images.

    Raises:
        ValueError: A shape, a number or a combination is not allowed, or features are not finite.
        NetError: The encoder has no gradient, or one that is not finite.
    """
    stack = read_pixels(images)
    check_whole("count", count, 2, " for an interval; leave it out for 30")
    check_whole("seed", seed)
    if prior is not None and labels is not None:
        raise ValueError("labels are given beside a prior, which has its own; leave them out")
    prior = prior or fit_image_prior(stack, labels)
    if tuple(stack.shape[1:]) != prior.shape:
        raise ValueError(
            f"images are of shape {tuple(stack.shape[1:])}, those of the prior {prior.shape}; fit "
            "it to images of the same size"
        )
    if len(stack) < 2:
        raise ValueError("there is 1 image, must be 2 or more for an interval over images")
    order = torch.randperm(len(stack), generator=make_generator(seed, "linearised-images"))
    places = order[:count].sort().values
    chosen = stack[places.to(stack.device)]
    table = encode_images(encoder, chosen)
    check_features(table)
    function, dtype = ready_encoder(encoder, chosen)
    width = table.shape[1] * (2 if callable(noise) else 1)
    is_dense = is_computable(width, chosen[0].numel()) if dense is None else dense
    at_once = max(1, VALUES_AT_ONCE // (width * chosen[0].numel())) if is_dense else 1

    def solve(number: int, batch: Float[Tensor, "B *shape"]) -> ChannelNumbers:
        channel = LocalChannel(function, batch, noise=noise)
        if is_dense:
            return solve_exactly(channel, prior)
        return estimate_numbers(channel, prior, make_generator(seed, "linearised-probes", number))

    totals = FisherTotals(prior, len(chosen))
    information, errors, dfil = [], [], []
    batches = torch.split(chosen.to(dtype), at_once)
    for part in map_on_threads(solve, range(len(batches)), batches):
        totals.add(part)
        information.append(part.information)
        errors.append(part.errors)
        dfil.append(part.fisher.mean(1))
        tell_progress(totals.count, len(chosen))
    return LinearisedChannels(
        information=join_rules(information),
        errors=join_rules(errors),
        dfil=torch.cat(dfil),
        totals=totals,
        prior=prior,
        places=places,
        is_exact=is_dense,
        is_scalable=not callable(noise),
    )


@dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class LinearisedChannels:
    """Linear channels of an encoder around images, whose leak at any noise is read off at once.

    The singular values of J C^(1/2) do not depend on one standard deviation for all features, nor
    do those of A C^(1/2) on a common factor of all noise.
    """

    information: QuadratureRule
    errors: QuadratureRule
    dfil: Float[Tensor, " n"]
    """tr I(x) / d of each image."""
    totals: "FisherTotals"
    prior: ImagePrior
    places: Int[Tensor, " n"]
    """Positions of the images among those given."""
    is_exact: bool
    """Whether Jacobians were computed; else traces are estimated."""
    is_scalable: bool
    """Whether all noise may be scaled by a common factor: not where it is a function."""

    def mean_bits(self, gain: float) -> float:
        """Compute the mean bits over images; `gain` is 1 / noise_scale^2, times messages."""
        return float(compute_nats(self.information, gain).mean()) / log(2)

    def mean_mmse(self, gain: float) -> float:
        """Compute the mean squared error of a pixel, mean over images."""
        return float(compute_errors(self.errors, gain).mean()) / self.prior.variances.numel()

    def measure(self, *, noise_scale: float = 1.0) -> LinearisedLeak:
        """Compute the leak at a multiple of the noise that the channels were made with.

        Args:
            noise_scale: Factor of all noise, above 0; 1 where the noise is a function.

        Returns:
            Bits, errors and their intervals.

        Raises:
            ValueError: A number is not allowed.
        """
        POSITIVE.check("noise_scale", noise_scale)
        if noise_scale != 1 and not self.is_scalable:
            raise ValueError(
                f"noise_scale is {noise_scale}, must be 1: noise that is a function of the "
                "features is not scaled; linearise with the scaled function"
            )
        gain = 1 / noise_scale**2
        ends = torch.stack(
            [compute_nats(self.information, gain), compute_errors(self.errors, gain)]
        )  # number, end, image
        nats, errors = ends.mean(1)
        count, values = len(nats), self.prior.variances.numel()
        slack = (ends[:, 0] - ends[:, -1]).abs().mean(1) / 2
        directions = int((self.prior.variances > 0).sum())
        image_bits, image_mmse = nats / log(2), errors / values
        bits, bits_half_width = sample_mean(image_bits)
        mmse, mmse_half_width = sample_mean(image_mmse)
        dfil, dfil_half_width = sample_mean(gain * self.dfil)
        bound, bound_half_width = self.totals.bound(gain)
        return LinearisedLeak(
            bits=bits,
            mmse=mmse,
            psnr=-10 * log10(mmse) if mmse > 0 else inf,
            bound=bound,
            dfil=dfil,
            fsinfo=float(compute_fsinfo(nats, self.prior.variances).mean()),
            bits_half_width=bits_half_width,
            mmse_half_width=mmse_half_width,
            bound_half_width=bound_half_width,
            dfil_half_width=dfil_half_width,
            fsinfo_half_width=2 * log(2) * bits_half_width / directions,
            prior_variance=self.prior.variance,
            is_beyond_label=self.prior.is_within_class,
            images=count,
            prior=self.prior.estimator,
            estimator="exact" if self.is_exact else "lanczos",
            bits_error=float(slack[0]) / log(2),
            mmse_error=float(slack[1]) / values,
            image_bits=image_bits,
            image_mmse=image_mmse,
            places=self.places,
            sequences=tuple(
                SequenceLeak(
                    number,
                    self.mean_bits(number * gain),
                    self.mean_mmse(number * gain),
                )
                for number in SEQUENCES
            ),
        )


def count_affordable(
    encoder: Encoder,
    images: Float[Tensor, "M *shape"],
    features: int,
    *,
    noise: Noise,
    most_operations: float,
    usual_operations: float = inf,
) -> int:
    """Count the images that can be linearised with a number of operations, up to 200.

    Args:
        encoder: As of `measure_linearised`, and so is `noise`.
        images: (M, ...).
        features: Number D of the encoder's features.
        noise: Standard deviation of the noise.
        most_operations: Operations of the encoder that it takes at most.
        usual_operations: The same from the seventh image on.

    Returns:
        The number, 0 where it is below 6.

    Raises:
        NetError: The encoder has no gradient.
    """
    function, dtype = ready_encoder(encoder, images)
    width, values = features * (2 if callable(noise) else 1), images[0].numel()
    once = count_operations(lambda: function(images[:1].to(dtype)))
    algebra = 2 * min(width, values) ** 2 * max(width, values)  # a product of Jacobians
    operations = 3 * count_passes(width, values) * once
    operations = max(1, operations + algebra * is_computable(width, values))
    count = min(MOST_IMAGES, len(images), int(most_operations / operations))
    if count < LEAST_IMAGES:
        return 0
    return max(LEAST_IMAGES, int(min(count, usual_operations / operations)))


@usual_torch_state()
def measure_if_cheap(
    encoder: Encoder,
    images: Float[Tensor, "M *shape"],
    features: int,
    *,
    noise: Noise,
    prior: ImagePrior,
    seed: int = 0,
    most_operations: float,
) -> LinearisedLeak | None:
    """Measure up to 200 images where that takes seconds; None where it takes longer.

    Args:
        encoder: As of `measure_linearised`, and so are `noise`, `prior` and `seed`.
        images: (M, ...).
        features: Number D of the encoder's features.
        noise: Standard deviation of the noise.
        prior: Law of the images.
        seed: Draws images and probes.
        most_operations: Operations of the encoder that it takes at most.

    Returns:
        The leak; None too where there are fewer than 6 images, or no gradient.
    """
    try:
        count = count_affordable(
            encoder, images, features, noise=noise, most_operations=most_operations
        )
    except NetError:
        return None
    if not count:
        return None
    return measure_linearised(encoder, images, noise=noise, prior=prior, count=count, seed=seed)


class FisherTotals:
    """Sums of I(x) over groups of images, in the prior's directions: all of it, or its diagonal."""

    def __init__(self, prior: ImagePrior, count: int) -> None:
        self._variances = prior.variances
        groups, values = min(GROUPS, count), prior.variances.numel()
        self._is_full = prior.rotation is not None
        shape = (values, values) if self._is_full else (values,)
        self._sums = torch.zeros(groups, *shape, dtype=torch.float64)
        self._sizes = torch.zeros(groups, dtype=torch.float64)
        self.count = 0

    def add(self, numbers: ChannelNumbers) -> None:
        """Add each image to the next group."""
        for place, diagonal in enumerate(numbers.fisher):
            group = self.count % len(self._sums)
            if self._is_full and numbers.jacobians is not None:
                self._sums[group] += numbers.jacobians[place].T @ numbers.jacobians[place]
            else:
                self._sums[group] += torch.diag(diagonal) if self._is_full else diagonal
            self._sizes[group] += 1
            self.count += 1

    def bound(self, gain: float = 1.0) -> tuple[float, float]:
        """Return van Trees' bound and its half width, both by the jackknife over groups."""
        sums = gain * self._sums
        total, size, groups = sums.sum(0), self._sizes.sum(), len(sums)
        whole = float(van_trees_bound(total / size, self._variances))
        parts = torch.stack(
            [
                van_trees_bound((total - part) / (size - part_size), self._variances)
                for part, part_size in zip(sums, self._sizes, strict=True)
            ]
        )
        mean = float(parts.mean())
        variance = float((parts - mean).square().sum()) * (groups - 1) / groups
        bound = groups * whole - (groups - 1) * mean
        return bound, half_width(bound, variance, groups - 1)


def half_width(mean: float, variance: float, freedom: int) -> float:
    """Return Student's half width of a mean that has no largest value."""
    return mean_half_width(mean, variance, freedom, low=0.0, high=inf, rare=0)


def sample_mean(values: Float[Tensor, " n"]) -> tuple[float, float]:
    """Return the mean over images and its half width."""
    mean = float(values.mean())
    return mean, half_width(mean, float(values.var()) / len(values), len(values) - 1)
