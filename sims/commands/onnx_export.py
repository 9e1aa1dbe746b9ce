"""A run's encoder as an ONNX file, and its heads for ONNX Runtime."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clients.service import ServedModel
from clients.service.onnx_heads import LOG_PROBABILITIES_NAME, MESSAGES_NAME
from fedcel.errors import RunError, SettingsError, describe_unforeseen, shorten_text
from fedcel.files import write_whole
from fedcel.nets import SplitNet
from fedcel.runs import build_sent_net, run_folder
from sims.auditing.load_encoder import NOISE_OUTPUT, scale_sigma


def export_encoder(folder: Path, out: Path) -> str:
    """Write the encoder of a run: `images` (B, C, H, W) in [0, 1] to `z` (B, D).

    z is **before** the cut's noise: the file's metadata state the law (`fedcel.sigma`,
    `fedcel.dropout`) that the device has to draw from, afresh for each message and added in double
    precision. Where the noise is learned (`fedcel.noise-shape`), a second output `noise` (B, D) has
    its standard deviations, in the place of sigma.

    Raises:
        RunError: The run samples its encoder.
        SettingsError: The ONNX libraries are missing, or the net cannot be written.
    """
    run = run_folder.read_run(folder)
    if run.settings.chain.scope == "full" and run.settings.temperature > 0:
        raise RunError(
            f"chain.scope of {folder} is 'full': its samples are whole nets, and one encoder is "
            "exported; train with --set chain.scope=head"
        )
    net = build_sent_net(run)
    shape = run.splits.shape
    module = net.encoder if net.noise_shape == "one" else EncoderWithNoise(net)
    metadata = {
        "fedcel.sigma": repr(net.cut.sigma),
        "fedcel.dropout": repr(net.cut.dropout),
        "fedcel.noise-shape": net.noise_shape,
        "fedcel.net": run.settings.net.name,
        "fedcel.classes": str(run.splits.classes),
    }
    data = encode_model(convert_encoder(module.eval(), shape), metadata)
    write_whole(out, data)
    size = f"{len(data)} bytes, images {tuple(shape)} to z ({net.features})"
    noise = f"noise of sigma {net.cut.sigma:g} and dropout {net.cut.dropout:g}"
    if net.noise_shape != "one":
        noise = f"noise of the standard deviations in the output {NOISE_OUTPUT!r}"
    return f"encoder: {out}, {size}; add {noise} on the device: z itself hides nothing"


class EncoderWithNoise(torch.nn.Module):
    """An encoder that also says how much noise each feature gets."""

    def __init__(self, net: SplitNet) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Float[Tensor, "B C H W"]) -> tuple[Tensor, Tensor]:
        """Return z (B, D), and the standard deviations of its noise (B, D)."""
        z = self.net.encode(images)
        return z, scale_sigma(self.net, z)


class SampledHeads(torch.nn.Module):
    """All sampled heads side by side."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__()
        self.model = model
        for number, value in enumerate(model.heads.values()):
            self.register_buffer(f"head_{number}", value)

    def forward(self, messages: Float[Tensor, "B D"]) -> Float[Tensor, "S B C"]:
        """Return each head's log-probabilities of the same messages."""
        values = [getattr(self, f"head_{number}") for number in range(len(self.model.heads))]
        heads = dict(zip(self.model.heads, values, strict=True))
        return replace(self.model, heads=heads).compute_heads(messages)


def convert_heads(model: ServedModel) -> bytes:
    """Return all sampled heads as ONNX; SettingsError where that fails."""
    program = export_program(
        SampledHeads(model).eval(),
        torch.rand(2, model.net.features),
        [MESSAGES_NAME],
        [LOG_PROBABILITIES_NAME],
    )
    return encode_model(program, {})


def encode_model(model: Any, metadata: dict[str, str]) -> bytes:
    """Return a checked model as bytes, with metadata."""
    import onnx

    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def convert_encoder(encoder: torch.nn.Module, shape: tuple[int, ...]) -> Any:
    """Return an encoder as onnx.ModelProto, free in its batch; SettingsError where that fails."""
    outputs = ["z", NOISE_OUTPUT][: 1 + isinstance(encoder, EncoderWithNoise)]
    return export_program(encoder, torch.rand(2, *shape), ["images"], outputs)


def export_program(
    module: torch.nn.Module, example: Tensor, inputs: list[str], outputs: list[str]
) -> Any:
    """Return a module as onnx.ModelProto, free in its batch; SettingsError where that fails."""
    batch = {0: torch.export.Dim("batch")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        try:
            program = torch.onnx.export(
                module,
                (example,),
                dynamo=True,
                input_names=inputs,
                output_names=outputs,
                dynamic_shapes=(batch,),
                verbose=False,
            )
        except ImportError as error:
            raise SettingsError(
                f"exporting needs onnx and onnxscript: pip install 'fedcel[export]' ({error})"
            ) from None
        except Exception as error:  # the exporter's own, or what a user's layer raises
            reason = shorten_text(describe_unforeseen(error))
            raise SettingsError(f"this net cannot be written as ONNX: {reason}") from error
    assert program is not None
    return program.model_proto
