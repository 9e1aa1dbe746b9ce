"""The features that any encoder makes of images: a PyTorch module, or a function."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from math import inf

import numpy as np
import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedcel.errors import (
    MAX_REASON,
    FedcelError,
    NetError,
    RefusedImagesError,
    describe_unforeseen,
    describe_user_origin,
    is_out_of_memory,
    shorten_text,
)
from fedcel.nets.net_faults import find_batch_layers, name_layers
from fedcel.tensors import to_tensor

Encoder = Callable[[Tensor], object]
"""Images (B, ...) to features: a tensor or an array whose first dimension is B, or several of them
in a list, a tuple or a dict, all of which leave the device."""

BATCH_BYTES = 2_000_000
"""Bytes of the images that are encoded at once, in float32."""
MAX_BATCH = 256
"""Small images that are encoded at once."""
SAME_FEATURES = 1e-3
"""Features that differ by more, as a share of their size, when computed again are others."""
HALF_STEPS = 8
"""The same limit in steps of the features' own type, where those are coarser."""


def encode_images(
    encoder: Encoder, images: Shaped[Tensor, "N ..."], *, batch_size: int | None = None
) -> Float[Tensor, "N D"]:
    """Compute features batch by batch, without a gradient, in evaluation mode.

    A module's images are brought to its device and floating type; its modes are as before
    afterwards. Encoders get copies, so that one that works in place changes no image. The first
    batch is encoded twice, which shows an encoder that draws random numbers, and its first image
    once more by itself, which shows one whose features depend on the batch.

    Args:
        encoder: A PyTorch module, a method of one, or any function.
        images: (N, ...), N 1 or more.
        batch_size: Images that are encoded at once, 1 or more; None: `choose_batch_size`.

    Returns:
        Features (N, D), what is more than one dimension made flat; where the encoder left them.

    Raises:
        NetError: The encoder gives no vector an image, other features the second time, or others
            for an image by itself.
    """
    module = find_module(encoder)
    first, *others = torch.split(images, batch_size or choose_batch_size(images))
    with evaluation_mode(module), torch.inference_mode(False), torch.no_grad():
        features = [encode_batch(encoder, module, first)]
        _check_features(encoder, module, first, features[0])
        features += [encode_batch(encoder, module, batch) for batch in others]
    shapes = sorted({tuple(part.shape[1:]) for part in features})
    if len(shapes) > 1:
        raise NetError(f"the encoder gives features of shapes {shapes}, must be of one shape")
    return torch.cat(features)


def choose_batch_size(images: Shaped[Tensor, "N ..."], most: int = MAX_BATCH) -> int:
    """Choose how many images are encoded at once: no more than fit the processor's caches.

    What a layer gives of 3 images of 224 pixels is 4 to 14 MB; larger blocks are asked of the
    system anew for each layer, which takes longer than the layer itself.

    Args:
        images: (N, ...).
        most: Small images that are encoded at once.

    Returns:
        1 to `most`.
    """
    size = images.shape[1:].numel() * torch.float32.itemsize
    return max(1, min(most, BATCH_BYTES // size))


def _check_features(
    encoder: Encoder,
    module: nn.Module | None,
    images: Shaped[Tensor, "B ..."],
    features: Float[Tensor, "B D"],
) -> None:
    """Raise NetError where features are random, or depend on the other images of a batch."""
    share = max(SAME_FEATURES, HALF_STEPS * torch.finfo(features.dtype).eps)
    limit = share * float(features.abs().max())
    again = encode_batch(encoder, module, images)
    gap = _measure_gap(features, again)
    if gap > limit:  # NaN is refused by who needs finite features
        raise NetError(
            f"the encoder gives features that differ by {gap:.2g} when it is asked twice: it draws "
            "random numbers, or keeps something from call to call; give it without its noise or "
            "dropout, whose law is asked for apart, and without what it counts or keeps"
        )
    if len(images) == 1:
        return
    try:
        alone = encode_batch(encoder, module, images[:1])
    except NetError:  # of a program for so many images, or `squeeze`: with copies of itself alone
        alone = encode_batch(encoder, module, images[:1].expand_as(images))
    gap = _measure_gap(features[0], alone[0])
    if gap > limit:
        layers = "" if module is None else name_layers(find_batch_layers(module))
        cause = f": {layers} has no running statistics" if layers else ""
        raise NetError(
            f"the encoder gives an image features that differ by {gap:.2g} by the other images of "
            f"its batch{cause}; it must encode each image by itself: use running statistics or "
            "nn.GroupNorm, or pass a function that calls the encoder image by image"
        )


def _measure_gap(features: Float[Tensor, "*shape"], again: Float[Tensor, "*more"]) -> float:
    """Measure the largest difference; infinite where shapes differ."""
    return float((features - again).abs().max()) if features.shape == again.shape else inf


def find_module(encoder: Encoder) -> nn.Module | None:
    """Find the module that an encoder is, or is a method of.

    Args:
        encoder: A PyTorch module, a method of one, or any function.

    Returns:
        The module; None for a function that belongs to none.
    """
    owner = encoder if isinstance(encoder, nn.Module) else getattr(encoder, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


class BoundMethod(nn.Module):
    """A method of a module or another object, such as `forward_features`, as a module."""

    def __init__(self, owner: object, name: str) -> None:
        super().__init__()
        self.owner = owner
        self.name = name

    def forward(self, *inputs: Tensor) -> object:
        """Return what the method gives."""
        return getattr(self.owner, self.name)(*inputs)


def as_module(encoder: Encoder) -> nn.Module | None:
    """Return an encoder as a module; None for a function that belongs to none.

    Args:
        encoder: A PyTorch module, a method of one, or any function.

    Returns:
        The module itself, or one that calls the method.
    """
    owner = find_module(encoder)
    if owner is None or owner is encoder:
        return owner
    return BoundMethod(owner, getattr(encoder, "__name__", "forward"))


def switch_to_evaluation(module: nn.Module) -> nn.Module:
    """Switch a module to evaluation and return it; a program of `torch.export` has one mode only.

    Args:
        module: Any module.

    Returns:
        The same module.
    """
    try:
        return module.eval()
    except (NotImplementedError, AttributeError):  # of an exported part, and of a frozen one
        for part in module.modules():
            if hasattr(part, "training"):
                part.training = False
        return module


@contextmanager
def evaluation_mode(module: nn.Module | None) -> Iterator[None]:
    """Switch all of a module to evaluation, and every part of it back to its own mode after.

    Args:
        module: The module; None: nothing is switched.

    Returns:
        A context in which it is in evaluation mode.
    """
    parts = () if module is None else module.modules()
    modes = [(part, part.training) for part in parts if hasattr(part, "training")]
    try:
        if module is not None:
            switch_to_evaluation(module)
        yield
    finally:
        for part, is_training in modes:
            part.training = is_training


def encode_batch(
    encoder: Encoder, module: nn.Module | None, images: Shaped[Tensor, "B ..."]
) -> Float[Tensor, "B D"]:
    """Return flat features of one batch; NetError where they are none."""
    features = call_encoder(encoder, place_images(images, module)).detach()
    return features.clone()  # a function may write all its answers into one array


def call_encoder(encoder: Encoder, images: Shaped[Tensor, "B ..."]) -> Float[Tensor, "B D"]:
    """Call an encoder on a copy, and make one vector an image of what it gives, with its gradient.

    Args:
        encoder: A PyTorch module, a method of one, or any function.
        images: (B, ...), B 1 or more.

    Returns:
        Features (B, D): all values that the encoder gives, side by side where it gives several
        tensors.

    Raises:
        RefusedImagesError: The encoder cannot read the images.
        NetError: It gives no vector an image.
    """
    try:
        output = encoder(images.clone())
    except FedcelError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise NetError(
                f"memory is too small to encode images {tuple(images.shape)} at once; encode fewer "
                "at once, or smaller ones"
            ) from error
        origin = describe_user_origin(error)
        raise RefusedImagesError(
            f"the encoder refuses images {tuple(images.shape)} of {images.dtype}: "
            f"{shorten_text(describe_unforeseen(error), MAX_REASON)}"
            f"{f' ({origin})' if origin else ''}; give images of the size, channels and type that "
            "it takes, bytes divided by 255, or mend the encoder"
        ) from error
    parts = [flatten_output(part, len(images), name) for name, part in split_outputs(output)]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def split_outputs(output: object) -> list[tuple[str, object]]:
    """Split what an encoder gives into its tensors.

    Args:
        output: A tensor or an array, or several of them in a list, a tuple or a dict, which may
            hold others.

    Returns:
        Each with its name: that in the dict, or its place from 0, such as `hidden_states.0` within
        another; of a single one the name is "features".

    Raises:
        NetError: There is none.
    """
    if isinstance(output, Mapping):
        items = [(str(name), part) for name, part in output.items()]
    elif isinstance(output, list | tuple) and (
        not output or any(isinstance(p, Tensor | np.ndarray) and p.ndim > 1 for p in output)
    ):
        items = [(str(place), part) for place, part in enumerate(output)]
    else:
        return [("features", output)]
    if not items:
        raise NetError("the encoder gives nothing, must give a tensor of features, or several")
    return [
        (name if key == "features" else f"{name}.{key}", value)
        for name, part in items
        for key, value in split_outputs(part)
    ]


def flatten_output(part: object, count: int, name: str) -> Float[Tensor, "B D"]:
    """Return one vector an image; NetError where the part has none."""
    name = "the encoder's features" if name == "features" else f"the encoder's output {name!r}"
    try:
        features = part if isinstance(part, Tensor) else to_tensor(part, name)
    except ValueError as error:
        raise NetError(str(error)) from error
    if features.dim() < 2 or len(features) != count or not features.is_floating_point():
        raise NetError(
            f"{name} are {tuple(features.shape)} of {features.dtype} for {count} images, must be "
            f"floating numbers of shape ({count}, D); give a function that returns the features "
            "alone"
        )
    return features.flatten(1)


def place_images(
    images: Shaped[Tensor, "B ..."], module: nn.Module | None
) -> Shaped[Tensor, "B ..."]:
    """Move images to a module's device, and floating ones to the type of its parameters.

    Args:
        images: (B, ...).
        module: The module; None: the images stay as they are.

    Returns:
        The images (B, ...).
    """
    tensors = () if module is None else chain(module.parameters(), module.buffers())
    like = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
    if like is None:
        return images
    return images.to(like.device, like.dtype if images.is_floating_point() else images.dtype)
