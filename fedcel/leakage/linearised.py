"""Leak of an encoder seen as a linear channel: how much of the picture goes out."""

from dataclasses import dataclass, field, fields
from math import ceil, e, inf, log, log10, pi

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import NetError
from fedcel.leakage.channel_numbers import (
    MAX_VALUES,
    PROBES,
    SMALL_IMAGE,
    STEPS,
    ChannelNumbers,
    estimate_numbers,
    is_computable,
    solve_exactly,
    van_trees_bound,
)
from fedcel.leakage.gaussian_noise import Noise
from fedcel.leakage.image_prior import ImagePrior, fit_image_prior, read_pixels
from fedcel.leakage.local_channel import LocalChannel, ready_encoder
from fedcel.metrics import NORMAL_QUANTILE, mean_half_width
from fedcel.nets import Encoder, count_operations, encode_images
from fedcel.progress import tell_progress
from fedcel.ranges import check_whole
from fedcel.seeding import make_generator
from fedcel.tensors import ArrayLike, check_features
from fedcel.torch_state import usual_torch_state

VALUES_AT_ONCE = 2**22
"""Values of Jacobians in memory, of images that are measured at once."""
GROUPS = 10
"""Groups of images of the jackknife."""

MOST_OPERATIONS = 2e11
"""Operations of an encoder that a measurement by default takes at most: some seconds."""
LEAST_IMAGES, MOST_IMAGES = 8, 200
"""Images that are measured by default."""

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
    messages: int
    """Messages of each image that the attacker has."""
    prior: str
    """Estimate of the images' covariance, in words."""
    estimator: str
    """`exact`, or `lanczos` where traces are estimated."""
    bits_error: float
    """Half width of a 95 % interval of the mean bits over probes, and what Lanczos' steps leave."""
    mmse_error: float
    """The same of the mean squared error."""
    image_bits: Float[Tensor, " n"] = field(kw_only=True)
    """Bits of each image that is measured."""
    image_mmse: Float[Tensor, " n"] = field(kw_only=True)
    """Mean squared error of each image."""
    places: Int[Tensor, " n"] = field(kw_only=True)
    """Positions of these images among those given."""

    def to_measures(self) -> dict[str, float | int]:
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
            "van-trees-mse": self.bound,
            "van-trees-mse-half-width": self.bound_half_width,
            "dfil": self.dfil,
            "dfil-half-width": self.dfil_half_width,
            "fsinfo": self.fsinfo,
            "fsinfo-half-width": self.fsinfo_half_width,
            "linearised-images": self.images,
            "linearised-bits-error": self.bits_error,
            "linearised-mse-error": self.mmse_error,
        }

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
        is_one = self.messages == 1
        subject = "One message tells" if is_one else f"{self.messages} messages tell"
        of_image = "beyond its label" if self.is_beyond_label else "its label included"
        baseline = "its label" if self.is_beyond_label else "the mean image"
        return "\n".join(
            [
                f"{subject} about {self.bits:.1f} ± {round_up(self.bits_half_width, 1)} bits of "
                f"the picture, {of_image}, and leave{'s' * is_one} a mean squared error of "
                f"{self.mmse:.4f} ± {round_up(self.mmse_half_width, 4)} a pixel (PSNR "
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
    messages: int = 1,
    dense: bool | None = None,
    differences: bool = False,
    seed: int = 0,
) -> LinearisedLeak:
    """Estimate how much of the picture a message gives away, without an attacker or training.

    Around each image x the encoder is a linear channel A = S^(-1/2) df/dx, and images are Gaussian
    of covariance C within their class. Then the message has 1/2 log2 det(I + A C A^T) bits about
    the image, and the best reconstruction the error tr(C - C A^T (I + A C A^T)^-1 A C) / d. Both
    are exact for a linear encoder and Gaussian images, and estimates otherwise.

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
        messages: Messages of each image with fresh noise, 1 or more: their information adds up.
        dense: Whether Jacobians are computed, which is exact, or traces are estimated by
            Lanczos' method. None: computed where that takes few passes through the encoder.
        differences: Whether derivatives may be central differences, for encoders without a
            gradient, of at most 4 096 values an image. Each image is encoded twice for each value.
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
    stack = read_pixels(images)
    check_whole("count", count, 2, " for an interval; leave it out for 30")
    check_whole("messages", messages, 1)
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
    function, dtype = ready_encoder(encoder, chosen, differences=differences)
    width = table.shape[1] * (2 if callable(noise) else 1)
    is_dense = is_computable(width, chosen[0].numel()) if dense is None else dense
    if differences and not (is_dense and chosen[0].numel() <= SMALL_IMAGE):
        raise ValueError(
            f"images have {chosen[0].numel()} values and messages {width}, too many for finite "
            f"differences, which take {SMALL_IMAGE} values an image and {MAX_VALUES} times values "
            "of messages at most; give an encoder with a gradient"
        )
    generator = make_generator(seed, "linearised-probes")
    totals = FisherTotals(prior, len(chosen))
    numbers = []
    at_once = max(1, VALUES_AT_ONCE // (width * chosen[0].numel())) if is_dense else 1
    for batch in torch.split(chosen.to(dtype), at_once):
        images_at_once = batch if is_dense else batch.expand(PROBES, *batch.shape[1:])
        channel = LocalChannel(
            function,
            images_at_once,
            noise=noise,
            messages=messages,
            has_gradient=not differences,
        )
        if is_dense:
            part = solve_exactly(channel, prior)
        else:
            part = estimate_numbers(channel, prior, generator)
        totals.add(part)
        numbers.append(part._replace(jacobians=None, fisher=part.fisher.mean(1)))
        tell_progress(totals.count, len(chosen))
    return summarise(numbers, totals, prior, places=places, messages=messages, is_exact=is_dense)


@usual_torch_state()
def measure_if_cheap(
    encoder: Encoder,
    images: Float[Tensor, "M *shape"],
    features: int,
    *,
    noise: Noise,
    prior: ImagePrior,
    seed: int = 0,
    most_operations: float = MOST_OPERATIONS,
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
        The leak; None too where there are fewer than 8 images, or no gradient.
    """
    try:
        function, dtype = ready_encoder(encoder, images)
    except NetError:
        return None
    width = features * (2 if callable(noise) else 1)
    values = images[0].numel()
    passes = min(width, values) if is_computable(width, values) else 4 * PROBES * STEPS
    once = count_operations(lambda: function(images[:1].to(dtype)))
    count = min(MOST_IMAGES, len(images), int(most_operations / max(1, 3 * passes * once)))
    if count < LEAST_IMAGES:
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

    def bound(self) -> tuple[float, float]:
        """Return van Trees' bound and its half width, both by the jackknife over groups."""
        total, size, groups = self._sums.sum(0), self._sizes.sum(), len(self._sums)
        whole = float(van_trees_bound(total / size, self._variances))
        parts = torch.stack(
            [
                van_trees_bound((total - part) / (size - part_size), self._variances)
                for part, part_size in zip(self._sums, self._sizes, strict=True)
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


def summarise(
    numbers: list[ChannelNumbers],
    totals: FisherTotals,
    prior: ImagePrior,
    *,
    places: Int[Tensor, " n"],
    messages: int,
    is_exact: bool,
) -> LinearisedLeak:
    """Average over images, in bits and per pixel."""
    nats, errors, dfil = (
        torch.cat([getattr(part, name) for part in numbers])
        for name in ("nats", "errors", "fisher")
    )
    variances, gaps = (
        torch.cat([getattr(part, name) for part in numbers], 1)
        for name in ("probe_variances", "gaps")
    )
    values = prior.variances.numel()
    slack = NORMAL_QUANTILE * variances.sum(1).sqrt() / len(nats) + gaps.mean(1)
    spread = prior.variances[prior.variances > 0]
    fsinfo = (2 * nats - spread.log().sum()) / len(spread) - log(2 * pi * e)
    image_bits, image_mmse = nats / log(2), errors / values
    bits, bits_half_width = sample_mean(image_bits)
    mmse, mmse_half_width = sample_mean(image_mmse)
    mean_dfil, dfil_half_width = sample_mean(dfil)
    bound, bound_half_width = totals.bound()
    return LinearisedLeak(
        bits=bits,
        mmse=mmse,
        psnr=-10 * log10(mmse) if mmse > 0 else inf,
        bound=bound,
        dfil=mean_dfil,
        fsinfo=float(fsinfo.mean()),
        bits_half_width=bits_half_width,
        mmse_half_width=mmse_half_width,
        bound_half_width=bound_half_width,
        dfil_half_width=dfil_half_width,
        fsinfo_half_width=2 * log(2) * bits_half_width / len(spread),
        prior_variance=prior.variance,
        is_beyond_label=prior.is_within_class,
        images=len(nats),
        messages=messages,
        prior=prior.estimator,
        estimator="exact" if is_exact else "lanczos",
        bits_error=float(slack[0]) / log(2),
        mmse_error=float(slack[1]) / values,
        image_bits=image_bits,
        image_mmse=image_mmse,
        places=places,
    )


def round_up(value: float, digits: int) -> str:
    """Return the half width of an interval, no narrower than it is."""
    return f"{ceil(value * 10**digits - 1e-6) / 10**digits:.{digits}f}"
