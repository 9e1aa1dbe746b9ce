"""Attacks on a finished run: on what it sends, answers and uploads."""

from dataclasses import replace
from pathlib import Path

from fedcel.attacks import (
    AttackOutcome,
    AttackRow,
    OtherClasses,
    compute_anchors,
    find_contradictions,
    run_attacks,
)
from fedcel.data import Images, to_floats
from fedcel.runs import run_folder
from fedcel.settings import AttackSettings
from sims.attacking.observed_surfaces import list_observations
from sims.progress import print_line, show_attacks, show_waiting
from sims.results.attack_results import lacking_settings, read_attack_rows, write_result
from sims.results.records import RESULT_FILE, RunResult, read_record


def attack_run(
    folder: str | Path,
    attack_settings: AttackSettings | None = None,
    title: str = "attacking",
) -> list[AttackRow]:
    """Attack a finished run; keep each attack's result as soon as it ends.

    Results of other attacks, or with other settings, stay.

    Args:
        folder: The run's folder.
        attack_settings: The attacks and their settings; None are those of the run itself.
        title: Name of the progress bar.

    Returns:
        The rows of these attacks.

    Raises:
        RunError: The run is missing or unfinished, or what earlier attacks left is damaged.
    """
    folder = Path(folder)
    with show_waiting(f"reading the run {folder}"):
        run = run_folder.read_run(folder)
    attack_settings = attack_settings or run.settings.attack
    read_attack_rows(folder)  # damage is named before the work
    result = read_record(folder / RESULT_FILE, RunResult, "resume the run")

    def keep_outcome(name: str, outcome: AttackOutcome) -> None:
        write_result(folder, attack_settings.model_copy(update={"names": name}), outcome)

    with show_attacks(title, attack_settings.seeds) as listener:
        outcome = run_attacks(
            list_observations(run, attack_settings),
            attack_settings,
            select_auxiliary(run, attack_settings),
            run.splits.test,
            seed=run.settings.seed,
            anchors=compute_anchors(run.splits.clients),
            listener=replace(listener, keep_outcome=keep_outcome),
        )
    for sentence in find_contradictions(read_attack_rows(folder), result):
        print_line(sentence)
    return outcome.rows


def catch_up(folder: Path, attack_settings: AttackSettings, title: str = "attacking") -> None:
    """Attack a run with those of the attacks that it has not met yet, if any."""
    lacking = lacking_settings(folder, attack_settings)
    if lacking is not None:
        attack_run(folder, lacking, title)


def select_auxiliary(run: run_folder.Run, attack_settings: AttackSettings) -> Images:
    """Return the attacker's own images: a disjoint set, or the training images themselves."""
    if attack_settings.knowledge != "held-out":
        return Images(to_floats(run.splits.training.x), run.splits.training.y)
    held_out = run.splits.auxiliary
    return OtherClasses(*held_out) if run.settings.data.held_out_classes else held_out
