"""Attack a finished run: what it sends, and what it answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedcel.attacks import run_attacks
from fedcel.attacks.contradictions import find_contradictions
from fedcel.attacks.protocol import OtherClasses
from fedcel.attacks.registry import REVISION, list_entries
from fedcel.attacks.runner import FAILED
from fedcel.data import Images
from fedcel.errors import RunError
from fedcel.files import lock_file, read_json, read_tensors, write_json, write_tensors
from fedcel.runs import per_image, run_folder
from fedcel.settings.groups import Attack
from fedcel.settings.parsing import Scalar
from sims.attacking.private_answers import list_observations
from sims.commands.progress import print_line, show_attacks
from sims.results.worst_attack import AttackId, attack_id

ROWS = "attacks.json"
ASKED = "attack-settings.json"
"""Beside the rows: the attack settings whose rows are all there, and which those are."""
PICTURES = "reconstructions.safetensors"
Rows = list[dict[str, object]]
Pictures = dict[str, Tensor]


class Asked(NamedTuple):
    """Attack settings, and the attacks that were run for them."""

    settings: dict[str, Scalar]
    attacks: list[AttackId]
    failed: list[str] | None = None
    """Names of those that failed where nobody foresaw it; None: the file is of before they were."""
    revision: int = 1
    """Of the attacks that were carried out."""


def attack_run(folder: Path, how: Attack | None = None, title: str = "attacking") -> Rows:
    """Attack a finished run; add to attacks.json and reconstructions, and return the new rows.

    Rows of other attacks stay: of another name, observation, knowledge, budget or number of
    targets. Says what in all rows and the result cannot be, see `fedcel.attacks.contradictions`.
    `how` replaces the run's own attack settings. RunError when the run is missing or unfinished, or
    when what earlier attacks left is damaged.
    """
    run = run_folder.read_run(folder)
    how = how or run.settings.attack
    read_earlier(folder)  # damage is named before the work
    result = read_result(folder)
    with show_attacks(title) as (progress, tell_attack):
        found = run_attacks(
            list_observations(run, how),
            how,
            select_auxiliary(run, how),
            run.splits.test,
            run.settings.seed,
            progress,
            run.splits.training,
            tell_attack,
        )
    with lock_file(folder / f".{ROWS}.lock"):  # another attack may have ended meanwhile
        values, old, asks, shown = read_earlier(folder)
        stay = outlasting_vectors(values, found.rows)
        per_image.write_vectors(
            folder, stay | found.per_image
        )  # first: what is asked for is then complete
        rows = store_attacks(folder, how, found.rows, found.pictures, old, asks, shown)
    for sentence in find_contradictions(rows, result):
        print_line(sentence)
    return found.rows


def read_earlier(folder: Path) -> tuple[per_image.Vectors, Rows, list[Asked], Pictures]:
    """Return what earlier attacks left; RunError when it is damaged."""
    return (
        per_image.read_vectors(folder),
        read_rows(folder),
        asked_settings(folder),
        read_pictures(folder),
    )


def outlasting_vectors(values: per_image.Vectors, rows: Rows) -> per_image.Vectors:
    """Return the vectors but those of attacks that the rows carry out anew, if with fewer seeds."""
    again = {
        tuple("" if part is None else per_image.format_plain(part) for part in attack_id(r))
        for r in rows
    }
    return {
        name: value
        for name, value in values.items()
        if (parts := per_image.parse_vector_name(name)) is None
        or parts[: len(AttackId._fields)] not in again
    }


def list_failures(folder: Path) -> list[str]:
    """Return the attacks of a run that failed where nobody foresaw it, each once."""
    return select_failures(read_rows(folder))


def select_failures(rows: Rows) -> list[str]:
    """Return the attacks that failed in these rows where nobody foresaw it, each once."""
    skipped = ((str(row["attack"]), str(row.get("skipped", ""))) for row in rows)
    return list(dict.fromkeys(name for name, said in skipped if said.startswith(FAILED)))


def select_auxiliary(run: run_folder.Run, how: Attack) -> Images:
    """Return the attacker's own images: a disjoint set, or the training images themselves."""
    if how.knowledge != "held-out":
        return run.splits.training
    known = run.splits.auxiliary
    return OtherClasses(*known) if run.settings.data.held_out_classes else known


def own_rows(folder: Path, how: Attack) -> Rows | None:
    """Return the rows that `how` asks for; None where the run was not attacked with it.

    A run that was attacked before attack settings were stored counts as not attacked. What failed
    has no row here, and counts as attacked, and so does what an earlier revision of the attacks
    did; see `lacking_settings`.
    """
    ask = attack_request(folder, how)
    return (
        None if ask is None else [row for row in read_rows(folder) if attack_id(row) in ask.attacks]
    )


def lacking_settings(folder: Path, how: Attack) -> Attack | None:
    """Return what a run is still to be attacked with for `how`; None where it has all of it.

    That is all of `how`, if only for the attacks find more now than they did; or of its names those
    that failed where nobody foresaw it: memory was short, a part of the user's own was wrong. What
    cannot act on the run is not lacking.
    """
    ask = attack_request(folder, how)
    if ask is None or ask.revision != REVISION:
        return how
    if not ask.failed:
        return None
    names = [entry for entry, name in list_entries(how.names) if name in ask.failed]
    return how.model_copy(update={"names": ",".join(names)}) if names else None


def catch_up(folder: Path, how: Attack, title: str = "attacking") -> None:
    """Attack a run with what it lacks of `how`, if anything; errors as `attack_run` raises them."""
    rest = lacking_settings(folder, how)
    if rest is not None:
        attack_run(folder, rest, title)


def attack_request(folder: Path, how: Attack) -> Asked | None:
    """Return what is kept of the attacks with `how`; None where there were none."""
    settings = how.model_dump(by_alias=True)
    return next((ask for ask in asked_settings(folder) if ask.settings == settings), None)


def read_rows(folder: Path) -> Rows:
    """Return the rows of attacks.json, none where it is missing; RunError when it is damaged."""
    path = folder / ROWS
    found = read_json(path) if path.exists() else []
    if isinstance(found, list) and all(isinstance(row, dict) and "attack" in row for row in found):
        return found
    raise RunError(f"{path} is damaged: it must be a list of objects with 'attack'; remove it")


def read_result(folder: Path) -> dict[str, object]:
    """Return what a finished run says of itself; RunError when it is unfinished or damaged."""
    found = read_json(folder / "result.json")
    if isinstance(found, dict):
        return found
    raise RunError(f"{folder / 'result.json'} is damaged: it must be an object; resume the run")


def asked_settings(folder: Path) -> list[Asked]:
    """Return the settings whose rows are all in attacks.json; RunError when they are damaged.

    Where it was not kept which attacks failed, it is those whose every row says so.
    """
    path = folder / ASKED
    if not (path.exists() and (folder / ROWS).exists()):
        return []
    try:
        found = TypeAdapter(list[Asked]).validate_python(read_json(path))
        return [ask._replace(failed=unrecorded_failures(folder, ask)) for ask in found]
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise RunError(f"{path} is damaged: {first}; remove it and attack the run again") from None


def unrecorded_failures(folder: Path, ask: Asked) -> list[str]:
    """Return the attacks that failed for these settings, from the rows where it was not kept."""
    if ask.failed is not None:
        return ask.failed
    return [
        name for name in list_failures(folder) if name not in {each.attack for each in ask.attacks}
    ]


def read_pictures(folder: Path) -> Pictures:
    """Return the reconstructions that are there; RunError when they are damaged."""
    path = folder / PICTURES
    return read_tensors(path)[0] if path.exists() else {}


def store_attacks(
    folder: Path,
    how: Attack,
    rows: Rows,
    pictures: Pictures,
    old: Rows,
    asks: Sequence[Asked],
    shown: Pictures,
) -> Rows:
    """Write new rows beside the `old` ones, and return all of them.

    At no time are rows that are not there called asked.
    """
    fresh = [attack_id(row) for row in rows]
    kept = [row for row in old if not any(is_replaced_by(attack_id(row), new) for new in fresh)]
    measured = [attack_id(row) for row in rows if "skipped" not in row]
    done = list(dict.fromkeys(measured))
    ask = Asked(how.model_dump(by_alias=True), done, select_failures(rows), REVISION)
    still = [other for other in asks if still_holds(other, ask)]
    write_json(folder / ASKED, [other._asdict() for other in still])
    write_tensors(folder / PICTURES, merge_pictures(shown, pictures, kept, rows))
    write_json(folder / ROWS, kept + rows)
    again = {name for name, *_ in fresh}
    told = [*(amend_failures(other, ask, again) for other in still), ask]
    write_json(folder / ASKED, [other._asdict() for other in told])
    return kept + rows


def is_replaced_by(old: AttackId, new: AttackId) -> bool:
    """Say whether a new row replaces an old one: they agree in all that the old one says."""
    return all(mine in ("", None) or mine == other for mine, other in zip(old, new, strict=True))


def still_holds(old: Asked, new: Asked) -> bool:
    """Say whether the rows of `old` are still those it asked for once `new` has been written.

    They are where none of them was replaced, and where settings that differ in the names alone
    replaced them by their like. Equal settings are not kept twice.
    """
    common = {**old.settings, "names": new.settings["names"]} == new.settings
    replaced = any(is_replaced_by(one, other) for one in old.attacks for other in new.attacks)
    return old.settings != new.settings and (common or not replaced)


def amend_failures(old: Asked, new: Asked, tried: set[str]) -> Asked:
    """Return `old` with the outcome of those of its failed attacks that were `tried` again.

    That is where `new` differs from it in the names alone.
    """
    again = tried.intersection(old.failed or [])
    like = {**old.settings, "names": new.settings["names"]} == new.settings
    if not again or not like or old.revision != new.revision:
        return old
    done = [*old.attacks, *(each for each in new.attacks if each.attack in again)]
    still = [name for name in old.failed or [] if name not in again or name in (new.failed or [])]
    return Asked(old.settings, list(dict.fromkeys(done)), still, old.revision)


def merge_pictures(old: Pictures, new: Pictures, kept: Rows, rows: Rows) -> Pictures:
    """Return each attack's reconstructions by the run with the lowest MSE, of the same targets."""
    if "targets" not in old or not torch.equal(old["targets"], new["targets"]):
        return new
    better = {
        name: old[name] for name in old if lowest_error(kept, name) < lowest_error(rows, name)
    }
    return new | better


def lowest_error(rows: Rows, name: str) -> float:
    """Return an attack's lowest MSE in these rows, infinity where it has none."""
    return min(
        (float(str(r["mse"])) for r in rows if r["attack"] == name and "mse" in r),
        default=torch.inf,
    )
