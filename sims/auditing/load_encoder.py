"""An encoder that was trained anywhere, as a function from images to features."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedcel import plugins
from fedcel.data import Images
from fedcel.errors import (
    MAX_REASON,
    NetError,
    PluginError,
    RefusedImagesError,
    describe_unforeseen,
    describe_user_origin,
    is_out_of_memory,
    shorten_text,
)
from fedcel.extras import import_optional
from fedcel.leakage import NoiseFunction
from fedcel.nets import (
    LIBRARIES,
    Encoder,
    Normalise,
    SplitNet,
    as_module,
    find_module,
    find_normalisation,
    load_weights,
    make_model,
    read_normalisation,
    split,
    split_outputs,
)
from fedcel.posterior import copy_heads
from fedcel.runs import build_sent_net, posterior_samples, read_run
from sims.results.records import RESULT_FILE, RunResult, read_record

ONNX_SUFFIX = ".onnx"
EXPORT_SUFFIX = ".pt2"
NOISE_OUTPUT = "noise"
"""Output of an exported encoder whose noise is learned: its standard deviations."""
ONNX_TYPES = {
    "tensor(float)": torch.float32,
    "tensor(double)": torch.float64,
    "tensor(float16)": torch.float16,
    "tensor(uint8)": torch.uint8,
}
"""Types of an ONNX file's input in which images can be given."""
CHANNELS = (1, 3)
Normalisation = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation, by channel, that images in [0, 1] are normalised by."""


class InputForm(NamedTuple):
    """The form in which a file takes images in [0, 1] of shape (N, C, H, W)."""

    dtype: torch.dtype
    is_channels_last: bool
    is_flat: bool

    @classmethod
    def read(cls, path: Path, dtype: torch.dtype, shape: Sequence[object]) -> "InputForm":
        """Read the form of an input's stated shape, () where none is; NetError on no images."""
        if len(shape) not in (0, 2, 4):
            raise NetError(
                f"{path} takes {list(shape)}, must take images (N, C, H, W), (N, H, W, C) or, "
                "flat, (N, C*H*W); put a Reshape in front of its first node"
            )
        is_last = len(shape) == 4 and shape[3] in CHANNELS and shape[1] not in CHANNELS
        return cls(dtype, is_last, len(shape) == 2)

    def __str__(self) -> str:
        """Describe what is done to images; empty where nothing is."""
        changes = ["which takes bytes"] if self.dtype == torch.uint8 else []
        changes += ["which takes channels last"] if self.is_channels_last else []
        changes += ["which takes images made flat, channel by channel"] if self.is_flat else []
        return "".join(f", {change}" for change in changes)

    def convert(self, images: Float[Tensor, "B C H W"]) -> Shaped[Tensor, "B ..."]:
        """Return images in this form; NetError where bytes are taken and pixels are no bytes."""
        if self.dtype == torch.uint8:
            low, high = (float(value) for value in images.aminmax())
            if not 0 <= low <= high <= 1:
                raise NetError(
                    f"the encoder takes bytes, and pixels are in [{low:.3g}, {high:.3g}], must be "
                    "in [0, 1] before they are made bytes; leave --mean and --std out"
                )
            images = (images * 255).round()
        if self.is_channels_last:
            images = images.movedim(1, -1).contiguous()
        if self.is_flat:
            images = images.flatten(1)
        return images.to(self.dtype)


class LoadedEncoder(NamedTuple):
    """An encoder, and what its file says of the noise at the cut."""

    encode: nn.Module
    description: str
    """The encoder in words."""
    noise: float | None = None
    """Standard deviation that the file states, in units of the features; None: it says nothing."""
    learned_noise: NoiseFunction | None = None
    """That of each feature, as a function of the features, where it is learned; `noise` is its
    value before it was."""
    dropout: float = 0.0
    """Share of features that is dropped at the cut."""
    training: Images | None = None
    """Its training images, where the file has them."""
    accuracy: tuple[float, int] | None = None
    """Share of right answers, and of how many images, where the file says so."""
    normalisation: Normalisation | None = None
    """Normalisation that the module states."""
    head: nn.Module | None = None
    """The rest of the model, where it is known: features in the encoder's shape to answers."""


def load_encoder(reference: str, at: str = "", weights: str = "") -> LoadedEncoder:
    """Load an encoder as a module; that of an ONNX file has no gradient.

    The reference is the folder of a run, a `.onnx` file, a `.pt2` file of `torch.export`,
    `torchvision:NAME` or `timm:NAME`, or `package.module:object`: a module, a method of one, or a
    function without arguments that returns one. A module or a program is cut behind the layer `at`.
    `weights` are those of a library's model. A FedcelError says what is wrong with it.
    """
    path = Path(reference)
    is_library = reference.partition(":")[0] in LIBRARIES
    is_file = path.is_dir() or path.suffix in (ONNX_SUFFIX, EXPORT_SUFFIX)
    if at and is_file and path.suffix != EXPORT_SUFFIX:
        raise NetError(f"--at is {at!r}, and {reference} is cut already; leave --at out")
    if weights and not is_library:
        raise NetError(
            f"--weights is {weights!r}, and {reference!r} brings its own; leave --weights out"
        )
    if path.is_dir():
        return load_from_run(path)
    if is_file:
        if not path.is_file():
            raise NetError(f"there is no file {reference}; give a path that exists")
        if path.suffix == ONNX_SUFFIX:
            return load_from_onnx(path)
        loaded = load_from_export(path)
        return cut_model(unflatten_program(loaded, path), at) if at else loaded
    if is_library:
        return load_from_library(reference, at, weights)
    if ":" not in reference:
        fault = "is no encoder" if path.exists() else "does not exist"
        raise NetError(
            f"{reference!r} {fault}; give a run folder, a file that ends in {ONNX_SUFFIX} or "
            f"{EXPORT_SUFFIX}, torchvision:NAME, timm:NAME, or 'package.module:object'"
        )
    loaded = load_from_object(reference)
    return cut_model(loaded, at) if at else loaded


def cut_model(loaded: LoadedEncoder, at: str) -> LoadedEncoder:
    """Cut a whole model behind a layer."""
    encode, head = split(loaded.encode, at)
    return loaded._replace(encode=encode, description=f"{loaded.description} up to {at}", head=head)


def load_from_library(name: str, at: str, weights: str) -> LoadedEncoder:
    """Load a model of torchvision or timm up to a layer, with the normalisation of its training."""
    with torch.random.fork_rng(devices=[]):  # the same parameters at each audit
        torch.manual_seed(0)
        model = make_model(name)
    if weights:
        load_weights(model, weights)
    encode, head = split(model, at) if at else (model, None)
    random = "" if weights else ", with random parameters"
    return LoadedEncoder(
        encode,
        f"{name}{f' up to {at}' if at else ' as a whole'}{random}",
        normalisation=find_normalisation(name),
        head=head,
    )


def load_from_run(folder: Path) -> LoadedEncoder:
    """Load the encoder of a run's device, and the law of its noise."""
    run = read_run(folder)
    net = build_sent_net(run)
    path = folder / RESULT_FILE
    accuracy = read_record(path, RunResult).accuracy if path.exists() else None
    return LoadedEncoder(
        net.encoder,
        f"the encoder of run {folder}",
        net.cut.sigma,
        partial(scale_sigma, net) if net.noise_scale is not None else None,
        net.cut.dropout,
        run.splits.training,
        None if accuracy is None else (accuracy, len(run.splits.test.y)),
        head=copy_heads(run.flat, posterior_samples(run), run.settings.chain.scope),
    )


def scale_sigma(net: SplitNet, z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
    """Return the standard deviation of the noise that each feature gets."""
    scale = net.scale_noise(z)
    return torch.full_like(z, net.cut.sigma) if scale is None else net.cut.sigma * scale


def load_from_object(reference: str) -> LoadedEncoder:
    """Load a module, a method of one, or what a function without arguments makes."""
    encoder = plugins.load_object(reference)
    if callable(encoder) and find_module(encoder) is None:
        try:
            encoder = encoder()
        except Exception as error:
            origin = describe_user_origin(error)
            raise PluginError(
                f"{reference!r}, called without arguments, failed: {describe_unforeseen(error)}"
                f"{f' ({origin})' if origin else ''}; name a torch.nn.Module, or a class or "
                "function without arguments that makes one"
            ) from error
    module = as_module(encoder) if callable(encoder) else None
    if module is None:
        raise PluginError(
            f"{reference!r} is {type(encoder).__name__}, must be a torch.nn.Module or a function "
            "without arguments that returns one"
        )
    owner = find_module(encoder)  # type: ignore[arg-type]  # callable, or it would be refused
    description = f"{type(owner).__name__} of {reference}"
    return LoadedEncoder(module, description, normalisation=read_normalisation(owner))


def load_from_export(path: Path) -> LoadedEncoder:
    """Load a program of `torch.export`."""
    try:
        program = torch.export.load(path)
        inputs = list(program.graph_signature.user_inputs)
        examples = [node.meta["val"] for node in program.graph.nodes if node.name in inputs]
        module = program.module()
    except Exception as error:  # whatever a file that is none makes of the reader
        raise NetError(
            f"{path} cannot be read as a program of torch.export: {describe_unforeseen(error)}"
        ) from error
    if len(examples) != 1:
        raise NetError(f"{path} takes {len(examples)} inputs, must take images alone")
    (example,) = examples
    form = InputForm.read(path, example.dtype, example.shape)
    least, most = find_batch_sizes(example.shape, program.range_constraints)
    encode = FileEncoder(module, form, least, most)
    return LoadedEncoder(encode, f"torch.export file {path}{form}")


def unflatten_program(loaded: LoadedEncoder, path: Path) -> LoadedEncoder:
    """Return a program of `torch.export` with the layers that its module had; others as they are.

    NetError where the program takes no floating images.
    """
    if not isinstance(loaded.encode, FileEncoder):
        return loaded
    if str(loaded.encode.form):
        raise NetError(
            f"{loaded.description}; only a program that takes floating images (N, C, H, W) can be "
            "cut"
        )
    return loaded._replace(encode=torch.export.unflatten(torch.export.load(path)))


def find_batch_sizes(shape: Sequence[Any], ranges: Mapping[Any, Any]) -> tuple[int, int | None]:
    """Return the least and the largest batch that a program takes; None: there is no largest."""
    if not shape or isinstance(shape[0], int):
        return (shape[0], shape[0]) if shape else (1, None)
    allowed = ranges.get(shape[0].node.expr)
    if allowed is None:
        return 1, None
    most = int(allowed.upper) if allowed.upper.is_Integer else None
    return max(1, int(allowed.lower)), most


def load_from_onnx(path: Path) -> LoadedEncoder:
    """Load an ONNX file; the noise that `fedcel export` states in it is read."""
    runtime = import_optional("onnxruntime")
    try:
        session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        inputs, outputs = session.get_inputs(), [part.name for part in session.get_outputs()]
        stated = session.get_modelmeta().custom_metadata_map
        noise = float(stated["fedcel.sigma"]) if "fedcel.sigma" in stated else None
        dropout = float(stated.get("fedcel.dropout", 0.0))
        noise_shape = stated.get("fedcel.noise-shape", "one")
    except Exception as error:  # ONNX Runtime's errors have no common class
        raise NetError(f"{path} cannot be read as ONNX: {describe_unforeseen(error)}") from error
    if len(inputs) != 1:
        raise NetError(f"{path} takes {len(inputs)} inputs, must take images alone")
    name, shape = inputs[0].name, inputs[0].shape or ()
    if inputs[0].type not in ONNX_TYPES:
        raise NetError(
            f"{path} takes {inputs[0].type}, must take {', '.join(ONNX_TYPES)}; put a Cast in "
            "front of its first node"
        )
    form = InputForm.read(path, ONNX_TYPES[inputs[0].type], shape)

    def encode(images: Tensor) -> dict[str, object]:
        try:
            values = session.run(outputs, {name: images.detach().cpu().numpy()})
        except Exception as error:
            if is_out_of_memory(error):
                raise
            reason = shorten_text(describe_unforeseen(error), MAX_REASON)
            raise RefusedImagesError(
                f"{path} refuses images {tuple(images.shape)}, takes {list(shape)}: {reason}"
            ) from error
        numbers = [torch.from_numpy(v) if isinstance(v, np.ndarray) else v for v in values]
        return dict(zip(outputs, numbers, strict=True))

    learned_noise: NoiseFunction | None = None
    if noise_shape != "one":
        outputs.remove(NOISE_OUTPUT)
    if noise_shape == "image":
        raise NetError(
            f"the noise of {path} is learned for each image; audit the run's folder in its place, "
            "which has the function"
        )
    if noise_shape == "feature":
        size = [part if isinstance(part, int) else 1 for part in shape]
        blank = torch.zeros(size, dtype=form.dtype).numpy()
        deviations = torch.from_numpy(session.run([NOISE_OUTPUT], {name: blank})[0][:1])

        def learned_noise(z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
            return deviations.to(z).expand_as(z)

    batch = shape[0] if shape and isinstance(shape[0], int) else None
    return LoadedEncoder(
        FileEncoder(encode, form, batch or 1, batch),
        f"ONNX file {path}{form}",
        noise,
        learned_noise,
        dropout,
    )


class FileEncoder(nn.Module):
    """The encoder of a file, for any number of images in [0, 1].

    Args:
        encode: The encoder.
        form: The form in which it takes images.
        least: Images that it takes at least; fewer are filled up by copies of the last.
        most: Images that it takes at most; None: any number.
    """

    def __init__(self, encode: Encoder, form: InputForm, least: int, most: int | None) -> None:
        super().__init__()
        self.encode = encode
        self.form = form
        self.least = least
        self.most = most

    def forward(self, images: Float[Tensor, "B C H W"]) -> object:
        """Return what the encoder gives; its outputs by name where batches were put together."""
        images = self.form.convert(images)
        if len(images) >= self.least and (self.most is None or len(images) <= self.most):
            return self.encode(images)
        parts = []
        for part in torch.split(images, self.most or len(images)):
            padding = part[-1:].expand(max(0, self.least - len(part)), *part.shape[1:])
            outputs = split_outputs(self.encode(torch.cat([part, padding])))
            parts.append({key: torch.as_tensor(value)[: len(part)] for key, value in outputs})
        return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


class AdaptedEncoder(nn.Module):
    """An encoder behind its normalisation, some of whose outputs are sent.

    Args:
        encoder: The encoder.
        normalisation: Is done to the images first; None: nothing.
        outputs: Names or places of the outputs that leave the device; none: all of them.
    """

    def __init__(
        self,
        encoder: nn.Module,
        normalisation: Normalisation | None = None,
        outputs: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.normalise = nn.Identity() if normalisation is None else Normalise(*normalisation)
        self.outputs = tuple(outputs)

    def forward(self, images: Float[Tensor, "B C H W"]) -> object:
        """Return the chosen outputs; grey images become as many channels as there are means."""
        features = self.encoder(self.normalise.to(images)(images))
        if not self.outputs:
            return features
        by_name = dict(split_outputs(features))
        missing = [name for name in self.outputs if name not in by_name]
        if missing:
            raise NetError(
                f"--output is {missing[0]!r}, must be of what the encoder gives: "
                f"{', '.join(by_name)}"
            )
        return [by_name[name] for name in self.outputs]
