"""Private answers over anybody's logits: paid once, remembered, refused."""

import json
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from clients.service import PrivateLayer, ProblemError
from clients.service.access import add_key, key_table_path
from clients.service.problems import ProblemKind
from fedcel.errors import SettingsError
from fedcel.privacy import LabelOnly, Laplace, fit_calibration
from fedcel.privacy.ledger import MICRO, Ledger

LOGITS = [0.0, 3.0, 1.0]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger in which `phone` may spend 12 epsilon."""
    path = tmp_path / "budget.db"
    with Ledger.open(path) as ledger:
        ledger.grant("phone", 12 * MICRO)
    return path


@pytest.fixture
def layer(path: Path) -> Iterator[PrivateLayer]:
    """Labels for 4 epsilon each."""
    with PrivateLayer(LabelOnly(4, 3), path, model="three-1") as layer:
        yield layer


def test_logits_of_any_kind_are_charged_and_perturbed(layer: PrivateLayer, path: Path) -> None:
    """A list, an array, a tensor; three answers for 12 epsilon, then what is left is told."""
    for number, logits in enumerate((LOGITS, np.array(LOGITS, "f4"), torch.tensor(LOGITS))):
        answer = layer.answer("phone", f"request-{number}", b"%d" % number, logits)
        body = json.loads(answer.to_json())
        assert sorted(body["values"]) == [0, 0, 4.0] and body["values"][body["label"]] == 4.0
        assert body["fresh"] and body["left"] == 8 - 4 * number
    with pytest.raises(ProblemError) as refused:
        layer.answer("phone", "request-4", b"4", LOGITS)
    assert (refused.value.kind, refused.value.remaining) == (ProblemKind.BUDGET, 0)
    with pytest.raises(ProblemError) as refused:
        layer.answer("unknown", "request-4", b"4", LOGITS)
    assert refused.value.kind is ProblemKind.UNKNOWN_CLIENT
    with Ledger.open(path) as ledger:
        assert ledger.balance("phone").spent == 12 * MICRO and ledger.verify() == []


def test_another_model_or_mechanism_is_another_answer(path: Path) -> None:
    """Weights by their name, the clip by its value: each is paid."""
    for mechanism, model in (
        (Laplace(4, 3, clip=1.0), "one"),
        (Laplace(4, 3, clip=2.0), "one"),
        (Laplace(4, 3, clip=1.0), "two"),
    ):
        with PrivateLayer(mechanism, path, model=model) as layer:
            assert layer.answer("phone", f"request-{layer.version}", b"same", LOGITS).is_fresh


def test_what_cannot_be_answered_costs_nothing(layer: PrivateLayer, path: Path) -> None:
    """Undefined logits; too few of them; no id."""
    with pytest.raises(ProblemError) as refused:
        layer.answer("phone", "request-1", b"1", [0.0, float("nan"), 1.0])
    assert refused.value.kind is ProblemKind.INVALID
    with pytest.raises(ValueError, match=r"are \(2,\), must be \(3,\)"):
        layer.answer("phone", "request-3", b"3", LOGITS[:2])
    with pytest.raises(ProblemError, match="Idempotency-Key"):
        layer.answer("phone", "no", b"3", LOGITS)
    with Ledger.open(path) as ledger:
        assert ledger.balance("phone").spent == 0


@dataclass(frozen=True)
class Slow:
    """Labels that take a while."""

    epsilon: float = 4.0
    name: str = "slow"
    delta: float = 0.0
    protects: str = "the input"
    unit: Literal["logits", "probabilities"] = "logits"

    def answer(self, logits: Tensor) -> Tensor:
        time.sleep(0.05)
        return LabelOnly(self.epsilon, logits.shape[1]).answer(logits)


def test_threads_pay_once_for_one_message(path: Path) -> None:
    """Eight of them ask the same while the first is at work."""
    with PrivateLayer(Slow(), path, model="m", classes=3) as layer, ThreadPoolExecutor(8) as pool:
        bodies = pool.map(
            lambda n: layer.answer("phone", f"request-{n}", b"same", LOGITS).body, range(8)
        )
        assert len({*bodies}) == 1
    with Ledger.open(path) as ledger:
        assert ledger.balance("phone").spent == 4 * MICRO


def ask_in_child(layer: PrivateLayer) -> None:
    """Ask with a layer that another process made; its connection stays as it is."""
    layer.answer("phone", "request-2", b"2", LOGITS)
    assert len(layer._inherited) == 1 and layer._opened is not layer._inherited[0]


def test_a_forked_process_opens_the_ledger_for_itself(layer: PrivateLayer, path: Path) -> None:
    """A connection that two processes share would damage the file."""
    layer.answer("phone", "request-1", b"1", LOGITS)
    process = multiprocessing.get_context("fork").Process(target=ask_in_child, args=(layer,))
    with layer._lock:  # another thread is at work when it forks
        process.start()
    process.join(20)
    assert process.exitcode == 0 and not layer._inherited
    layer.answer("phone", "request-3", b"3", LOGITS)
    with Ledger.open(path) as ledger:
        assert ledger.balance("phone").spent == 12 * MICRO and ledger.verify() == []


def test_keys_probabilities_and_what_is_refused_at_the_start(path: Path) -> None:
    """A key names its client; a calibration adds probabilities."""
    key = add_key(key_table_path(path), "phone", None, time.time())
    mechanism = LabelOnly(4, 3)
    with PrivateLayer(mechanism, path, model="m", calibration=fit_calibration(mechanism)) as layer:
        assert layer.authenticate(f"Bearer {key}") == "phone"
        with pytest.raises(ProblemError) as refused:
            layer.authenticate("Bearer no")
        assert (refused.value.status, refused.value.kind) == (401, ProblemKind.UNAUTHENTICATED)
        body = json.loads(layer.answer("phone", "request-1", b"1", LOGITS).to_json())
        assert sum(body["probabilities"]) == pytest.approx(1)
    with pytest.raises(ValueError, match="closed"):
        layer.answer("phone", "request-2", b"2", LOGITS)
    with pytest.raises(SettingsError, match="model has 0 characters"):
        PrivateLayer(mechanism, path, model="")
