"""Compare the layers at which a model can be cut: cost on the device, noise, leak."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, inf, isfinite, log2
from statistics import median
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.functional import one_hot

from fedcel.errors import NetError
from fedcel.leakage.calibrate_noise import LeakTarget, fit_noise
from fedcel.leakage.channel_numbers import count_passes
from fedcel.leakage.image_prior import ImagePrior, fit_image_prior, read_pixels
from fedcel.leakage.leakage import Leakage
from fedcel.leakage.linearised import LinearisedChannels, LinearisedLeak, linearise
from fedcel.leakage.measure_leakage import measure_leakage
from fedcel.leakage.measured_cuts import ANSWER, CutComparison, CutLimits, MeasuredCut
from fedcel.leakage.noisy_head import ROUNDING, NoisyHead, choose_targets
from fedcel.metrics import mean_half_width
from fedcel.nets import (
    CountedCut,
    CutPoint,
    TracedModel,
    count_operations,
    encode_images,
    evaluation_mode,
    narrow_features,
    place_images,
)
from fedcel.progress import listen_to_progress, tell_progress
from fedcel.ranges import check_whole
from fedcel.tensors import ArrayLike, check_features, to_labels
from fedcel.torch_state import make_generator, usual_torch_state

MOST_CUTS = 12
"""Cuts that are compared unless others are asked for."""
MIN_IMAGES = 20
"""Images below which accuracies say nothing."""
FEATURE_BYTES = 1_000_000_000
"""Features in memory at once, unless those of one cut are more."""
LEAST_NOISE, MOST_NOISE = 2.0**-12, 2.0**6
"""Range of the search for noise, in units of the features' root mean square."""
SEARCH_STEPS = 8
"""Levels that a search tries: neighbours of all 255 differ by 5 %."""
SCORES = 2 * SEARCH_STEPS + 1
"""Scores of a cut, at most."""
TIMED_PASSES = 5
LEAST_SHARE = 0.01
"""Passes through the model that a part of the work takes at least, for an image."""


@usual_torch_state()
def compare_cuts(
    model: nn.Module,
    images: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    at: Sequence[str] | Literal["thinned", "all"] = "thinned",
    limits: CutLimits | None = None,
    normalise: nn.Module | None = None,
    values: int = 0,
    linearised: int = 30,
    seed: int = 0,
) -> CutComparison:
    """Compare the layers at which a classifier can be cut, and recommend one.

    Each cut gets the most Gaussian noise with which the rest of the model, unchanged, stays within
    the allowed loss of accuracy. With this noise the leak of one message is measured.

    With `values` a cut of more features sends as many values, those that the rest of the model
    reads (`narrow`), which a random half of the images decides; the others are measured.

    Example:
        >>> cuts = fedcel.compare_cuts(model, images, labels, limits=fedcel.CutLimits(max_bits=5))
        >>> print(cuts)
        >>> encoder, head = cuts.recommended.encoder, cuts.recommended.head

    Args:
        model: As of `split`, from images to logits (B, classes).
        images: (N, ...), floating numbers in [0, 1], N 20 or more. The model should not have been
            trained on them.
        labels: Classes from 0 as the model numbers them, (N,). Where they are missing, or the model
            knows nothing of them, accuracy is agreement with the model without noise.
        at: Names of layers; "all" that are possible; "thinned": at most 12, evenly spaced, without
            layers that compute nothing, that send more values than an earlier one, or that a later
            one follows at no cost.
        limits: Limits of loss, leak and cost; None: one point of accuracy.
        normalise: Layer that makes of images in [0, 1] what the model takes; None: nothing.
        values: Values of a message, at most; 0: all features.
        linearised: Images whose linearised leak is measured, 2 or more.
        seed: Decides the noise.

    Returns:
        All cuts with their measures, and the recommendation.

    Raises:
        NetError: The model cannot be traced, it cannot be cut there, or refuses the images.
        ValueError: Images or labels are not allowed, or features are not finite.
    """
    limits = limits or CutLimits()
    stack = read_pixels(images).float()
    if not at or (isinstance(at, str) and at not in ("thinned", "all")):
        raise ValueError(f"at is {at!r}, must be 'thinned', 'all' or a list of layers' names")
    check_whole("linearised", linearised, 2)
    check_whole("values", values, 0)
    if len(stack) < MIN_IMAGES:
        raise ValueError(f"there are {len(stack)} images, must be {MIN_IMAGES} or more")
    if values and len(stack) < (least := 2 * max(values, MIN_IMAGES)):
        raise ValueError(
            f"there are {len(stack)} images, must be {least} or more with values {values}: one "
            "half decides what is read"
        )
    y = None if labels is None else to_labels(labels, len(stack)).cpu()
    everything = stack
    if values:
        order = torch.randperm(len(stack), generator=make_generator(seed, "cuts/halves"))
        measured = order[len(order) // 2 :]
        everything, stack = stack[order], stack[measured]
        y = None if y is None else y[measured]
    has_classes = y is not None and 2 * len(torch.unique(y)) <= len(y)
    groups = y if has_classes else None
    prior = fit_image_prior(stack, groups)
    if limits.min_mse is not None and limits.min_mse >= prior.variance:
        raise ValueError(
            f"min-mse is {limits.min_mse:g}, must be below {prior.variance:.3g}: who gets no "
            "message has that error"
        )
    traced = TracedModel(model)
    bench = CutBench(
        traced=traced,
        normalise=normalise or nn.Identity(),
        images=stack,
        values=values,
        groups=groups,
        prior=prior,
        limits=limits,
        linearised=linearised,
        seed=seed,
    )
    with evaluation_mode(model), torch.no_grad():
        chosen = choose_cuts(traced, bench.normalise(stack[:1]), at)
        logits = bench.encode(traced.module)
        if not logits.isfinite().all():  # the first layer whose features are not is named
            for cut in chosen:
                encoder, _ = traced.split(cut.point.layer)
                check_features(bench.encode(encoder), f"features of layer {cut.point.layer!r}")
        targets = choose_targets(logits, y)
        is_right = logits.argmax(1) == targets
        bench.plan(chosen, count_operations(lambda: bench.encode_one(traced.module)))
        cuts = list[MeasuredCut]()
        for group in group_cuts(chosen, len(everything)):
            encoders = traced.encode_at(cut.point.layer for cut in group)
            table = bench.encode(encoders, everything)
            tables = torch.split(table, [cut.point.features for cut in group], 1)
            del table
            for cut, features in zip(group, tables, strict=True):
                cuts.append(bench.measure(cut, features, targets, is_right))
        answer = bench.measure_answer(logits, float(is_right.double().mean()))
    return CutComparison(
        cuts=cuts,
        answer=answer,
        limits=limits,
        accuracy=float(is_right.double().mean()),
        is_label_accuracy=targets is y,
        has_classes=has_classes,
        images=len(stack),
        prior_mse=prior.variance,
    )


def choose_cuts(
    traced: TracedModel, image: Shaped[Tensor, "1 ..."], at: Sequence[str] | str
) -> list[CountedCut]:
    """Choose the cuts that are compared; NetError where a model has none, or none of a name."""
    possible = traced.list_cuts(image, is_counted=True)
    if not possible:
        raise NetError(
            f"{type(traced.model).__name__} can be cut nowhere: earlier values are used beside "
            "the output of every layer; give a model of several layers in a row"
        )
    if at == "all":
        return possible
    if not isinstance(at, str):
        outermost = [cut.point.layer for cut in possible]
        chosen = []
        for layer in dict.fromkeys(at):
            name = traced.find_outermost(layer)  # refuses what is none
            if name not in outermost:
                raise NetError(
                    f"layer {layer!r} gives no row for each image, so nothing that a device could "
                    "send; choose another"
                )
            chosen.append((outermost.index(name), layer))
        return [
            possible[place]._replace(point=possible[place].point._replace(layer=layer))
            for place, layer in sorted(chosen)
        ]
    fewest, useful = inf, list[CountedCut]()
    for cut in possible:
        if cut.operations and cut.point.features <= fewest:
            fewest = cut.point.features
            if not useful or useful[-1].operations < cut.operations:
                useful.append(cut)
            elif is_better_name(cut.point, useful[-1].point):
                useful[-1] = cut
    useful = useful or possible
    gap = max(1.0, (len(useful) - 1) / (MOST_CUTS - 1))
    return [useful[round(place * gap)] for place in range(min(len(useful), MOST_CUTS))]


def is_better_name(later: CutPoint, earlier: CutPoint) -> bool:
    """Whether a later layer replaces one of the same cost: not an inner one that sends as much."""
    is_inner = later.layer.count(".") > earlier.layer.count(".")
    return later.features < earlier.features or not is_inner


def group_cuts(cuts: Sequence[CountedCut], count: int) -> Iterator[list[CountedCut]]:
    """Group consecutive cuts whose features of all images fit into memory together."""
    group, size = list[CountedCut](), 0
    for cut in cuts:
        more = cut.point.features * count * torch.float32.itemsize
        if group and size + more > FEATURE_BYTES:
            yield group
            group, size = [], 0
        group.append(cut)
        size += more
    yield group


class Message(NamedTuple):
    """Halves of the model, and what the first sends of the images."""

    encoder: nn.Module
    head: nn.Module
    shape: tuple[int, ...]
    features: Float[Tensor, "N D"]
    macs: int = 0
    """Beyond those of the layer that is cut."""


@dataclass(kw_only=True)
class CutBench:
    """Images and options with which every cut is measured, and the progress."""

    traced: TracedModel
    normalise: nn.Module
    images: Shaped[Tensor, "N ..."]
    groups: Int[Tensor, " N"] | None
    """Labels, where bits are those beyond the label."""
    prior: ImagePrior
    limits: CutLimits
    values: int
    """Of a message, at most; 0: all features."""
    linearised: int
    seed: int
    operations: int = 1
    """Of the whole model for one image."""
    finished: float = 0.0
    total: float = 0.0

    def plan(self, cuts: Sequence[CountedCut], operations: int) -> None:
        """Estimate the work, in passes of an image through the whole model of `operations`."""
        self.operations = max(1, operations)
        self.total = sum(
            SCORES * self.scoring_passes(cut) + self.linearising_passes(cut) for cut in cuts
        )

    def scoring_passes(self, cut: CountedCut) -> float:
        """Estimate the passes of one score of noisy features."""
        head = max(0.0, 1 - cut.operations / self.operations)
        return len(self.images) * max(LEAST_SHARE, head)

    def linearising_passes(self, cut: CountedCut) -> float:
        """Estimate the passes of linearising around all images."""
        passes = count_passes(self.count_values(cut), self.images[0].numel())
        count = min(self.linearised, len(self.images))
        return count * passes * max(LEAST_SHARE, cut.operations / self.operations)

    def advance(self, passes: float) -> None:
        """Tell that more passes are done."""
        self.finished += passes
        tell_progress(round(self.finished), round(self.total))

    def encode_one(self, module: nn.Module) -> Tensor:
        """Compute what a part of the model makes of one image."""
        sender = nn.Sequential(self.normalise, module)
        features: Tensor = sender(place_images(self.images[:1], sender))
        return features

    def encode(
        self, module: nn.Module, images: Shaped[Tensor, "N ..."] | None = None
    ) -> Float[Tensor, "N D"]:
        """Compute what a part of the model makes of images, those measured or others."""
        sender = nn.Sequential(self.normalise, module)
        with listen_to_progress(lambda *_: None):
            return encode_images(sender, self.images if images is None else images).cpu()

    def count_values(self, cut: CountedCut) -> int:
        """Count the values of a message, at most."""
        return min(self.values or cut.point.features, cut.point.features)

    def choose_message(self, cut: CountedCut, features: Float[Tensor, "A D"]) -> Message:
        """Choose what is sent: a layer's features, or the few values that the head reads of them.

        The images that are not measured decide which.
        """
        layer, shape = cut.point
        encoder, head = self.traced.split(layer)
        if self.values:
            measured = len(self.images)
            fitting, features = features[:-measured], features[-measured:]
        if not 0 < self.values < cut.point.features:
            return Message(encoder, head, shape, features)
        encoder, head = narrow_features(
            encoder, head, fitting, shape=shape, values=self.values, seed=self.seed
        )
        reader = cast(nn.Linear, encoder[-1])
        values = reader(place_images(features, reader)).cpu()
        return Message(encoder, head, (reader.out_features,), values, reader.weight.numel())

    def measure(
        self,
        cut: CountedCut,
        features: Float[Tensor, "A D"],
        targets: Int[Tensor, " N"],
        is_right: Bool[Tensor, " N"],
    ) -> MeasuredCut:
        """Measure a cut of which the features are known."""
        layer = cut.point.layer
        check_features(features, f"features of layer {layer!r}")
        encoder, head, shape, features, more_macs = self.choose_message(cut, features)
        sender = nn.Sequential(self.normalise, encoder)
        rms = float(features.double().square().mean().sqrt())
        scorer = NoisyHead(
            head, features, shape=shape, targets=targets, seed=self.seed, layer=layer
        )
        most_wrong = int((~is_right).sum()) + self.limits.max_loss / 100 * len(is_right)

        def is_accurate(level: float) -> bool:
            # Twice: draws by which a level was chosen are lucky, those that are reported less so.
            for is_fresh in (False, True):
                right = scorer.score(level * rms, most_wrong, is_fresh=is_fresh)
                self.advance(self.scoring_passes(cut))
                if len(right) - float(right.sum()) > most_wrong + ROUNDING:
                    return False
            return True

        begin = self.finished
        noise = find_most_noise(is_accurate) * rms
        right = scorer.score(noise, is_fresh=True)
        self.advance(begin + SCORES * self.scoring_passes(cut) - self.finished)
        leak = self.measure_exact(features, noise)
        begin = self.finished
        linearised, noise_for_leak = self.measure_picture(cut, sender, noise, rms)
        self.advance(begin + self.linearising_passes(cut) - self.finished)
        losses = is_right.double() - right
        count, mean_loss = len(losses), float(losses.mean())
        half_width = mean_half_width(
            mean_loss, float(losses.var()) / count, count - 1, low=-1, high=1, rare=1 / count
        )
        return MeasuredCut(
            layer=layer,
            encoder=encoder,
            head=head,
            shape=shape,
            features=features.shape[1],
            macs=cut.operations // 2 + more_macs,
            parameters=count_parameters(sender),
            milliseconds=time_milliseconds(sender, self.images[:1]),
            rms=rms,
            noise=noise,
            noise_for_leak=noise_for_leak,
            accuracy=float(right.mean()),
            loss=100 * mean_loss,
            loss_half_width=100 * half_width,
            leak=leak,
            linearised=linearised,
        )

    def measure_answer(self, logits: Float[Tensor, "N C"], accuracy: float) -> MeasuredCut:
        """Measure the model that runs on the device and sends the class that it answers.

        The answer has no noise, so that its bits are the entropy of the answers, of those within
        a class where they are beyond the label.
        """
        classes = logits.shape[1]
        answers = one_hot(logits.argmax(1), classes).float()
        sender = nn.Sequential(self.normalise, self.traced.module)
        image = place_images(self.images[:1], sender)
        return MeasuredCut(
            layer=ANSWER,
            encoder=self.traced.module,
            head=nn.Identity(),
            shape=(1,),
            features=ceil(log2(classes) / 8),
            macs=count_operations(lambda: sender(image)) // 2,
            parameters=count_parameters(sender),
            milliseconds=time_milliseconds(sender, image),
            rms=1.0,
            noise=0.0,
            accuracy=accuracy,
            loss=0.0,
            loss_half_width=0.0,
            leak=self.measure_exact(answers, 0.0),
        )

    def measure_exact(self, features: Float[Tensor, "N D"], noise: float) -> Leakage:
        """Measure the bits of the given images by Bayes' rule."""
        with listen_to_progress(lambda *_: None):
            return measure_leakage(
                features=features, labels=self.groups, noise=noise, seed=self.seed
            )

    def measure_picture(
        self, cut: CountedCut, sender: nn.Module, noise: float, rms: float
    ) -> tuple[LinearisedLeak | None, float | None]:
        """Return the linearised leak, and the least noise that meets the limit of the leak.

        The first is None without noise, the second where there is no limit, or no noise meets it.
        """
        begin, share = self.finished, self.linearising_passes(cut)

        @cache
        def linearise_at(sigma: float) -> LinearisedChannels:
            def tell(finished: int, total: int) -> None:
                done = max(self.finished, begin + share * finished / total)
                self.advance(done - self.finished)

            with listen_to_progress(tell):
                return linearise(
                    sender,
                    self.images,
                    noise=sigma,
                    prior=self.prior,
                    count=self.linearised,
                    seed=self.seed,
                )

        leak = linearise_at(noise).measure() if noise else None
        if not self.limits.has_leak:
            return leak, None
        target = LeakTarget(bits=self.limits.max_bits, mse=self.limits.min_mse)
        _, unit, scale = fit_noise(linearise_at, target, noise or rms)
        return leak, unit * scale if isfinite(scale) else None


def find_most_noise(is_little: Callable[[float], bool]) -> float:
    """Find the level of noise at which a claim that holds of little noise ceases to hold.

    Levels, in units of the features' root mean square, are evenly spaced in their logarithms. A
    claim that implies another holds of no more noise than that other, whether or not the claims are
    monotone in the noise. 0 where the claim holds of no level.
    """
    low, high = 0, 2**SEARCH_STEPS  # outside of the levels
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_little(noise_level(middle)) else (low, middle)
    return noise_level(low) if low else 0.0


def noise_level(number: int) -> float:
    """Return the level of a number, from 1 on."""
    levels = 2**SEARCH_STEPS - 1
    return float(LEAST_NOISE * (MOST_NOISE / LEAST_NOISE) ** ((number - 1) / (levels - 1)))


def count_parameters(module: nn.Module) -> int:
    """Count the parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


def time_milliseconds(module: nn.Module, image: Shaped[Tensor, "1 ..."]) -> float:
    """Time one image, the median of some passes after a first one."""
    times = []
    for _ in range(1 + TIMED_PASSES):
        begin = time.perf_counter()
        module(image)
        times.append(time.perf_counter() - begin)
    return 1000 * median(times[1:])
