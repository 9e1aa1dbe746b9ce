"""Read all that a report shows of a run folder or a bench folder."""

import tomllib
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from fedcel.errors import RunError, SettingsError
from fedcel.files import read_tensors
from fedcel.runs import GUESSES_FILE, run_folder
from sims.report.summary import FinishedRun, Summary
from sims.results.attack_results import (
    average_attacks,
    read_attack_rows,
    read_pictures,
    read_results,
)
from sims.results.bench_rows import (
    ImageVectors,
    hold_to_common,
    read_bench_rows,
    read_image_vectors,
)
from sims.results.intervals import measure_rows
from sims.results.records import (
    ATTACKS_FOLDER,
    BENCH_FILE,
    EVENTS_FILE,
    FAILED_FILE,
    LIVE_FILE,
    RESULT_FILE,
    BenchRow,
    FailedCell,
    LiveRow,
    RunMeasures,
    RunResult,
    parse_events,
    parse_file,
    read_record,
    read_records,
)


class Book(NamedTuple):
    """A bench, or one run as a bench of one row."""

    title: str
    summaries: Sequence[Summary]
    failed: Sequence[FailedCell] = ()
    live: Sequence[Sequence[LiveRow]] = ()
    """Attacks on a run's service by price."""


def read_book(folder: Path) -> Book:
    """Return a bench or run folder; RunError names what is missing or damaged."""
    if folder.is_file():
        raise RunError(f"{folder} is a file; give the folder that it is in")
    if (folder / BENCH_FILE).exists():
        rows, scenario = read_bench_rows(folder), folder / "scenario.toml"
        title = parse_file(scenario, tomllib.loads).get("title") if scenario.exists() else None
        runs = {row.run: read_finished(folder / row.run) for row in rows}
        return Book(
            title=str(title or folder.resolve().name),
            summaries=summarise_rows(rows, runs, read_image_vectors(folder)),
            failed=read_records(folder / FAILED_FILE, FailedCell),
        )
    if (folder / RESULT_FILE).exists():
        run, name = read_finished(folder), folder.resolve().name
        measures = run.result.model_dump(include={*RunMeasures.model_fields})
        row = BenchRow.model_validate(
            {
                **measures,
                "variant": "this run",
                "title": name,
                "undefended": False,
                "run": "",
                "seed": run.settings.seed,
                "noise": run.settings.defence.find_sigma(run.settings.net),
                "attacks": average_attacks(read_results(folder)),
            }
        )
        return Book(
            name, summarise_rows(hold_to_common([row]), {"": run}, {}), live=read_live(folder)
        )
    if (folder / "settings.toml").exists():
        raise RunError(
            f"{folder}: no {RESULT_FILE}; the run is unfinished, resume it with --resume"
        )
    raise RunError(
        f"{folder}: neither {BENCH_FILE} nor {RESULT_FILE} is there; "
        "give a folder that `fedcel bench` or `fedcel simulate` wrote"
    )


def summarise_rows(
    rows: Sequence[BenchRow], runs: Mapping[str, FinishedRun], vectors: ImageVectors
) -> list[Summary]:
    """Return one summary for each variant and strength, in the order of the rows."""
    points: dict[tuple[str, float | None], list[BenchRow]] = {}
    for row in rows:
        points.setdefault(row.point, []).append(row)
    variants = [variant for variant, _ in points]
    summaries = []
    for (variant, strength), group in points.items():
        is_one_of_several = variants.count(variant) > 1 and strength is not None
        label = f"{group[0].name}, {strength:g}" if is_one_of_several else group[0].name
        measured = measure_rows(group, vectors)
        summaries.append(Summary(label, group, [runs[row.run] for row in group], measured))
    return summaries


def read_finished(folder: Path) -> FinishedRun:
    """Return one finished run; attacks and reconstructions may be absent, nothing else."""
    try:
        settings = run_folder.read_settings(folder)
    except (SettingsError, OSError) as error:
        path = folder / "settings.toml"
        raise RunError(f"{path} is damaged: {error}; run it again") from None
    images = {name: value.float().numpy() for name, value in read_pictures(folder).items()}
    for name, value in images.items():
        if not (value.size and value.min() >= -1e-4 and value.max() <= 1 + 1e-4):
            place = folder / ATTACKS_FOLDER
            raise RunError(f"{place}: {name!r} must hold values in [0, 1]; attack the run again")
    return FinishedRun(
        settings=settings,
        events=parse_file(folder / EVENTS_FILE, parse_events),
        result=read_record(folder / RESULT_FILE, RunResult),
        attacks=read_attack_rows(folder),
        images=images,
        guesses=read_tensors(folder / GUESSES_FILE)[0],
    )


def read_live(folder: Path) -> list[list[LiveRow]]:
    """Return the attacks on a run's service by price, cheapest first; RunError on damage.

    Rows of one price differ in the attack's seed only.
    """

    def price(row: LiveRow) -> tuple[str, float, str, int]:
        return row.mechanism, row.epsilon, row.attack, row.answers

    rows = read_records(folder / LIVE_FILE, LiveRow, "remove it, attack again")
    return [list(group) for _, group in groupby(sorted(rows, key=price), price)]
