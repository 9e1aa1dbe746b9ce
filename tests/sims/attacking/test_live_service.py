"""The black-box attacker of a real service on a real socket: what he pays, what he keeps."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedcel.errors import RunError, ServiceError, SettingsError
from fedcel.privacy.ledger import MICRO, Ledger
from fedcel.runs import run_folder
from fedcel.settings import AttackSettings, Scalar, parse_settings
from sims.attacking.live_service import ServiceAddress, attack_service
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
SEARCH = AttackSettings(names="blackbox-search", seeds=1, budget=0.1, targets=2)


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


@contextmanager
def paying(folder: Path, run: Path, answers: int) -> Iterator[Running]:
    """Serve a run to a client that can pay so many answers of epsilon 4."""
    folder.mkdir()
    with running(folder, run_folder.read_run(run), epsilon=4.0 * answers) as service:
        yield service


def attacked(folder: Path, service: Running, how: AttackSettings) -> list[dict[str, Any]]:
    """Return what an attack added to live.json."""
    new = attack_service(folder, ServiceAddress(service.url, service.key), how)
    rows = [row.to_json() for row in new]
    return [row for row in json.loads((folder / "live.json").read_text()) if row in rows]


def spent(service: Running) -> float:
    """Return what the client paid, in epsilon."""
    with Ledger.open(service.ledger) as ledger:
        return ledger.balance("phone").spent / MICRO


def test_the_search_has_the_queries_that_the_budget_allows(folder: Path, tmp_path: Path) -> None:
    """Half of 208 for each seed: 2 * 13 probes once, 3 rounds of 12 for 2 targets each time."""
    with paying(tmp_path / "service", folder, 210) as service:
        rows = attacked(folder, service, SEARCH.model_copy(update={"seeds": 2}))
        assert [(row["seed"], row["queries"]) for row in rows] == [(0, 26 + 72), (1, 72)]
        for row in rows:
            assert (row["targets"], row["answers"]) == (2, 2 + 26 + 2 * 72)
            assert row["spent"] == spent(service) == 4 * row["answers"] <= 4 * 210
            assert row["attack"] == "blackbox-search" and 0 < row["mse"] < 1


def test_beside_another_attack_the_search_has_half_of_the_rest(
    folder: Path, tmp_path: Path
) -> None:
    """Of 120: one target, 59 own images, 7 of them nudged, 3 rounds of 12."""
    both = {"names": "blackbox-search,logit-inversion", "targets": 1}
    with paying(tmp_path / "service", folder, 120) as service:
        rows = attacked(folder, service, SEARCH.model_copy(update=both))
        assert [(row["attack"], row["queries"]) for row in rows] == [
            ("blackbox-search", 2 * 7 + 36),
            ("logit-inversion", 59 - 7),
        ]
        assert rows[0]["answers"] == 1 + 2 * 7 + 36 + 59 - 7 <= 120
        assert spent(service) == 4 * rows[0]["answers"]


def test_a_repeated_question_is_refused_before_anything_is_paid(
    folder: Path, tmp_path: Path
) -> None:
    """The service would answer it from memory."""
    with paying(tmp_path / "service", folder, 120) as service:
        many = SEARCH.model_copy(update={"names": "blackbox-search*2"})
        with pytest.raises(SettingsError, match=r"blackbox-search\*2: a service .* from memory"):
            attacked(folder, service, many)
        assert spent(service) == 0


def test_a_budget_that_ends_early_ends_the_search(folder: Path, tmp_path: Path) -> None:
    """Others may have spent on the model: the row has what was found, and the queries it had."""
    paid = 2 + 26 + 24 + 10  # targets, probes, a round, a part of the second of three
    with paying(tmp_path / "service", folder, 110) as service:
        with Ledger.open(service.ledger) as ledger:
            ledger.limit(service.model.version, 4 * paid * MICRO)
        (row,) = attacked(folder, service, SEARCH)
        assert (row["queries"], row["answers"], row["spent"]) == (paid - 2, paid, 4 * paid)
        assert spent(service) == 4 * paid


def test_a_search_without_queries_is_refused_before_anything_is_paid(
    folder: Path, tmp_path: Path
) -> None:
    """Of 110 answers two targets leave 54 for each, three would leave 35."""
    three = SEARCH.model_copy(update={"targets": 3})
    with paying(tmp_path / "service", folder, 110) as service:
        with pytest.raises(SettingsError, match=r"35 queries .* at least 50: lower attack.targets"):
            attack_service(folder, ServiceAddress(service.url, service.key), three)
        assert spent(service) == 0


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
