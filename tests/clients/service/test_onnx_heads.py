"""Heads in ONNX Runtime: the same service behind them; files of others are refused."""

from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

from clients.service import ServedModel, load_served
from clients.service.onnx_heads import OnnxHeads, use_onnx_heads
from fedcel.errors import SettingsError
from fedcel.nets import SplitNet
from sims.commands.onnx_export import convert_encoder, convert_heads
from tests.clients.serving import made_run, running

MODEL = load_served(made_run())
DATA = convert_heads(MODEL)


class Clear:
    """Gives logits as they are."""

    name, epsilon, delta, protects, unit = "clear", 1.0, 0.0, "nothing", "logits"

    def answer(self, logits: torch.Tensor) -> torch.Tensor:
        """Return them."""
        return logits


def test_the_service_answers_the_same_with_either_engine(tmp_path: Path) -> None:
    """Over HTTP, to 1e-5; the ledger knows both as one model version: the second asks for free."""
    bodies = []
    for name, model in (("torch", MODEL), ("onnx", use_onnx_heads(MODEL, DATA))):
        (tmp_path / name).mkdir()
        with running(tmp_path / name, mechanism=Clear(), model=model) as up:  # type: ignore[arg-type]
            bodies.append(
                httpx.post(
                    f"{up.url}/v1/query",
                    content=np.linspace(-1, 1, 8).astype("<f4").tobytes(),
                    headers={
                        "authorization": f"Bearer {up.key}",
                        "content-type": "application/octet-stream",
                        "idempotency-key": "request-1",
                        "model-version": MODEL.version,
                    },
                ).json()
            )
    assert bodies[0]["values"] == pytest.approx(bodies[1]["values"], rel=1e-5, abs=1e-5)
    assert bodies[0]["left"] == bodies[1]["left"]


def test_heads_of_another_model_are_refused() -> None:
    """By the version that the file states, and by what it answers."""
    other = load_served(made_run(**{"net.seed": 1}))
    with pytest.raises(SettingsError, match=f"heads of model {MODEL.version}, served is"):
        use_onnx_heads(other, DATA)
    heads = {name: 1.001 * value for name, value in MODEL.heads.items()}
    with pytest.raises(SettingsError, match="answer otherwise"):
        use_onnx_heads(forge_version(heads), DATA)


def forge_version(heads: dict[str, torch.Tensor]) -> ServedModel:
    """Return a model with other heads under the same version."""
    forged = replace(MODEL, heads=heads)
    vars(forged)["version"] = MODEL.version
    return forged


def test_what_is_no_head_is_refused() -> None:
    """Other bytes, and an encoder."""
    with pytest.raises(SettingsError, match="cannot be read as ONNX"):
        OnnxHeads(b"no")
    net: SplitNet = MODEL.net
    encoder = convert_encoder(net.encoder, MODEL.shape).SerializeToString()
    with pytest.raises(SettingsError, match=r"goes from \['images'\] to \['z'\]"):
        OnnxHeads(encoder)
