"""Train a scenario and score its uncertainty: posteriors, points, deep ensembles.

Variants `NAME-member-K` are averaged into one ensemble. The scores, one row a variant, strength and
seed, are written to uncertainty.json.
"""

import json
import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import scipy
import torch
import typer
from jaxtyping import Float, Int
from sklearn.metrics import roc_auc_score
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, interpolate

from carry_out import carry_out
from fedcel.data import load_splits
from fedcel.errors import RunError
from fedcel.federation import CLIENT_DRIFT
from fedcel.files import write_json
from fedcel.json_records import Record
from fedcel.metrics import nll, predictive_entropy, score_probabilities
from fedcel.posterior import predict
from fedcel.runs import Run, posterior_samples, run_folder
from fedcel.settings import Scalar, parse_settings
from fedcel.torch_state import make_generator
from sims.bench import Cell, list_cells, read_scenario
from sims.bench.run_cell import find_differences
from sims.commands.main import main
from sims.commands.options import Assignments, Jobs, Scenario, check_folder, option
from sims.engines.local import train_locally
from sims.overrides import parse_overrides
from sims.report.table import format_estimate, format_markdown, make_table
from sims.results.columns import find_columns
from sims.results.intervals import estimate
from sims.results.records import EVENTS_FILE

ROWS_FILE = "uncertainty.json"
MEMBER = re.compile(r"(?P<name>.+)-member-\d+")
"""Variants that form one deep ensemble (Lakshminarayanan et al., NIPS 2017)."""
COLUMNS = find_columns("accuracy", "nll", "ece", "brier", "auroc")
INFORMATION = "update-information"
"""Of each round: the bound, in nats, on what a client's update tells."""
MOST_TEMPERATURE = 20.0
"""Largest fitted temperature; its inverse is the smallest."""
TURN = 25.0
"""Degrees by which images are turned."""
PIXEL_NOISE = 0.2
"""Standard deviation of the noise on pixels, which lie in [0, 1]."""

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def uncertainty_command(
    scenario: Scenario,
    out: Annotated[Path, option(help="Folder of the runs.")],
    assignments: Assignments = None,
    jobs: Jobs = 1,
    outside: Annotated[
        str, typer.Option(help="Strangers' images: digits, a folder of idx files, or none.")
    ] = "none",
    shifted: Annotated[
        bool, typer.Option("--shifted", help="Score turned and noisy test images as well.")
    ] = False,
) -> None:
    """Compare posteriors, points and ensembles: calibration, and doubt about strangers' images."""
    check_folder(out)
    overrides = parse_overrides(assignments)
    print(
        compare_calibration(
            scenario, out, jobs=jobs, overrides=overrides, outside=outside, shifted=shifted
        )
    )


class UncertaintyRow(Record):
    """Scores of one variant at one strength under one seed, of `runs` trainings together."""

    name: str
    title: str
    strength: float | None
    seed: int
    runs: int
    scores: dict[str, float]


class VariantRuns(NamedTuple):
    """One variant at one strength, and the runs of each of its seeds."""

    name: str
    title: str
    strength: float | None
    runs: dict[int, list[Path]]


def compare_calibration(
    name: str,
    out: Path,
    *,
    jobs: int,
    overrides: dict[str, Scalar],
    outside: str,
    shifted: bool = False,
) -> str:
    """Train what is missing of a scenario on the engine `local`; write and format the scores.

    Args:
        name: The scenario's name or path.
        out: The folder of the runs.
        jobs: Cells that are trained at the same time.
        overrides: Settings in the place of the scenario's, by their keys.
        outside: Strangers' images: `digits`, the folder of an idx source, or `none`.
        shifted: Whether turned and noisy test images are scored as well.

    Returns:
        A Markdown table of means over seeds.

    Raises:
        FedcelError: As scenarios, data and runs raise it.
    """
    cells = list_cells(read_scenario(name), overrides)
    strangers = None if outside == "none" else load_strangers(outside)
    carry_out(partial(train_cell, folder=out), cells, jobs, "trained")
    rows = list(score_cells(cells, out, strangers, shifted=shifted))
    write_json(out / ROWS_FILE, [row.to_json() for row in rows])
    return format_table(rows)


def train_cell(cell: Cell, folder: Path) -> str:
    """Train one cell in this process, without the measurement of its leak; return its name.

    A finished cell is left alone; RunError when it was made with other settings.
    """
    place = folder / cell.name
    if (place / "model.safetensors").exists():
        if find_differences(run_folder.read_settings(place), cell.settings):
            raise RunError(f"{place} was made with other settings; choose another --out")
        return cell.name
    torch.set_num_threads(1)
    resume = run_folder.is_run(place)
    with run_folder.open_run(place, cell.settings, resume=resume) as has_rounds:
        train_locally(cell.settings, place, lambda event: None, resume=has_rounds, measure=False)
    return cell.name


def load_strangers(source: str) -> Float[Tensor, "N C H W"]:
    """Load strangers' images; the small embedded set has its own sizes."""
    raw: dict[str, Scalar] = {"clients": 1}
    if source != "digits":
        raw |= {"data.source": "idx", "data.path": source, "data.train": 1000, "data.test": 1000}
        raw |= {"data.validation": 500, "data.auxiliary": 500}
    settings = parse_settings(raw)
    return load_splits(settings.data, settings.clients, settings.seed).test.x


def group_cells(cells: Iterable[Cell], folder: Path) -> list[VariantRuns]:
    """Group the runs by variant and strength, in order; members of an ensemble are one."""
    variants: dict[tuple[str, float | None], VariantRuns] = {}
    for cell in cells:
        member = MEMBER.fullmatch(cell.variant.name)
        name = member["name"] if member else cell.variant.name
        empty = VariantRuns(name, cell.variant.title, cell.strength, {})
        variant = variants.setdefault((name, cell.strength), empty)
        variant.runs.setdefault(cell.settings.seed, []).append(folder / cell.name)
    return list(variants.values())


def score_cells(
    cells: Iterable[Cell],
    folder: Path,
    strangers: Float[Tensor, "N C H W"] | None = None,
    *,
    shifted: bool = False,
) -> Iterator[UncertaintyRow]:
    """Yield the scores of trained cells, of each ensemble together."""
    for variant in group_cells(cells, folder):
        for seed, places in variant.runs.items():
            members = [run_folder.read_run(place) for place in places]
            yield UncertaintyRow(
                name=variant.name,
                title=variant.title,
                strength=variant.strength,
                seed=seed,
                runs=len(places),
                scores=measure_models(members, strangers, shifted=shifted) | measure_rounds(places),
            )


def measure_models(
    members: Sequence[Run],
    strangers: Float[Tensor, "N C H W"] | None = None,
    *,
    shifted: bool = False,
) -> dict[str, float]:
    """Score one model, or several averaged, on the test images.

    `-calibrated`: with one temperature, fitted on validation images. `-turned`, `-noisy`: on
    shifted test images. `auroc`: of strangers told by predictive entropy
    (Hendrycks and Gimpel, ICLR 2017).
    """
    x, y = members[0].splits.test
    probabilities = average_probabilities(members, x)
    scores = score_probabilities(probabilities, y)
    held_out = members[0].splits.validation
    temperature = fit_temperature(average_probabilities(members, held_out.x), held_out.y)
    variants = {"calibrated": apply_temperature(probabilities, temperature)}
    for name, shift in (("turned", turn_images), ("noisy", add_pixel_noise)) if shifted else ():
        stream = make_generator(members[0].settings.seed, f"shift-{name}")
        variants[name] = average_probabilities(members, shift(x, stream))
    for name, answers in variants.items():
        of_variant = score_probabilities(answers, y)
        scores |= {f"{key}-{name}": value for key, value in of_variant.items()}
    if strangers is None:
        return scores
    doubtful = average_probabilities(members, resize_images(strangers, x))
    entropies = predictive_entropy(torch.cat([probabilities, doubtful])[None])
    is_stranger = torch.arange(len(entropies)) >= len(probabilities)
    return scores | {"auroc": float(roc_auc_score(is_stranger.numpy(), entropies.numpy()))}


def average_probabilities(
    members: Iterable[Run], x: Float[Tensor, "N C H W"]
) -> Float[Tensor, "N K"]:
    """Average the probabilities over the members, each averaged over its samples."""
    probabilities = []
    for run in members:
        noise = make_generator(run.settings.seed, "test-noise")
        scope = run.settings.chain.scope
        prediction = predict(run.flat, posterior_samples(run), x, noise, scope=scope)
        probabilities.append(prediction.probabilities)
    return torch.stack(probabilities).mean(0)


def fit_temperature(probabilities: Float[Tensor, "N C"], labels: Int[Tensor, " N"]) -> float:
    """Fit the temperature t in [0.05, 20] of least NLL; above 1 the model is overconfident.

    References:
        Guo et al., ICML 2017, section 4.2 (temperature scaling).
    """
    p = probabilities.double()

    def measure(log_temperature: float) -> float:
        return nll(apply_temperature(p, math.exp(log_temperature)), labels)

    bounds = -math.log(MOST_TEMPERATURE), math.log(MOST_TEMPERATURE)
    return math.exp(scipy.optimize.minimize_scalar(measure, bounds=bounds, method="bounded").x)


def apply_temperature(
    probabilities: Float[Tensor, "N C"], temperature: float
) -> Float[Tensor, "N C"]:
    """Raise probabilities to the power 1/t and normalise them."""
    tiny = torch.finfo(probabilities.dtype).tiny
    return (probabilities.clamp_min(tiny).log() / temperature).softmax(1)


def turn_images(
    x: Float[Tensor, "N C H W"], generator: torch.Generator
) -> Float[Tensor, "N C H W"]:
    """Turn each image about its centre by 25 degrees, to the left or to the right, onto black."""
    signs = torch.randint(2, (len(x),), generator=generator) * 2 - 1
    angles = signs * math.radians(TURN)
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros(len(x))
    theta = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
    grid = affine_grid(theta, list(x.shape), align_corners=False)
    return grid_sample(x, grid, align_corners=False)


def add_pixel_noise(
    x: Float[Tensor, "N C H W"], generator: torch.Generator
) -> Float[Tensor, "N C H W"]:
    """Add Gaussian noise of standard deviation 0.2 to each pixel, cut off at 0 and 1."""
    return (x + PIXEL_NOISE * torch.randn(x.shape, generator=generator)).clamp(0, 1)


def resize_images(
    strangers: Float[Tensor, "N c h w"], x: Float[Tensor, "M C H W"]
) -> Float[Tensor, "N C H W"]:
    """Resize images to the size of `x`; RunError when grey meets colour."""
    if strangers.shape[1] != x.shape[1]:
        raise RunError(
            f"the strangers have {strangers.shape[1]} channels, the run's images {x.shape[1]}; "
            "choose a source with as many"
        )
    return interpolate(strangers, x.shape[2:], mode="bilinear", antialias=True).clamp(0, 1)


def measure_rounds(places: Iterable[Path]) -> dict[str, float]:
    """Summarise the rounds of a variant's runs.

    `update-information`: nats that bound what a client's updates of all rounds tell, its mean over
    clients; only where every round has a bound. `client-drift`: its mean over rounds. `r-hat` and
    `ess`: the worst chain's last diagnosis.
    """
    runs = [
        [json.loads(line) for line in (place / EVENTS_FILE).read_text().splitlines()]
        for place in places
    ]
    events = [event for run in runs for event in run]
    measures: dict[str, float] = {}
    if all(INFORMATION in event for event in events):
        measures[INFORMATION] = sum(event[INFORMATION] for event in events)
    if all(CLIENT_DRIFT in event for event in events):
        measures[CLIENT_DRIFT] = sum(event[CLIENT_DRIFT] for event in events) / len(events)
    judged = [[event for event in run if "r-hat" in event] for run in runs]
    if all(judged):
        measures["r-hat"] = max(run[-1]["r-hat"] for run in judged)
        measures["ess"] = min(run[-1]["ess"] for run in judged)
    return measures


def format_table(rows: Iterable[UncertaintyRow]) -> str:
    """Format the means over seeds as a Markdown table, a line for each strength and variant."""
    groups: dict[tuple[float | None, str], list[UncertaintyRow]] = {}
    for row in rows:
        groups.setdefault((row.strength, row.title), []).append(row)
    lines = [
        [
            "" if strength is None else f"{strength:g}",
            title,
            *(
                format_estimate(c, estimate(row.scores.get(c.key) for row in group))
                for c in COLUMNS
            ),
            str(max(row.runs for row in group)),
        ]
        for (strength, title), group in groups.items()
    ]
    head = ("strength", "variant", *(column.head for column in COLUMNS), "runs trained")
    return format_markdown(make_table("Scores", head, lines, words=2))


if __name__ == "__main__":
    sys.exit(main(app=app, name="uncertainty.py"))
