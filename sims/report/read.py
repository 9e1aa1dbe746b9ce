"""Read a run folder or a bench folder into typed, frozen records."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from fedcel.errors import RunError, SettingsError
from fedcel.losses import defences
from fedcel.runs import run_folder
from fedcel.settings import Settings
from sims.bench.scenario import is_undefended
from sims.report.records import (
    Attack,
    Book,
    Escalated,
    Event,
    Failed,
    Images,
    Result,
    Row,
    Run,
    Vector,
)
from sims.results.attack_results import FOLDER, read_pictures, read_rows
from sims.results.intervals import read_image_vectors, select_image_vectors
from sims.results.worst_attack import common_attacks, merge_rows, worst_attack

FAILED = "failed.json"
"""What failed in a bench, beside bench.json."""
ESCALATED = "escalated.json"
"""Beside it: a row for each cell, attack and budget of `fedcel escalate`."""
Made = TypeVar("Made")


def read_book(folder: Path) -> Book:
    """Return what the bench or run folder holds; RunError says what is missing or damaged."""
    if (folder / "bench.json").exists():
        return _bench(folder)
    if (folder / "result.json").exists():
        run = read_finished(folder)
        return Book(run.name, "run", (_row(run),), {"": run})
    if (folder / "settings.toml").exists():
        raise RunError(f"{folder}: no result.json; the run is unfinished, resume it with --resume")
    raise RunError(
        f"{folder}: neither bench.json nor result.json is there; "
        "give a folder that `fedcel bench` or `fedcel simulate` wrote"
    )


def read_finished(folder: Path) -> Run:
    """Return one finished run; attacks and reconstructions may be absent, nothing else."""
    return Run(
        name=folder.resolve().name,
        settings=_settings(folder),
        events=_parsed(folder / "events.jsonl", _events),
        result=_parsed(folder / "result.json", Result.model_validate_json),
        attacks=_attacks(folder),
        images=_images(folder),
        trace=run_folder.open_trace(folder),
    )


def _bench(folder: Path) -> Book:
    failed, more = _beside(folder / FAILED, Failed), _beside(folder / ESCALATED, Escalated)
    scores = _parsed(folder / ESCALATED, json.loads) if more else []

    def held(text: str) -> list[tuple[Row, ...]]:
        _list_of(Row)(text)  # what is damaged is named before it is merged
        # Merged as they were written, as tables do: what decides is more than is shown here.
        found = json.loads(text)
        both = merge_rows(found, scores), merge_rows(*common_attacks(found, scores))
        return [TypeAdapter(tuple[Row, ...]).validate_python(each) for each in both]

    rows, even = _parsed(folder / "bench.json", held)
    if not rows:
        raise RunError(f"{folder / 'bench.json'} has no rows; run `fedcel bench` first")
    found = {row.run: read_finished(folder / row.run) for row in rows}
    scenario = folder / "scenario.toml"
    title = _parsed(scenario, tomllib.loads).get("title") if scenario.exists() else None
    name = str(title or folder.resolve().name)

    def book(rows: tuple[Row, ...], kept: dict[str, dict[str, Vector]]) -> Book:
        flagged = tuple(_flagged(row, found[row.run].settings) for row in rows)
        return Book(name, "bench", flagged, found, failed, more, kept)

    whole = book(rows, read_image_vectors(folder))
    if even == rows:
        return whole
    kept = select_image_vectors(folder, [row.model_dump(by_alias=True) for row in even])
    return replace(whole, compared=book(even, kept))


def _flagged(row: Row, settings: Settings) -> Row:
    """Return the row with a word on whether it is undefended, from its run where it has none."""
    if row.undefended is not None:
        return row
    return row.model_copy(update={"undefended": is_undefended(row.strength, settings)})


def _settings(folder: Path) -> Settings:
    try:
        return run_folder.read_settings(folder)
    except (SettingsError, OSError) as error:
        path = folder / "settings.toml"
        raise RunError(f"{path} is damaged: {error}; run it again") from None


def _parsed(path: Path, parse: Callable[[str], Made]) -> Made:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing; run it again, or give another folder") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        got = "" if first["type"] == "missing" else f" (it is {first['input']!r:.60})"
        raise RunError(f"{path} is damaged: {where}: {first['msg']}{got}; run it again") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}; run it again") from error


def _beside(path: Path, kind: type[Made]) -> tuple[Made, ...]:
    """Return the rows of a file that may be absent."""
    return _parsed(path, _list_of(kind)) if path.exists() else ()


def _list_of(kind: type[Made]) -> Callable[[str], tuple[Made, ...]]:
    return TypeAdapter(tuple[kind, ...]).validate_json  # type: ignore[valid-type]


def _events(text: str) -> tuple[Event, ...]:
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            rows.append(Event.model_validate(json.loads(line)))
        except ValueError as error:
            raise ValueError(f"line {number} is no round: {str(error).splitlines()[0]}") from error
    return tuple(rows)


def _attacks(folder: Path) -> tuple[Attack, ...]:
    try:
        return tuple(Attack.model_validate(row) for row in read_rows(folder))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RunError(
            f"{folder / FOLDER} is damaged: {where}: {first['msg']}; attack the run again"
        ) from None


def _images(folder: Path) -> dict[str, Images]:
    try:
        found: dict[str, Images] = {
            name: value.numpy() for name, value in read_pictures(folder).items()
        }
    except TypeError as error:  # a type that numpy lacks
        raise RunError(f"{folder / FOLDER} is damaged: {error}; attack the run again") from error
    for name, value in found.items():
        if not (value.size and value.min() >= -1e-4 and value.max() <= 1 + 1e-4):
            raise RunError(
                f"{folder / FOLDER}: {name!r} must hold values in [0, 1]; attack the run again"
            )
    return found


def _row(run: Run) -> Row:
    """Return the bench row of a single run."""
    worst = worst_attack((row.who, row.mse) for row in run.attacks if row.mse is not None)

    def mean(key: str) -> float | None:
        values = [getattr(row, key) for row in run.attacks if row.who == worst]
        told = [value for value in values if value is not None]
        return sum(told) / len(told) if told else None

    shared = ("accuracy", "bits_beyond_label", "information_bits", "identification_optimal")
    keys = ("mse", "psnr", "ssim", "identification_1", "oracle_mse", "mean_mse")
    return Row.model_validate(
        {
            "variant": "this run",
            "title": run.name,
            "run": "",
            "worst_attack": worst and worst.attack,
        }
        | {"seed": run.settings.seed, "noise": defences.build_cut(run.settings).sigma}
        | {key: getattr(run.result, key) for key in (*shared, "certificate_bits")}
        | {key: mean(key) for key in keys}
    )
