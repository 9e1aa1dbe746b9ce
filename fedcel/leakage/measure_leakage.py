"""Measure what any encoder leaks: six lines, no federation, no training."""

from math import inf, log

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.leakage.attribute_leak import AttributeLeak, measure_attribute
from fedcel.leakage.certificate import Certificate, certificate, span_coordinates
from fedcel.leakage.exact_bits import measure_bits
from fedcel.leakage.gaussian_noise import Noise, read_noise
from fedcel.leakage.identification import identify_by_label
from fedcel.leakage.image_prior import fit_to_some
from fedcel.leakage.leakage import Leakage
from fedcel.leakage.linearised import LinearisedLeak, measure_if_cheap
from fedcel.leakage.messages import LogProb, Messages, Sampler, disturb_features, send_by_law
from fedcel.leakage.population_bound import (
    GaussianMessages,
    PopulationBound,
    bound_population,
)
from fedcel.metrics import chance_accuracy, is_at_chance
from fedcel.nets import Encoder, as_module, encode_images
from fedcel.ranges import SHARE, check_whole
from fedcel.tensors import ArrayLike, check_features, digest_pixels, to_labels, to_tensor
from fedcel.torch_state import make_generator, usual_torch_state

PAIRS_AT_ONCE = 2**19  # of a message and an image in memory; after so many, progress is told
MIN_DRAWS = 2  # of noise, for each image: one would give no error
LARGE_TABLE = 2**18  # values from which a certificate is looked for fast
EQUAL_SHARE = 1e-3  # of their size by which features that are equal to the eye differ
MIN_HALVED = 20  # images that are halved for a bound on unseen ones
SECOND = 1e10  # operations of an encoder, about
DROPPED, NOT_NOISY = "features are dropped at random", "there is no noise"
OWN_LAW = "the messages have a law of your own, and it needs Gaussian noise"
"""What about messages keeps the linearised channel from being estimated."""
NO_SIGNAL_BITS = 0.01  # of the channel, below which what differs does not come through


@usual_torch_state()
def measure_leakage(
    encoder: Encoder | None = None,
    images: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    *,
    noise: Noise | None = None,
    dropout: float = 0.0,
    log_prob: LogProb | None = None,
    sampler: Sampler | None = None,
    features: ArrayLike | None = None,
    accuracy: float | None = None,
    accuracy_count: int | None = None,
    logits: ArrayLike | None = None,
    reference_images: ArrayLike | None = None,
    reference_features: ArrayLike | None = None,
    reference_labels: ArrayLike | None = None,
    feature_range: tuple[float, float] | None = None,
    candidates: int = 100,
    draws: int | None = None,
    seed: int = 0,
) -> Leakage:
    """Measure what one noisy message of an encoder tells about an image, exactly.

    The noise distribution is known, so Bayes' rule over the M images is the best possible attack,
    and no attacker has to be trained. The result is exact for these images, up to the Monte Carlo
    error over noise draws, which is stated. It is computed in float64 on the features' device.

    Example:
        >>> leak = fedcel.measure_leakage(encoder, images, labels, noise=0.3)
        >>> print(leak)
        >>> leak.bits_beyond_label, leak.certificate_bits

    Args:
        encoder: Images (n, ...) to features (n, D), without its noise: a PyTorch module, which is
            run in evaluation mode without a gradient and not modified, or any function of tensors.
        images: (M, ...), M 2 or more, in the form that the encoder takes.
        labels: Integers from 0, (M,). Without them there are no bits beyond the label.
        noise: Standard deviation of the Gaussian noise, 0 or more, in units of the features: one
            number, or one above 0 for each of D features. If it differs from image to image: a
            function of the features, (n, D) to (n, D), above 0.
        dropout: Probability that a feature is set to 0, before the noise, in [0, 1).
        log_prob: Your own distribution instead of noise and dropout: (messages (Q, F), features
            (M, D)) to log p(message_q | features_j), (Q, M) in nats, up to one constant. Needs
            `sampler`.
        sampler: Samples messages of that distribution: (features (Q, D), generator) to (Q, F).
        features: (M, D) instead of encoder and images.
        accuracy: Accuracy of the head on noisy messages, in [0, 1]. If it is no better than always
            predicting the most frequent class, the verdict says that nothing was learned.
        accuracy_count: Number of images behind the accuracy; None: M.
        logits: The head's answers to messages of these images, (M, classes), instead of
            `accuracy`.
        reference_images: Other images of the same population, (n, ...), for the fit behind the
            bounds for unseen images, such as the encoder's training images, but none of the M. The
            encoder must not have been trained on the M images. None: one random half of the M is
            used for the fit, the other for the bound.
        reference_features: Their features (n, D) instead of `reference_images`.
        reference_labels: Their labels, (n,); needed where `labels` are given.
        feature_range: Least and largest value that a feature can have for any image, such as
            (0, 1) behind a sigmoid; None: not known, and no Bernstein limit.
        candidates: Number of images among which the right one is picked, 2 or more, at most M.
        draws: Messages per image, 2 or more; None: 3 200 for all images together, 2 or more for
            each. Noiseless features need one.
        seed: Seed of the noise.

    Returns:
        Bits, identification, bounds and a verdict; `print` shows them in three lines. Where the
        encoder is a module with a gradient and small enough for a second's work, `linearised`
        says how much of the picture a message tells, and `print` adds three lines. Dropout, no
        noise or a distribution of your own leave no estimate, and `print` says which.

    Raises:
        ValueError: A shape, a number or a combination is not allowed, or features are not finite.

    References:
        Cover and Thomas, Elements of Information Theory, 2006, equation 2.28, for a uniform input.
    """
    has_labels = labels is not None
    table, groups = read_images(encoder, images, features, labels)
    check_whole("candidates", candidates, 2, "; leave it out for 100")
    check_numbers(draws, seed)
    messages, sigma = choose_messages(table, noise, dropout, log_prob=log_prob, sampler=sampler)
    share_right = read_accuracy(accuracy, accuracy_count, logits, groups if has_labels else None)
    leak = measure_bits(
        messages,
        groups,
        make_generator(seed, "measure-leakage"),
        draws=draws,
        candidates=candidates,
        least_draws=MIN_DRAWS,
        pairs_at_once=PAIRS_AT_ONCE,
    )
    bounds = bound_bits(table, groups, sigma, candidates)
    reference = read_reference(
        encoder,
        images=reference_images,
        features=reference_features,
        labels=reference_labels,
        has_labels=has_labels,
    )
    check_strangers(images, reference_images)
    if reference is not None and reference[0].shape[1] != table.shape[1]:
        raise ValueError(
            f"reference images have {reference[0].shape[1]} features, the images "
            f"{table.shape[1]}; give features of one encoder"
        )
    reference_sigma = sigma
    if reference is not None and callable(noise):
        reference_sigma = read_noise(noise, dropout, reference[0])
    unseen = bound_unseen(
        describe_messages(table, groups, sigma),
        None if reference is None else describe_messages(*reference, reference_sigma),
        feature_range=read_range(feature_range),
        seed=seed,
    )
    obstacle = find_obstacle(sigma, dropout)
    picture = estimate_picture(
        encoder,
        images if features is None else None,
        groups if has_labels else None,
        noise=noise if obstacle is None else None,
        sigma=sigma,
        seed=seed,
    )
    of_all = unseen and unseen.information
    of_class = unseen and unseen.beyond_label if has_labels else None
    return Leakage(
        information_bits=leak.information_bits,
        bits_beyond_label=leak.bits_beyond_label if has_labels else None,
        identification=leak.identification,
        certificate_bits=bounds and bounds.bits,
        certificate_beyond_label=bounds.bits_within_class if bounds and has_labels else None,
        candidates=leak.image_count,
        cap_bits=leak.cap_bits,
        cap_beyond_label=leak.cap_beyond_label if has_labels else None,
        identification_candidates=leak.identification_candidates,
        identification_by_label=identify_by_label(groups, candidates) if has_labels else None,
        information_half_width=leak.information_noise_half_width,
        beyond_label_half_width=leak.beyond_noise_half_width if has_labels else None,
        identification_half_width=leak.identification_noise_half_width,
        accuracy=share_right and share_right[0],
        verdict=judge(table, sigma, share_right, groups),
        population_bits=of_all and of_all.student,
        population_bits_bernstein=of_all and of_all.bernstein,
        population_beyond_label=of_class and of_class.student,
        population_beyond_label_bernstein=of_class and of_class.bernstein,
        population_images=unseen and unseen.image_count,
        population_is_heavy_tailed=of_all and (of_class or of_all).is_heavy_tailed,
        linearised=picture,
        linearised_obstacle=obstacle if features is None else None,
        information=leak.information,
        beyond=leak.beyond if has_labels else None,
        identified=leak.identified,
    )


@usual_torch_state()
def measure_attribute_leakage(
    encoder: Encoder | None = None,
    images: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    attributes: ArrayLike | None = None,
    *,
    noise: Noise | None = None,
    dropout: float = 0.0,
    features: ArrayLike | None = None,
    draws: int | None = None,
    seed: int = 0,
) -> AttributeLeak:
    """Measure what one noisy message tells about a sensitive attribute that is not the task.

    For example, the task is whether a digit is odd, and the attribute is the digit. As in
    `measure_leakage`, Bayes' rule over the M images is the best possible attack.

    Example:
        >>> leak = fedcel.measure_attribute_leakage(encoder, images, digits % 2, digits, noise=0.3)
        >>> leak.bits, leak.accuracy, leak.accuracy_by_label

    Args:
        encoder: As of `measure_leakage`.
        images: (M, ...), M 2 or more, in the form that the encoder takes.
        labels: The task's labels, integers from 0, (M,), which the attacker knows. Without them
            the attacker knows only the message.
        attributes: The attributes that the attacker wants to know: integers from 0, (M,).
        noise: As of `measure_leakage`, and so are `dropout` and `features`.
        dropout: Chance that a feature is sent as 0.
        features: (M, D) instead of encoder and images.
        draws: Messages drawn of each image, 2 or more; None: 3 200 of all images together.
        seed: Decides the noise that is drawn.

    Returns:
        Bits and accuracies.

    Raises:
        ValueError: A shape, a number or a combination is not allowed, or features are not finite.
    """
    table, groups = read_images(encoder, images, features, labels)
    if attributes is None:
        raise ValueError("attributes are missing: a whole number from 0 for each image")
    values = to_labels(attributes, len(table), "attributes")
    check_numbers(draws, seed)
    return measure_attribute(
        disturb_features(table, read_noise(noise, dropout, table), dropout),
        groups,
        values,
        draws=draws,
        generator=make_generator(seed, "measure-attribute-leakage"),
        least_draws=MIN_DRAWS,
        pairs_at_once=PAIRS_AT_ONCE,
    )


def find_obstacle(sigma: Float[Tensor, "*M D"] | None, dropout: float) -> str | None:
    """Return what about the messages keeps the channel from being linearised; None: nothing."""
    if sigma is None:
        return OWN_LAW
    if dropout:
        return DROPPED
    return None if (sigma > 0).all() else NOT_NOISY


def estimate_picture(
    encoder: Encoder | None,
    images: ArrayLike | None,
    labels: Int[Tensor, " M"] | None,
    *,
    noise: Noise | None,
    sigma: Float[Tensor, "*M D"] | None,
    seed: int,
) -> LinearisedLeak | None:
    """Return how much of the picture a message tells; None where noise or a second is lacking."""
    if encoder is None or images is None or noise is None or sigma is None:
        return None
    stack = to_tensor(images, "images")
    if as_module(encoder) is None or not stack.is_floating_point():
        return None
    prior = fit_to_some(stack, labels, seed)
    if prior is None:
        return None
    return measure_if_cheap(
        encoder,
        stack,
        sigma.shape[-1],
        noise=noise,
        prior=prior,
        seed=seed,
        most_operations=SECOND,
    )


def read_images(
    encoder: Encoder | None,
    images: ArrayLike | None,
    features: ArrayLike | None,
    labels: ArrayLike | None,
    *,
    name: str = "labels",
) -> tuple[Float[Tensor, "M D"], Int[Tensor, " M"]]:
    """Return features in float64, given or computed, and classes, 0 where there are no labels."""
    if (features is None) != (encoder is not None and images is not None):
        encoder_is, images_are, features_are = (
            "missing" if part is None else "given" for part in (encoder, images, features)
        )
        raise ValueError(
            f"give an encoder and images, or features in their place: encoder is {encoder_is}, "
            f"images are {images_are}, features are {features_are}"
        )
    if features is not None:
        table = to_tensor(features, "features")
    elif encoder is not None:
        stack = to_tensor(images, "images")
        if stack.dim() < 2 or not len(stack):
            raise ValueError(
                f"images are of shape {tuple(stack.shape)}, must be (M, ...), one row each"
            )
        table = encode_images(encoder, stack)
    check_features(table)
    if len(table) < 2:
        raise ValueError("there is 1 image, must be 2 or more: one alone cannot be told apart")
    if table.device.type == "mps":  # has no float64
        table = table.cpu()
    groups = torch.zeros(len(table), dtype=torch.long)
    if labels is not None:
        groups = to_labels(labels, len(table), name).cpu()
    return table.double(), groups


def check_numbers(draws: int | None, seed: int) -> None:
    """Raise ValueError where draws are too few, or a number is not whole."""
    if draws is not None:
        check_whole("draws", draws, MIN_DRAWS, " for an error; leave it out")
    check_whole("seed", seed)


def choose_messages(
    table: Float[Tensor, "M D"],
    noise: Noise | None,
    dropout: float,
    *,
    log_prob: LogProb | None,
    sampler: Sampler | None,
) -> tuple[Messages, Float[Tensor, "*M D"] | None]:
    """Return messages of Gaussian noise and its deviations, or of a user's own law and None."""
    if log_prob is None and sampler is None:
        sigma = read_noise(noise, dropout, table)
        return disturb_features(table, sigma, dropout), sigma
    if log_prob is None or sampler is None:
        missing = "sampler" if sampler is None else "log_prob"
        raise ValueError(f"{missing} is missing: a law of your own needs log_prob and sampler")
    if noise is not None or dropout:
        raise ValueError(
            "log_prob is given beside noise or dropout; your own law says all that happens to the "
            "features: leave noise and dropout out"
        )
    return send_by_law(table, log_prob, sampler), None


def read_accuracy(
    accuracy: float | None,
    accuracy_count: int | None,
    logits: ArrayLike | None,
    labels: Int[Tensor, " M"] | None,
) -> tuple[float, int] | None:
    """Return the head's accuracy and of how many images it is, or None; ValueError on nonsense."""
    if accuracy is None and logits is None:
        if accuracy_count is not None:
            raise ValueError(f"accuracy_count is {accuracy_count} without accuracy; give both")
        return None
    if accuracy is not None and logits is not None:
        raise ValueError("accuracy and logits are both given; leave one out")
    if labels is None:
        raise ValueError("labels are missing: accuracy is judged against the most frequent class")
    if bool((labels == labels[0]).all()):
        raise ValueError("labels are all of one class: no accuracy shows that anything was learned")
    if logits is not None:
        scores, classes = to_tensor(logits, "logits"), int(labels.max()) + 1
        if scores.dim() != 2 or len(scores) != len(labels) or scores.shape[1] < classes:
            raise ValueError(
                f"logits are of shape {tuple(scores.shape)} and labels go up to {classes - 1}; "
                f"must be ({len(labels)}, C), column c for label c: number the labels as the "
                "columns, for one with "
                "torch.unique(torch.as_tensor(labels), return_inverse=True)[1]"
            )
        if not scores.isfinite().all():
            raise ValueError("logits hold NaN or infinity, must be finite: check the head")
        is_right = scores.argmax(1).eq(labels.to(scores.device))
        return float(is_right.double().mean()), len(labels)
    share = 0.0 if accuracy is None else accuracy
    SHARE.check("accuracy", share)
    total = len(labels) if accuracy_count is None else accuracy_count
    check_whole("accuracy_count", total, 1)
    return float(share), total


def bound_bits(
    table: Float[Tensor, "M D"],
    groups: Int[Tensor, " M"],
    sigma: Float[Tensor, "*M D"] | None,
    candidates: int,
) -> Certificate | None:
    """Return upper bounds on the bits; None for an unknown law.

    Of the noise only: what dropout does to a message adds nothing. All there is to know where a
    feature has no noise.
    """
    if sigma is None:
        return None
    unit, scale = 1.0, None
    if sigma.dim() == 2:
        scale = sigma.cpu()
    elif (sigma > 0).all():
        table = span_coordinates(table / sigma)
    else:
        unit = 0.0
    return certificate(table.cpu(), groups, unit, candidates, scale=scale, large_table=LARGE_TABLE)


def read_reference(
    encoder: Encoder | None,
    *,
    images: ArrayLike | None,
    features: ArrayLike | None,
    labels: ArrayLike | None,
    has_labels: bool,
) -> tuple[Float[Tensor, "n D"], Int[Tensor, " n"]] | None:
    """Return features and classes of the reference images, or None; ValueError on nonsense."""
    if images is None and features is None:
        if labels is not None:
            raise ValueError(
                "reference_labels are given without reference_images or reference_features; give "
                "one of them"
            )
        return None
    if images is not None and features is not None:
        raise ValueError("reference_images and reference_features are both given; leave one out")
    if (labels is not None) != has_labels:
        raise ValueError(
            "labels and reference_labels belong together: give both, or none for bits about the "
            "image alone"
        )
    encoder = encoder if features is None else None
    return read_images(encoder, images, features, labels, name="reference_labels")


def check_strangers(images: ArrayLike | None, reference_images: ArrayLike | None) -> None:
    """Raise ValueError where an image that is measured is a reference image, too."""
    if images is None or reference_images is None:
        return
    stacks = (to_tensor(images, "images"), to_tensor(reference_images, "reference_images"))
    measured, fitted = (set(map(digest_pixels, stack)) for stack in stacks)
    common = len(measured & fitted)
    if common:
        raise ValueError(
            f"{common} of {len(measured)} images are reference images, too, must be none: a law "
            "fitted to an image is too near to it for a bound; take them out of one"
        )


def read_range(feature_range: tuple[float, float] | None) -> tuple[float, float] | None:
    """Return the least and the largest value; ValueError where they are none."""
    if feature_range is None:
        return None
    ends = to_tensor(feature_range, "feature_range").double().flatten().tolist()
    if len(ends) != 2 or not -inf < ends[0] < ends[1] < inf:
        raise ValueError(
            f"feature_range is {feature_range!r}, must be two finite numbers, the smaller first"
        )
    return ends[0], ends[1]


def describe_messages(
    table: Float[Tensor, "M D"], groups: Int[Tensor, " M"], sigma: Float[Tensor, "*M D"] | None
) -> GaussianMessages | None:
    """Return the Gaussian law of each image's message; None where a feature has no such noise."""
    if sigma is None or not (sigma > 0).all():
        return None
    rows = sigma if sigma.dim() == 2 else sigma[None]
    return GaussianMessages(table.cpu(), rows.cpu(), groups)


def bound_unseen(
    evaluated: GaussianMessages | None,
    reference: GaussianMessages | None,
    *,
    feature_range: tuple[float, float] | None,
    seed: int,
) -> PopulationBound | None:
    """Return what unseen images leak at most; None where there is no noise, or too few images."""
    if evaluated is None:
        return None
    if reference is None:
        count = len(evaluated.labels)
        if count < MIN_HALVED:
            return None
        order = torch.randperm(count, generator=make_generator(seed, "population-halves"))
        reference, evaluated = (evaluated.take(half) for half in order.tensor_split(2))
    return bound_population(evaluated, reference, feature_range=feature_range, seed=seed)


def judge(
    table: Float[Tensor, "M D"],
    sigma: Float[Tensor, "*M D"] | None,
    share_right: tuple[float, int] | None,
    groups: Int[Tensor, " M"],
) -> str | None:
    """Return why the numbers mean nothing: a collapsed encoder, or a head that learned nothing."""
    gap = table - table.mean(0)
    collapsed = "the encoder has collapsed, so this leak means nothing."
    if not (table != table[0]).any():
        return f"All features are equal: {collapsed}"
    if sigma is not None and (sigma > 0).all():
        nats = float(torch.log1p((gap / sigma).square().mean(0)).sum()) / 2
        if nats / log(2) < NO_SIGNAL_BITS:
            if gap.norm() <= EQUAL_SHARE * table.norm():
                return f"All features are nearly equal: {collapsed}"
            # Pinsker: classes are told by the total variation, sqrt(I / 2) at most, I in nats.
            return (
                "The features differ by far less than the noise: from one message no head is right "
                f"more than {100 * (nats / 2) ** 0.5:.1f} points more often than a guess, so this "
                "leak means nothing."
            )
    if share_right is None:
        return None
    accuracy, total = share_right
    chance = chance_accuracy(groups)
    if not is_at_chance(accuracy, total, chance):
        return None
    return (
        f"Nothing was learned (accuracy {accuracy:.1%} of {total} images, the most frequent class "
        f"alone {chance:.1%}), so this leak means nothing."
    )
