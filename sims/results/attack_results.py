"""Scores of attacks on a run: one result for each attack and its settings.

`attacks/NAME-HASH.json` has the settings, the attacks' revision and the rows, one for each attack
seed. The safetensors file beside it, written first, has the first reconstructions and the vectors
whose means the rows are. A result is written whole when its attack ends, and again when it is
repeated.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

import torch
from pydantic import AwareDatetime, Field
from torch import Tensor

from fedcel import per_image
from fedcel.attacks import (
    FAILURE_PREFIX,
    REVISION,
    AttackConditions,
    AttackId,
    AttackOutcome,
    AttackRow,
)
from fedcel.errors import RunError
from fedcel.files import lock_file, read_tensors, write_json, write_tensors
from fedcel.json_records import Record
from fedcel.settings import AttackSettings, Scalar
from sims.results.records import (
    ATTACK_MEASURES,
    ATTACKS_FOLDER,
    CellAttack,
    attribute,
    read_record,
)

IMAGE_MEASURES = ("mse", "identification-1")
"""Scores that are kept of each target."""
Pictures = dict[str, Tensor]


class AttackResult(Record):
    """One attack as it was carried out with its settings, and what came of it."""

    settings: dict[str, Scalar]
    revision: int
    """The attacks' revision when they were carried out."""
    finished: AwareDatetime
    rows: tuple[AttackRow, ...]
    path: Path = Field(Path(), exclude=True)

    def read_tensors(self) -> dict[str, Tensor]:
        """Return the pictures and the scores of each target; {} where nothing was kept."""
        path = self.path.with_suffix(".safetensors")
        return read_tensors(path)[0] if path.exists() else {}

    def read_pictures(self) -> Pictures:
        """Return the pictures, all of one shape; RunError where they are not."""
        tensors = self.read_tensors()
        pictures = {name: value for name, value in tensors.items() if per_image.APART not in name}
        shapes = {name: tuple(value.shape) for name, value in pictures.items()}
        expected = shapes.get("targets", ())
        if pictures and (len(expected) != 4 or set(shapes.values()) != {expected}):
            raise RunError(
                f"{self.path.with_suffix('.safetensors')}: shapes {shapes}, must all be one "
                "(N, C, H, W), 'targets' among them; attack the run again"
            )
        return pictures


def result_paths(folder: Path, attack_settings: AttackSettings) -> dict[str, Path]:
    """Return where the result of each attack that the settings name is, by the attack's name."""
    paths = {}
    for name in dict.fromkeys(name.strip() for name in attack_settings.names.split(",")):
        values = attack_settings.model_dump(by_alias=True) | {"names": name}
        if not attack_settings.seconds:  # results of earlier versions are named without it
            del values["seconds"]
        digest = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:12]
        stem = re.sub(r"[^\w.-]+", "-", name)
        paths[name] = folder / ATTACKS_FOLDER / f"{stem}-{digest}.json"
    return paths


def write_result(folder: Path, attack_settings: AttackSettings, outcome: AttackOutcome) -> None:
    """Write the scores of one attack with these settings over those of an earlier time."""
    (path,) = result_paths(folder, attack_settings).values()
    path.parent.mkdir(exist_ok=True)
    result = AttackResult(
        settings=attack_settings.model_dump(by_alias=True),
        revision=REVISION,
        finished=datetime.now(UTC),
        rows=tuple(outcome.rows),
    )
    vectors = {name: vector.float() for name, vector in outcome.per_image.items()}
    with lock_file(path.parent / ".lock"):  # the same attack may have ended elsewhere
        write_tensors(path.with_suffix(".safetensors"), outcome.pictures | vectors)
        write_json(path, result.to_json())


def read_result(path: Path) -> AttackResult:
    """Return one result; RunError when it is damaged."""
    result = read_record(path, AttackResult, "remove it and attack the run again")
    return result.model_copy(update={"path": path})


def read_results(folder: Path) -> list[AttackResult]:
    """Return the results of a run, the latest last, less the rows that later ones replace.

    A row replaces an earlier one that has the same values of all conditions that it has.
    """
    paths = (folder / ATTACKS_FOLDER).glob("*.json")
    results = sorted(map(read_result, sorted(paths)), key=lambda result: result.finished)
    standing: list[AttackResult] = []
    later: set[AttackId] = set()
    for result in reversed(results):
        rows = (row for row in result.rows if not any(is_replaced_by(row.id, new) for new in later))
        standing.append(result.model_copy(update={"rows": tuple(rows)}))
        later |= {row.id for row in result.rows}
    return standing[::-1]


def is_replaced_by(old: AttackId, new: AttackId) -> bool:
    """Whether `new` supersedes `old`: every field set in `old` is equal in `new`."""
    return all(before in ("", None, after) for before, after in zip(old, new, strict=True))


def read_attack_rows(folder: Path) -> list[AttackRow]:
    """Return the rows of all attacks on a run, none of one twice; RunError on damaged results."""
    return [row for result in read_results(folder) for row in result.rows]


def requested_results(folder: Path, attack_settings: AttackSettings) -> list[AttackResult] | None:
    """Return the results asked for; None where one of the attacks was not carried out.

    Those of an attack that failed, or of an earlier revision, count; see `lacking_settings`.
    """
    paths = result_paths(folder, attack_settings).values()
    return [read_result(path) for path in paths] if all(path.exists() for path in paths) else None


def lacking_settings(folder: Path, attack_settings: AttackSettings) -> AttackSettings | None:
    """Return the attacks that a run still lacks; None where it has all of them.

    Each that was not carried out, that would be carried out otherwise now, or that failed where
    nobody foresaw it: memory was short, a part of the user's own was wrong. An attack that cannot
    act on the run is not lacking.
    """

    def is_lacking(path: Path) -> bool:
        result = read_result(path) if path.exists() else None
        return not result or result.revision != REVISION or bool(list_failures(result.rows))

    paths = result_paths(folder, attack_settings)
    lacking = [name for name, path in paths.items() if is_lacking(path)]
    return attack_settings.model_copy(update={"names": ",".join(lacking)}) if lacking else None


def list_failures(rows: Iterable[AttackRow]) -> list[str]:
    """Return the attacks that failed in these rows where nobody foresaw it, each once."""
    failed = (row.attack for row in rows if (row.skipped or "").startswith(FAILURE_PREFIX))
    return list(dict.fromkeys(failed))


def group_by_attack(rows: Iterable[AttackRow]) -> dict[AttackId, list[AttackRow]]:
    """Return the rows of each attack that rebuilt images, one a seed."""
    groups: dict[AttackId, list[AttackRow]] = {}
    for row in rows:
        if row.mse is not None:
            groups.setdefault(row.id, []).append(row)
    return groups


def average_attacks(results: Iterable[AttackResult]) -> list[CellAttack]:
    """Return the scores of each attack on images, mean over its attack seeds."""
    averages = []
    for result in results:
        for rows in group_by_attack(result.rows).values():
            means: dict[str, object] = {"revision": result.revision, "seeds": len(rows)}
            for name in ATTACK_MEASURES:
                values = [getattr(row, attribute(name)) for row in rows]
                if numbers := [value for value in values if value is not None]:
                    means[name] = fmean(numbers)
            same = rows[0].model_dump(include={*AttackConditions.model_fields}, exclude_none=True)
            averages.append(CellAttack.model_validate(same | means))
    return averages


def read_pictures(folder: Path) -> Pictures:
    """Return `targets`, `class-mean`, and each attack's reconstructions by its lowest MSE.

    Of results that show different numbers of targets those with the most. RunError when one is
    damaged.
    """
    best: Pictures = {}
    lowest: dict[str, float] = {}
    results = [(r, pictures) for r in read_results(folder) if (pictures := r.read_pictures())]
    most = max((len(pictures["targets"]) for _, pictures in results), default=0)
    for result, pictures in results:
        for name, images in pictures.items() if len(pictures["targets"]) == most else ():
            errors = (r.mse for r in result.rows if r.attack == name and r.mse is not None)
            error = min(errors, default=torch.inf)
            if error <= lowest.get(name, torch.inf):
                best[name], lowest[name] = images, error
    return best


def read_attack_vectors(folder: Path) -> per_image.Vectors:
    """Return each attack's scores per target, mean over its seeds, by `attack_vector_name`.

    A score that is not kept of all seeds is left out.
    """
    vectors = per_image.Vectors()
    for result in read_results(folder):
        tensors = result.read_tensors()
        for attack, rows in group_by_attack(result.rows).items():
            for measure in IMAGE_MEASURES:
                seeds = ({"attack": row.attack, "seed": row.seed} for row in rows)
                names = [per_image.vector_name(seed, measure) for seed in seeds]
                if tensors.keys() >= set(names):
                    mean = torch.stack([tensors[name] for name in names]).mean(0)
                    vectors[attack_vector_name(attack, measure)] = mean
    return vectors


def attack_vector_name(attack: AttackId, measure: str) -> str:
    """Return the name of an attack's scores per target."""
    conditions = attack[:-2] + tuple(filter(None, attack[-2:]))
    parts = ("" if value is None else f"{value}" for value in conditions)
    return per_image.APART.join([*parts, measure])
