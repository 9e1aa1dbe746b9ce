"""Attack a finished run: what it sends, and what it answers."""

from pathlib import Path

from fedcel import runs
from fedcel.attacks import run as run_attacks
from fedcel.data import Images
from fedcel.files import write_json, write_tensors
from fedcel.settings_groups import Attack
from sims.observations import observations
from sims.progress import throttled

Rows = list[dict[str, object]]


def attack(folder: Path, how: Attack | None = None, title: str = "attack") -> Rows:
    """Write attacks.json and reconstructions of a finished run; return the rows.

    `how` replaces the run's own attack settings. RunError when the run is missing or unfinished.
    """
    run = runs.read(folder)
    how = how or run.settings.attack
    rows, pictures = run_attacks(
        observations(run),
        how,
        auxiliary(run, how),
        run.splits.test,
        run.settings.seed,
        throttled(title),
        run.splits.training,
    )
    write_tensors(folder / "reconstructions.safetensors", pictures)
    write_json(folder / "attacks.json", rows)
    return rows


def auxiliary(run: runs.Run, how: Attack) -> Images:
    """Return the attacker's own images: a disjoint set, or the training images themselves."""
    return run.splits.auxiliary if how.knowledge == "held-out" else run.splits.training
