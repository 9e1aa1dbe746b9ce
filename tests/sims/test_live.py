"""The black-box attacker of a real service on a real socket: what he pays, what he keeps."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedcel import runs
from fedcel.errors import RunError, ServiceError, SettingsError
from fedcel.privacy.ledger import MICRO, Ledger
from fedcel.settings import parse
from fedcel.settings_groups import Attack
from sims.live import Place, attack
from sims.simulate import simulate
from tests.clients.serving import Running, made_run, running

QUICK = {"clients": 4, "rounds": 5, "local.steps": 5, "net.features": 8, "net.width": 16}
HOW = Attack(names="optimal,logit-inversion", seeds=2, budget=0.02, candidates=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small finished run."""
    path = tmp_path_factory.mktemp("live") / "run"
    simulate(parse({**QUICK, "cel.kind": "none"}), path)
    return path


@pytest.fixture
def up(folder: Path, tmp_path: Path) -> Iterator[Running]:
    """Serve it to a client that can pay 60 answers of epsilon 4."""
    with running(tmp_path, runs.read(folder), epsilon=240.0) as service:
        yield service


def test_the_attack_pays_each_image_once_and_stays_within_its_budget(
    up: Running, folder: Path
) -> None:
    """Half for targets, half for own images; two seeds ask nothing twice; rows are replaced."""
    for _ in range(2):
        rows = attack(folder, Place(up.url, up.key), HOW)
        with Ledger.open(up.ledger) as ledger:
            balance = ledger.balance("phone")
            assert balance.left == 0
            ledger.grant("phone", 240 * MICRO)
        assert [row["seed"] for row in rows] == [0, 1]
        for row in rows:
            assert (row["answers"], row["spent"], row["epsilon"]) == (60, 240.0, 4.0)
            assert row["targets"] == 30 and row["candidates"] == 20
            assert 0 <= float(str(row["accuracy"])) <= 1 and row["attack"] == "logit-inversion"
        assert json.loads((folder / "live.json").read_text()) == rows


def test_damage_is_named_before_anything_is_paid(up: Running, folder: Path) -> None:
    """Rows that could not be kept would have cost the budget all the same."""
    before = (folder / "live.json").read_text()
    (folder / "live.json").write_text("{}")
    with pytest.raises(RunError, match="damaged"):
        attack(folder, Place(up.url, up.key), HOW)
    (folder / "live.json").write_text(before)
    with Ledger.open(up.ledger) as ledger:
        assert ledger.balance("phone").spent == 0


def test_what_cannot_be_attacked_is_refused(up: Running, folder: Path, tmp_path: Path) -> None:
    """Another model, a wrong key, a budget for nothing."""
    with pytest.raises(ServiceError, match="401"):
        attack(folder, Place(up.url, up.key[:-1] + "x"), HOW)
    with pytest.raises(SettingsError, match="set FEDCEL_KEY"):
        attack(folder, Place(up.url, ""), HOW)
    with pytest.raises(ServiceError, match="nowhere.pem is no file"):
        attack(folder, Place(up.url, up.key, tmp_path / "nowhere.pem"), HOW)
    other = tmp_path / "other"
    other.mkdir()
    with (
        running(other, made_run(), epsilon=400.0) as wrong,
        pytest.raises(RunError, match="which is not"),
    ):
        attack(folder, Place(wrong.url, wrong.key), HOW)
    poor = tmp_path / "poor"
    poor.mkdir()
    with (
        running(poor, runs.read(folder), epsilon=76.0) as service,
        pytest.raises(SettingsError, match="can pay 19 answers, an attack needs 20"),
    ):
        attack(folder, Place(service.url, service.key), HOW)
