"""An encoder that was trained anywhere, as a function from images to features."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel import plugins
from fedcel.data import Images
from fedcel.errors import NetError, PluginError, describe_unforeseen
from fedcel.extras import import_optional
from fedcel.posterior import build_device_net
from fedcel.runs import posterior_samples, read_run
from sims.results import RESULT_FILE, RunResult, read_record

ONNX_SUFFIX = ".onnx"
EXPORT_SUFFIX = ".pt2"
Encode = Callable[[Float[Tensor, "B C H W"]], Float[Tensor, "B D"]]


class LoadedEncoder(NamedTuple):
    """An encoder, and what its file says of the noise at the cut."""

    encode: Encode
    description: str
    """What it is, in words."""
    noise: float | None = None
    """Standard deviation that the file states, in units of the features; None: it says nothing."""
    dropout: float = 0.0
    """Share of features that is dropped at the cut."""
    training: Images | None = None
    """What it was trained on, where the file says so."""
    accuracy: tuple[float, int] | None = None
    """Share of right answers, and of how many images, where the file says so."""


def load_encoder(reference: str) -> LoadedEncoder:
    """Load the encoder that a reference names.

    Args:
        reference: The folder of a run, a `.onnx` file, a `.pt2` file of `torch.export`, or
            `package.module:object`, a module or a function without arguments that returns one.

    Returns:
        The encoder; a module where attacks may have its gradient, else a function.

    Raises:
        NetError: The file cannot be read as an encoder.
        PluginError: The import string leads to none.
        RunError: The folder is no run, or its samples are whole nets.
        MissingExtraError: ONNX Runtime is missing.
    """
    path = Path(reference)
    if path.is_dir():
        return load_from_run(path)
    if path.suffix in (ONNX_SUFFIX, EXPORT_SUFFIX):
        if not path.is_file():
            raise NetError(f"there is no file {reference}; give a path that exists")
        return (load_from_onnx if path.suffix == ONNX_SUFFIX else load_from_export)(path)
    if ":" not in reference:
        raise NetError(
            f"{reference!r} is no encoder; give a run folder, a file that ends in {ONNX_SUFFIX} or "
            f"{EXPORT_SUFFIX}, or 'package.module:object'"
        )
    return load_from_object(reference)


def load_from_run(folder: Path) -> LoadedEncoder:
    """Load the encoder of a run's device, and the law of its noise."""
    run = read_run(folder)
    net = build_device_net(run.flat, posterior_samples(run), run.settings.chain.scope)
    result = read_result(folder)
    count = len(run.splits.test.y)
    return LoadedEncoder(
        CheckedEncoder(net.encoder),
        f"the encoder of run {folder}",
        net.cut.sigma,
        net.cut.dropout,
        run.splits.training,
        (result.accuracy, count) if result and result.accuracy is not None else None,
    )


def read_result(folder: Path) -> RunResult | None:
    """Read what a run measured of itself; None for one that is not measured."""
    path = folder / RESULT_FILE
    return read_record(path, RunResult) if path.exists() else None


def load_from_object(reference: str) -> LoadedEncoder:
    """Load a module, or what a function without arguments makes."""
    encoder = plugins.load_object(reference)
    if not isinstance(encoder, nn.Module) and callable(encoder):
        try:
            encoder = encoder()
        except Exception as error:
            raise PluginError(
                f"{reference!r}, called without arguments, failed: {describe_unforeseen(error)}; "
                "name a torch.nn.Module, or a class or function without arguments that makes one"
            ) from error
    if not isinstance(encoder, nn.Module):
        raise PluginError(
            f"{reference!r} is {type(encoder).__name__}, must be a torch.nn.Module or a function "
            "without arguments that returns one"
        )
    return LoadedEncoder(CheckedEncoder(encoder), f"{type(encoder).__name__} of {reference}")


def load_from_export(path: Path) -> LoadedEncoder:
    """Load a program of `torch.export`."""
    try:
        program = torch.export.load(path)
        inputs = list(program.graph_signature.user_inputs)
        shapes = [node.meta["val"].shape for node in program.graph.nodes if node.name in inputs]
    except Exception as error:  # whatever a file that is none makes of the reader
        raise NetError(f"{path} cannot be read as a program of torch.export: {error}") from error
    if len(shapes) != 1:
        raise NetError(f"{path} takes {len(shapes)} inputs, must take images alone")
    module = program.module()  # which knows no evaluation mode, so it is called as a function

    def encode(images: Tensor) -> Tensor:
        with torch.no_grad():
            return call_encoder(module, images)

    batch = int(shapes[0][0]) if isinstance(shapes[0][0], int) else None
    return LoadedEncoder(
        encode_fixed_batches(encode, batch),
        f"torch.export file {path}",
    )


def load_from_onnx(path: Path) -> LoadedEncoder:
    """Load an ONNX file; the noise that `fedcel export` states in it is read."""
    runtime = import_optional("onnxruntime")
    try:
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        inputs, output = session.get_inputs(), session.get_outputs()[0].name
        stated = session.get_modelmeta().custom_metadata_map
        noise = float(stated["fedcel.sigma"]) if "fedcel.sigma" in stated else None
        dropout = float(stated.get("fedcel.dropout", 0.0))
    except Exception as error:  # ONNX Runtime's errors have no common class
        raise NetError(f"{path} cannot be read as ONNX: {error}") from error
    if len(inputs) != 1:
        raise NetError(f"{path} takes {len(inputs)} inputs, must take images alone")
    name, batch = inputs[0].name, inputs[0].shape[0]

    def encode(images: Tensor) -> Tensor:
        try:
            (features,) = session.run([output], {name: images.float().cpu().numpy()})
        except Exception as error:
            raise NetError(f"{path} refuses images {tuple(images.shape)}: {error}") from error
        return torch.from_numpy(features)

    return LoadedEncoder(
        encode_fixed_batches(encode, batch if isinstance(batch, int) else None),
        f"ONNX file {path}",
        noise,
        dropout,
    )


class CheckedEncoder(nn.Module):
    """A module that says in words which images it refuses."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        """Return the features; NetError where the module refuses the images."""
        return call_encoder(self.module, images)


def call_encoder(encoder: Encode, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
    """Return an encoder's features; NetError where it refuses the images or returns others."""
    try:
        features: Any = encoder(images)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        first = str(error).strip().splitlines()[:1]
        raise NetError(
            f"the encoder refuses images {tuple(images.shape)}: {' '.join(first)}; set --size and "
            "--grey to what it takes"
        ) from error
    if not isinstance(features, Tensor):
        raise NetError(f"the encoder returns {type(features).__name__}, must return a tensor")
    return features


def encode_fixed_batches(encode: Encode, batch: int | None) -> Encode:
    """Return an encoder for any number of images where it takes `batch` at once; None: any."""
    if batch is None:
        return encode

    def encode_any(images: Tensor) -> Tensor:
        parts = []
        for part in torch.split(images, batch):
            padding = part[-1:].expand(batch - len(part), *part.shape[1:])
            parts.append(encode(torch.cat([part, padding]))[: len(part)])
        return torch.cat(parts)

    return encode_any
