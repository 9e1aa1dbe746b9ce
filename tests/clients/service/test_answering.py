"""One batch: what is charged, what is drawn, what repeats get; and how batches come about."""

import asyncio
import json
import math
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from clients.service import Answered, PrivateAnswerer, Query, load_served, to_micro_epsilon
from clients.service.answering import Batcher, FullError
from clients.service.model import uncertainty_scores, uncertainty_sensitivity
from fedcel.posterior.predict import Prediction, apply_heads
from fedcel.privacy.ledger import MICRO, Ledger, Refusal
from tests.clients.serving import made_run

RUN = made_run()
MODEL = load_served(RUN)


@dataclass
class Clear:
    """Gives logits as they are, and remembers what the ledger on disk said when it was asked."""

    path: Path
    epsilon: float = 1.0
    name: str = "clear"
    delta: float = 0.0
    protects: str = "nothing"
    unit: Literal["logits", "probabilities"] = "logits"
    spent: list[int] = field(default_factory=list)

    def answer(self, logits: Tensor) -> Tensor:
        """Look at the ledger from outside, then answer."""
        with Ledger.open(self.path) as second:
            self.spent.append(second.balance("phone").spent)
        return logits + len(self.spent)  # each draw differs from the others


@pytest.fixture
def desk(tmp_path: Path) -> PrivateAnswerer:
    """A desk with two clients of 10 epsilon each, an answer for 1."""
    ledger = Ledger.open(tmp_path / "ledger.db")
    for client in ("phone", "other"):
        ledger.grant(client, 10 * MICRO)
    return PrivateAnswerer(MODEL, Clear(ledger.path), ledger, lambda *_: None)


def ask(name: str, value: float, client: str = "phone", uncertainty: bool = False) -> Query:
    """Return a question whose message holds one value."""
    return Query(client, name, np.full(8, value, "<f4").tobytes(), uncertainty)


def test_the_answer_is_the_average_over_all_heads(desk: PrivateAnswerer) -> None:
    """The batched product equals one head after the other."""
    messages = torch.rand(5, 8, generator=torch.Generator().manual_seed(0))
    one_by_one = Prediction(apply_heads(RUN.flat, RUN.samples, messages))
    torch.testing.assert_close(MODEL.predict(messages).log_samples, one_by_one.log_samples)
    queries = [
        Query("phone", f"request-{i}", m.numpy().tobytes(), False) for i, m in enumerate(messages)
    ]
    answers = [content(reply) for reply in desk.answer(queries)]
    values = torch.tensor([answer["values"] for answer in answers])
    torch.testing.assert_close(values, one_by_one.logits + 1)
    assert [answer["label"] for answer in answers] == values.argmax(1).tolist()


def content(reply: Answered | Refusal) -> dict[str, list[float]]:
    """Return an answer's content."""
    assert isinstance(reply, Answered)
    body: dict[str, list[float]] = json.loads(reply.body)
    return body


def test_the_charge_is_on_the_disk_before_noise_is_drawn(desk: PrivateAnswerer) -> None:
    """Another connection sees it from within the mechanism."""
    desk.answer([ask("request-1", 0.1), ask("request-2", 0.2)])
    assert isinstance(desk.mechanism, Clear)
    assert desk.mechanism.spent == [2 * MICRO]


def test_equal_messages_get_one_answer_and_pay_once(desk: PrivateAnswerer) -> None:
    """In one batch, in a later one, and under another id; for another client it is another."""
    first, same, foreign = desk.answer(
        [ask("request-1", 0.1), ask("request-2", 0.1), ask("request-1", 0.1, "other")]
    )
    (later,) = desk.answer([ask("request-3", 0.1)])
    assert content(first) == content(same) == content(later)
    fresh = [a.fresh for a in (first, same, later, foreign) if isinstance(a, Answered)]
    assert fresh == [True, False, False, True]
    assert desk.ledger.balance("phone").spent == MICRO
    assert desk.ledger.balance("other").spent == MICRO


def test_an_id_is_a_clients_own_and_means_one_message(desk: PrivateAnswerer) -> None:
    """Another message under it is refused in the same batch; another client may use it."""
    first, changed, foreign = desk.answer(
        [ask("request-1", 0.1), ask("request-1", 0.2), ask("request-1", 0.2, "other")]
    )
    assert isinstance(first, Answered) and isinstance(foreign, Answered)
    assert isinstance(changed, Refusal) and changed.reason == "replayed"


def test_nothing_is_drawn_beyond_the_budget(desk: PrivateAnswerer) -> None:
    """Ten answers for ten epsilon; the eleventh is refused, a repeat is still given."""
    replies = desk.answer([ask(f"request-{i}", i / 20) for i in range(11)])
    assert sum(isinstance(reply, Answered) for reply in replies) == 10
    last = replies[10]
    assert isinstance(last, Refusal) and last.reason == "budget" and last.remaining == 0
    (again,) = desk.answer([ask("request-x", 0.0)])
    assert content(again) == content(replies[0])
    (stranger,) = desk.answer([ask("request-1", 0.1, "stranger")])
    assert isinstance(stranger, Refusal) and stranger.reason == "unknown-client"


def test_uncertainty_has_a_price_and_noise_of_its_own(desk: PrivateAnswerer) -> None:
    """Twice the epsilon; the same message without it is another question."""
    (plain,) = desk.answer([ask("request-2", 0.1)])
    (sure,) = desk.answer([ask("request-1", 0.1, uncertainty=True)])
    assert set(content(sure)) - set(content(plain)) == {"entropy", "information"}
    assert desk.ledger.balance("phone").spent == 3 * MICRO


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


@given(st.floats(1e-6, 1e6))
def test_prices_are_rounded_up(epsilon: float) -> None:
    """Never less than what is lost, never a whole millionth more."""
    assert 0 <= to_micro_epsilon(epsilon) / MICRO - epsilon <= 1e-6 + 1e-12 * epsilon
    assert to_micro_epsilon(4.0) == 4 * MICRO


class Gate:
    """Work that waits until it may go on."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.batches: list[list[int]] = []

    def __call__(self, items: Sequence[int]) -> list[int]:
        """Return squares; 13 brings bad luck."""
        self.open.wait(5)
        self.batches.append(list(items))
        if 13 in items:
            raise ValueError("unlucky")
        return [item**2 for item in items]


def test_what_waits_is_answered_together_and_the_queue_is_bounded() -> None:
    """One at work, four wait, the sixth is told at once; then one batch of at most three."""

    async def scene() -> None:
        gate = Gate()
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(gate, thread, size=3, queue=4)
            first = asyncio.create_task(batcher.submit(0))
            await asyncio.sleep(0.05)
            waiting = [asyncio.create_task(batcher.submit(i)) for i in range(1, 5)]
            await asyncio.sleep(0.05)
            assert batcher.count_waiting() == 4
            with pytest.raises(FullError):
                await batcher.submit(5)
            gate.open.set()
            assert await asyncio.gather(first, *waiting) == [0, 1, 4, 9, 16]
            assert gate.batches == [[0], [1, 2, 3], [4]]
            await batcher.close()

    asyncio.run(scene())


def test_closing_answers_all_that_waits_and_takes_nothing_more() -> None:
    """The drain."""

    async def scene() -> None:
        gate = Gate()
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(gate, thread, size=2, queue=9)
            waiting = [asyncio.create_task(batcher.submit(i)) for i in range(5)]
            await asyncio.sleep(0.02)
            closing = asyncio.create_task(batcher.close())
            await asyncio.sleep(0.02)
            with pytest.raises(FullError):
                await batcher.submit(9)
            assert not closing.done()
            gate.open.set()
            await closing
            assert [await task for task in waiting] == [0, 1, 4, 9, 16]

    asyncio.run(scene())


def test_an_error_reaches_its_batch_and_the_loop_goes_on() -> None:
    """Also when an asker is gone before the answer."""

    async def scene() -> None:
        gate = Gate()
        with ThreadPoolExecutor(1) as thread:
            batcher = Batcher(gate, thread, size=8, queue=9)
            gone = asyncio.create_task(batcher.submit(2))
            await asyncio.sleep(0.02)
            gone.cancel()
            unlucky = asyncio.create_task(batcher.submit(13))
            gate.open.set()
            with pytest.raises(ValueError, match="unlucky"):
                await unlucky
            assert await batcher.submit(3) == 9
            await batcher.close()

    asyncio.run(scene())
