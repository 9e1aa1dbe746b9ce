"""Upper bounds on what messages tell about images that nobody has seen, with confidence."""

from collections.abc import Sequence
from itertools import chain, product
from math import log, sqrt
from typing import NamedTuple

import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import NetError
from fedcel.leakage.certificate import (
    DIRECTIONS,
    find_main_coordinates,
    find_partitions,
    span_coordinates,
)
from fedcel.short_repr import show_shapes
from fedcel.torch_state import make_generator

GROUPS = (1, 2, 5)
"""Components of a class that are tried."""
SHRINKAGES = (0.02, 0.1, 0.3, 0.7)
"""Shares by which the variance of a direction is drawn to the mean of all directions."""
STRANGER_SHARES = (0.001, 0.01, 0.05, 0.2)
"""Shares of a class's law that are the law of all classes: an image may be taken for another's."""
TAILS = ((0.9, 1.0), (0.07, 4.0), (0.02, 16.0), (0.007, 64.0), (0.003, 256.0))
"""Shares of a component and how many times its variance they have: most laws have longer tails than
a Gaussian, and a few images far from all others would decide the bound."""
NOWHERE, NOWHERE_SHARE = -1, 0.02
"""The label of one Gaussian around all images, for those between the classes, and its share."""
MAX_REFERENCE = 4096
"""Reference images that are used at most; more change little and cost minutes."""
MAX_REFERENCE_VALUES = 2**22
"""Features of all reference images together that are used, or 64 images."""
DELTA = 0.05  # chance that one of two limits that hold together is too low
WIDE = 4
"""Features for each image from which the dimensions that tell images apart are computed first."""
HELD_BACK = 3  # one in so many reference images chooses the mixture's form
ROUNDING = 1e-12  # of the largest variance, below which one is rounding
FEW_CARRY = 0.5  # skewness over sqrt(n), one of n values being 1, that hints at a heavy tail


@show_shapes
class GaussianMessages(NamedTuple):
    """Messages of images: independent Gaussian values around an image's features."""

    mean: Float[Tensor, "n D"]
    """Features z."""
    deviation: Float[Tensor, "#n D"]
    """Of the noise, above 0, in units of z: a row for each image, or one for all."""
    labels: Int[Tensor, " n"]
    other_dimensions: int = 0
    """Further features, equal in all images, with the noise of the first."""

    def take(self, rows: Tensor) -> "GaussianMessages":
        """Return the messages of some images."""
        is_common = len(self.deviation) == 1
        deviation = self.deviation if is_common else self.deviation[rows]
        return self._replace(mean=self.mean[rows], deviation=deviation, labels=self.labels[rows])


class UpperLimits(NamedTuple):
    """A mean over images, and what the population's mean is at most with some confidence."""

    mean: float
    """Mean over the images evaluated; no bound by itself."""
    student: float
    """By Student's t: an approximation, for means that are as good as Gaussian. No number of images
    makes it good where rare ones carry the information."""
    bernstein: float | None
    """By the empirical Bernstein inequality: for any number of images and any law of them; None
    without a known range."""
    is_heavy_tailed: bool = False
    """Whether a few of the images known carry most of the spread: `student` may be far too low."""


class PopulationBound(NamedTuple):
    """Upper limits of the leak of one message about a fresh image, in bits.

    The images evaluated are independent draws of the population, which neither the encoder nor the
    fitted law has seen. Then with confidence 0.95, for both limits of one kind together, no
    attacker learns more on average: whatever other images are known, and among however many
    candidates. What is beyond the label is a part of all, and so is its limit.
    """

    information: UpperLimits
    """Of I(image; message)."""
    beyond_label: UpperLimits
    """Of I(image; message | label)."""
    confidence: float
    image_count: int
    """Images evaluated."""
    reference_count: int
    """Images that the law was fitted on."""


class Component(NamedTuple):
    """A Gaussian in units of the noise: variances along `axes`, `floor` everywhere else."""

    share: float
    """Of the mixture that it is part of."""
    mean: Float[Tensor, " D"]
    axes: Float[Tensor, "D r"]
    variances: Float[Tensor, " r"]
    floor: float = 0.0
    other_dimensions: int = 0

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.mean) + self.other_dimensions


class Projection(NamedTuple):
    """Squared distances of messages from a component, and variances of their noise."""

    distance: Float[Tensor, " n"]
    along_axes: Float[Tensor, "n r"]
    noise: Float[Tensor, " #n"]
    noise_along_axes: Float[Tensor, "#n r"]
    log_noise: Float[Tensor, " #n"]


Mixtures = dict[int, tuple[float, list[Component]]]
"""By class: its share of the images, and its components: features without any noise."""


class MixtureForm(NamedTuple):
    """Model of a class's messages."""

    groups: int
    shrinkage: float
    is_shared: bool
    """Whether all components have one covariance."""
    has_tails: bool
    stranger_share: float


class MessageLaw(NamedTuple):
    """The law q_y of each class, fitted to the messages of reference images."""

    mixtures: Mixtures
    form: MixtureForm
    scale: Float[Tensor, " D"]
    """The unit of its means and variances: the noise's root mean square, in units of z."""
    image_count: int
    """Images that it was fitted on."""
    is_heavy_tailed: bool
    """Whether a few of them carry most of the spread of the divergences from it."""


def bound_population(
    evaluated: GaussianMessages,
    reference: GaussianMessages,
    *,
    choosing: GaussianMessages | None = None,
    feature_range: tuple[float, float] | None = None,
    seed: int = 0,
) -> PopulationBound:
    """Bound from above what one message tells about an image that nobody has seen.

    For any law q_y, I(image; message | label) <= E KL(p(message | image) || q_y): the excess is
    KL(p(message | label) || q_y). A mixture of Gaussians is fitted to each class of the reference
    images, its form chosen on others; the divergence of each evaluated image from it is
    bounded by -log sum_k w_k exp(-KL_k), and their mean gets an upper confidence limit. With a
    known range of the features a wide component is mixed in, which bounds every divergence.

    Args:
        evaluated: Messages of n images, 2 or more: independent draws of the population, on which
            neither the encoder was trained or chosen nor anything here fitted.
        reference: Messages of other images, on which the law is fitted; 2 or more. They may be the
            encoder's training images. None of them may be an evaluated one: with many features the
            bound would be far too low.
        choosing: Messages of images that the encoder was not trained on, on which the law's form is
            chosen; they are added to the reference then. None: a third of the reference.
        feature_range: Least and largest value of a feature, of any image; None: unknown, and no
            Bernstein limit.
        seed: Decides which reference images choose the form.

    Returns:
        Both limits of both informations.

    Raises:
        NetError: Features are not finite.
        ValueError: A shape, a number or the noise is not allowed.

    References:
        Poole et al., On Variational Bounds of Mutual Information, ICML 2019, section 2.1; Hershey
        and Olsen, Approximating the KL Divergence between Gaussian Mixture Models, ICASSP 2007;
        Maurer and Pontil, Empirical Bernstein Bounds, COLT 2009, theorem 4.
    """
    if feature_range is None:
        named = {"evaluated": evaluated, "reference": reference}
        named |= {} if choosing is None else {"choosing": choosing}
        for name, part in named.items():
            check_messages(part, name)
        evaluated, reference, *others = drop_common_dimensions([*named.values()])
        choosing = others[0] if others else None
    law = fit_law(reference, choosing=choosing, seed=seed)
    return bound_under_law(evaluated, law, feature_range)


def drop_common_dimensions(parts: Sequence[GaussianMessages]) -> Sequence[GaussianMessages]:
    """Return messages in the space that the features of all parts span, where they are wide.

    Of an even noise only: every divergence stays what it is then.
    """
    counts = [len(part.labels) for part in parts]
    noise = parts[0].deviation[0, 0]
    width = parts[0].mean.shape[1]
    is_even = all(part.mean.shape[1] == width and part.deviation.eq(noise).all() for part in parts)
    if width < WIDE * sum(counts) or not is_even:
        return parts
    coordinates = span_coordinates(torch.cat([part.mean.detach().double().cpu() for part in parts]))
    deviation = noise.expand(1, coordinates.shape[1])
    others = width - coordinates.shape[1]
    return [
        GaussianMessages(mean, deviation, part.labels, others)
        for part, mean in zip(parts, torch.split(coordinates, counts), strict=True)
    ]


def fit_law(
    reference: GaussianMessages, *, choosing: GaussianMessages | None = None, seed: int = 0
) -> MessageLaw:
    """Fit a mixture of Gaussians to each class of the reference; see `bound_population`."""
    check_messages(reference, "reference")
    if choosing is not None:
        check_messages(choosing, "choosing")
    stream = make_generator(seed, "population-bound")
    most = min(MAX_REFERENCE, max(64, MAX_REFERENCE_VALUES // reference.mean.shape[1]))
    fitted = reference.take(torch.randperm(len(reference.labels), generator=stream)[:most])
    if choosing is None:
        held_back = len(fitted.labels) // HELD_BACK
        order = torch.arange(len(fitted.labels))
        fitted, choosing = fitted.take(order[held_back:]), fitted.take(order[:held_back])
    scale = fitted.deviation.double().square().mean(0).sqrt()
    fitted, choosing = rescale(fitted, scale), rescale(choosing, scale)
    form = choose_form(fitted, choosing)
    everything = join_messages(fitted, choosing)
    places = find_groups(everything, [form.groups])[form.groups]
    mixtures = fit_mixtures(everything, places, fit_anywhere(everything), form.is_shared)
    nats = mix_in_strangers(divergences(everything, mixtures, form), form.stranger_share)
    is_heavy_tailed = any(map(has_heavy_tail, nats))
    return MessageLaw(mixtures, form, scale, len(everything.labels), is_heavy_tailed)


def bound_under_law(
    evaluated: GaussianMessages,
    law: MessageLaw,
    feature_range: tuple[float, float] | None = None,
) -> PopulationBound:
    """Bound what one message tells, by its divergence from a law; see `bound_population`."""
    check_messages(evaluated, "evaluated")
    if evaluated.mean.shape[1] != len(law.scale):
        raise ValueError(
            f"evaluated messages have {evaluated.mean.shape[1]} values, reference messages "
            f"{len(law.scale)}; give messages of one encoder"
        )
    messages = rescale(evaluated, law.scale)
    nats = mix_in_strangers(divergences(messages, law.mixtures, law.form), law.form.stranger_share)
    highest = None
    if feature_range is not None:
        low, high = feature_range
        centre, mean_square = (low + high) / 2, (high - low) ** 2 / 4
        largest = (evaluated.mean.double() - centre).square().mean(1).max()
        if largest > mean_square * (1 + 1e-6):
            raise ValueError(
                f"features have a mean square of {largest:.4g} around {centre:g}, the range says "
                f"at most {mean_square:g}; give the range of the encoder's last layer, or none"
            )
        nats, highest = mix_in_wide(
            nats, messages, scale=law.scale, centre=centre, mean_square=mean_square
        )
    information, beyond_label = (
        limits._replace(is_heavy_tailed=limits.is_heavy_tailed or law.is_heavy_tailed)
        for limits in (limit_mean(values, highest, DELTA / 2) for values in nats)
    )
    bernsteins = [limits.bernstein for limits in (information, beyond_label)]
    beyond_label = beyond_label._replace(
        student=min(beyond_label.student, information.student),
        bernstein=min((limit for limit in bernsteins if limit is not None), default=None),
    )
    return PopulationBound(
        information,
        beyond_label,
        confidence=1 - DELTA,
        image_count=len(evaluated.labels),
        reference_count=law.image_count,
    )


def check_messages(messages: GaussianMessages, name: str) -> None:
    """Raise NetError or ValueError where messages are no messages of two or more images."""
    count = len(messages.labels)
    if count < 2 or len(messages.mean) != count:
        raise ValueError(
            f"{len(messages.mean)} {name} messages with {count} labels, must be 2 or more of each"
        )
    if not messages.mean.isfinite().all():
        raise NetError("smashed data hold NaN or infinity; check the images and the encoder")
    if not ((messages.deviation > 0) & messages.deviation.isfinite()).all():
        raise ValueError(
            f"the noise of {name} messages is {float(messages.deviation.min())} somewhere, must be "
            "above 0 and finite: without noise the population's information has no bound"
        )


def rescale(messages: GaussianMessages, scale: Float[Tensor, " D"]) -> GaussianMessages:
    """Return messages in units of the mean noise, in float64 on the processor."""
    unit = scale.double().cpu()
    mean, deviation = (part.detach().double().cpu() / unit for part in messages[:2])
    return messages._replace(mean=mean, deviation=deviation, labels=messages.labels.cpu())


def join_messages(first: GaussianMessages, second: GaussianMessages) -> GaussianMessages:
    """Return the messages of the images of both; of one row of noise each, if they are alike."""
    mean = torch.cat([first.mean, second.mean])
    labels = torch.cat([first.labels, second.labels])
    is_common = len(first.deviation) == len(second.deviation) == 1
    if is_common and torch.equal(first.deviation, second.deviation):
        return first._replace(mean=mean, labels=labels)
    rows = [part.deviation.expand(len(part.labels), -1) for part in (first, second)]
    return first._replace(mean=mean, deviation=torch.cat(rows), labels=labels)


def choose_form(fitted: GaussianMessages, choosing: GaussianMessages) -> MixtureForm:
    """Return the form whose mixtures, fitted to some images, are nearest to others."""
    if not len(choosing.labels):
        return MixtureForm(1, 1.0, True, False, STRANGER_SHARES[0])
    scores: dict[MixtureForm, float] = {}
    places, anywhere = find_groups(fitted, GROUPS), fit_anywhere(fitted)
    for groups, is_shared in product(GROUPS, (True, False)):
        mixtures = fit_mixtures(fitted, places[groups], anywhere, is_shared)
        projections = project_on_all(choosing, mixtures)
        for shrinkage, has_tails in product(SHRINKAGES, (False, True)):
            form = MixtureForm(groups, shrinkage, is_shared, has_tails, STRANGER_SHARES[0])
            nats = divergences(choosing, mixtures, form, projections)
            for share in STRANGER_SHARES:
                mean = float(mix_in_strangers(nats, share)[1].mean())
                scores[form._replace(stranger_share=share)] = mean
    return min(scores, key=scores.__getitem__)


def mix_in_strangers(nats: Float[Tensor, "2 n"], share: float) -> Float[Tensor, "2 n"]:
    """Return divergences where a share of a class's law is the law of all classes."""
    information, beyond = nats
    mixed = torch.logaddexp(log(1 - share) - beyond, log(share) - information).neg()
    return torch.stack([information, mixed.clamp_min(0)])


def find_groups(
    fitted: GaussianMessages, numbers: Sequence[int]
) -> dict[int, dict[int, list[Int[Tensor, " _"]]]]:
    """Return, by number of groups and class, the rows of each group of near images."""
    places: dict[int, dict[int, list[Int[Tensor, " _"]]]] = {number: {} for number in numbers}
    for label in torch.unique(fitted.labels).tolist():
        rows = (fitted.labels == label).nonzero()[:, 0]
        features = fitted.mean[rows].numpy()
        is_wide = features.shape[1] > DIRECTIONS
        coordinates = find_main_coordinates(features) if is_wide else features
        for number in numbers:
            partition = torch.from_numpy(find_partitions(coordinates, [number])[-1])
            places[number][label] = [rows[partition == group] for group in torch.unique(partition)]
    return places


def fit_anywhere(fitted: GaussianMessages) -> Component:
    """Return mean and spread of the features of all classes, without any noise."""
    middle = fitted.mean.mean(0)
    axes = find_axes(fitted.mean - middle, 1)
    return Component(1.0, middle, *axes, other_dimensions=fitted.other_dimensions)


def fit_mixtures(
    fitted: GaussianMessages,
    places: dict[int, list[Int[Tensor, " _"]]],
    anywhere: Component,
    is_shared: bool,
) -> Mixtures:
    """Return means and spreads of the features of each class's groups, without any noise."""
    centred = torch.empty_like(fitted.mean)
    for members in chain.from_iterable(places.values()):
        centred[members] = fitted.mean[members] - fitted.mean[members].mean(0)
    common = find_axes(centred, sum(map(len, places.values()))) if is_shared else None
    mixtures = {NOWHERE: (NOWHERE_SHARE, [anywhere])}
    for label, groups in places.items():
        count = sum(map(len, groups))
        parts = [
            Component(
                len(members) / count,
                fitted.mean[members].mean(0),
                *(common or find_axes(centred[members], 1)),
                other_dimensions=fitted.other_dimensions,
            )
            for members in groups
        ]
        mixtures[label] = ((1 - NOWHERE_SHARE) * count / len(fitted.labels), parts)
    return mixtures


def find_axes(
    centred: Float[Tensor, "n D"], means: int
) -> tuple[Float[Tensor, "D r"], Float[Tensor, " r"]]:
    """Return the directions of a spread around some means, and the variances along them."""
    count, width = centred.shape
    freedom = max(1, count - means)
    if width <= count:
        variances, axes = torch.linalg.eigh(centred.T @ centred / freedom)
        return axes, variances.clamp_min(0)
    variances, rows = torch.linalg.eigh(centred @ centred.T / freedom)
    is_spread = variances > variances.max() * ROUNDING
    variances, rows = variances[is_spread], rows[:, is_spread]
    return centred.T @ rows / (variances * freedom).sqrt(), variances


def add_noise_law(part: Component, form: MixtureForm) -> list[Component]:
    """Return a component of messages, in parts where it has tails: shrunk, the noise added."""
    tails = TAILS if form.has_tails else ((1.0, 1.0),)
    mean_variance = form.shrinkage * float(part.variances.sum())
    components = []
    for share, factor in tails:
        common = factor * mean_variance / part.width
        variances = 1 + common + factor * (1 - form.shrinkage) * part.variances
        components.append(
            part._replace(share=share * part.share, variances=variances, floor=1 + common)
        )
    return components


def divergences(
    messages: GaussianMessages,
    mixtures: Mixtures,
    form: MixtureForm,
    projections: dict[int, list[Projection]] | None = None,
) -> Float[Tensor, "2 n"]:
    """Bound KL(message || mixture) of each image, for that of all classes and of its own, in nats.

    For an image of a class without a mixture that of all is its own.
    """
    projections = projections or project_on_all(messages, mixtures)
    of_class, of_all = {}, []
    for label, (share, parts) in mixtures.items():
        weighed = [
            log(noisy.share) - gaussian_divergence(projected, noisy)
            for part, projected in zip(parts, projections[label], strict=True)
            for noisy in add_noise_law(part, form)
        ]
        of_class[label] = torch.stack(weighed).logsumexp(0)
        of_all.append(of_class[label] + log(share))
    information = torch.stack(of_all).logsumexp(0)
    beyond = information.clone()
    for label, values in of_class.items():
        beyond = torch.where(messages.labels == label, values, beyond)
    return torch.stack([information, beyond]).neg()


def project_on_all(messages: GaussianMessages, mixtures: Mixtures) -> dict[int, list[Projection]]:
    """Return messages as each component sees them, whatever the form of the mixtures."""
    return {
        label: [project(messages, part) for part in parts] for label, (_, parts) in mixtures.items()
    }


def project(messages: GaussianMessages, part: Component) -> Projection:
    """Return messages as a component sees them, in all and along its axes."""
    gap = messages.mean - part.mean
    noise = messages.deviation.square()
    return Projection(
        gap.square().sum(1),
        (gap @ part.axes).square(),
        noise.sum(1) + messages.other_dimensions * noise[:, 0],
        noise @ part.axes.square(),
        noise.log().sum(1) + messages.other_dimensions * noise[:, 0].log(),
    )


def gaussian_divergence(projected: Projection, part: Component) -> Float[Tensor, " n"]:
    """Compute KL(message || Gaussian) of each image in nats, exactly."""
    width = part.width
    inverse = 1 / part.floor - 1 / part.variances  # what the axes take from an even precision
    squares = projected.distance / part.floor - projected.along_axes @ inverse
    trace = projected.noise / part.floor - projected.noise_along_axes @ inverse
    other_directions = width - len(part.variances)
    log_volume = float(part.variances.log().sum()) + other_directions * log(part.floor)
    return ((trace + squares + log_volume - projected.log_noise - width) / 2).clamp_min(0)


def mix_in_wide(
    nats: Float[Tensor, "2 n"],
    evaluated: GaussianMessages,
    *,
    scale: Float[Tensor, " D"],
    centre: float,
    mean_square: float,
) -> tuple[Float[Tensor, "2 n"], float | None]:
    """Mix a wide component into the law; return divergences from it, and what none can exceed.

    Its variance is the noise's and the range's mean square around its centre, so that no feature of
    the range is far from it. Its share is the best where it alone decides the largest divergence.
    There is no largest one where the noise differs by image: that of others is not known.
    """
    unit = scale.double().cpu()
    variance = 1 + mean_square / unit.square()
    noise = evaluated.deviation.square()
    gap = evaluated.mean - centre / unit
    of_noise = (noise / variance - 1 - (noise / variance).log()).sum(1) / 2
    wide = of_noise + (gap.square() / variance).sum(1) / 2
    weight = bernstein_range_weight(len(evaluated.labels), DELTA / 2)
    share = weight / (1 + weight)
    mixed = torch.logaddexp(log(1 - share) - nats, log(share) - wide).neg().clamp_min(0)
    if len(noise) > 1:
        return mixed, None
    widest = unit.square().amin() + mean_square
    furthest = len(unit) * mean_square / float(widest) / 2
    return mixed, float(of_noise) + furthest - log(share)


def limit_mean(values: Float[Tensor, " n"], largest: float | None, delta: float) -> UpperLimits:
    """Return the mean of independent draws in nats, 0 or more, and its upper limits, in bits.

    `largest` is what no draw can exceed, None where that is unknown; `delta` the chance that a
    limit is too low.
    """
    count = len(values)
    mean, variance = float(values.mean()), float(values.var())
    quantile = float(scipy.stats.t.ppf(1 - delta, count - 1))
    bernstein = None
    if largest is not None:
        weight = bernstein_range_weight(count, delta)
        deviation = sqrt(2 * variance * log(2 / delta) / count)
        bernstein = (mean + deviation + largest * weight) / log(2)
    student = mean + quantile * sqrt(variance / count)
    return UpperLimits(mean / log(2), student / log(2), bernstein, has_heavy_tail(values))


def has_heavy_tail(values: Float[Tensor, " n"]) -> bool:
    """Whether so few values carry the spread that a mean of them is not as good as Gaussian.

    Skewness over the root of n, which is what Student's t is wrong by, to first order (Johnson,
    JASA 1978), is 1 / sqrt(k) where k of many values carry all. Above one half they are fewer than
    four. The squares of Gaussian values stay below that and 1 / sqrt(n) in 97 of 100 samples of any
    size, those of four or more features in 999 of 1 000.
    """
    gap = values - values.mean()
    spread = float(gap.square().sum())
    if spread <= ROUNDING * float(values.square().sum()):
        return False
    skewness = float(gap.pow(3).sum()) / (spread * sqrt(spread))
    return skewness > FEW_CARRY + 1 / sqrt(len(values))


def bernstein_range_weight(count: int, delta: float) -> float:
    """Return the share of the range that the empirical Bernstein inequality adds to a mean."""
    return 7 * log(2 / delta) / (3 * (count - 1))
