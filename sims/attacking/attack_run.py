"""Attack a finished run: what it sends, and what it answers."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from fedcel.attacks import run as run_attacks
from fedcel.attacks.contradictions import defects
from fedcel.attacks.protocol import OtherClasses
from fedcel.attacks.registry import REVISION, entries
from fedcel.attacks.runner import FAILED
from fedcel.data import Images
from fedcel.errors import RunError
from fedcel.files import locked, read_json, read_tensors, write_json, write_tensors
from fedcel.runs import per_image, run_folder
from fedcel.settings.groups import Attack
from fedcel.settings.parsing import Scalar
from sims.attacking.private_answers import observations
from sims.commands.progress import say, throttled
from sims.results.worst_attack import Who, who

ROWS = "attacks.json"
ASKED = "attack-settings.json"
"""Beside the rows: the attack settings whose rows are all there, and which those are."""
PICTURES = "reconstructions.safetensors"
Rows = list[dict[str, object]]
Pictures = dict[str, Tensor]


class Asked(NamedTuple):
    """Attack settings, and the attacks that were run for them."""

    settings: dict[str, Scalar]
    attacks: list[Who]
    failed: list[str] | None = None
    """Names of those that failed where nobody foresaw it; None: the file is of before they were."""
    revision: int = 1
    """Of the attacks that were carried out."""


def attack(folder: Path, how: Attack | None = None, title: str = "attack") -> Rows:
    """Attack a finished run; add to attacks.json and reconstructions, and return the new rows.

    Rows of other attacks stay: of another name, observation, knowledge, budget or number of
    targets. Says what in all rows and the result cannot be, see `fedcel.attacks.contradictions`.
    `how` replaces the run's own attack settings. RunError when the run is missing or unfinished, or
    when what earlier attacks left is damaged.
    """
    run = run_folder.read(folder)
    how = how or run.settings.attack
    left(folder)  # damage is named before the work
    result = result_of(folder)
    found = run_attacks(
        observations(run, how),
        how,
        auxiliary(run, how),
        run.splits.test,
        run.settings.seed,
        throttled(title),
        run.splits.training,
    )
    with locked(folder / f".{ROWS}.lock"):  # another attack may have ended meanwhile
        values, old, asks, shown = left(folder)
        stay = outlasting(values, found.rows)
        per_image.write(folder, stay | found.per_image)  # first: what is asked for is then complete
        rows = store(folder, how, found.rows, found.pictures, old, asks, shown)
    for sentence in defects(rows, result):
        say(sentence)
    return found.rows


def left(folder: Path) -> tuple[per_image.Vectors, Rows, list[Asked], Pictures]:
    """Return what earlier attacks left; RunError when it is damaged."""
    return per_image.read(folder), rows_of(folder), asked(folder), pictures_of(folder)


def outlasting(values: per_image.Vectors, rows: Rows) -> per_image.Vectors:
    """Return the vectors but those of attacks that the rows carry out anew, if with fewer seeds."""
    again = {tuple("" if part is None else per_image.text(part) for part in who(r)) for r in rows}
    return {
        name: value
        for name, value in values.items()
        if (parts := per_image.parts(name)) is None or parts[: len(Who._fields)] not in again
    }


def failures(folder: Path) -> list[str]:
    """Return the attacks of a run that failed where nobody foresaw it, each once."""
    return failed_of(rows_of(folder))


def failed_of(rows: Rows) -> list[str]:
    """Return the attacks that failed in these rows where nobody foresaw it, each once."""
    skipped = ((str(row["attack"]), str(row.get("skipped", ""))) for row in rows)
    return list(dict.fromkeys(name for name, said in skipped if said.startswith(FAILED)))


def auxiliary(run: run_folder.Run, how: Attack) -> Images:
    """Return the attacker's own images: a disjoint set, or the training images themselves."""
    if how.knowledge != "held-out":
        return run.splits.training
    known = run.splits.auxiliary
    return OtherClasses(*known) if run.settings.data.held_out_classes else known


def own(folder: Path, how: Attack) -> Rows | None:
    """Return the rows that `how` asks for; None where the run was not attacked with it.

    A run that was attacked before attack settings were stored counts as not attacked. What failed
    has no row here, and counts as attacked, and so does what an earlier revision of the attacks
    did; see `lacking`.
    """
    ask = ask_of(folder, how)
    return None if ask is None else [row for row in rows_of(folder) if who(row) in ask.attacks]


def lacking(folder: Path, how: Attack) -> Attack | None:
    """Return what a run is still to be attacked with for `how`; None where it has all of it.

    That is all of `how`, if only for the attacks find more now than they did; or of its names those
    that failed where nobody foresaw it: memory was short, a part of the user's own was wrong. What
    cannot act on the run is not lacking.
    """
    ask = ask_of(folder, how)
    if ask is None or ask.revision != REVISION:
        return how
    if not ask.failed:
        return None
    names = [entry for entry, name in entries(how.names) if name in ask.failed]
    return how.model_copy(update={"names": ",".join(names)}) if names else None


def catch_up(folder: Path, how: Attack, title: str = "attack") -> None:
    """Attack a run with what it lacks of `how`, if anything; errors as `attack` raises them."""
    rest = lacking(folder, how)
    if rest is not None:
        attack(folder, rest, title)


def ask_of(folder: Path, how: Attack) -> Asked | None:
    """Return what is kept of the attacks with `how`; None where there were none."""
    settings = how.model_dump(by_alias=True)
    return next((ask for ask in asked(folder) if ask.settings == settings), None)


def rows_of(folder: Path) -> Rows:
    """Return the rows of attacks.json, none where it is missing; RunError when it is damaged."""
    path = folder / ROWS
    found = read_json(path) if path.exists() else []
    if isinstance(found, list) and all(isinstance(row, dict) and "attack" in row for row in found):
        return found
    raise RunError(f"{path} is damaged: it must be a list of objects with 'attack'; remove it")


def result_of(folder: Path) -> dict[str, object]:
    """Return what a finished run says of itself; RunError when it is unfinished or damaged."""
    found = read_json(folder / "result.json")
    if isinstance(found, dict):
        return found
    raise RunError(f"{folder / 'result.json'} is damaged: it must be an object; resume the run")


def asked(folder: Path) -> list[Asked]:
    """Return the settings whose rows are all in attacks.json; RunError when they are damaged.

    Where it was not kept which attacks failed, it is those whose every row says so.
    """
    path = folder / ASKED
    if not (path.exists() and (folder / ROWS).exists()):
        return []
    try:
        found = TypeAdapter(list[Asked]).validate_python(read_json(path))
        return [ask._replace(failed=unrecorded(folder, ask)) for ask in found]
    except ValidationError as error:
        first = error.errors()[0]["msg"]
        raise RunError(f"{path} is damaged: {first}; remove it and attack the run again") from None


def unrecorded(folder: Path, ask: Asked) -> list[str]:
    """Return the attacks that failed for these settings, from the rows where it was not kept."""
    if ask.failed is not None:
        return ask.failed
    return [name for name in failures(folder) if name not in {each.attack for each in ask.attacks}]


def pictures_of(folder: Path) -> Pictures:
    """Return the reconstructions that are there; RunError when they are damaged."""
    path = folder / PICTURES
    return read_tensors(path)[0] if path.exists() else {}


def store(
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
    fresh = [who(row) for row in rows]
    kept = [row for row in old if not any(gives_way(who(row), new) for new in fresh)]
    measured = [who(row) for row in rows if "skipped" not in row]
    done = list(dict.fromkeys(measured))
    ask = Asked(how.model_dump(by_alias=True), done, failed_of(rows), REVISION)
    still = [other for other in asks if holds(other, ask)]
    write_json(folder / ASKED, [other._asdict() for other in still])
    write_tensors(folder / PICTURES, merged(shown, pictures, kept, rows))
    write_json(folder / ROWS, kept + rows)
    again = {name for name, *_ in fresh}
    told = [*(amended(other, ask, again) for other in still), ask]
    write_json(folder / ASKED, [other._asdict() for other in told])
    return kept + rows


def gives_way(old: Who, new: Who) -> bool:
    """Say whether a new row replaces an old one: they agree in all that the old one says."""
    return all(mine in ("", None) or mine == other for mine, other in zip(old, new, strict=True))


def holds(old: Asked, new: Asked) -> bool:
    """Say whether the rows of `old` are still those it asked for once `new` has been written.

    They are where none of them was replaced, and where settings that differ in the names alone
    replaced them by their like. Equal settings are not kept twice.
    """
    common = {**old.settings, "names": new.settings["names"]} == new.settings
    replaced = any(gives_way(one, other) for one in old.attacks for other in new.attacks)
    return old.settings != new.settings and (common or not replaced)


def amended(old: Asked, new: Asked, tried: set[str]) -> Asked:
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


def merged(old: Pictures, new: Pictures, kept: Rows, rows: Rows) -> Pictures:
    """Return each attack's reconstructions by the run with the lowest MSE, of the same targets."""
    if "targets" not in old or not torch.equal(old["targets"], new["targets"]):
        return new
    better = {name: old[name] for name in old if lowest(kept, name) < lowest(rows, name)}
    return new | better


def lowest(rows: Rows, name: str) -> float:
    """Return an attack's lowest MSE in these rows, infinity where it has none."""
    return min(
        (float(str(r["mse"])) for r in rows if r["attack"] == name and "mse" in r),
        default=torch.inf,
    )
