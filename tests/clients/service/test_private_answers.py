"""One batch: what is charged, what is drawn, what repeats get."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from clients.service import PrivateAnswer, PrivateAnswerer, Query, load_served
from clients.service.private_answers import uncertainty_scores, uncertainty_sensitivity
from fedcel.errors import LedgerError
from fedcel.nets import NetSettings
from fedcel.posterior.predict import Prediction, apply_heads
from fedcel.privacy.ledger import MICRO, Ledger, Refusal
from fedcel.settings import PrivacySettings
from fedcel.tensors import Array, match_kind, to_tensor
from tests.clients.serving import made_run

RUN = made_run()
MODEL = load_served(RUN)


@dataclass
class Clear:
    """Gives logits as they are, each time by one more."""

    epsilon: float = 1.0
    name: str = "clear"
    delta: float = 0.0
    protects: str = "nothing"
    unit: Literal["logits", "probabilities"] = "logits"
    draws: list[int] = field(default_factory=list)
    """How many rows each call had."""

    def answer(self, logits: Tensor) -> Tensor:
        """Return the logits and the number of the call: each draw differs from the others."""
        self.draws.append(len(logits))
        return logits + len(self.draws)


class Backwards:
    """Takes the smallest value for the most probable class."""

    def probabilities(self, answers: Array) -> Array:
        return match_kind(to_tensor(answers, "answers").neg().softmax(1), answers)


@pytest.fixture
def answerer(tmp_path: Path) -> PrivateAnswerer:
    """An answerer with two clients of 10 epsilon each, an answer for 1."""
    ledger = Ledger.open(tmp_path / "ledger.db")
    for client in ("phone", "other"):
        ledger.grant(client, 10 * MICRO)
    return PrivateAnswerer(MODEL, Clear(), ledger)


def ask(name: str, value: float, client: str = "phone", uncertainty: bool = False) -> Query:
    """Return a question whose message holds one value."""
    return Query(client, name, np.full(8, value, "<f4").tobytes(), wants_uncertainty=uncertainty)


def test_the_answer_is_the_average_over_all_heads(answerer: PrivateAnswerer) -> None:
    """The batched product equals one head after the other."""
    messages = torch.rand(5, 8, generator=torch.Generator().manual_seed(0))
    one_by_one = Prediction(apply_heads(RUN.flat, RUN.samples, messages))
    torch.testing.assert_close(MODEL.predict(messages).log_samples, one_by_one.log_samples)
    queries = [
        Query("phone", f"request-{i}", m.numpy().tobytes(), wants_uncertainty=False)
        for i, m in enumerate(messages)
    ]
    answers = [content(reply) for reply in answerer.answer(queries)]
    values = torch.tensor([answer["values"] for answer in answers])
    torch.testing.assert_close(values, one_by_one.logits + 1)
    assert [answer["label"] for answer in answers] == values.argmax(1).tolist()


class Angles(nn.Linear):
    """A linear layer by name: a classifier by the angle to each weight."""

    def forward(self, z: Tensor) -> Tensor:
        angles = nn.functional.normalize(z, dim=1) @ nn.functional.normalize(self.weight, dim=1).T
        return angles + self.bias


def angle_net(
    shape: tuple[int, ...], classes: int, net: NetSettings
) -> tuple[nn.Module, nn.Module]:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, net.features)), Angles(net.features, classes)


def plain_net(
    shape: tuple[int, ...], classes: int, net: NetSettings
) -> tuple[nn.Module, nn.Module]:
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, net.features))
    return encoder, nn.Linear(net.features, classes, bias=False)


@pytest.mark.parametrize("make", [angle_net, plain_net])
def test_heads_of_own_nets_answer_as_they_do(
    make: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subclass of a linear layer, and one without bias, are no product with a bias."""
    run = made_run(**{"net.name": f"{__name__}:{make.__name__}", "net.width": 64})
    messages = torch.rand(5, 8, generator=torch.Generator().manual_seed(0))
    one_by_one = Prediction(apply_heads(run.flat, run.samples, messages))
    served = load_served(run).predict(messages)
    torch.testing.assert_close(served.log_samples, one_by_one.log_samples)


def content(reply: PrivateAnswer | Refusal) -> dict[str, list[float]]:
    assert isinstance(reply, PrivateAnswer)
    body: dict[str, list[float]] = json.loads(reply.body)
    return body


def test_charge_and_answer_are_on_the_disk_before_the_answer_is_told(
    answerer: PrivateAnswerer,
) -> None:
    """What another connection reads; where the commit fails, nothing is told or kept."""
    (first,) = answerer.answer([ask("request-1", 0.1)])
    with Ledger.open(answerer.ledger.address) as second:
        (again,) = replace(answerer, ledger=second).answer([ask("request-1", 0.1)])
        assert content(again) == content(first)
        answerer.ledger.db.execute("PRAGMA query_only = ON")
        with pytest.raises(LedgerError, match="read-only"):
            answerer.answer([ask("request-1", 0.1), ask("request-2", 0.2)])
        assert second.balance("phone").spent == MICRO
        assert second.rows()[-1].entry.kind == "charge"


def test_probabilities_follow_from_what_is_stored(answerer: PrivateAnswerer) -> None:
    """Of a first answer and its repeat alike, also of one stored before there were any.

    They are not stored: another calibration reads the same values, and nothing is paid.
    """
    (old,) = answerer.answer([ask("request-1", 0.1)])
    assert "probabilities" not in content(old)
    new = replace(answerer, calibration=Backwards())
    repeat, first, same = new.answer(
        [ask("request-2", 0.1), ask("request-3", 0.3), ask("request-4", 0.3)]
    )
    for reply in (repeat, first, same):
        body = content(reply)
        expected = torch.tensor(body["values"], dtype=torch.float64).neg().softmax(0)
        assert body["probabilities"] == pytest.approx(expected.tolist(), abs=1e-6)
        assert body["label"] == int(expected.argmax()) != int(np.argmax(body["values"]))
    assert content(repeat)["values"] == content(old)["values"]
    assert content(first) == content(same)
    assert answerer.ledger.balance("phone").spent == 2 * MICRO


def test_uncertainty_has_a_price_and_noise_of_its_own(answerer: PrivateAnswerer) -> None:
    """Twice the epsilon; the same message without it is another question."""
    (plain,) = answerer.answer([ask("request-2", 0.1)])
    (sure,) = answerer.answer([ask("request-1", 0.1, uncertainty=True)])
    assert set(content(sure)) - set(content(plain)) == {"entropy", "information"}
    assert answerer.ledger.balance("phone").spent == 3 * MICRO


@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(2, 12))
def test_doubts_lie_within_their_sensitivity(seed: int, samples: int, classes: int) -> None:
    """Entropy and BALD in [0, log C], however sure the samples are."""
    stream = torch.Generator().manual_seed(seed)
    logits = 100 * torch.randn(samples, 6, classes, generator=stream)
    scores = uncertainty_scores(Prediction(logits.log_softmax(2)))
    assert ((scores >= 0) & (scores <= math.log(classes))).all()
    widest = torch.cdist(scores, scores, p=1.0).max()
    assert widest <= uncertainty_sensitivity(classes)


def test_uniform_samples_have_all_the_entropy_and_no_information() -> None:
    """Agreeing on nothing known; disagreeing corners: both log 2."""
    uniform = Prediction(torch.zeros(2, 1, 4).log_softmax(2))
    torch.testing.assert_close(
        uncertainty_scores(uniform), torch.tensor([[math.log(4), 0.0]]).double()
    )
    corners = torch.tensor([[[0.0, -200.0]], [[-200.0, 0.0]]])
    scores = uncertainty_scores(Prediction(corners.log_softmax(2)))
    torch.testing.assert_close(scores, torch.full((1, 2), math.log(2)).double())


def test_the_digest_of_a_question_stays_as_it_is(answerer: PrivateAnswerer) -> None:
    """With another one every stored answer would be unknown, and each repeat paid again."""
    privacy = PrivacySettings.model_validate(
        {
            "mechanism": "laplace",
            "epsilon": 4.0,
            "budget": 100.0,
            "clip": 1.0,
            "clip-kind": "l1",
        }
    )
    changed = replace(answerer, model=replace(MODEL, privacy=privacy))
    queries = [ask("request-1", 0.1), ask("request-1", 0.1, uncertainty=True)]
    digests = [changed.digest(query).hex() for query in queries]
    assert digests == [
        "8fddb8a5a0adea590a8df1cfa6a51bd2bd8a2599b05cf222a51f5dd1df5d4b13",
        "9073b7cdda3c6c1a2bb3698f3a96380e70723b559d18694621602ca5b4cc4d72",
    ]
