"""What attacks found on a run: one result for each attack and its settings.

`attacks/NAME-HASH.json` has the settings, the attacks' revision and the rows, one for each attack
seed. The safetensors file beside it, written first, has the first reconstructions and what the rows
are means of. A result is written whole when its attack ends, and again when it is repeated.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from fedcel.attacks import FAILURE_PREFIX, REVISION, Attacked
from fedcel.errors import RunError
from fedcel.files import lock_file, read_tensors, write_json, write_tensors
from fedcel.runs import per_image
from fedcel.settings import AttackSettings, Scalar
from sims.results.worst_attack import AttackId, attack_id

FOLDER = "attacks"
Rows = list[dict[str, object]]
Pictures = dict[str, Tensor]


class AttackResult(BaseModel):
    """One attack as it was carried out with its settings, and what came of it."""

    model_config = ConfigDict(frozen=True)

    settings: dict[str, Scalar]
    revision: int
    """Of the attacks that were carried out."""
    finished: AwareDatetime
    rows: tuple[dict[str, object], ...]
    path: Path = Field(exclude=True)


def split_settings(how: AttackSettings) -> list[AttackSettings]:
    """Return the settings of each attack that `how` names, each name once."""
    names = dict.fromkeys(name.strip() for name in how.names.split(","))
    return [how.model_copy(update={"names": name}) for name in names]


def result_path(folder: Path, how: AttackSettings) -> Path:
    """Return where the result of one attack on a run is; the name repeats that of the attack."""
    told = json.dumps(how.model_dump(by_alias=True), sort_keys=True)
    name = re.sub(r"[^\w.-]+", "-", how.names)
    return folder / FOLDER / f"{name}-{hashlib.sha256(told.encode()).hexdigest()[:12]}.json"


def write_result(folder: Path, how: AttackSettings, found: Attacked) -> None:
    """Write what one attack with these settings found, in the place of what it found before."""
    path = result_path(folder, how)
    path.parent.mkdir(exist_ok=True)
    result = AttackResult(
        settings=how.model_dump(by_alias=True),
        revision=REVISION,
        finished=datetime.now(UTC),
        rows=tuple(row.to_dict() for row in found.rows),
        path=path,
    )
    vectors = {name: vector.float() for name, vector in found.per_image.items()}
    with lock_file(path.parent / ".lock"):  # the same attack may have ended elsewhere
        write_tensors(path.with_suffix(".safetensors"), found.pictures | vectors)
        write_json(path, result.model_dump(mode="json"))


def read_result(path: Path) -> AttackResult:
    """Return one result; RunError when it is damaged."""
    try:
        found = json.loads(path.read_text())
        if not all("attack" in row for row in found["rows"]):
            raise TypeError("a row names no attack")
        return AttackResult.model_validate({**found, "path": path})
    except (KeyError, TypeError, ValueError) as error:
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else str(error)
        raise RunError(f"{path} is damaged: {said}; remove it and attack the run again") from None


def read_results(folder: Path) -> list[AttackResult]:
    """Return all results of a run, the latest last; RunError when one is damaged."""
    found = [read_result(path) for path in sorted((folder / FOLDER).glob("*.json"))]
    return sorted(found, key=lambda result: result.finished)


def select_standing(results: Sequence[AttackResult]) -> list[AttackResult]:
    """Return the results less the rows that later ones replace."""
    standing: list[AttackResult] = []
    for number, result in enumerate(results):
        later = [attack_id(row) for other in results[number + 1 :] for row in other.rows]
        kept = tuple(
            row for row in result.rows if not any(is_replaced_by(attack_id(row), e) for e in later)
        )
        standing.append(result.model_copy(update={"rows": kept}))
    return standing


def is_replaced_by(old: AttackId, new: AttackId) -> bool:
    """Say whether a new row replaces an old one: they agree in all that the old one says."""
    return all(mine in ("", None) or mine == other for mine, other in zip(old, new, strict=True))


def read_rows(folder: Path) -> Rows:
    """Return the rows of all attacks on a run, none of one twice; RunError on damaged results."""
    return [row for result in select_standing(read_results(folder)) for row in result.rows]


def own_rows(folder: Path, how: AttackSettings) -> Rows | None:
    """Return the rows that `how` asks for; None where one of its attacks was not carried out.

    Those of an attack that failed, or of an earlier revision, count; see `lacking_settings`.
    """
    paths = [result_path(folder, each) for each in split_settings(how)]
    if not all(path.exists() for path in paths):
        return None
    return [row for path in paths for row in read_result(path).rows]


def lacking_settings(folder: Path, how: AttackSettings) -> AttackSettings | None:
    """Return what a run is still to be attacked with for `how`; None where it has all of it.

    That is each attack that was not carried out, that finds more now than it did, or that failed
    where nobody foresaw it: memory was short, a part of the user's own was wrong. What cannot act
    on the run is not lacking.
    """
    lacking = [each.names for each in split_settings(how) if is_lacking(result_path(folder, each))]
    return how.model_copy(update={"names": ",".join(lacking)}) if lacking else None


def is_lacking(path: Path) -> bool:
    """Say whether the result that belongs there is missing, outdated, or a failure."""
    if not path.exists():
        return True
    result = read_result(path)
    return result.revision != REVISION or bool(list_failures(result.rows))


def list_failures(rows: Iterable[Mapping[str, object]]) -> list[str]:
    """Return the attacks that failed in these rows where nobody foresaw it, each once."""
    skipped = ((str(row["attack"]), str(row.get("skipped", ""))) for row in rows)
    return list(dict.fromkeys(name for name, said in skipped if said.startswith(FAILURE_PREFIX)))


def read_pictures(folder: Path) -> Pictures:
    """Return `targets`, `class-mean`, and each attack's reconstructions by its lowest MSE.

    Of results that show different numbers of targets those with the most. RunError when one is
    damaged.
    """
    found: Pictures = {}
    lowest: dict[str, float] = {}
    shown = [(result, read_pictures_of(result)) for result in read_results(folder)]
    most = max((len(pictures["targets"]) for _, pictures in shown if pictures), default=0)
    for result, pictures in shown:
        if not pictures or len(pictures["targets"]) < most:
            continue
        for name, images in pictures.items():
            error = lowest_error(result.rows, name)
            if error <= lowest.get(name, torch.inf):
                found[name], lowest[name] = images, error
    return found


def read_pictures_of(result: AttackResult) -> Pictures:
    """Return the pictures of one result; {} where it has none."""
    path = result.path.with_suffix(".safetensors")
    if not path.exists():
        return {}
    tensors = read_tensors(path)[0]
    found = {name: value for name, value in tensors.items() if per_image.APART not in name}
    shapes = {name: tuple(value.shape) for name, value in found.items()}
    wanted = shapes.get("targets", ())
    if len(wanted) != 4 or set(shapes.values()) != {wanted}:
        raise RunError(
            f"{path}: shapes {shapes}, must all be one (N, C, H, W), 'targets' among them; "
            "attack the run again"
        )
    return found


def lowest_error(rows: Iterable[Mapping[str, object]], name: str) -> float:
    """Return an attack's lowest MSE in these rows, infinity where it has none."""
    errors = (float(str(r["mse"])) for r in rows if r["attack"] == name and "mse" in r)
    return min(errors, default=torch.inf)


def read_image_scores(folder: Path, wanted: Mapping[str, object], measure: str) -> list[Tensor]:
    """Return a measure of each target, (T,), of every attack seed whose row has what is wanted."""
    found = []
    for result in select_standing(read_results(folder)):
        rows = [row for row in result.rows if all(row.get(k) == v for k, v in wanted.items())]
        names = [per_image.vector_name(row, measure) for row in rows]
        if names:
            path = result.path.with_suffix(".safetensors")
            tensors = read_tensors(path)[0] if path.exists() else {}
            found += [tensors[name] for name in names if name in tensors]
    return found
