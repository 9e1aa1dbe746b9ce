"""A run's encoder as an ONNX file, for devices without torch."""

import warnings
from pathlib import Path
from typing import Any

import torch

from fedcel.errors import RunError, SettingsError
from fedcel.files import write_whole
from fedcel.posterior import build_device_net
from fedcel.runs import posterior_samples, run_folder

LIBRARIES = "onnx", "onnxscript"


def export_encoder(folder: Path, out: Path) -> str:
    """Write the encoder of a run: `images` (B, C, H, W) in [0, 1] to `z` (B, D); say what is in it.

    z is **before** the cut's noise: the file's metadata state the law (`fedcel.sigma`,
    `fedcel.dropout`) that the device has to draw from, afresh for each message and added in double
    precision.

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
    net = build_device_net(run.flat, posterior_samples(run), run.settings.chain.scope)
    shape = run.splits.shape
    model = convert_encoder(net.encoder.eval(), shape)
    metadata = {
        "fedcel.sigma": repr(net.cut.sigma),
        "fedcel.dropout": repr(net.cut.dropout),
        "fedcel.net": run.settings.net.name,
        "fedcel.classes": str(run.splits.classes),
    }
    import onnx

    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model)
    data = model.SerializeToString()
    write_whole(out, data)
    size = f"{len(data)} bytes, images {tuple(shape)} to z ({net.features})"
    noise = f"noise of sigma {net.cut.sigma:g} and dropout {net.cut.dropout:g}"
    return f"encoder: {out}, {size}; add {noise} on the device: z itself hides nothing"


def convert_encoder(encoder: torch.nn.Module, shape: tuple[int, ...]) -> Any:
    """Return an encoder as onnx.ModelProto, free in its batch; SettingsError where that fails."""
    batch = {0: torch.export.Dim("batch")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
        try:
            program = torch.onnx.export(
                encoder,
                (torch.rand(2, *shape),),
                dynamo=True,
                input_names=["images"],
                output_names=["z"],
                dynamic_shapes=(batch,),
                verbose=False,
            )
        except ImportError as error:
            raise SettingsError(
                f"exporting needs {' and '.join(LIBRARIES)}: pip install 'fedcel[export]' ({error})"
            ) from None
        except torch.onnx.errors.OnnxExporterError as error:
            raise SettingsError(f"this encoder cannot be written as ONNX: {error}") from error
    assert program is not None
    return program.model_proto
