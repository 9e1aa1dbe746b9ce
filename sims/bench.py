"""Train and attack every cell of a scenario; go on where it stopped."""

import json
import statistics
import time
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import torch

from fedcel import defences, runs
from fedcel.errors import FailedError, RunError, SettingsError
from fedcel.files import read_json, write_json, write_whole
from fedcel.settings import Settings
from fedcel.settings_groups import Attack
from sims import report
from sims.attack import ROWS, Rows, attack, failures, own
from sims.cost import train_step_ratio
from sims.processes import work
from sims.progress import say
from sims.report.read import FAILED
from sims.rows import gather
from sims.scenario import Cell, Scenario, anchored, refuse_fixed_sweeps, undefended
from sims.simulate import simulate
from sims.worst import FAILED_ATTACKS, NAMED, REBUILT, worst_rows

COST = "cost.json"
"""What a training step costs, in each cell's folder."""
COPIED = (
    "accuracy",
    "bits-beyond-label",
    "information-bits",
    "identification-optimal",
    "certificate-bits",
    "candidates",
)
OPTIONAL = (  # older runs lack some
    "certificate-bits-within-class",
    "within-class-spread",
    "answer-bits",
    "bits-cap",
    "identification-candidates",
    "label-only-identification",
    "encoder-parameters",
    "flops-per-inference",
    "bytes-per-inference",
    "update-epsilon",
    "update-epsilon-of-models",
)
Done = tuple[str, FailedError | None]  # a cell's name, and why it failed


def bench(scenario: Scenario, cells: list[Cell], folder: Path, jobs: int = 1) -> Path:
    """Return the report of all cells, each trained and attacked once, whatever interrupts.

    SettingsError for several jobs on an engine that is parallel itself, and for a swept
    setting that is overridden; RunError when a cell's folder holds a run of other settings. A cell
    that fails (DivergedError, RoundError) does not keep the others from being trained and reported;
    it is named in failed.json and the report, and its error is raised at the end.
    """
    refuse_fixed_sweeps(cells)
    engines = sorted({cell.settings.engine for cell in cells} - {"loop"})
    if jobs > 1 and engines:
        raise SettingsError(
            f"--jobs is {jobs}: engine {engines[0]!r} is parallel itself; add --engine loop"
        )
    missing = [cell for cell in cells if not finished(folder / "runs" / cell.name, cell)]
    write_whole(folder / "scenario.toml", scenario.path.read_text())
    say(f"run: {folder}")
    if len(missing) < len(cells):
        say(f"{len(cells) - len(missing)} of {len(cells)} cells are finished already: skipped")
    failed: dict[str, FailedError] = {}
    begin = time.monotonic()
    with closing(work(partial(attempt, folder=folder), missing, jobs)) as running:
        for done, (name, error) in enumerate(running, 1):
            left = (time.monotonic() - begin) / done * (len(missing) - done)
            if error:
                failed[name] = error
            ended = f"{name} failed: {error}" if error else f"finished {name}"
            say(f"{ended} ({done}/{len(missing)}), about {left:.0f} s left")
            write(cells, folder, failed)
    found = write(cells, folder, failed)
    if not failed:
        return report.write(folder)
    others = f"the others are in {report.write(folder)}" if found else "no cell is finished"
    raise type(next(iter(failed.values())))(
        f"{', '.join(failed)} failed, the reasons are above; {others}"
    )


def write(cells: list[Cell], folder: Path, failed: Mapping[str, FailedError]) -> Rows:
    """Write what is finished and what failed, each whole; return the rows of bench.json."""
    found = rows(cells, folder)
    reasons = [{"cell": name, "reason": str(error)} for name, error in failed.items()]
    write_json(folder / FAILED, reasons)
    write_json(folder / "bench.json", found)
    if found:
        gather(folder)
    return found


def finished(folder: Path, cell: Cell) -> bool:
    """Say whether a cell is trained and attacked; RunError if the folder is of other settings."""
    if not folder.exists():
        return False
    if runs.read_settings(folder) != cell.settings:
        raise RunError(f"{folder} was made with other settings; choose another --out or remove it")
    return complete(folder, cell)


def complete(place: Path, cell: Cell) -> bool:
    """Say whether a cell's folder has all that a row is made of, attacked as its settings ask."""
    return (place / COST).exists() and own(place, cell.settings.attack) is not None


def attempt(cell: Cell, folder: Path) -> Done:
    """Train and attack one cell; return why, should it fail though its input was right."""
    try:
        one(cell, folder)
    except FailedError as error:
        return cell.name, error
    return cell.name, None


def one(cell: Cell, folder: Path) -> None:
    """Train and attack one cell."""
    torch.set_num_threads(1)
    place = folder / "runs" / cell.name
    if not (place / "result.json").exists():
        simulate(cell.settings, place, resume=place.exists(), title=cell.name)
    if own(place, cell.settings.attack) is None:
        attack(place, title=cell.name)
    if not (place / COST).exists():
        write_json(place / COST, {"train-step-ratio": train_step_ratio(cell.settings)})


def rows(cells: list[Cell], folder: Path) -> Rows:
    """Return bench.json: one row per finished cell, the worst trained attack in each."""
    bare: dict[int, Settings] = {}
    for cell in cells:
        if undefended(cell.strength, cell.settings):
            bare.setdefault(cell.settings.seed, cell.settings)
    found = []
    for cell in cells:
        place = folder / "runs" / cell.name
        if complete(place, cell):
            found.append(row(cell, place, folder, bare))
    return found


def row(cell: Cell, place: Path, folder: Path, bare: Mapping[int, Settings]) -> dict[str, object]:
    """Return one cell's row; RunError when its files lack what a row needs.

    `bare` are the undefended settings of each seed, to say whose sweep begins there.
    """
    seed = cell.settings.seed
    return {
        "variant": cell.variant.name,
        "title": cell.variant.title,
        "strength": cell.strength,
        "strength-key": cell.variant.strength_key,
        "undefended": undefended(cell.strength, cell.settings),
        "anchored": seed in bare and anchored(cell, bare[seed]),
        "seed": seed,
        "engine": cell.settings.engine,
        "noise": defences.cut(cell.settings).sigma,
        **measured(place, cell.settings.attack),
        "run": str(place.relative_to(folder)),
    } | ({FAILED_ATTACKS: failed} if (failed := failures(place)) else {})


def measured(place: Path, how: Attack) -> dict[str, object]:
    """Return what a row copies of a run's files; RunError when what it needs is not there.

    Of the attacks those that `how` asks for: others are not run on every cell.
    """
    result, cost = read_json(place / "result.json"), read_json(place / COST)
    try:
        if not (isinstance(result, dict) and isinstance(cost, dict)):
            raise TypeError("objects are expected")
        known = {key: result[key] for key in OPTIONAL if key in result}
        copied = {key: result[key] for key in COPIED} | known
        ratio = {"train-step-ratio": cost["train-step-ratio"]}
        return copied | attention(place / "events.jsonl") | worst(own(place, how) or []) | ratio
    except (KeyError, TypeError, ValueError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else str(error)
        raise RunError(
            f"{place}: result.json, {ROWS}, {COST} or events.jsonl is damaged: {what}; "
            "remove the folder"
        ) from None


def attention(path: Path) -> dict[str, object]:
    """Return n_eff/n of the attention in the last round in which it acted, if it ever did.

    That is before the encoder is frozen: afterwards no loss acts on it.
    """
    key = "attention-share"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return next(({key: event[key]} for event in reversed(events) if key in event), {})


def worst(attacks: Rows) -> dict[str, object]:
    """Return the scores of the trained attack that rebuilt images best, mean over its seeds."""
    name, counted = worst_rows(attacks)

    def mean(key: str) -> float | None:
        if not counted or (key == "ssim" and key not in counted[0]):  # images of a pixel or two
            return None
        return statistics.fmean(float(str(e[key])) for e in counted)

    first = counted[0] if counted else {}
    named = {f"worst-{key}": first.get(key) for key in NAMED} | {"worst-attack": name}
    return {**named, **{key: mean(key) for key in REBUILT}}
