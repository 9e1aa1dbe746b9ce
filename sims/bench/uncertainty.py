"""Train a scenario and print its accuracy and uncertainty: posteriors, points, deep ensembles."""

import json
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
from fedcel.federation import CLIENT_DRIFT
from fedcel.files import write_json
from fedcel.metrics import calibration
from fedcel.posterior import predict
from fedcel.runs import Run, posterior_samples, run_folder
from fedcel.seeding import make_generator
from fedcel.settings import Scalar, Settings, parse_settings
from sims.bench import scenario
from sims.bench.run_cell import find_differences
from sims.bench.scenario import Cell
from sims.bench.shifted_images import Shift, parse_shifts
from sims.engines import local
from sims.engines.process_pool import run_items, time_call
from sims.progress import estimate_left, print_line
from sims.report.table import format_markdown, format_means, make_table
from sims.results import EVENTS_FILE, UNCERTAINTY_FILE, UncertaintyRow, find_columns

MEMBER = re.compile(r"(?P<name>.+)-member-\d+")
"""Variants whose models together are one deep ensemble (Lakshminarayanan et al., NIPS 2017)."""
COLUMNS = find_columns("accuracy", "nll", "ece", "brier", "auroc")
TRAINED_SECONDS = 0.1
"""A cell that took less was there already, and says nothing of how long others take."""
INFORMATION = "update-information"
"""Of each round: what bounds, in nats, what a client's update tells."""
NO_SHIFTS: Mapping[str, Shift] = {}
HEAD = ("variant", *(column.head for column in COLUMNS))


class VariantRuns(NamedTuple):
    """One variant at one strength, and the runs of each of its seeds."""

    name: str
    title: str
    strength: float | None
    runs: dict[int, list[Path]]


def train_cell(cell: Cell, folder: Path) -> str:
    """Train one cell in this process, without the measurement of its leak; return its name.

    A cell that is there already is left alone; RunError when it was made with other settings.
    """
    place = folder / cell.name
    if (place / "model.safetensors").exists():
        if find_differences(run_folder.read_settings(place), cell.settings):
            raise RunError(f"{place} was made with other settings; choose another --out")
        return cell.name
    torch.set_num_threads(1)
    resume = run_folder.is_run(place)
    with run_folder.open_run(place, cell.settings, resume=resume) as has_rounds:
        local.train_locally(
            cell.settings, place, lambda event: None, resume=has_rounds, measure=False
        )
    return cell.name


def score_cells(
    cells: Iterable[Cell],
    folder: Path,
    outside: Settings | None = None,
    shifts: Mapping[str, Shift] = NO_SHIFTS,
) -> list[UncertaintyRow]:
    """Return the scores of trained cells.

    Variants `NAME-member-K` are averaged into one ensemble. `outside`: whose test images are shown
    to each model as strangers, resized to its own; AUROC is of telling them by predictive entropy.
    `shifts`: the test images are scored once more after each, as `nll-NAME` and the like.
    """
    return [
        UncertaintyRow(
            name=variant.name,
            title=variant.title,
            strength=variant.strength,
            seed=seed,
            runs=len(places),
            scores=measure_models([run_folder.read_run(place) for place in places], outside, shifts)
            | measure_rounds(places),
        )
        for variant in group_cells(cells, folder)
        for seed, places in variant.runs.items()
    ]


def format_table(rows: Sequence[UncertaintyRow], against: str | None = None) -> str:
    """Return the Markdown of scores, a part for each strength.

    With `against`, a variant's name, also the differences to it, paired by seed. SettingsError when
    there is no such variant.
    """
    refuse_unknown(against, dict.fromkeys(row.name for row in rows))
    parts = []
    for strength in sorted({row.strength for row in rows}, key=lambda s: (s is None, s or 0)):
        groups: dict[str, list[UncertaintyRow]] = {}
        for row in rows:
            if row.strength == strength:
                groups.setdefault(row.name, []).append(row)
        parts += [] if strength is None else [f"**At {strength:g}**"]
        lines = [
            [
                group[0].title,
                *format_means(COLUMNS, [row.scores for row in group]),
                str(max(row.runs for row in group)),
            ]
            for group in groups.values()
        ]
        parts.append(format_markdown(make_table("Scores", [*HEAD, "runs trained"], lines)))
        if against in groups:
            base = groups.pop(against)
            pairs = [
                [group[0].title, *format_means(COLUMNS, subtract_scores(group, base))]
                for group in groups.values()
            ]
            parts.append(f"Difference to {base[0].title}, paired by seed:")
            parts.append(format_markdown(make_table("Differences", HEAD, pairs)))
    return "\n\n".join(parts) + "\n"


def refuse_unknown(against: str | None, names: Iterable[str]) -> None:
    """Raise SettingsError when differences are asked for to a variant that is not there."""
    if against is not None and against not in (variants := [*names]):
        raise SettingsError(f"--against is {against!r}, must be one of {', '.join(variants)}")


def group_cells(cells: Iterable[Cell], folder: Path) -> list[VariantRuns]:
    """Return the runs of each variant and strength, in order; members of an ensemble are one."""
    variants: dict[tuple[str, float | None], VariantRuns] = {}
    for cell in cells:
        member = MEMBER.fullmatch(cell.variant.name)
        name = member["name"] if member else cell.variant.name
        empty = VariantRuns(name, cell.variant.title, cell.strength, {})
        variant = variants.setdefault((name, cell.strength), empty)
        variant.runs.setdefault(cell.settings.seed, []).append(folder / cell.name)
    return list(variants.values())


def subtract_scores(
    rows: Sequence[UncertaintyRow], base: Sequence[UncertaintyRow]
) -> list[dict[str, float]]:
    """Return a variant's scores less those of another under the same seeds, of what both have."""
    base_scores = {row.seed: row.scores for row in base}
    return [
        {
            key: score - base_scores[row.seed][key]
            for key, score in row.scores.items()
            if key in base_scores[row.seed]
        }
        for row in rows
        if row.seed in base_scores
    ]


def measure_models(
    members: list[Run], outside: Settings | None, shifts: Mapping[str, Shift] = NO_SHIFTS
) -> dict[str, float]:
    """Return the scores of one model, or of several averaged, on the test images.

    Those `-calibrated` are of probabilities with one temperature, fitted on validation images.
    """
    x, y = members[0].splits.test
    probabilities = average_probabilities(members, x)
    scores = calibration.score_probabilities(probabilities, y)
    held_out = members[0].splits.validation
    temperature = calibration.fit_temperature(
        average_probabilities(members, held_out.x), held_out.y
    )
    calibrated = calibration.apply_temperature(probabilities, temperature)
    scores |= suffix_scores(calibration.score_probabilities(calibrated, y), "calibrated")
    for name, shift in shifts.items():
        shifted = shift(x, make_generator(members[0].settings.seed, f"shift-{name}"))
        answers = average_probabilities(members, shifted)
        scores |= suffix_scores(calibration.score_probabilities(answers, y), name)
    if outside is None:
        return scores
    strangers = resize_images(load_splits(outside.data, outside.clients, outside.seed).test.x, x)
    doubtful = average_probabilities(members, strangers)
    entropies = (calibration.predictive_entropy(p[None]) for p in (probabilities, doubtful))
    return scores | {"auroc": calibration.auroc(*entropies)}


def suffix_scores(scores: Mapping[str, float], name: str) -> dict[str, float]:
    """Return scores under the name of what was scored, as `nll-noisy`."""
    return {f"{key}-{name}": value for key, value in scores.items()}


def measure_rounds(places: Iterable[Path]) -> dict[str, float]:
    """Return what the rounds of a variant's runs say together.

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


def average_probabilities(
    members: Iterable[Run], x: Float[Tensor, "N C H W"]
) -> Float[Tensor, "N K"]:
    """Return the probabilities averaged over the members, each averaged over its samples."""
    probabilities = []
    for run in members:
        noise = make_generator(run.settings.seed, "test-noise")
        scope = run.settings.chain.scope
        prediction = predict(run.flat, posterior_samples(run), x, noise, scope=scope)
        probabilities.append(prediction.probabilities)
    return torch.stack(probabilities).mean(0)


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
    *,
    jobs: int,
    overrides: Mapping[str, Scalar],
    outside: str,
    outside_path: str,
    against: str | None = None,
    shifts: str = "none",
) -> str:
    """Train what is missing of a scenario; write the scores, return the table.

    The engine is `local`, also where it would be `auto`.

    Args:
        name: The scenario's name or path.
        out: The folder of the runs.
        jobs: Cells that are trained at the same time.
        overrides: Settings in the place of the scenario's, by their keys.
        outside: Data source of strangers' images, or `none`.
        outside_path: Where they are, or `none`.
        against: A variant whose differences to the others are shown, too.
        shifts: Of the test images that are scored as well, or `none`.

    Raises:
        FedcelError: As scenarios, data and runs raise it.
    """
    shift_by_name = parse_shifts(shifts)
    plan, settings = scenario.override_seeds(scenario.read_scenario(name), dict(overrides))
    if (plan.settings | settings).get("engine", "auto") == "auto":
        settings["engine"] = "local"
    cells = scenario.list_cells(plan, settings)
    refuse_unknown(against, dict.fromkeys(variant.name for variant in group_cells(cells, out)))
    strangers = None if outside == "none" else foreign_settings(outside, outside_path)
    if strangers:  # a missing file is said before anything is trained
        load_splits(strangers.data, strangers.clients, strangers.seed)
    torch.set_num_threads(1)
    seconds: list[float] = []
    task = partial(time_call, partial(train_cell, folder=out))
    with closing(run_items(task, cells, jobs)) as running:
        for number, (cell, spent) in enumerate(running, 1):
            if spent > TRAINED_SECONDS:
                seconds.append(spent)
            remaining = estimate_left(seconds, len(cells) - number, jobs)
            print_line(f"trained {cell} ({number}/{len(cells)}){remaining}")
    rows = score_cells(cells, out, strangers, shift_by_name)
    write_json(out / UNCERTAINTY_FILE, [row.to_json() for row in rows])
    return format_table(rows, against)


def foreign_settings(source: str, path: str) -> Settings:
    """Return settings that load strangers' images; the small embedded set has its own sizes."""
    many = {"data.train": 1000, "data.validation": 500, "data.auxiliary": 500, "data.test": 1000}
    sizes = {} if source == "digits" else many
    return parse_settings({"data.source": source, "data.path": path, "clients": 1, **sizes})
