"""Attack a finished run: what it sends, and what it answers."""

from pathlib import Path

from fedcel.attacks import (
    Attacked,
    AttackRow,
    MeasuredLeak,
    OtherClasses,
    find_contradictions,
    run_attacks,
)
from fedcel.data import Images
from fedcel.errors import RunError
from fedcel.files import read_json
from fedcel.runs import run_folder
from fedcel.settings import AttackSettings
from sims.attacking.private_answers import list_observations
from sims.commands.progress import print_line, show_attacks
from sims.results.attack_results import Rows, lacking_settings, read_rows, write_result


def attack_run(folder: Path, how: AttackSettings | None = None, title: str = "attacking") -> Rows:
    """Attack a finished run; keep each attack's result as soon as it ends, and return all rows.

    Results of other attacks, or with other settings, stay. Says what in all rows and the result
    cannot be, see `fedcel.attacks.contradictions`. `how` replaces the run's own attack settings.
    RunError when the run is missing or unfinished, or when what earlier attacks left is damaged.
    """
    run = run_folder.read_run(folder)
    how = how or run.settings.attack
    read_rows(folder)  # damage is named before the work
    result = read_result_of_run(folder)

    def keep(name: str, found: Attacked) -> None:
        write_result(folder, how.model_copy(update={"names": name}), found)

    with show_attacks(title) as (progress, tell_attack):
        found = run_attacks(
            list_observations(run, how),
            how,
            select_auxiliary(run, how),
            run.splits.test,
            seed=run.settings.seed,
            progress=progress,
            population=run.splits.training,
            tell_attack=tell_attack,
            keep=keep,
        )
    rows = [AttackRow.from_dict(row) for row in read_rows(folder)]
    for sentence in find_contradictions(rows, MeasuredLeak.model_validate(result)):
        print_line(sentence)
    return [row.to_dict() for row in found.rows]


def catch_up(folder: Path, how: AttackSettings, title: str = "attacking") -> None:
    """Attack a run with what it lacks of `how`, if anything; errors as `attack_run` raises them."""
    lacking = lacking_settings(folder, how)
    if lacking is not None:
        attack_run(folder, lacking, title)


def select_auxiliary(run: run_folder.Run, how: AttackSettings) -> Images:
    """Return the attacker's own images: a disjoint set, or the training images themselves."""
    if how.knowledge != "held-out":
        return run.splits.training
    known = run.splits.auxiliary
    return OtherClasses(*known) if run.settings.data.held_out_classes else known


def read_result_of_run(folder: Path) -> dict[str, object]:
    """Return what a finished run says of itself; RunError when it is unfinished or damaged."""
    found = read_json(folder / "result.json")
    if isinstance(found, dict):
        return found
    raise RunError(f"{folder / 'result.json'} is damaged: it must be an object; resume the run")
