"""Audit an encoder: exact bits, bounds, and what attacks rebuild."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import inf, isfinite
from pathlib import Path
from typing import NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.attacks import Inversion, copy_differentiable, invert, parse_attacks
from fedcel.data import Images, Source, check_first_images, match_pixels
from fedcel.errors import (
    DataError,
    FedcelError,
    NetError,
    RefusedImagesError,
    SettingsError,
    SizeError,
    escape_controls,
)
from fedcel.files import digest_file, write_json, write_whole
from fedcel.leakage import (
    DROPPED,
    NOT_ESTIMATED,
    NOT_NOISY,
    ImagePrior,
    Leakage,
    LeakMaps,
    LeakTarget,
    LinearisedLeak,
    NoiseFunction,
    NoisyHead,
    calibrate_noise,
    choose_targets,
    count_affordable,
    find_feature_shape,
    fit_to_some,
    map_leak,
    measure_leakage,
    measure_linearised,
)
from fedcel.metrics import chance_accuracy, is_at_chance
from fedcel.nets import encode_images, evaluation_mode, find_batch_layers, name_layers, place_images
from fedcel.runs import list_versions
from sims.auditing.find_images import draw_images, find_source
from sims.auditing.load_encoder import (
    AdaptedEncoder,
    LoadedEncoder,
    Normalisation,
    load_encoder,
)
from sims.progress import print_line, show_attacks, show_parts, show_steps, show_waiting

AUDIT_FILE = "audit.json"
PAGE_FILE = "report.html"
SETTING = re.compile(r"(?<![\w./])data\.(?=(label-column|size|grey)\b(?![./]\w))")
"""Leads a setting that is an option of the command, in messages of the library."""
USUAL_OPERATIONS, MOST_OPERATIONS = 1.1e12, 1e14
"""Operations of the encoder for how much of the picture a message tells: 20 seconds, and half
an hour for the six images without which there is no interval."""
MAPPED, MEASURED_PER_MAP = 5, 6
"""Images whose leak is drawn pixel by pixel, and images that are measured for one of these."""
LEAST_CLASSES = 2
MIN_IMAGES = 4  # two targets, and as many images of the attacker's own


@dataclass(frozen=True, kw_only=True)
class ModelPlan:
    """A model, and the images that it is measured with.

    Args:
        model: See `load_encoder`.
        data: Images; see `find_source`.
        weights: File of a library model's parameters; empty: random ones.
        images: The most images that are measured.
        size: Pixels a side to resize images to; 0: as they are.
        grey: Whether colours are turned into their luminance.
        mean: What is subtracted from each channel, or from all; none: what a module of timm states,
            else 0.
        deviation: What each channel, or all, are divided by then; none: as stated, else 1.
        label_column: Column of the labels, of a Hugging Face data set; none: the only one.
        seed: Draws images, noise and attacks.
    """

    model: str
    data: str
    weights: str = ""
    images: int = 1000
    size: int = 0
    grey: bool = False
    mean: Sequence[float] = ()
    deviation: Sequence[float] = ()
    label_column: str = "none"
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class AuditPlan(ModelPlan):
    """Encoder, images and options of an audit.

    Args:
        at: Layer of a module whose output is sent; empty: the last.
        noise: Standard deviation of the Gaussian noise at the cut, in units of the features; None:
            what the encoder's file states.
        target: Leak that a message may have, for which the noise is chosen instead; None: no.
        is_noise_per_feature: Whether each feature gets noise of its own for the target.
        is_noise_relative: Whether `noise` is in units of the features' standard deviation.
        dropout: Chance that a feature is sent as 0; None: what the file states, else 0.
        attacks: Names of the attacks that rebuild images; none: only the exact attacker.
        targets: The most images that are rebuilt; the attacker owns the others.
        outputs: Names or places of the encoder's outputs that leave the device; none: all of them.
        budget: Multiple of each attack's default effort.
        seconds: The most seconds of each attack; 0: no limit.
    """

    at: str = ""
    noise: float | None = None
    is_noise_relative: bool = False
    target: LeakTarget | None = None
    is_noise_per_feature: bool = False
    dropout: float | None = None
    attacks: Sequence[str] = ("decoder", "kernel-ridge")
    targets: int = 100
    outputs: Sequence[str] = ()
    budget: float = 1.0
    seconds: float = 0.0


class HeadAccuracy(NamedTuple):
    """Right answers of the rest of a model.

    Attributes:
        noisy: Share of messages that are answered right, in [0, 1].
        clean: The same without noise; 1 where the answers without noise are the right ones.
        is_of_labels: Whether an answer is right by its label, else by the answer without noise.
    """

    noisy: float
    clean: float
    is_of_labels: bool

    def __str__(self) -> str:
        """Describe it in a sentence."""
        if self.is_of_labels:
            return (
                f"With this noise the model is right in {self.noisy:.1%} of cases, without noise "
                f"in {self.clean:.1%}."
            )
        return f"With this noise the model answers as without noise in {self.noisy:.1%} of cases."


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Result of an audit, up to the attacks that have ended."""

    plan: AuditPlan
    description: str
    """The encoder, in words."""
    note: str
    """Images that were measured and their changes, and what the encoder gives attackers."""
    noise: float
    """Standard deviation; root mean square over the features, where each has its own."""
    spread: float
    """Standard deviation of the features over the images."""
    dropout: float
    leak: Leakage
    feature_noise: Float[Tensor, " D"] | None = None
    """Standard deviation of each feature's noise, where it was chosen so."""
    accuracy: HeadAccuracy | None = None
    """Answers of the rest of the model, where that is known."""
    inversion: Inversion | None
    """None where no attack has ended, or was asked for."""
    ended_attacks: int = 0
    skipped_attacks: Mapping[str, str] = field(default_factory=dict)
    """Reason of each attack that cannot work at this size."""
    target_names: Sequence[str] = ()
    """Class of each image that is rebuilt; none where the classes have no names."""
    maps: LeakMaps | None = None
    """Leak of the first images pixel by pixel."""
    mapped: Float[Tensor, "T C H W"] | None = None
    """These images."""
    is_noise_learned: bool = False
    """Whether each feature has noise of its own, `noise` times what was learned."""

    @property
    def missing_attacks(self) -> list[str]:
        """Attacks that were asked for and have not ended."""
        return list(self.plan.attacks[self.ended_attacks :])

    def describe_noise(self) -> str:
        """Describe the noise, and how much it is beside the features."""
        share = f"{self.noise / self.spread:.3g} times that of the features" if self.spread else ""
        if self.feature_noise is None:
            return f"Gaussian noise of standard deviation {self.noise:.4g} ({share})"
        low, high = (float(value) for value in self.feature_noise.aminmax())
        return (
            f"Gaussian noise of a standard deviation of its own for each feature, {low:.4g} to "
            f"{high:.4g}, root mean square {self.noise:.4g} ({share})"
        )

    def __str__(self) -> str:
        """Describe the leak, below the noise that was found, and the accuracy that is left."""
        target, picture = self.plan.target, self.leak.linearised
        lines = []
        if target is not None and picture is not None:
            limit = (
                f"an MSE of {target.mse:g} or more"
                if target.bits is None
                else f"at most {target.bits:g} bits of the picture"
            )
            lines.append(
                f"The least noise that leaves {limit}: {self.describe_noise()}, which leaves "
                f"{picture.bits:.4g} bits and an MSE of {picture.mmse:.4g}."
            )
        accuracy = [] if self.accuracy is None else [str(self.accuracy)]
        leak = str(self.leak)
        skipped = [f"{name} is left out: {why}." for name, why in self.skipped_attacks.items()]
        parts = [*lines, *accuracy, leak] if lines else [leak, *accuracy]
        return "\n".join([*parts, *skipped])

    def to_json(self) -> dict[str, object]:
        """Make the object that is written."""
        target, picture, deviations = self.plan.target, self.leak.linearised, self.feature_noise
        stopped = {} if self.inversion is None else self.inversion.stopped
        return {
            "model": self.plan.model,
            **({"at": self.plan.at} if self.plan.at else {}),
            **({"weights": digest_file(self.plan.weights)} if self.plan.weights else {}),
            "encoder": self.description,
            "data": self.plan.data,
            "images": self.note,
            "noise": self.noise,
            "noise-in-sd": self.noise / self.spread if self.spread else None,
            **({} if deviations is None else {"noise-per-feature": deviations.tolist()}),
            "noise-learned": self.is_noise_learned,
            **({} if target is None else {"target": vars(target)}),
            **({} if self.accuracy is None else {"accuracy": self.accuracy._asdict()}),
            "dropout": self.dropout,
            "seed": self.plan.seed,
            "budget": self.plan.budget,
            **({"seconds-limit": self.plan.seconds} if self.plan.seconds else {}),
            "leak": self.leak.to_dict(),
            "sequences": [] if picture is None else picture.list_sequences(),
            "attacks": {} if self.inversion is None else self.inversion.to_dict(),
            **({"attacks-stopped": stopped} if stopped else {}),
            **({"attacks-skipped": {**self.skipped_attacks}} if self.skipped_attacks else {}),
            **({"attacks-missing": self.missing_attacks} if self.missing_attacks else {}),
            "targets": 0 if self.inversion is None else len(self.inversion.targets),
            "versions": list_versions(),
        }


@dataclass(frozen=True, kw_only=True)
class AuditSubject:
    """An encoder, images, and what is known of both before anything leaks."""

    plan: AuditPlan
    encoder: LoadedEncoder
    encode: AdaptedEncoder
    """The encoder behind its normalisation."""
    images: Images
    features: Float[Tensor, "M D"]
    dropout: float
    has_gradient: bool

    @property
    def has_stated_noise(self) -> bool:
        """Whether the noise is that of the encoder's file, which states the accuracy with it."""
        return self.plan.noise is None and self.plan.target is None

    @cached_property
    def head(self) -> nn.Module | None:
        """Rest of the model; None where it is unknown, lacks outputs, or gives no logits."""
        head, encode = self.encoder.head, self.encode
        if head is None or self.plan.outputs:
            return None
        try:
            with evaluation_mode(encode), evaluation_mode(head), torch.no_grad():
                logits = head(encode(place_images(self.images.x[:1], encode)))
        except RuntimeError as error:
            raise NetError(
                f"the model takes no images of shape {tuple(self.images.x.shape[1:])}: its layers "
                f"behind {self.plan.at!r} say {error}; give --size with the pixels that it takes"
            ) from error
        has_classes = isinstance(logits, Tensor) and logits.dim() == 2
        return head if has_classes and logits.shape[1] >= LEAST_CLASSES else None


def audit_encoder(plan: AuditPlan, keep: Callable[[Audit], None] = lambda _: None) -> Audit:
    """Measure what an encoder leaks, and attack it.

    `keep` takes what is known as soon as it is: when the bits are measured, and after each attack.
    Any FedcelError says what the user has to mend: plan, encoder or images.
    """
    check_plan(plan)
    with show_waiting(f"reading the encoder {plan.model}"):
        encoder = load_encoder(plan.model, plan.at, plan.weights)
    refuse_batch_layers(encoder)
    stated = choose_noise(plan, encoder)
    normalisation = parse_normalisation(plan) or encoder.normalisation
    encode = AdaptedEncoder(encoder.encode, normalisation, plan.outputs)
    with explain_options():
        reading = show_parts(f"reading the images of {plan.data}", "pictures")
        with reading, check_first_images(partial(try_encoder, encode)):
            images, note, class_names = read_images(plan, encoder)
        features = encode_with_progress(encode, images)
        subject = AuditSubject(
            plan=plan,
            encoder=encoder,
            encode=encode,
            images=images,
            features=features,
            dropout=encoder.dropout if plan.dropout is None else plan.dropout,
            has_gradient=copy_differentiable(encode, images.x[:2]) is not None,
        )
        spread = float(features.double().var(0).mean().sqrt())
        noise: float | Tensor | NoiseFunction = stated * (spread if plan.is_noise_relative else 1.0)
        if subject.has_stated_noise and encoder.learned_noise is not None:
            noise = encoder.learned_noise
        picture = PicturePlan.make(subject, noise)
        calibrated = None
        if plan.target is not None:
            noise, calibrated = find_noise(subject, picture, plan.target)
        accuracy = measure_accuracy(subject, noise)
        share_right = choose_accuracy(subject, accuracy)
        with show_parts(
            f"measuring the bits of {len(images.y)} images, {features.shape[1]} features each",
            "messages",
        ):
            leak = measure_leakage(
                features=features,
                labels=images.y,
                noise=noise,
                dropout=subject.dropout,
                accuracy=None if share_right is None else share_right[0],
                accuracy_count=None if share_right is None else share_right[1],
                seed=plan.seed,
            )
        is_fully_attacked = not plan.attacks or subject.has_gradient
        sentences = [
            note,
            describe_encoder(features.shape[1], spread, normalisation, is_fully_attacked),
            *([picture.obstacle] if picture.obstacle else []),
        ]
        audit = Audit(
            plan=plan,
            description=encoder.description,
            note=" ".join(sentences),
            noise=summarise_noise(noise, stated),
            spread=spread,
            feature_noise=noise if isinstance(noise, Tensor) else None,
            accuracy=accuracy,
            is_noise_learned=callable(noise),
            dropout=subject.dropout,
            leak=replace(leak, linearised=calibrated),
            inversion=None,
            target_names=[class_names[y] for y in images.y[: plan.targets]] if class_names else (),
        )
        keep(audit)
        if picture.prior is not None:
            audit = measure_picture(audit, subject, picture, noise)
            keep(audit)
        for number, (inversion, skipped) in enumerate(attack_encoder(subject, noise), 1):
            audit = replace(
                audit, inversion=inversion, ended_attacks=number, skipped_attacks=skipped
            )
            keep(audit)
    return audit


def summarise_noise(noise: float | Tensor | NoiseFunction, stated: float) -> float:
    """Return the root mean square of noise; what is stated where it is learned."""
    if isinstance(noise, Tensor):
        return float(noise.square().mean().sqrt())
    return stated if callable(noise) else noise


class PicturePlan(NamedTuple):
    """Estimate of how much of the picture a message tells, before it is made.

    Attributes:
        prior: Law of the images; None: there is no estimate.
        images: Number of images that are linearised.
        obstacle: Why there is no estimate, in a sentence; empty where there is one.
    """

    prior: ImagePrior | None
    images: int = 0
    obstacle: str = ""

    @classmethod
    def make(cls, subject: AuditSubject, noise: float | Tensor | NoiseFunction) -> Self:
        """Choose prior and images; SettingsError where there is a target and no estimate."""
        target, x = subject.plan.target, subject.images.x
        prior = fit_to_some(x, subject.images.y, 0) or fit_to_some(x, None, 0)
        count, reason = 0, ""
        if subject.dropout:
            reason = DROPPED
        elif target is None and not (callable(noise) or noise > 0):
            reason = NOT_NOISY
        elif prior is None:
            reason = "the images are too few, or all alike"
        elif not subject.has_gradient:
            reason = (
                "the encoder gives features without a gradient; a module or a .pt2 file has one"
            )
        else:
            try:
                count = count_affordable(
                    subject.encode,
                    x,
                    subject.features.shape[1],
                    noise=noise,
                    most_operations=MOST_OPERATIONS,
                    usual_operations=USUAL_OPERATIONS,
                )
                reason = "" if count else "there are fewer than 6 images, or it would take hours"
            except NetError as error:
                reason = str(error)
        if not reason:
            return cls(prior, count)
        if target is not None:
            raise SettingsError(
                f"{name_target(target)} needs the estimate of how much of the picture a message "
                f"tells, which there is not: {reason}; give --noise in its place"
            )
        return cls(None, obstacle=f"{NOT_ESTIMATED}: {reason}.")


def find_noise(
    subject: AuditSubject, picture: PicturePlan, target: LeakTarget
) -> tuple[float | Tensor, LinearisedLeak]:
    """Find the least noise for a target, and the leak with it."""
    plan = subject.plan
    with show_parts("finding the noise for the target", "images"):
        return calibrate_noise(
            subject.encode,
            subject.images.x,
            target_bits=target.bits,
            target_mse=target.mse,
            per_feature=plan.is_noise_per_feature,
            head=subject.head if plan.is_noise_per_feature else None,
            prior=picture.prior,
            count=picture.images,
            seed=plan.seed,
        )


def measure_picture(
    audit: Audit,
    subject: AuditSubject,
    picture: PicturePlan,
    noise: float | Tensor | NoiseFunction,
) -> Audit:
    """Add to an audit how much of the picture goes out, and of which pixels."""
    encode, x, prior = subject.encode, subject.images.x, picture.prior
    assert prior is not None
    leak = audit.leak
    with show_parts("estimating how much of the picture goes out", "images"):
        if leak.linearised is None:
            linearised = measure_linearised(
                encode, x, noise=noise, prior=prior, count=picture.images, seed=subject.plan.seed
            )
            leak = replace(leak, linearised=linearised)
        mapped = x[: min(MAPPED, picture.images // MEASURED_PER_MAP)]
        maps = map_leak(encode, mapped, noise=noise, prior=prior)
    return replace(audit, leak=leak, maps=maps, mapped=mapped)


def name_target(target: LeakTarget) -> str:
    """Return a target as the option that was given."""
    return (
        f"--target-mse {target.mse:g}" if target.bits is None else f"--target-bits {target.bits:g}"
    )


def measure_accuracy(
    subject: AuditSubject, noise: float | Tensor | NoiseFunction
) -> HeadAccuracy | None:
    """Measure the answers of the rest of the model to messages.

    None where it is no classifier, or where the encoder's file states the accuracy.
    """
    plan, encode, images, head = subject.plan, subject.encode, subject.images, subject.head
    is_stated = subject.has_stated_noise and subject.encoder.accuracy is not None
    if head is None or is_stated or subject.dropout or callable(noise):
        return None
    shape = find_feature_shape(encode, images.x)
    logits = encode_images(nn.Sequential(nn.Unflatten(1, shape), head), subject.features).cpu()
    right = choose_targets(logits, images.y)
    scorer = NoisyHead(
        head, subject.features, shape=shape, targets=right, seed=plan.seed, layer=plan.at
    )
    return HeadAccuracy(
        noisy=float(scorer.score(noise).mean()),
        clean=float((logits.argmax(1) == right).double().mean()),
        is_of_labels=right is images.y,
    )


def choose_accuracy(
    subject: AuditSubject, accuracy: HeadAccuracy | None
) -> tuple[float, int] | None:
    """Return right answers with this noise and of how many images; None where they are unknown.

    A file's accuracy is that with its own noise; if it is a guesser's, other noise changes nothing.
    """
    labels, stated = subject.images.y, subject.encoder.accuracy
    if accuracy is not None and accuracy.is_of_labels:
        return accuracy.noisy, len(labels)
    if stated is None:
        return None
    is_guess = is_at_chance(*stated, chance_accuracy(labels))
    return stated if subject.has_stated_noise or is_guess else None


def check_plan(plan: AuditPlan) -> None:
    """Refuse, before anything is read, a plan that cannot be carried out."""
    if plan.noise is not None and not 0 <= plan.noise < inf:
        raise SettingsError(f"--noise is {plan.noise:g}, must be a finite number, 0 or more")
    if plan.target is not None and plan.noise is not None:
        raise SettingsError(
            f"{name_target(plan.target)} is given beside --noise {plan.noise:g}, and is what the "
            "noise is chosen by; leave one of them out"
        )
    if plan.is_noise_per_feature and plan.target is None:
        raise SettingsError(
            "--per-feature is given without a target by which noise is chosen; give --target-bits "
            "or --target-mse, or leave it out"
        )
    if plan.dropout is not None and not 0 <= plan.dropout < 1:
        raise SettingsError(f"--dropout is {plan.dropout:g}, must be at least 0 and below 1")
    if not 0 <= plan.seconds < inf:
        raise SettingsError(f"--seconds is {plan.seconds:g}, must be a finite number, 0 or more")
    if not 0 < plan.budget < inf:
        raise SettingsError(f"--budget is {plan.budget:g}, must be a finite number above 0; try 1")
    check_images_plan(plan)
    if plan.attacks:
        for named in parse_attacks(",".join(plan.attacks)):
            if named.attack is None:
                raise SettingsError(
                    f"--attacks has {named.entry!r}, which rebuilds nothing: the bits are measured "
                    "anyway; leave it out, or give none in the place of all attacks"
                )


def check_images_plan(plan: ModelPlan) -> None:
    """Refuse options that do not fit the images."""
    parse_normalisation(plan)
    source, _ = find_source(plan.data)
    if plan.label_column != "none" and source != "huggingface":
        raise SettingsError(
            f"--label-column is {plan.label_column!r}, and {plan.data} has no columns; leave it out"
        )


def encode_with_progress(encode: AdaptedEncoder, images: Images) -> Float[Tensor, "M D"]:
    """Return the features of all images, and show how many are encoded."""
    count, encoded = len(images.y), 0
    with show_steps(f"encoding {count} images") as show_step:

        def note(module: nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
            nonlocal encoded
            encoded = min(encoded + len(inputs[0]), count)  # some are encoded twice, to compare
            show_step(encoded, count, f"{encoded} done")

        handle = encode.register_forward_hook(note)
        try:
            return encode_images(encode, images.x)
        finally:
            handle.remove()


@contextmanager
def explain_options() -> Iterator[None]:
    """Name the command's options where a library that knows none refuses something."""
    try:
        yield
    except RefusedImagesError as error:
        raise NetError(
            f"{error}; --size and --grey make images of other sizes and of one channel, "
            "--mean 0,0,0 three channels of a grey image"
        ) from error
    except DataError as error:
        message = SETTING.sub("--", str(error))
        raise DataError(message.replace("data.path", "--data")) from error
    except FedcelError:
        raise
    except ValueError as error:
        raise SettingsError(str(error)) from error


def refuse_batch_layers(encoder: LoadedEncoder) -> None:
    """Refuse an encoder whose layers mix images, before any image is read, with their names."""
    if layers := find_batch_layers(encoder.encode):
        raise NetError(
            f"{encoder.description}: layer {name_layers(layers)} has no running statistics: "
            "features depend on the other images of a batch; train it with "
            "track_running_stats=True, or use nn.GroupNorm"
        )


def try_encoder(encode: AdaptedEncoder, images: Float[Tensor, "2 C H W"]) -> None:
    """Encode the first images of a source; grey ones, which may get colours, may be refused yet."""
    try:
        encode_images(encode, images)
    except RefusedImagesError:
        if images.shape[1] > 1:
            raise


def choose_noise(plan: AuditPlan, encoder: LoadedEncoder) -> float:
    """Return the noise that is given, or stated by the encoder's file, else SettingsError.

    With a target it is 1, which nothing is measured with.
    """
    if plan.target is not None:
        return 1.0
    noise = encoder.noise if plan.noise is None else plan.noise
    if noise is None:
        raise SettingsError(
            f"--noise is missing, and {encoder.description} does not say what noise is added to "
            "its features; give its standard deviation, 0 for none, or --target-bits"
        )
    return noise


def parse_normalisation(plan: ModelPlan) -> Normalisation | None:
    """Return the plan's normalisation, None where it has none; SettingsError on a wrong one."""
    mean, deviation = tuple(plan.mean), tuple(plan.deviation)
    if not mean and not deviation:
        return None
    mean, deviation = mean or (0.0,), deviation or (1.0,)
    if len({len(mean), len(deviation)} - {1}) > 1:
        raise SettingsError(
            f"--mean has {len(mean)} numbers, --std has {len(deviation)}; must be as many, or one"
        )
    if not all(0 < value < inf for value in deviation) or not all(map(isfinite, mean)):
        raise SettingsError(f"--std has {min(deviation):g}, must be above 0, and --mean finite")
    return mean, deviation


def describe_encoder(
    features: int, spread: float, normalisation: Normalisation | None, is_fully_attacked: bool
) -> str:
    """Describe what the encoder makes of images, and what no attack could use."""
    sentences = [
        f"The encoder gives {features} features an image; their standard deviation is {spread:.3g}."
    ]
    if normalisation is not None:
        mean, deviation = (", ".join(f"{v:g}" for v in values) for values in normalisation)
        sentences.append(
            f"Images are normalised first: mean {mean}, standard deviation {deviation}."
        )
    if not is_fully_attacked:
        sentences.append(
            "It gives no gradient, so attacks that follow one, such as rmle, cannot be tried: a "
            "module or a .pt2 file lets them."
        )
    return " ".join(sentences)


def read_images(plan: ModelPlan, encoder: LoadedEncoder) -> tuple[Images, str, tuple[str, ...]]:
    """Return images that the encoder is not known to be trained on, a note, names of the classes.

    DataError where they are too few to attack.
    """
    name, path = find_source(plan.data)
    options = {
        "path": path,
        "label-column": plan.label_column,
        "size": plan.size,
        "grey": plan.grey,
    }
    chosen = {key: value for key, value in options.items() if value not in ("none", 0)}
    source = Source.model_validate({"source": name, **chosen})
    images, note, class_names = draw_images(
        source, plan.images, seed=plan.seed, trained_on=encoder.training
    )
    if len(images.y) < MIN_IMAGES:
        raise DataError(
            f"{plan.data} has {len(images.y)} images that can be measured, must have {MIN_IMAGES} "
            "or more"
        )
    return images, note, class_names


def attack_encoder(
    subject: AuditSubject, noise: float | Tensor | NoiseFunction
) -> Iterator[tuple[Inversion | None, dict[str, str]]]:
    """Rebuild the first images; the attacker owns the others, but no copy of a target.

    Yields after each attack what it and those before it found, and why some cannot work.
    """
    plan, (x, y), features = subject.plan, subject.images, subject.features
    if not plan.attacks:
        return
    count = min(plan.targets, len(y) // 2)
    is_other = ~match_pixels(x, x[:count])
    if not is_other.any():
        raise NetError("all images are equal to a target; give an attacker other images")
    inversion, skipped = None, dict[str, str]()
    with show_attacks(f"attacking {count} images") as listener:
        for number, name in enumerate(plan.attacks):
            listener.begin_seed(number, len(plan.attacks), name)
            try:
                latest = invert(
                    subject.encode,
                    x[:count],
                    y[:count],
                    auxiliary=x[is_other],
                    auxiliary_labels=y[is_other],
                    noise=noise,
                    dropout=subject.dropout,
                    attacks=[name],
                    budget=plan.budget,
                    seconds=plan.seconds,
                    seed=plan.seed,
                    features=torch.cat([features[:count], features[is_other]]),
                    progress=listener.show_line,
                )
            except SizeError as error:
                skipped[name] = str(error)
                print_line(f"{name} is left out: {error}")
                yield inversion, {**skipped}
                continue
            earlier, inversion = inversion or latest, latest
            inversion = replace(
                latest,
                reconstructions=earlier.reconstructions | latest.reconstructions,
                scores=earlier.scores | latest.scores,
                learning_curves=earlier.learning_curves | latest.learning_curves,
                stopped=earlier.stopped | latest.stopped,
            )
            yield inversion, {**skipped}


def write_record(audit: Audit, folder: Path) -> Path:
    """Write the numbers of an audit over earlier ones, and return the file."""
    path = folder / AUDIT_FILE
    write_json(path, audit.to_json())
    return path


def write_audit(audit: Audit, folder: Path) -> Path:
    """Write an audit and its page over earlier ones, and return the page."""
    from sims.report.audit_page import render_audit  # needs the extra `report`

    page = folder / PAGE_FILE
    write_record(audit, folder)
    conditions = (
        f"{audit.description}, on images of {audit.plan.data}, {audit.describe_noise()} added to "
        "the features"
        + (", times what the run learned for each" if audit.is_noise_learned else "")
        + (f", dropout {audit.dropout:g}. " if audit.dropout else ". ")
        + audit.note
    )
    title = f"What {audit.plan.model} leaks"
    html = render_audit(
        audit.leak,
        audit.inversion,
        escape_controls(title),  # names of files may be no text
        escape_controls(conditions),
        lines=str(audit).splitlines(),
        target_names=audit.target_names,
        maps=audit.maps,
        mapped=audit.mapped,
    )
    write_whole(page, html)
    return page
