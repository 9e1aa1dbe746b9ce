"""Read a run folder or a bench folder into typed, frozen records."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, FiniteFloat, TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file

from fedcel import defences, runs
from fedcel.errors import RunError, SettingsError
from fedcel.settings import Settings
from sims.worst import worst_attack

Images = Float[np.ndarray, "N C H W"]
Made = TypeVar("Made")
Number = FiniteFloat | None
"""A measured number; None: not measured."""


class Part(BaseModel):
    """A JSON object with kebab-case keys; keys this report does not show are left alone."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        alias_generator=lambda name: name.replace("_", "-"),
    )


class Rejected(Part):
    """A client's reply that the server left out."""

    client: int | str
    reason: str


class Event(Part):
    """One round, scored on the validation set."""

    round: int
    accuracy: Number = None
    within_class_spread: Number = None
    cel_weight: Number = None
    rejected: tuple[Rejected, ...] = ()


class Scores(Part):
    """Accuracy (a share), NLL (nats), ECE and Brier score of one predictor."""

    accuracy: Number = None
    nll: Number = None
    ece: Number = None
    brier: Number = None


class Bins(Part):
    """A reliability diagram; an empty bin has count 0."""

    confidence: tuple[Number, ...] = ()
    accuracy: tuple[Number, ...] = ()
    count: tuple[float, ...] = ()


class Private(Part):
    """What differentially private answers are worth at one epsilon."""

    accuracy: Number = None
    top1_kept: Number = None
    confidence_before: Number = None
    confidence_after: Number = None
    ceiling: Number = None


class Result(Scores):
    """The measured end of a run; what has a default may be absent, older runs lack it."""

    accuracy: Number
    bits_beyond_label: Number
    information_bits: Number
    identification_optimal: Number
    certificate_bits: Number
    candidates: int
    samples: int | None = None
    point: Scores | None = None
    reliability: dict[str, Bins] = {}
    bits_cap: Number = None
    identification_candidates: int | None = None
    label_only_identification: Number = None
    certificate_bits_within_class: Number = None
    fano_identification: Number = None
    answer_bits: Number = None
    gaussianity_gap_bits: Number = None
    gaussianity_direction_bits: Number = None
    gaussianity_kurtosis: Number = None
    within_class_spread: Number = None
    between_client_spread: Number = None
    private: dict[str, Private] = {}
    parameters: int | None = None
    encoder_parameters: int | None = None
    bytes_per_inference: int | None = None
    versions: dict[str, str] = {}
    seconds: Number = None


class Attack(Part):
    """One attack with one attack seed, or the reason why it was not run."""

    attack: str
    observation: str = ""
    knowledge: str = ""
    seed: int | None = None
    budget: Number = None
    mse: Number = None
    psnr: Number = None
    ssim: Number = None
    identification_1: Number = None
    identification_5: Number = None
    label_accuracy: Number = None
    mean_mse: Number = None
    oracle_mse: Number = None
    identification_optimal: Number = None
    bits_beyond_label: Number = None
    information_bits: Number = None
    seconds: Number = None
    skipped: str | None = None


class Row(Part):
    """One cell of a bench: a variant at a strength with a training seed."""

    variant: str
    strength: float | None = None
    seed: int = 0
    title: str | None = None
    accuracy: Number = None
    bits_beyond_label: Number = None
    information_bits: Number = None
    identification_optimal: Number = None
    worst_attack: str | None = None
    mse: Number = None
    psnr: Number = None
    ssim: Number = None
    certificate_bits: Number = None
    train_step_ratio: Number = None
    oracle_mse: Number = None
    mean_mse: Number = None
    noise: Number = None
    run: str


@dataclass(frozen=True)
class Run:
    """All that the report shows of one run folder."""

    name: str
    settings: Settings
    events: tuple[Event, ...]
    result: Result
    attacks: tuple[Attack, ...]
    images: dict[str, Images]


@dataclass(frozen=True)
class Book:
    """A bench, or one run as a bench of one row."""

    title: str
    kind: Literal["bench", "run"]
    rows: tuple[Row, ...]
    runs: dict[str, Run]


def read(folder: Path) -> Book:
    """Return what the bench or run folder holds; RunError says what is missing or damaged."""
    if (folder / "bench.json").exists():
        return _bench(folder)
    if (folder / "result.json").exists():
        run = read_run(folder)
        return Book(run.name, "run", (_row(run),), {"": run})
    if (folder / "settings.toml").exists():
        raise RunError(f"{folder}: no result.json; the run is unfinished, resume it with --resume")
    raise RunError(
        f"{folder}: neither bench.json nor result.json is there; "
        "give a folder that `fedcel bench` or `fedcel simulate` wrote"
    )


def read_run(folder: Path) -> Run:
    """Return one finished run; attacks and reconstructions may be absent, nothing else."""
    attacks = folder / "attacks.json"
    images = folder / "reconstructions.safetensors"
    return Run(
        name=folder.resolve().name,
        settings=_settings(folder),
        events=_parsed(folder / "events.jsonl", _events),
        result=_parsed(folder / "result.json", Result.model_validate_json),
        attacks=_parsed(attacks, _list_of(Attack)) if attacks.exists() else (),
        images=_images(images) if images.exists() else {},
    )


def _bench(folder: Path) -> Book:
    rows = _parsed(folder / "bench.json", _list_of(Row))
    if not rows:
        raise RunError(f"{folder / 'bench.json'} has no rows; run `fedcel bench` first")
    found = {row.run: read_run(folder / row.run) for row in rows}
    scenario = folder / "scenario.toml"
    title = _parsed(scenario, tomllib.loads).get("title") if scenario.exists() else None
    return Book(str(title or folder.resolve().name), "bench", rows, found)


def _settings(folder: Path) -> Settings:
    try:
        return runs.read_settings(folder)
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


def _images(path: Path) -> dict[str, Images]:
    try:
        found: dict[str, Images] = load_file(path)
    except (OSError, TypeError, ValueError, SafetensorError) as error:  # a type numpy lacks, too
        raise RunError(f"{path} is damaged: {error}; attack the run again") from error
    shapes = {name: value.shape for name, value in found.items()}
    wanted = shapes.get("targets", ())
    if len(wanted) != 4 or set(shapes.values()) != {wanted}:
        raise RunError(
            f"{path}: shapes {shapes}, must all be one (N, C, H, W), 'targets' among them; "
            "attack the run again"
        )
    for name, value in found.items():
        if not (value.size and value.min() >= -1e-4 and value.max() <= 1 + 1e-4):
            raise RunError(f"{path}: {name!r} must hold values in [0, 1]; attack the run again")
    return found


def _row(run: Run) -> Row:
    """Return the bench row of a single run."""
    worst = worst_attack((row.attack, row.mse) for row in run.attacks if row.mse is not None)

    def mean(name: str, key: str) -> float | None:
        values = [getattr(row, key) for row in run.attacks if row.attack == name]
        told = [value for value in values if value is not None]
        return sum(told) / len(told) if told else None

    shared = ("accuracy", "bits_beyond_label", "information_bits", "identification_optimal")
    keys = ("mse", "psnr", "ssim", "oracle_mse", "mean_mse")
    return Row.model_validate(
        {"variant": "this run", "title": run.name, "run": "", "worst_attack": worst}
        | {"seed": run.settings.seed, "noise": defences.cut(run.settings).sigma}
        | {key: getattr(run.result, key) for key in (*shared, "certificate_bits")}
        | ({key: mean(worst, key) for key in keys} if worst is not None else {})
    )
