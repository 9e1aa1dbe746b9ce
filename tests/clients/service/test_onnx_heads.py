"""Heads in ONNX Runtime: the same service behind them."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from clients.service import load_served
from clients.service.onnx_heads import use_onnx_heads
from fedcel.errors import SettingsError
from sims.commands.onnx_export import convert_heads
from tests.clients.serving import made_run, running

MODEL = load_served(made_run())


@cache
def convert() -> bytes:
    """Return the model's heads as an ONNX file, which takes seconds."""
    return convert_heads(MODEL)


class Clear:
    """Gives logits as they are."""

    name, epsilon, delta, protects, unit = "clear", 1.0, 0.0, "nothing", "logits"

    def answer(self, logits: torch.Tensor) -> torch.Tensor:
        return logits


def test_the_service_answers_the_same_with_either_engine(tmp_path: Path) -> None:
    """Over HTTP, to 1e-5; the ledger knows both as one model version: the second asks for free."""
    bodies = []
    for name, model in (("torch", MODEL), ("onnx", use_onnx_heads(MODEL, convert()))):
        (tmp_path / name).mkdir()
        with running(tmp_path / name, mechanism=Clear(), model=model) as up:  # type: ignore[arg-type]
            bodies.append(up.ask(np.linspace(-1, 1, 8).astype("<f4").tobytes()).json())
    assert bodies[0]["values"] == pytest.approx(bodies[1]["values"], rel=1e-5, abs=1e-5)
    assert bodies[0]["left"] == bodies[1]["left"]


@pytest.mark.parametrize("many", [1, 7])
def test_heads_answer_any_number_of_messages_as_the_run_s(many: int) -> None:
    """All samples, to 1e-5."""
    messages = torch.rand(many, 8, generator=torch.Generator().manual_seed(0))
    served = use_onnx_heads(MODEL, convert())
    assert served.run_heads and served.version == MODEL.version
    expected = MODEL.predict(messages).log_samples
    torch.testing.assert_close(served.predict(messages).log_samples, expected, rtol=1e-5, atol=1e-5)


def test_heads_that_answer_otherwise_are_refused() -> None:
    """A thousandth is too much."""
    heads = {name: 1.001 * value for name, value in MODEL.heads.items()}
    with pytest.raises(SettingsError, match="answer otherwise"):
        use_onnx_heads(replace(MODEL, heads=heads), convert())
