"""Sampled heads in ONNX Runtime: the same answers as in torch, in a fraction of the time."""

from dataclasses import replace
from typing import Any, Literal, final

import torch
from jaxtyping import Float
from torch import Tensor

from clients.service.model import ServedModel
from fedcel.errors import SettingsError
from fedcel.extras import import_optional

Engine = Literal["torch", "onnx"]
MESSAGES_NAME = "messages"
LOG_PROBABILITIES_NAME = "log_probabilities"
VERSION_KEY = "fedcel.model"
"""Where the file says which model version's heads it holds."""
TOLERANCE = 1e-5
"""Largest difference from torch, of a log-probability or as a share of it."""
CHECKED_MESSAGES = 64


@final
class OnnxHeads:
    """All sampled heads of a model, in one session.

    `data` is an ONNX model from `messages` (B, D) to `log_probabilities` (S, B, C), as
    `fedcel export --head` writes it; SettingsError where it is none, MissingExtraError where ONNX
    Runtime is missing.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        runtime = import_optional("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1  # batches are small
        try:
            self._session: Any = runtime.InferenceSession(
                data, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's errors have no common class
            raise SettingsError(f"the heads cannot be read as ONNX: {error}") from error
        names = (
            [part.name for part in self._session.get_inputs()],
            [part.name for part in self._session.get_outputs()],
        )
        if names != ([MESSAGES_NAME], [LOG_PROBABILITIES_NAME]):
            raise SettingsError(
                f"the ONNX file goes from {names[0]} to {names[1]}, must go from "
                f"{MESSAGES_NAME!r} to {LOG_PROBABILITIES_NAME!r}; write it with "
                "`fedcel export RUN --head --out FILE`"
            )

    def __reduce__(self) -> tuple[type["OnnxHeads"], tuple[bytes]]:
        """Copy it into another process, which reads the file's bytes anew."""
        return OnnxHeads, (self._data,)

    @property
    def version(self) -> str | None:
        """Return the model version that the file states."""
        stated: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        return stated.get(VERSION_KEY)

    def __call__(self, messages: Float[Tensor, "B D"]) -> Float[Tensor, "S B C"]:
        """Return each head's log-probabilities of the same messages."""
        (values,) = self._session.run(None, {MESSAGES_NAME: messages.numpy()})
        return torch.from_numpy(values)


def use_onnx_heads(model: ServedModel, data: bytes) -> ServedModel:
    """Return the same version with heads in ONNX Runtime, which were compared to torch's.

    Args:
        model: The served model.
        data: Its heads as ONNX.

    Raises:
        SettingsError: The file holds the heads of another version, or answers otherwise.
        MissingExtraError: ONNX Runtime is missing.
    """
    heads = OnnxHeads(data)
    if heads.version != model.version:
        raise SettingsError(
            f"the ONNX file holds heads of model {heads.version}, served is {model.version}; write "
            "it anew with `fedcel export RUN --head --out FILE`"
        )
    stream = torch.Generator().manual_seed(0)
    messages = torch.randn(CHECKED_MESSAGES, model.net.features, generator=stream)
    expected = model.predict(messages).log_samples
    try:
        computed = heads(messages)
    except Exception as error:
        raise SettingsError(f"the heads in ONNX do not take messages: {error}") from error
    if computed.shape != expected.shape or not torch.allclose(
        computed, expected, rtol=TOLERANCE, atol=TOLERANCE
    ):
        raise SettingsError(
            f"the heads in ONNX answer otherwise than those of the run (beyond {TOLERANCE:g}); "
            "write them anew with `fedcel export RUN --head --out FILE`, or serve with "
            "--engine torch"
        )
    return replace(model, run_heads=heads)
