"""Sampled heads in ONNX Runtime: the same answers as in torch, in a fraction of the time."""

from dataclasses import replace
from typing import Any, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from clients.service.private_answers import ServedModel
from fedcel.errors import SettingsError
from fedcel.extras import import_optional

Engine = Literal["torch", "onnx"]
MESSAGES_NAME = "messages"
LOG_PROBABILITIES_NAME = "log_probabilities"
TOLERANCE = 1e-5
"""Largest difference from torch, of a log-probability or as a share of it."""
CHECKED_MESSAGES = 64


@final
class OnnxHeads:
    """All sampled heads of a model, in one session.

    `data` is an ONNX model from `messages` (B, D) to `log_probabilities` (S, B, C).
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        runtime = import_optional("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # batches are small
        self._session: Any = runtime.InferenceSession(
            data, options, providers=["CPUExecutionProvider"]
        )

    def __reduce__(self) -> tuple[type["OnnxHeads"], tuple[bytes]]:
        """Copy it into another process, which reads the bytes itself."""
        return OnnxHeads, (self._data,)

    def __call__(self, messages: Float[Tensor, "B D"]) -> Float[Tensor, "S B C"]:
        """Return each head's log-probabilities of the same messages."""
        (values,) = self._session.run(None, {MESSAGES_NAME: messages.numpy()})
        return torch.from_numpy(values)


def use_onnx_heads(model: ServedModel, data: bytes) -> ServedModel:
    """Return the same version with its heads in ONNX Runtime, which were compared to torch's.

    SettingsError where they answer otherwise; MissingExtraError where ONNX Runtime is missing.
    """
    heads = OnnxHeads(data)
    stream = torch.Generator().manual_seed(0)
    messages = torch.randn(CHECKED_MESSAGES, model.net.features, generator=stream)
    expected, computed = model.predict(messages).log_samples, heads(messages)
    if computed.shape != expected.shape or not torch.allclose(
        computed, expected, rtol=TOLERANCE, atol=TOLERANCE
    ):
        raise SettingsError(
            f"the heads in ONNX answer otherwise than those of the run (beyond {TOLERANCE:g}); "
            "serve with --engine torch"
        )
    return replace(model, run_heads=heads)
