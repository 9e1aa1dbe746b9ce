"""Compare the layers at which a model of any make can be cut, on given images."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from jaxtyping import Float
from torch import Tensor, nn

import fedcel
from fedcel.attacks import REPEAT_MARK, Inversion, ReconstructionScores, invert, parse_attacks
from fedcel.data import Images, check_first_images, match_pixels
from fedcel.errors import NetError, SettingsError, escape_controls
from fedcel.files import digest_file, write_json, write_whole
from fedcel.leakage import (
    ARCHITECTURE,
    FREE_QUERIES,
    LOG_PROB,
    MEAN,
    CutComparison,
    CutLimits,
    LeakMaps,
    MeasuredCut,
    fit_image_prior,
    map_leak,
)
from fedcel.runs import list_versions
from sims.auditing.audit import (
    ModelPlan,
    check_images_plan,
    explain_options,
    parse_normalisation,
    read_images,
    try_encoder,
)
from sims.auditing.load_encoder import (
    EXPORT_SUFFIX,
    ONNX_SUFFIX,
    AdaptedEncoder,
    LoadedEncoder,
    load_encoder,
    unflatten_program,
)
from sims.progress import show_attacks, show_parts, show_waiting
from sims.report.cuts_table import tabulate_cuts
from sims.report.table import format_columns

CUTS_FILE = "cuts.json"
PAGE_FILE = "report.html"
TARGET_SHARE = 4
"""One of so many images is rebuilt, from the others."""
MOST_TARGETS = 50
SHOWN, SHOWN_LARGE = 6, 1
"""Images whose reconstructions are shown; those whose leak is drawn pixel by pixel are as many if
they are small, else so many: a map of a large one takes about 200 passes through the encoder."""
LONGEST_LAYER = 34
"""Letters of a layer's name that a terminal has room for."""
MESSAGES = "smashed-data"
GRANTED = frozenset({ARCHITECTURE, FREE_QUERIES, LOG_PROB, MEAN})
"""What an attack sees of a cut, and the most that it may know."""
SMALL_IMAGE = 4096
"""Values of an image that is small."""


@dataclass(frozen=True, kw_only=True)
class CutsPlan(ModelPlan):
    """Model, images and limits of a comparison of cuts.

    Args:
        at: Layers; none: at most 12 of all.
        is_all: Whether all layers are compared.
        limits: Limits of loss, leak and cost.
        attack: Name of the attack that rebuilds images at each cut; empty: none.
        values: Values of a message, at most; 0: all features.
        linearised: Images whose linearised leak is measured.
    """

    images: int = 200
    at: Sequence[str] = ()
    is_all: bool = False
    limits: CutLimits
    attack: str = "kernel-ridge"
    values: int = 0
    linearised: int = 30


@dataclass(frozen=True, kw_only=True)
class RebuiltCut:
    """Pictures at a cut."""

    inversion: Inversion
    """By one attack."""
    maps: LeakMaps
    """Leak of the first images pixel by pixel."""

    @property
    def scores(self) -> ReconstructionScores:
        """Score card of the attack."""
        return self.inversion.scores[self.inversion.best]

    @property
    def shown(self) -> Float[Tensor, "T C H W"]:
        """Reconstructions on the page."""
        return self.inversion.reconstructions[self.inversion.best][:SHOWN]


@dataclass(frozen=True, kw_only=True)
class ComparedCuts:
    """Result of a comparison, up to the cuts at which images were rebuilt."""

    plan: CutsPlan
    description: str
    """The model, in words."""
    note: str
    """Images that were measured and their changes."""
    comparison: CutComparison
    rebuilt: Mapping[str, RebuiltCut]
    """By layer."""

    def to_json(self) -> list[dict[str, object]]:
        """Make the rows that are written: the cuts, then the answer alone."""
        rows = [self.make_row(cut) for cut in (*self.comparison.cuts, self.comparison.answer)]
        return [*rows[:-1], rows[-1] | {"name": "answer"}]

    @property
    def conditions(self) -> str:
        """Model, images and options of the comparison, in sentences."""
        plan, images = self.plan, self.comparison.images
        limits = [
            f"{name.replace('_', '-')} {value:g}" for name, value in plan.limits.list_limits()
        ]
        weights = (
            f" The SHA-256 of its weights is {digest_file(plan.weights)}." if plan.weights else ""
        )
        messages = (
            f" Messages have at most {plan.values} values, which as many other images decided."
            if plan.values
            else ""
        )
        return (
            f"{self.description}, on {images} images of {plan.data}. {self.note}{weights}{messages}"
            f" Limits: {', '.join(limits)}; seed {plan.seed}."
        )

    @property
    def attack_errors(self) -> dict[str, float]:
        """Squared errors a pixel of the attack, by layer."""
        return {layer: pictures.scores.mse for layer, pictures in self.rebuilt.items()}

    def format_table(self) -> str:
        """Return the table of a terminal."""
        table = tabulate_cuts(self.comparison, self.attack_errors, is_narrow=True)
        return format_columns(table, LONGEST_LAYER)

    def make_row(self, cut: MeasuredCut) -> dict[str, object]:
        """Make the row of a cut, with the keys of a run's result where it has them, too."""
        rebuilt, linearised = self.rebuilt.get(cut.layer), cut.linearised
        picture = {"linearised-bits": None, "linearised-mse": None}
        return {
            "name": cut.layer,
            "shape": cut.shape,
            "features": cut.features,
            "bytes": cut.bytes,
            "bytes-by-type": cut.bytes_by_type,
            "macs": cut.macs,
            "parameters": cut.parameters,
            "milliseconds": cut.milliseconds,
            "rms": cut.rms,
            "noise": cut.noise,
            "least-noise": cut.noise_for_leak,
            "accuracy": cut.accuracy,
            "accuracy-is-of-labels": self.comparison.is_label_accuracy,
            "accuracy-loss": cut.loss,
            "accuracy-loss-half-width": cut.loss_half_width,
            "bits-beyond-label": cut.leak.bits_beyond_label,
            "information-bits": cut.leak.information_bits,
            "candidates": cut.leak.candidates,
            "population-bits": cut.leak.population_bits,
            "population-beyond-label": cut.leak.population_beyond_label,
            **(picture if linearised is None else linearised.to_measures()),
            "recommended": cut is self.comparison.recommended,
            "pareto": cut in self.comparison.pareto,
            "attack": None if rebuilt is None else asdict(rebuilt.scores),
        }


def compare_model_cuts(
    plan: CutsPlan, keep: Callable[[ComparedCuts], None] = lambda _: None
) -> ComparedCuts:
    """Measure every candidate cut of a model, then rebuild images at each.

    `keep` takes what is known as soon as it is: when the cuts are measured, and after each attack.
    Any FedcelError says what the user has to mend: plan, model or images.
    """
    check_plan(plan)
    with show_waiting(f"reading the model {plan.model}"):
        loaded = load_model(plan)
    adapted = AdaptedEncoder(loaded.encode, parse_normalisation(plan) or loaded.normalisation)
    with explain_options():
        reading = show_parts(f"reading the images of {plan.data}", "pictures")
        with reading, check_first_images(partial(try_encoder, adapted)):
            images, note, _ = read_images(plan, loaded)
        with show_parts(f"comparing the cuts of {plan.model}", "passes of an image"):
            comparison = fedcel.compare_cuts(
                loaded.encode,
                images.x,
                images.y,
                at=tuple(plan.at) or ("all" if plan.is_all else "thinned"),
                limits=plan.limits,
                normalise=adapted.normalise,
                values=plan.values,
                linearised=plan.linearised,
                seed=plan.seed,
            )
        result = ComparedCuts(
            plan=plan,
            description=loaded.description,
            note=note,
            comparison=comparison,
            rebuilt={},
        )
        keep(result)
        for layer, pictures in rebuild_images(
            plan, normalise=adapted.normalise, images=images, comparison=comparison
        ):
            result = replace(result, rebuilt={**result.rebuilt, layer: pictures})
            keep(result)
    return result


def check_plan(plan: CutsPlan) -> None:
    """Refuse, before anything is read, a plan that cannot be carried out."""
    check_images_plan(plan)
    if plan.is_all and plan.at:
        raise SettingsError("--all is given beside --at, which names layers; leave one of them out")
    if plan.attack:
        check_attack(plan.attack)


def check_attack(name: str) -> None:
    """Refuse what is not one attack, or one that does not rebuild images from messages alone."""
    try:
        first, *others = parse_attacks(name)
    except SettingsError as error:
        raise SettingsError(str(error).replace("attack.names has", "--attack is")) from error
    if others:
        raise SettingsError(
            f"--attack is {name!r}, must be one attack; run the command again for another"
        )
    attack = first.attack
    if attack is None:
        raise SettingsError(
            f"--attack is {name!r}, which rebuilds nothing: the bits are measured anyway; give "
            "none, or leave it out"
        )
    if attack.observes.partition(REPEAT_MARK)[0] != MESSAGES or attack.needs - GRANTED:
        raise SettingsError(
            f"--attack is {name!r}, which needs more than messages and the device's half of the "
            "model; try kernel-ridge or decoder"
        )


def load_model(plan: CutsPlan) -> LoadedEncoder:
    """Load the whole model; NetError where it has no layers."""
    path = Path(plan.model)
    if path.is_dir() or path.suffix == ONNX_SUFFIX:
        kind = "a run, which is cut already" if path.is_dir() else "an ONNX file without layers"
        raise NetError(
            f"{plan.model} is {kind}; name a model by torchvision:NAME, timm:NAME, "
            f"'package.module:object' or a {EXPORT_SUFFIX} file; `fedcel audit` measures encoders"
        )
    return unflatten_program(load_encoder(plan.model, weights=plan.weights), path)


def rebuild_images(
    plan: CutsPlan,
    *,
    normalise: nn.Module,
    images: Images,
    comparison: CutComparison,
) -> Iterator[tuple[str, RebuiltCut]]:
    """Rebuild the first images from a message of each cut that has noise, the others known."""
    cuts = [cut for cut in comparison.cuts if cut.noise] if plan.attack else []
    count = min(MOST_TARGETS, len(images.y) // TARGET_SHARE)
    is_other = ~match_pixels(images.x, images.x[:count])
    if not cuts or not is_other.any():
        return
    labels = images.y if comparison.has_classes else None
    mapped = min(count, SHOWN if images.x[0].numel() <= SMALL_IMAGE else SHOWN_LARGE)
    prior = fit_image_prior(images.x, labels)
    with show_attacks(f"rebuilding {count} images") as listener:
        for number, cut in enumerate(cuts):
            listener.begin_seed(number, len(cuts), f"{plan.attack} at {cut.layer}")
            encode = nn.Sequential(normalise, cut.encoder)
            inversion = invert(
                encode,
                images.x[:count],
                None if labels is None else labels[:count],
                auxiliary=images.x[is_other],
                auxiliary_labels=None if labels is None else labels[is_other],
                noise=cut.noise,
                attacks=[plan.attack],
                seed=plan.seed,
                progress=listener.show_line,
            )
            listener.show_line(f"drawing what leaks at {cut.layer}")
            maps = map_leak(encode, images.x[:mapped], noise=cut.noise, prior=prior)
            yield cut.layer, RebuiltCut(inversion=inversion, maps=maps)


def write_record(result: ComparedCuts, folder: Path) -> Path:
    """Write the numbers of a comparison over earlier ones, and return the file."""
    path = folder / CUTS_FILE
    write_json(path, result.to_json())
    return path


def write_cuts(result: ComparedCuts, folder: Path) -> Path:
    """Write a comparison and its page over earlier ones, and return the page."""
    from sims.report.cuts_page import render_cuts  # needs the extra `report`

    write_record(result, folder)
    page = folder / PAGE_FILE
    title = escape_controls(f"Where to cut {result.plan.model}")
    conditions = escape_controls(result.conditions)
    pictures = {layer: (rebuilt.shown, rebuilt.maps) for layer, rebuilt in result.rebuilt.items()}
    first = next(iter(result.rebuilt.values()), None)
    originals = None if first is None else first.inversion.targets[:SHOWN]
    html = render_cuts(
        result.comparison,
        title,
        conditions,
        originals=originals,
        pictures=pictures,
        attacks=result.attack_errors,
        versions=list_versions(),
    )
    write_whole(page, html)
    return page
