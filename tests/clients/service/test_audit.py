"""The auditor's view: what many answers of the real service, over HTTP, tell of its epsilon."""

import asyncio
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from fedcel.privacy import Laplace, Mechanism
from fedcel.privacy.clip import clip_rows
from fedcel.privacy.empirical_bounds import epsilon_bound, measure_epsilon
from fedcel.privacy.protocol import PROTECTS
from fedcel.runs.run_folder import Run
from tests.bench import load
from tests.clients.serving import Running, made_run, running

EPSILON, ANSWERS, CONFIDENCE = 1.0, 2500, 1 - 1e-6
CONNECTIONS = 64
FEATURES, CLASSES = 8, 10


def extreme_run(mechanism: str) -> Run:
    """Return a run whose answer is decided by a message's first value alone, up to the clip."""
    run = made_run(1, **{"privacy.mechanism": mechanism, "privacy.epsilon": EPSILON})
    vector = run.model.clone()
    weight = torch.zeros(CLASSES, FEATURES)
    weight[0, 0] = 1.0
    vector[run.flat.device_size :] = torch.cat([weight.flatten(), torch.zeros(CLASSES)])
    return run._replace(model=vector, samples=[vector])


@dataclass
class Live:
    """The service as a mechanism: rows (v, ...) are messages that begin with v, each only once."""

    up: Running
    epsilon: float = EPSILON
    delta: float = 0.0
    name: str = "live"
    protects: str = PROTECTS
    unit: Literal["logits", "probabilities"] = "logits"
    numbers: Iterator[int] = field(default_factory=count)

    def answer(self, logits: Tensor) -> Tensor:
        rows = np.zeros((len(logits), FEATURES), "<f4")
        rows[:, 0] = logits[:, 0].numpy()
        # The last value tells nothing; it makes each message another one, paid and drawn anew.
        rows[:, -1] = [next(self.numbers) for _ in rows]
        return torch.tensor(asyncio.run(ask_all(self.up, rows)), dtype=torch.float64)


async def ask_all(up: Running, rows: np.ndarray) -> list[list[float]]:
    """Return the service's answers to all messages, over 64 connections."""
    host, port = up.url.removeprefix("http://").split(":")
    place = host, int(port)
    head = load.head_of(place, up.key, up.model.version, FEATURES)
    indices, answers = iter(range(len(rows))), [[math.nan]] * len(rows)

    async def connection() -> None:
        streams = await asyncio.open_connection(*place)
        for index in indices:
            name = f"audit-{rows[index, 0]:g}-{rows[index, -1]:g}"
            answer = json.loads(await load.asked(streams, head, name, rows[index].tobytes()))
            assert answer["fresh"]
            answers[index] = answer["values"]
        streams[1].close()

    await asyncio.gather(*(connection() for _ in range(CONNECTIONS)))
    return answers


def pair(first: float, second: float) -> Tensor:
    """Return two rows of logits for `Live`."""
    return torch.tensor([[first], [second]], dtype=torch.float64).expand(2, CLASSES)


@dataclass(frozen=True)
class FloatingPoint:
    """Textbook noise: a double drawn by the inverse distribution function, added to a double."""

    honest: Laplace
    epsilon: float = EPSILON
    delta: float = 0.0
    name: str = "floating-point"
    protects: str = PROTECTS
    unit: Literal["logits", "probabilities"] = "logits"

    def answer(self, logits: Tensor) -> Tensor:
        """Return rows plus Laplace noise of the right scale."""
        honest = self.honest
        rows = clip_rows(logits, honest.clip_kind, honest.clip)
        scale = honest.sensitivity / honest.epsilon
        return rows + torch.distributions.Laplace(torch.zeros_like(rows), scale).sample()


def fine(rows: Tensor) -> Tensor:
    """Say of which rows the first value is near 0 and no sum with a number near a half."""
    first = rows[:, 0]
    return (first.abs() < 0.25) & torch.ne((first * 2.0**54).round(), first * 2.0**54)


def from_low_bits(live: Live) -> float:
    """Return a lower bound on epsilon from the low bits of answers to 0 and to a half."""
    nothing, half = (live.answer(row.expand(ANSWERS, -1)) for row in pair(0.0, 1e3))
    return epsilon_bound(fine(nothing), fine(half), 0.0, CONFIDENCE)


@pytest.mark.parametrize(
    "mechanism", ["discrete-laplace", pytest.param("laplace", marks=pytest.mark.long)]
)
def test_no_more_is_measured_than_is_claimed(tmp_path: Path, mechanism: str) -> None:
    """Inputs as far apart as the clip lets them be; and the low bits tell nothing."""
    with running(tmp_path, extreme_run(mechanism)) as up:
        live = Live(up)
        epsilon = measure_epsilon(live, pair(1e3, -1e3), ANSWERS, CONFIDENCE)
        assert 0.3 < epsilon <= EPSILON
        assert from_low_bits(live) <= EPSILON


def test_half_the_noise_is_caught(tmp_path: Path) -> None:
    """The service claims 1 and adds the noise of 2."""
    run = extreme_run("laplace")
    honest = run.settings.privacy.build(CLASSES)
    assert isinstance(honest, Laplace)
    unsound: Mechanism = replace(
        honest, disturb=lambda rows, epsilon, bound: honest.disturb(rows, 2 * epsilon, bound)
    )
    with running(tmp_path, run, mechanism=unsound) as up:
        assert measure_epsilon(Live(up), pair(1e3, -1e3), ANSWERS, CONFIDENCE) > EPSILON


def test_a_floating_point_sampler_is_caught(tmp_path: Path) -> None:
    """Its noise has the right law, and its low bits tell the input (Mironov, CCS 2012)."""
    run = extreme_run("laplace")
    honest = run.settings.privacy.build(CLASSES)
    assert isinstance(honest, Laplace)
    with running(tmp_path, run, mechanism=FloatingPoint(honest)) as up:
        live = Live(up)
        assert from_low_bits(live) > EPSILON
