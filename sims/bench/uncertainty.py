"""Train a scenario and print its accuracy and uncertainty: posteriors, points, deep ensembles."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from fedcel.data import load_splits
from fedcel.errors import RunError, SettingsError
from fedcel.files import write_json
from fedcel.metrics import calibration
from fedcel.posterior import predict
from fedcel.runs import Run, posterior_samples
from fedcel.runs import run_folder as runs
from fedcel.seeding import make_generator
from fedcel.settings import Scalar, Settings, parse_settings
from sims.bench import scenario
from sims.bench.scenario import Cell
from sims.commands.progress import print_line
from sims.engines import local
from sims.engines.process_pool import run_items
from sims.report.table import format_markdown, make_table
from sims.report.table_columns import select_numbers
from sims.report.text import format_interval
from sims.results.estimate import estimate

MEMBER = re.compile(r"(?P<name>.+)-member-\d+")
"""Variants whose models together are one deep ensemble (Lakshminarayanan et al., NIPS 2017)."""
DIGITS = {"accuracy": (1, 100), "nll": (3, 1), "ece": (3, 1), "brier": (3, 1), "auroc": (3, 1)}
HEADS = ("accuracy, %", "NLL, nats", "ECE", "Brier", "OOD AUROC")
SCORES = "uncertainty.json"
"""In the folder of the runs: the scores of each variant, strength and seed."""


class Line(NamedTuple):
    """One variant at one strength, and the runs of each of its seeds."""

    name: str
    title: str
    strength: float | None
    runs: dict[int, list[Path]]


class Score(NamedTuple):
    """What one variant at one strength scores under one seed, by `runs` trainings together."""

    name: str
    title: str
    strength: float | None
    seed: int
    runs: int
    scores: Mapping[str, float]


def train_cell(cell: Cell, folder: Path) -> str:
    """Train one cell on the loop engine, without the measurement of its leak; return its name.

    A cell that is there already is left alone; RunError when it was made with other settings.
    """
    place = folder / cell.name
    if (place / "model.safetensors").exists():
        if runs.read_settings(place) != cell.settings:
            raise RunError(f"{place} was made with other settings; choose another --out")
        return cell.name
    torch.set_num_threads(1)
    resume = place.exists()
    if not resume:
        runs.create_run(place, cell.settings)
    local.train_locally(cell.settings, place, lambda event: None, resume=resume, measure=False)
    return cell.name


def score_cells(
    cells: Iterable[Cell], folder: Path, outside: Settings | None = None
) -> list[Score]:
    """Return the scores of trained cells.

    Variants `NAME-member-K` are averaged into one ensemble. `outside`: whose test images are shown
    to each model as strangers, resized to its own; AUROC is of telling them by predictive entropy.
    """
    return [
        Score(
            one.name, one.title, one.strength, seed, len(places),
            measure_models([runs.read_run(place) for place in places], outside),
        )
        for one in group_cells(cells, folder)
        for seed, places in one.runs.items()
    ]  # fmt: skip


def format_table(found: Sequence[Score], against: str | None = None) -> str:
    """Return the Markdown of scores, a part for each strength.

    With `against`, a variant's name, also the differences to it, paired by seed. SettingsError when
    there is no such variant.
    """
    names = dict.fromkeys(score.name for score in found)
    refuse_unknown(against, names)
    parts = []
    for strength in sorted({one.strength for one in found}, key=lambda s: (s is None, s or 0)):
        groups = {n: [s for s in found if (s.name, s.strength) == (n, strength)] for n in names}
        there = {name: group for name, group in groups.items() if group}
        parts += [] if strength is None else [f"**At {strength:g}**"]
        lines = map(variant_line, there.values())
        scores = make_table("Scores", ["variant", *HEADS, "runs trained"], lines)
        parts.append(format_markdown(scores))
        if against in there:
            base = there[against]
            pairs = [pair_scores(g, base) for name, g in there.items() if name != against]
            parts.append(f"Difference to {base[0].title}, paired by seed:")
            parts.append(format_markdown(make_table("Differences", ["variant", *HEADS], pairs)))
    return "\n\n".join(parts) + "\n"


def refuse_unknown(against: str | None, names: Iterable[str]) -> None:
    """Raise SettingsError when differences are asked for to a variant that is not there."""
    if against is not None and against not in (known := [*names]):
        raise SettingsError(f"--against is {against!r}, must be one of {', '.join(known)}")


def group_cells(cells: Iterable[Cell], folder: Path) -> list[Line]:
    """Return the cells' lines in their order; members of an ensemble make one."""
    found: dict[tuple[str, float | None], Line] = {}
    for cell in cells:
        member = MEMBER.fullmatch(cell.variant.name)
        name = member["name"] if member else cell.variant.name
        one = found.setdefault(
            (name, cell.strength), Line(name, cell.variant.title, cell.strength, {})
        )
        one.runs.setdefault(cell.settings.seed, []).append(folder / cell.name)
    return list(found.values())


def variant_line(group: Sequence[Score]) -> list[str]:
    """Return a variant's cells: means over seeds with 95 % t-intervals, from three seeds on."""
    each = [score.scores for score in group]
    return [group[0].title, *format_scores(each), str(max(score.runs for score in group))]


def pair_scores(group: Sequence[Score], base: Sequence[Score]) -> list[str]:
    """Return a variant's cells less those of another under the same seeds, with intervals."""
    other = {score.seed: score.scores for score in base}
    gaps = [
        {key: value - other[s.seed][key] for key, value in s.scores.items() if key in DIGITS}
        for s in group
        if s.seed in other
    ]
    return [group[0].title, *format_scores(gaps)]


def format_scores(each: Sequence[Mapping[str, float]]) -> list[str]:
    """Return means and intervals of each score."""
    return [
        format_interval(estimate(select_numbers(each, key)), digits, scale)
        for key, (digits, scale) in DIGITS.items()
    ]


def measure_models(members: list[Run], outside: Settings | None) -> Mapping[str, float]:
    """Return the scores of one model, or of several averaged, on the test images."""
    x, y = members[0].splits.test
    found = average_probabilities(members, x)
    scores = calibration.score_probabilities(found, y)
    if outside is None:
        return scores
    strangers = resize_images(load_splits(outside.data, outside.clients, outside.seed).test.x, x)
    there = [
        calibration.predictive_entropy(p[None])
        for p in (found, average_probabilities(members, strangers))
    ]
    return scores | {"auroc": calibration.auroc(*there)}


def average_probabilities(
    members: Iterable[Run], x: Float[Tensor, "N C H W"]
) -> Float[Tensor, "N K"]:
    """Return the probabilities averaged over the members, each averaged over its samples."""
    found = []
    for run in members:
        noise = make_generator(run.settings.seed, "test-noise")
        found.append(
            predict(
                run.flat, posterior_samples(run), x, noise, scope=run.settings.chain.scope
            ).probabilities
        )
    return torch.stack(found).mean(0)


def resize_images(
    strangers: Float[Tensor, "N c h w"], x: Float[Tensor, "M C H W"]
) -> Float[Tensor, "N C H W"]:
    """Return images in the size of `x`; RunError when grey meets colour."""
    if strangers.shape[1] != x.shape[1]:
        raise RunError(
            f"the strangers have {strangers.shape[1]} channels, the run's images {x.shape[1]}; "
            "choose a source with as many"
        )
    return interpolate(strangers, x.shape[2:], mode="bilinear", antialias=True).clamp(0, 1)


def compare_calibration(
    name: str,
    out: Path,
    jobs: int,
    given: Mapping[str, Scalar],
    outside: str,
    outside_path: str,
    against: str | None = None,
) -> str:
    """Train what is missing of a scenario, on the loop engine; write the scores, return the table.

    `outside` and `outside_path` are data source and path of strangers' images, or `none`; `against`
    as in `format_table`. Errors are those of scenarios, data and runs.
    """
    cells = scenario.list_cells(scenario.read_scenario(name), {**given, "engine": "loop"})
    refuse_unknown(against, dict.fromkeys(one.name for one in group_cells(cells, out)))
    strangers = None if outside == "none" else foreign_settings(outside, outside_path)
    if strangers:  # a missing file is said before anything is trained
        load_splits(strangers.data, strangers.clients, strangers.seed)
    torch.set_num_threads(1)
    with closing(run_items(partial(train_cell, folder=out), cells, jobs)) as running:
        for done, cell in enumerate(running, 1):
            print_line(f"{cell} ({done}/{len(cells)})")
    found = score_cells(cells, out, strangers)
    write_json(out / SCORES, [score._asdict() for score in found])
    return format_table(found, against)


def foreign_settings(source: str, path: str) -> Settings:
    """Return settings that read strangers; the small embedded set has its own sizes."""
    many = {"data.train": 1000, "data.validation": 500, "data.auxiliary": 500, "data.test": 1000}
    sizes = {} if source == "digits" else many
    return parse_settings({"data.source": source, "data.path": path, "clients": 1, **sizes})
