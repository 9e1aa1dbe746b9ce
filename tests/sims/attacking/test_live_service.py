"""The black-box attacker of a real service on a real socket: what he pays, what he keeps."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedcel.attacks import OtherClasses
from fedcel.errors import RunError, ServiceError, SettingsError
from fedcel.privacy.ledger import MICRO, Ledger
from fedcel.runs import run_folder
from fedcel.settings import AttackSettings, Scalar, parse_settings
from sims.attacking.live_service import ServiceAddress, attack_service, split_budget
from sims.engines.simulate import simulate
from tests.clients.serving import Running, made_run, running

QUICK: dict[str, Scalar] = {
    "engine": "local",
    "clients": 4,
    "rounds": 5,
    "local.steps": 5,
    "net.features": 8,
    "net.width": 16,
    "cel.kind": "none",
}
HOW = AttackSettings(names="optimal,logit-inversion", seeds=2, budget=0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a small finished run."""
    path = tmp_path_factory.mktemp("live") / "run"
    simulate(parse_settings(QUICK), path)
    return path


@pytest.fixture
def up(folder: Path, tmp_path: Path) -> Iterator[Running]:
    """Serve it to a client that can pay 60 answers of epsilon 4."""
    with running(tmp_path, run_folder.read_run(folder), epsilon=240.0) as service:
        yield service


def test_the_attack_pays_each_image_once_and_stays_within_its_budget(
    up: Running, folder: Path
) -> None:
    """Half for targets, half for own images; two seeds ask nothing twice; rows are replaced."""
    for _ in range(2):
        new = attack_service(folder, ServiceAddress(up.url, up.key), HOW)
        rows = [row.to_json() for row in new]
        with Ledger.open(up.ledger) as ledger:
            balance = ledger.balance("phone")
            assert balance.remaining == 0
            ledger.grant("phone", 240 * MICRO)
        assert [row["seed"] for row in rows] == [0, 1]
        for row in rows:
            assert (row["answers"], row["spent"], row["epsilon"]) == (60, 240.0, 4.0)
            assert row["targets"] == 30 and row["candidates"] == 30
            assert 0 <= float(str(row["accuracy"])) <= 1 and row["attack"] == "logit-inversion"
        assert json.loads((folder / "live.json").read_text()) == rows


def test_own_images_of_other_classes_measure_no_label_accuracy(tmp_path: Path) -> None:
    """As elsewhere: a classifier of other classes says nothing about the targets'."""
    folder = tmp_path / "run"
    simulate(parse_settings(QUICK | {"data.held-out-classes": 3, "rounds": 1}), folder)
    run = run_folder.read_run(folder)
    targets, own = split_budget(run, HOW, 60)
    assert isinstance(own, OtherClasses) and len(own.y) == len(targets.y) == 30
    with paying(tmp_path / "service", folder, 40) as service:
        (row,) = attack_service(
            folder, ServiceAddress(service.url, service.key), HOW.model_copy(update={"seeds": 1})
        )
    assert row.label_accuracy is None and row.mse is not None


@contextmanager
def paying(folder: Path, run: Path, answers: int) -> Iterator[Running]:
    """Serve a run to a client that can pay so many answers of epsilon 4."""
    folder.mkdir()
    with running(folder, run_folder.read_run(run), epsilon=4.0 * answers) as service:
        yield service


def spent(service: Running) -> float:
    """Return what the client paid, in epsilon."""
    with Ledger.open(service.ledger) as ledger:
        return ledger.balance("phone").spent / MICRO


def test_a_repeated_question_is_refused_before_anything_is_paid(
    folder: Path, tmp_path: Path
) -> None:
    """The service would answer it from memory."""
    with paying(tmp_path / "service", folder, 120) as service:
        many = HOW.model_copy(update={"names": "logit-inversion*2"})
        with pytest.raises(SettingsError, match=r"logit-inversion\*2: a service .* from memory"):
            attack_service(folder, ServiceAddress(service.url, service.key), many)
        assert spent(service) == 0


def test_attacks_on_messages_alone_are_refused_before_anything_is_paid(
    up: Running, folder: Path
) -> None:
    """Those of the default: none of them learns from answers."""
    before = spent(up)
    with pytest.raises(SettingsError, match="kernel-ridge: none of them attacks answers; add"):
        attack_service(folder, ServiceAddress(up.url, up.key), AttackSettings())
    assert spent(up) == before


def test_damage_is_named_before_anything_is_paid(up: Running, folder: Path) -> None:
    """Rows that could not be kept would have cost the budget all the same."""
    before = (folder / "live.json").read_text()
    (folder / "live.json").write_text("{}")
    with pytest.raises(RunError, match="damaged"):
        attack_service(folder, ServiceAddress(up.url, up.key), HOW)
    (folder / "live.json").write_text(before)
    with Ledger.open(up.ledger) as ledger:
        assert ledger.balance("phone").spent == 0


def test_what_cannot_be_attacked_is_refused(up: Running, folder: Path, tmp_path: Path) -> None:
    """Another model, a wrong key, a budget for nothing."""
    with pytest.raises(ServiceError, match="401"):
        attack_service(folder, ServiceAddress(up.url, up.key[:-1] + "x"), HOW)
    with pytest.raises(SettingsError, match="set FEDCEL_KEY"):
        attack_service(folder, ServiceAddress(up.url, ""), HOW)
    with pytest.raises(ServiceError, match="nowhere.pem is no file"):
        attack_service(folder, ServiceAddress(up.url, up.key, tmp_path / "nowhere.pem"), HOW)
    other = tmp_path / "other"
    other.mkdir()
    with (
        running(other, made_run(), epsilon=400.0) as wrong,
        pytest.raises(RunError, match="which is not"),
    ):
        attack_service(folder, ServiceAddress(wrong.url, wrong.key), HOW)
    poor = tmp_path / "poor"
    poor.mkdir()
    with (
        running(poor, run_folder.read_run(folder), epsilon=76.0) as service,
        pytest.raises(SettingsError, match="can pay 19 answers, an attack needs 20"),
    ):
        attack_service(folder, ServiceAddress(service.url, service.key), HOW)
