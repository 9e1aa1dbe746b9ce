"""Audit an encoder: exact bits, bounds, and what attacks rebuild."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf, isfinite
from pathlib import Path

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
    escape_controls,
)
from fedcel.files import digest_file, write_json, write_whole
from fedcel.leakage import (
    Leakage,
    LeakMaps,
    NoiseFunction,
    fit_to_some,
    map_leak,
    measure_if_cheap,
    measure_leakage,
)
from fedcel.nets import encode_images, find_batch_layers, name_layers
from fedcel.runs import list_versions
from sims.auditing.find_images import draw_images, find_source
from sims.auditing.load_encoder import (
    AdaptedEncoder,
    LoadedEncoder,
    Normalisation,
    load_encoder,
)
from sims.progress import show_attacks, show_parts, show_steps, show_waiting

AUDIT_FILE = "audit.json"
PAGE_FILE = "report.html"
SETTING = re.compile(r"(?<![\w./])data\.(?=(label-column|size|grey)\b(?![./]\w))")
"""Leads a setting that is an option of the command, in messages of the library."""
MOST_OPERATIONS = 1e13
"""Operations of the encoder for how much of the picture a message tells: some minutes."""
MAPPED = 5  # images whose leak is drawn pixel by pixel
NO_PICTURE = (
    "How much of the picture a message tells is not estimated: it takes Gaussian noise without "
    "dropout, an encoder with a gradient, 8 images, and no more than minutes."
)
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
        is_noise_relative: Whether `noise` is in units of the features' standard deviation.
        dropout: Chance that a feature is sent as 0; None: what the file states, else 0.
        attacks: Names of the attacks that rebuild images; none: only the exact attacker.
        targets: The most images that are rebuilt; the attacker owns the others.
        outputs: Names or places of the encoder's outputs that leave the device; none: all of them.
        budget: Multiple of each attack's default effort.
    """

    at: str = ""
    noise: float | None = None
    is_noise_relative: bool = False
    dropout: float | None = None
    attacks: Sequence[str] = ("decoder", "kernel-ridge")
    targets: int = 100
    outputs: Sequence[str] = ()
    budget: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Result of an audit, up to the attacks that have ended."""

    plan: AuditPlan
    description: str
    """The encoder, in words."""
    note: str
    """Images that were measured and their changes, and what the encoder gives attackers."""
    noise: float
    dropout: float
    leak: Leakage
    inversion: Inversion | None
    """None where no attack has ended, or was asked for."""
    ended_attacks: int = 0
    target_names: Sequence[str] = ()
    """Class of each image that is rebuilt; none where the classes have no names."""
    maps: LeakMaps | None = None
    """Leak of the first images pixel by pixel."""
    is_noise_learned: bool = False
    """Whether each feature has noise of its own, `noise` times what was learned."""

    @property
    def missing_attacks(self) -> list[str]:
        """Attacks that were asked for and have not ended."""
        return list(self.plan.attacks[self.ended_attacks :])

    def to_json(self) -> dict[str, object]:
        """Make the object that is written."""
        return {
            "model": self.plan.model,
            **({"at": self.plan.at} if self.plan.at else {}),
            **({"weights": digest_file(self.plan.weights)} if self.plan.weights else {}),
            "encoder": self.description,
            "data": self.plan.data,
            "images": self.note,
            "noise": self.noise,
            "noise-learned": self.is_noise_learned,
            "dropout": self.dropout,
            "seed": self.plan.seed,
            "budget": self.plan.budget,
            "leak": self.leak.to_dict(),
            "attacks": {} if self.inversion is None else self.inversion.to_dict(),
            **({"attacks-missing": self.missing_attacks} if self.missing_attacks else {}),
            "targets": 0 if self.inversion is None else len(self.inversion.targets),
            "versions": list_versions(),
        }


def audit_encoder(plan: AuditPlan, keep: Callable[[Audit], None] = lambda _: None) -> Audit:
    """Measure what an encoder leaks, and attack it.

    `keep` takes what is known as soon as it is: when the bits are measured, and after each attack.
    Any FedcelError says what the user has to mend: plan, encoder or images.
    """
    check_plan(plan)
    with show_waiting(f"reading the encoder {plan.model}"):
        encoder = load_encoder(plan.model, plan.at, plan.weights)
    refuse_batch_layers(encoder)
    noise = choose_noise(plan, encoder)
    dropout = encoder.dropout if plan.dropout is None else plan.dropout
    normalisation = parse_normalisation(plan) or encoder.normalisation
    encode = AdaptedEncoder(encoder.encode, normalisation, plan.outputs)
    with explain_options():
        reading = show_parts(f"reading the images of {plan.data}", "pictures")
        with reading, check_first_images(partial(try_encoder, encode)):
            images, note, class_names = read_images(plan, encoder)
        features = encode_with_progress(encode, images)
        spread = float(features.double().var(0).mean().sqrt())
        if plan.is_noise_relative:
            noise *= spread
        law = noise if plan.noise is not None else encoder.learned_noise or noise
        with show_parts(
            f"measuring the bits of {len(images.y)} images, {features.shape[1]} features each",
            "messages",
        ):
            leak = measure_leakage(
                features=features,
                labels=images.y,
                noise=law,
                dropout=dropout,
                accuracy=None if encoder.accuracy is None else encoder.accuracy[0],
                accuracy_count=None if encoder.accuracy is None else encoder.accuracy[1],
                seed=plan.seed,
            )
        with show_parts("estimating how much of the picture goes out", "images"):
            leak, maps = add_picture(leak, encode, images, features, noise=law, dropout=dropout)
        is_fully_attacked = (
            not plan.attacks or copy_differentiable(encode, images.x[:2]) is not None
        )
        audit = Audit(
            plan=plan,
            description=encoder.description,
            note=" ".join(
                [
                    note,
                    describe_encoder(features.shape[1], spread, normalisation, is_fully_attacked),
                    *([] if leak.linearised else [NO_PICTURE]),
                ]
            ),
            noise=noise,
            is_noise_learned=callable(law),
            dropout=dropout,
            leak=leak,
            inversion=None,
            maps=maps,
            target_names=[class_names[y] for y in images.y[: plan.targets]] if class_names else (),
        )
        keep(audit)
        attacks = attack_encoder(plan, encode, images, features, noise=law, dropout=dropout)
        for number, inversion in enumerate(attacks, 1):
            audit = replace(audit, inversion=inversion, ended_attacks=number)
            keep(audit)
    return audit


def add_picture(
    leak: Leakage,
    encode: AdaptedEncoder,
    images: Images,
    features: Float[Tensor, "M D"],
    *,
    noise: float | NoiseFunction,
    dropout: float,
) -> tuple[Leakage, LeakMaps | None]:
    """Return the leak with how much of the picture goes out, and maps; None where not estimated."""
    prior = fit_to_some(images.x, images.y, 0) or fit_to_some(images.x, None, 0)
    if dropout or prior is None or not (callable(noise) or noise > 0):
        return leak, None
    linearised = measure_if_cheap(
        encode,
        images.x,
        features.shape[1],
        noise=noise,
        prior=prior,
        most_operations=MOST_OPERATIONS,
    )
    if linearised is None:
        return leak, None
    maps = map_leak(encode, images.x[:MAPPED], noise=noise, prior=prior)
    return replace(leak, linearised=linearised), maps


def check_plan(plan: AuditPlan) -> None:
    """Refuse, before anything is read, a plan that cannot be carried out."""
    if plan.noise is not None and not 0 <= plan.noise < inf:
        raise SettingsError(f"--noise is {plan.noise:g}, must be a finite number, 0 or more")
    if plan.dropout is not None and not 0 <= plan.dropout < 1:
        raise SettingsError(f"--dropout is {plan.dropout:g}, must be at least 0 and below 1")
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
        raise DataError(SETTING.sub("--", str(error))) from error
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
    """Return the noise that is given, or stated by the encoder's file, else SettingsError."""
    noise = encoder.noise if plan.noise is None else plan.noise
    if noise is None:
        raise SettingsError(
            f"--noise is missing, and {encoder.description} does not say what noise is added to "
            "its features; give its standard deviation, 0 for none"
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
    return Normalisation(mean, deviation)


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
    plan: AuditPlan,
    encode: AdaptedEncoder,
    images: Images,
    features: Float[Tensor, "M D"],
    *,
    noise: float | NoiseFunction,
    dropout: float,
) -> Iterator[Inversion]:
    """Rebuild the first images; the attacker owns the others, but no copy of a target.

    Yields after each attack what it and those before it found.
    """
    if not plan.attacks:
        return
    count = min(plan.targets, len(images.y) // 2)
    is_other = ~match_pixels(images.x, images.x[:count])
    if not is_other.any():
        raise NetError("all images are equal to a target; give an attacker other images")
    inversion = None
    with show_attacks(f"attacking {count} images") as listener:
        for number, name in enumerate(plan.attacks):
            listener.begin_seed(number, len(plan.attacks), name)
            latest = invert(
                encode,
                images.x[:count],
                images.y[:count],
                auxiliary=images.x[is_other],
                auxiliary_labels=images.y[is_other],
                noise=noise,
                dropout=dropout,
                attacks=[name],
                budget=plan.budget,
                seed=plan.seed,
                features=torch.cat([features[:count], features[is_other]]),
                progress=listener.show_line,
            )
            earlier, inversion = inversion or latest, latest
            inversion = replace(
                latest,
                reconstructions=earlier.reconstructions | latest.reconstructions,
                scores=earlier.scores | latest.scores,
            )
            yield inversion


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
        f"{audit.description}, on images of {audit.plan.data}, Gaussian noise of standard "
        f"deviation {audit.noise:.4g} added to the features"
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
        target_names=audit.target_names,
        maps=audit.maps,
    )
    write_whole(page, html)
    return page
