"""Split networks made of whole models, of torchvision and timm, cut at a layer by its name."""

from collections.abc import Mapping
from difflib import get_close_matches
from math import log, prod
from pathlib import Path
from pickle import UnpicklingError
from typing import ClassVar, Literal, cast

import torch
from jaxtyping import Float
from pydantic import Field
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedcel.errors import (
    NetError,
    RefusedImagesError,
    SettingsError,
    describe_unforeseen,
    join_first,
)
from fedcel.extras import import_optional
from fedcel.nets.encode_images import call_encoder
from fedcel.nets.net_faults import MAX_NAMED, switch_dropout_off
from fedcel.nets.net_settings import POSITIONS, Halves, NetSettings
from fedcel.nets.pretrained import fold_batch_norms, keep_parameters
from fedcel.nets.split_model import MAX_NEAREST, split

LIBRARIES = ("torchvision", "timm")
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet's channels, with which most models were trained."""
TIMM_CONFIG = "pretrained_cfg"
"""Attribute of a module of timm with the normalisation of its training images."""
WRAPPERS = ("state_dict", "model", "model_state_dict")
"""Keys below which a checkpoint of a training may hold the parameters."""
SPREAD = 1.5
"""Standard deviation of a message's values before the sigmoid, as training begins."""


class CutNet(NetSettings):
    """Base of nets that are whole models, cut at one of their layers.

    BatchNorms are folded and dropout is switched off: neither can be averaged over clients or
    sampled.
    """

    has_positions: ClassVar[bool] = True

    features: int = Field(
        64,
        ge=0,
        description="Values of the smashed data, D, in [0, 1]: those of a 1x1 convolution at the "
        "cut, or of a linear layer where they are fewer than its positions; 0: the layer's own.",
    )
    cut: str = Field(
        "none",
        description="Layer whose output is sent, such as 'layer2'; `fedcel.list_cuts` names them.",
    )
    weights: str = Field(
        "none", description="File of parameters: .safetensors, .pt, .pth or .ckpt."
    )
    frozen: Literal["none", "encoder"] = Field(
        "none",
        description="Half of the model that is neither trained nor sent.",
    )

    def check_rules(self) -> None:
        """Refuse a net without a cut."""
        super().check_rules()
        if self.cut == "none":
            raise SettingsError(
                f"net.cut is 'none' and net.name is {self.name!r}; name the layer that is sent"
            )

    def make_model(self, classes: int) -> tuple[nn.Module, nn.Module]:
        """Make the model, and the layer that normalises images in [0, 1] for it."""
        raise NotImplementedError

    def build(self, shape: tuple[int, ...], classes: int) -> Halves:
        """Build encoder and head; NetError where model, weights, cut or images do not fit."""
        model, normalise = self.make_model(classes)
        images = normalise(torch.rand(8, *shape, generator=torch.Generator().manual_seed(0)))
        switch_dropout_off(model)
        try:
            with torch.no_grad():
                call_encoder(model.eval(), images)
        except RefusedImagesError as error:
            raise NetError(
                f"net.name {self.name!r} takes no images of shape {shape}: {error.__cause__}; set "
                "data.size to the pixels a side that it takes"
            ) from error
        if self.weights == "none":
            measure_statistics(model, images)
        else:
            load_weights(model, self.weights, classes)
        called = nn.Sequential(*split(model, self.cut))  # without layers of training alone
        encoder, head = map(keep_parameters, fold_batch_norms(called, images).children())
        with torch.no_grad():
            cut = tuple(encoder.eval()(images).shape[1:])
        if self.frozen == "encoder":
            freeze(encoder)
        axis = find_channels(cut, shape[1] / shape[2])
        if self.features == 0:
            halves = (
                nn.Sequential(normalise, encoder, nn.Flatten()),
                nn.Sequential(nn.Unflatten(1, cut), head),
            )
            setattr(halves[0], POSITIONS, prod(cut) // cut[0] if axis == 0 else 1)
            return halves
        positions = prod(cut) // cut[axis]
        sent: list[nn.Module]
        received: list[nn.Module]
        if self.features < positions:
            sent = [nn.Flatten(), nn.Linear(prod(cut), self.features)]
            received = [nn.Linear(self.features, prod(cut)), nn.Unflatten(1, cut)]
            positions = 1
        elif self.features % positions:
            raise NetError(
                f"net.features is {self.features}, must be a multiple of {positions} or below it: "
                f"layer {self.cut!r} gives {cut[axis]} channels at {positions} positions"
            )
        else:
            channels = self.features // positions
            column = cut[axis], positions, 1  # channels at positions
            channels_first = cut[axis], *cut[:axis], *cut[axis + 1 :]
            convolution = nn.Conv2d(cut[axis], channels, 1)
            sent = [MovedAxis(cut, axis + 1, 1, column), convolution, nn.Flatten()]
            received = [
                nn.Unflatten(1, (channels, positions, 1)),
                nn.Conv2d(channels, cut[axis], 1),
                MovedAxis(channels_first, 1, axis + 1, cut),
            ]
        device_half = nn.Sequential(normalise, encoder, *sent, nn.Sigmoid())
        setattr(device_half, POSITIONS, positions)
        spread_outputs(sent[1], nn.Sequential(encoder, sent[0])(images))
        return device_half, nn.Sequential(*received, head)


class LibraryNet(CutNet, prefixes=LIBRARIES):
    """Model of torchvision or timm, such as `torchvision:resnet18`, cut at one of its layers.

    The encoder normalises images in [0, 1] as the model's pretraining did.
    """

    def check_rules(self) -> None:
        """Refuse a frozen half with random parameters."""
        super().check_rules()
        if self.frozen != "none" and self.weights == "none":
            raise SettingsError(
                f"net.frozen is {self.frozen!r} and net.weights is 'none': a half with random "
                "parameters would stay so; give net.weights"
            )

    def make_model(self, classes: int) -> tuple[nn.Module, nn.Module]:
        """Make the model and its normalisation."""
        return make_model(self.name, classes), Normalise(*find_normalisation(self.name))


@torch.no_grad()
def spread_outputs(layer: nn.Module, inputs: Float[Tensor, "B ..."]) -> None:
    """Scale a linear or convolution layer: each channel's outputs get mean 0, deviation `SPREAD`.

    Behind a pretrained encoder a sigmoid's values else hardly differ between images, and the noise
    hides them all when training begins (Mishkin and Matas, ICLR 2016, section 3).
    """
    spread, mean = torch.std_mean(layer(inputs).transpose(0, 1).flatten(1), 1)
    scale = torch.where(spread > 0, SPREAD / spread, 1.0)
    weight, bias = keep_parameters(layer).parameters()
    weight.mul_(scale.view(-1, *[1] * (weight.ndim - 1)))
    bias.sub_(mean).mul_(scale)


class Normalise(nn.Module):
    """Layer that normalises images by channel: (x - mean) / deviation.

    Args:
        mean: A value a channel; grey images become as many channels.
        deviation: A value a channel.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, mean: tuple[float, ...], deviation: tuple[float, ...]) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("deviation", deviation)):
            self.register_buffer(name, torch.tensor(values)[:, None, None])

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B c H W"]:
        """Normalise."""
        return (images - self.mean) / self.deviation


class MovedAxis(nn.Module):
    """Layer that moves an axis of values in a shape, and gives them another shape.

    Args:
        shape: Shape of the values of one image.
        source: Axis that is moved; 0 counts the images.
        target: Its new place.
        result: Shape of the result.
    """

    def __init__(
        self, shape: tuple[int, ...], source: int, target: int, result: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.shape, self.source, self.target, self.result = shape, source, target, result

    def forward(self, x: Float[Tensor, "B ..."]) -> Float[Tensor, "B ..."]:
        """Move the axis."""
        moved = x.reshape(len(x), *self.shape).movedim(self.source, self.target)
        return moved.reshape(len(x), *self.result)


def find_channels(shape: tuple[int, ...], aspect: float) -> int:
    """Find the axis of the channels in the shape of one image's features.

    Maps are (C, H, W) or (H, W, C), whichever H / W is nearer to the images' own, `aspect`; the
    first where both are. Transformers give (tokens, C).
    """
    if len(shape) != 3:
        return 1 if len(shape) == 2 else 0
    first, last = (abs(log(height / width / aspect)) for height, width in (shape[1:], shape[:2]))
    return 2 if last < first else 0


def make_model(name: str, classes: int | None = None) -> nn.Module:
    """Make a model of torchvision or timm with random parameters.

    Args:
        name: `torchvision:NAME` or `timm:NAME`.
        classes: Number of logits; None: as in its pretraining.

    Returns:
        The model.

    Raises:
        NetError: The library has no model of that name.
        MissingExtraError: torchvision is not installed.
    """
    answers = {} if classes is None else {"num_classes": classes}
    library, _, model = name.partition(":")
    package = import_optional("timm" if library == "timm" else "torchvision.models")
    try:
        if library == "timm":
            return package.create_model(model, **answers)  # type: ignore[no-any-return]
        return package.get_model(model, **answers)  # type: ignore[no-any-return]
    except Exception as error:
        near = get_close_matches(model, package.list_models(), MAX_NEAREST, 0)
        raise NetError(
            f"{name!r} cannot be made: {describe_unforeseen(error)}; nearest of {library}: "
            f"{', '.join(near)}"
        ) from error


def find_normalisation(name: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Find mean and standard deviation, by channel, of the images that a model was trained on.

    Args:
        name: `torchvision:NAME` or `timm:NAME`.

    Returns:
        Both, for images in [0, 1]; those of ImageNet where the library states none.
    """
    library, _, model = name.partition(":")
    if library != "timm":
        return IMAGENET
    config = import_optional("timm").get_pretrained_cfg(model)
    return IMAGENET if config is None else (tuple(config.mean), tuple(config.std))


def read_normalisation(
    model: nn.Module | None,
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Read how a model of timm wants its images normalised.

    Args:
        model: Any module.

    Returns:
        Mean and standard deviation by channel; None where it does not say.
    """
    config = getattr(model, TIMM_CONFIG, None)
    if not isinstance(config, Mapping) or "mean" not in config or "std" not in config:
        return None
    return tuple(config["mean"]), tuple(config["std"])


def measure_statistics(model: nn.Module, images: Float[Tensor, "B C H W"]) -> None:
    """Give the BatchNorms that are untrained the statistics of images.

    Without them a deep model says nothing of an image. Layers but these are in evaluation.
    """
    model.eval()
    for layer in model.modules():
        if is_untrained(layer):
            layer.train()
            cast(nn.BatchNorm2d, layer).momentum = None  # the mean of all batches, of one here
    with torch.no_grad():
        model(images)


def is_untrained(layer: nn.Module) -> bool:
    """Whether a layer is a BatchNorm with the statistics that it is made with."""
    if not isinstance(layer, _BatchNorm) or layer.running_mean is None:
        return False
    mean, variance = layer.running_mean, cast(Tensor, layer.running_var)
    return not mean.any() and bool(variance.eq(1).all())


def load_weights(model: nn.Module, path: str | Path, classes: int | None = None) -> None:
    """Load the parameters of a file into a model.

    Args:
        model: The model.
        path: A .safetensors, .pt or .pth file, which is read without running code.
        classes: The model's number of logits. Where the file's is another, the last layer keeps its
            random parameters. None: it has to be the same.

    Raises:
        NetError: The file cannot be read, or is of another model.
    """
    tensors = read_tensors(Path(path))
    state = model.state_dict()
    of_answer = {
        name
        for name in state.keys() & tensors.keys()
        if state[name].shape != tensors[name].shape
        and state[name].shape[:1] == (classes,)
        and state[name].shape[1:] == tensors[name].shape[1:]
    }
    others = {name: state[name] if name in of_answer else tensors[name] for name in tensors}
    try:
        model.load_state_dict(others)
    except RuntimeError as error:
        faults = {
            "it lacks": [name for name in state if name not in tensors],
            "the model lacks its": [name for name in tensors if name not in state],
            "of another shape is": [
                f"{name} {tuple(tensors[name].shape)} for {tuple(state[name].shape)}"
                for name in state
                if name in others and others[name].shape != state[name].shape
            ],
        }
        reasons = [
            f"{words} {join_first(names, MAX_NAMED)}" for words, names in faults.items() if names
        ]
        raise NetError(
            f"the weights {str(path)!r} are of another model than {type(model).__name__}: "
            f"{'; '.join(reasons)}"
        ) from error


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the parameters of a file; NetError where it holds none."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content = torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise NetError(
            f"the weights {str(path)!r} hold something else than tensors, such as a whole module, "
            "which could run code when it is read; save model.state_dict() to a file"
        ) from error
    except Exception as error:
        raise NetError(
            f"the weights {str(path)!r} cannot be read: {describe_unforeseen(error)}; give a "
            "file of parameters, .safetensors, .pt or .pth"
        ) from error
    for key in WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(
        isinstance(value, Tensor) for value in content.values()
    ):
        raise NetError(f"{str(path)!r} holds no parameters by name")
    return dict(content)


def freeze(module: nn.Module) -> None:
    """Turn the parameters of a module into constants, which are neither trained nor sent."""
    for layer in module.modules():
        for name, parameter in list(layer.named_parameters(recurse=False)):
            delattr(layer, name)
            layer.register_buffer(name, parameter.detach())
