"""Attacks on a finished run, one call after another."""

import json
from itertools import combinations
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from fedcel.errors import RunError
from fedcel.runs import run_folder
from fedcel.settings import AttackSettings, parse_settings
from sims.attacking import attack_run, catch_up
from sims.attacking.observed_surfaces import client_uploads
from sims.commands.main import main
from sims.engines import local
from sims.results.attack_results import (
    average_attacks,
    lacking_settings,
    list_failures,
    read_attack_rows,
    read_attack_vectors,
    read_pictures,
    read_results,
    requested_results,
)
from tests.sims.small import QUICK


class Cheat:
    """An attack that was told the targets."""

    name = "cheat"
    needs: frozenset[str] = frozenset()
    observes = "smashed-data"
    targets: ClassVar[Tensor]

    def reconstruct(self, observation: object, *rest: object) -> Tensor:
        return self.targets


class Broken(Cheat):
    """An attack with an error of its own."""

    name = "broken"

    def reconstruct(self, observation: object, *rest: object) -> Tensor:
        raise ZeroDivisionError


def trained(folder: Path) -> Path:
    run_folder.create_run(folder, parse_settings(QUICK | {"net.noise": 2.0}))
    local.train_locally(run_folder.read_settings(folder), folder, lambda _: None)
    Cheat.targets = run_folder.read_run(folder).splits.test.x.clone()
    return folder


class Meanwhile(Cheat):
    """An attack during which another one on the same run ends."""

    name = "meanwhile"
    folder: ClassVar[Path]

    def reconstruct(self, observation: object, *rest: object) -> Tensor:
        """Let the other one end, and cheat."""
        attack_run(self.folder, AttackSettings(names=f"{__name__}:Cheat", seeds=1))
        return self.targets


def test_attacks_at_the_same_time_keep_each_others_rows(tmp_path: Path) -> None:
    """And what they scored of each image, and their pictures."""
    Meanwhile.folder = folder = trained(tmp_path / "run")
    how = AttackSettings(names=f"{__name__}:Meanwhile", seeds=1)
    attack_run(folder, how)
    assert [row.attack for row in read_attack_rows(folder)] == ["cheat", "meanwhile"]
    assert (
        lacking_settings(folder, how)
        is lacking_settings(folder, AttackSettings(names=f"{__name__}:Cheat", seeds=1))
        is None
    )
    for name in ("cheat", "meanwhile"):
        assert any(key.startswith(f"{name}|") for key in read_attack_vectors(folder))
    assert {"cheat", "meanwhile"} < read_pictures(folder).keys()


class Interrupted(Cheat):
    """An attack during which the user presses Ctrl-C."""

    name = "interrupted"

    def reconstruct(self, observation: object, *rest: object) -> Tensor:
        """Be interrupted."""
        raise KeyboardInterrupt


def test_interrupted_attacks_name_those_that_are_left(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The same command with their names; nothing where none has ended."""
    folder = trained(tmp_path / "run")
    first, last = f"{__name__}:Cheat", f"{__name__}:Interrupted"
    one_seed = ["attack", str(folder), "--set", "attack.seeds=1"]
    assert main([*one_seed, "--set", f"attack.names={last}"]) == 130
    assert capsys.readouterr().err.splitlines()[-1] == "fedcel: interrupted"
    names = ["--set", f"attack.names={first},{last}"]
    assert main([*one_seed, *names]) == 130
    again = " ".join(["fedcel", *one_seed, *names, "--set", f"attack.names={last}"])
    assert capsys.readouterr().err.endswith(
        f"fedcel: interrupted; attacks that have ended are kept, go on: {again}\n"
    )
    assert [row.attack for row in read_attack_rows(folder)] == ["cheat"]


def test_images_of_seeds_that_were_not_run_again_are_dropped(tmp_path: Path) -> None:
    """One seed in the place of three: the rows' mean is that of one, so is the images'."""
    folder, how = trained(tmp_path / "run"), AttackSettings(names=f"{__name__}:Cheat", seeds=3)
    attack_run(folder, how)
    other = attack_run(folder, how.model_copy(update={"budget": 2.0, "seeds": 1}))
    attack_run(folder, how.model_copy(update={"seeds": 1}))
    assert len(other) == 1
    results = read_results(folder)
    assert [(attack.budget, attack.seeds) for attack in average_attacks(results)] == [
        (2.0, 1),
        (1.0, 1),
    ]
    assert len(read_attack_vectors(folder)) == 2 * 2


@pytest.mark.filterwarnings("ignore:broken on smashed-data")
def test_what_failed_is_lacking_until_it_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It alone, with the settings it failed under; others' rows stay, and so does its record."""
    folder = trained(tmp_path / "run")
    names = f"{__name__}:Cheat,{__name__}:Broken"
    small, large = (AttackSettings(names=names, seeds=1, budget=budget) for budget in (1.0, 4.0))
    assert lacking_settings(folder, small) == small
    attack_run(folder, small)
    attack_run(folder, large)
    alone = {"names": f"{__name__}:Broken"}
    assert lacking_settings(folder, small) == small.model_copy(update=alone)
    catch_up(folder, small)  # fails once more
    assert attacks_of(folder, small) == ["cheat", "broken"]
    monkeypatch.setattr(Broken, "reconstruct", Cheat.reconstruct)
    catch_up(folder, small)
    assert attacks_of(folder, small) == ["cheat", "broken"]
    assert lacking_settings(folder, small) is None
    assert (
        list_failures(read_attack_rows(folder)) == []
    )  # the row of one failure gave way, that of which budget is kept
    assert lacking_settings(folder, large) == large.model_copy(update=alone)
    catch_up(folder, large)
    assert lacking_settings(folder, large) is None
    assert len(attacks_of(folder, large)) == len(attacks_of(folder, small)) == 2


def attacks_of(folder: Path, how: AttackSettings) -> list[str]:
    """Return the attacks that these settings ask for, as their results have them."""
    return [row.attack for result in requested_results(folder, how) or [] for row in result.rows]


def test_an_attack_that_saw_the_targets_is_named_whenever_it_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Against the optimal attacker's row of an earlier call, and not before there is one."""
    folder, often = trained(tmp_path / "run"), "cheat picks the right image in 1.000 of cases"
    cheating = AttackSettings(names=f"{__name__}:Cheat", seeds=1)
    attack_run(folder, cheating)
    assert often not in capsys.readouterr().err
    attack_run(folder, AttackSettings(names="optimal", seeds=1))
    assert often in capsys.readouterr().err
    attack_run(folder, cheating)
    assert often in capsys.readouterr().err
    Cheat.targets = torch.full_like(Cheat.targets, 0.5)
    attack_run(folder, cheating)
    assert often not in capsys.readouterr().err


def test_says_that_the_result_contradicts_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A certificate below what was measured: said as often as the run is attacked."""
    folder, how = trained(tmp_path / "run"), AttackSettings(names="optimal", seeds=1)
    attack_run(folder, how)
    assert "certificate" not in capsys.readouterr().err
    path = folder / "result.json"
    result = json.loads(path.read_text())
    path.write_text(json.dumps(result | {"certificate-bits": 0.01, "information-bits": 2.0}))
    attack_run(folder, how)
    assert "The message tells 2.000 +- " in capsys.readouterr().err


@pytest.mark.parametrize("text", [None, "[]", "{"])
def test_an_unfinished_run_is_not_attacked(tmp_path: Path, text: str | None) -> None:
    """Nor one whose result is damaged: no work is done, the file is named."""
    folder = trained(tmp_path / "run")
    path = folder / "result.json"
    path.unlink() if text is None else path.write_text(text)
    with pytest.raises(RunError, match=r"result\.json is (missing|damaged)"):
        attack_run(folder, AttackSettings(names="optimal", seeds=1))
    assert not (folder / "attacks").exists()


@pytest.mark.filterwarnings("ignore:broken on smashed-data")
def test_the_command_fails_where_an_attack_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 1: that a broken attack finds nothing is no sign of privacy."""
    folder = str(trained(tmp_path / "run"))
    names = f"attack.names={__name__}:Broken"
    assert main(["attack", folder, "--set", names, "--set", "attack.seeds=1"]) == 1
    output, errors = capsys.readouterr()
    assert "report:" in output and "fedcel: broken failed, the reasons are above" in errors


def test_uploads_start_from_the_model_that_is_named(tmp_path: Path) -> None:
    """Round 1's, the trained one's, and one that the server made of that; each known to him.

    The prior pulls by the share of a round of the attacked steps, whatever `local.steps`.
    """
    run = run_folder.read_run(trained(tmp_path / "run"))
    received = {}
    for name in ("first", "last", "trapped"):
        how = AttackSettings(names="first-layer", received=name, batch=4, local_steps=2)
        uploads = client_uploads(run, how)
        assert (uploads.batch, uploads.steps) == (4, 2)
        received[name], plan = uploads.received, uploads.plan
        back = 1 - (1 - plan.rate * plan.pull) ** 2
        assert back == pytest.approx(run.settings.prior.share) and run.settings.local.steps != 2
    assert torch.equal(received["last"], run.model)
    names = sorted(received)
    assert not any(torch.equal(received[a], received[b]) for a, b in combinations(names, 2))


def test_heated_uploads_have_the_noise_of_the_full_temperature(tmp_path: Path) -> None:
    """Variance 2 eta T K/N a step, from the first model as `first`, which has none."""
    run = run_folder.read_run(trained(tmp_path / "run"))
    s, total = run.settings, sum(len(part.y) for part in run.splits.clients)
    uploads = {
        received: client_uploads(run, AttackSettings(received=received))
        for received in ("first", "heated", "last")
    }
    assert s.temperature > 0
    variance = 2 * uploads["heated"].plan.rate * s.temperature * s.clients / total
    assert uploads["heated"].noise == pytest.approx(variance**0.5)
    assert uploads["first"].noise == uploads["last"].noise == 0.0
    assert torch.equal(uploads["heated"].received, uploads["first"].received)
    assert not torch.equal(uploads["heated"].received, uploads["last"].received)


def test_uploads_are_of_images_that_the_attacker_sends(tmp_path: Path) -> None:
    """His own and the targets; training images, which may be many, only where they are his."""
    run = run_folder.read_run(trained(tmp_path / "run"))
    others = len(run.splits.auxiliary.y) + len(run.splits.test.y)
    held_out, trained_on = (
        client_uploads(run, AttackSettings.model_validate({"knowledge": knowledge}))
        for knowledge in ("held-out", "training-size")
    )
    assert len(held_out.book.y) == others
    assert len(trained_on.book.y) == others + sum(run.splits.client_sizes)
