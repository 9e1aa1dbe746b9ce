"""Attack a finished run: what it sends, and what it answers."""

from pathlib import Path

import torch
from torch import Tensor

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
    known = auxiliary(run, how)
    test = run.splits.test
    rows, pictures = run_attacks(
        observations(run), how, known, test, run.settings.seed, throttled(title)
    )
    pictures["class-mean"] = class_means(run, known)[test.y[: len(pictures["targets"])]]
    write_tensors(folder / "reconstructions.safetensors", pictures)
    write_json(folder / "attacks.json", rows)
    return rows


def auxiliary(run: runs.Run, how: Attack) -> Images:
    """Return the attacker's own images: a disjoint set, or the training images themselves."""
    if how.knowledge == "held-out":
        return run.splits.auxiliary
    parts = run.splits.clients
    return Images(torch.cat([part.x for part in parts]), torch.cat([part.y for part in parts]))


def class_means(run: runs.Run, known: Images) -> Tensor:
    """Return the mean image of each class, what an attacker guesses who knows only the label."""
    classes = torch.nn.functional.one_hot(known.y, run.splits.classes).to(known.x.dtype)
    counts = classes.sum(0).clamp_min(1)  # a class unseen by the attacker gives a black image
    return torch.einsum("nk,nchw->kchw", classes, known.x) / counts[:, None, None, None]
