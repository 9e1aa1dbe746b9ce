"""Attacks on a finished run, one call after another."""

from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedcel import runs
from fedcel.settings import parse
from fedcel.settings_groups import Attack
from sims import loop
from sims.attack import attack
from tests.sims.small import QUICK


class Cheat:
    """An attack that was told the targets."""

    name = "cheat"
    needs: frozenset[str] = frozenset()
    observes = "smashed-data"
    targets: ClassVar[Tensor]

    def reconstruct(self, observation: object, *rest: object) -> Tensor:
        """Return them."""
        return self.targets


def test_an_attack_that_saw_the_targets_is_named_whenever_it_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against the optimal attacker's row of an earlier call, and not before there is one."""
    folder, often = tmp_path / "run", "cheat picks the right image in 1.000 of cases"
    runs.create(folder, parse(QUICK | {"net.noise": 2.0}))
    loop.train(runs.read_settings(folder), folder, lambda _: None)
    Cheat.targets = runs.read(folder).splits.test.x.clone()
    cheating = Attack(names="tests.sims.test_attack:Cheat", seeds=1)
    attack(folder, cheating)
    assert often not in capsys.readouterr().err
    attack(folder, Attack(names="optimal", seeds=1))
    assert often in capsys.readouterr().err
    attack(folder, cheating)
    assert often in capsys.readouterr().err
    Cheat.targets = torch.full_like(Cheat.targets, 0.5)
    attack(folder, cheating)
    assert often not in capsys.readouterr().err
