"""The features that any encoder makes of images: a PyTorch module, or a function."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedcel.errors import FedcelError, NetError
from fedcel.tensors import to_tensor

Encoder = Callable[[Tensor], object]
"""Images (B, ...) to features: a tensor or an array whose first dimension is B."""

SAME_FEATURES = 1e-3
"""Features that differ by more, as a share of their size, when computed again are random."""


def encode_images(
    encoder: Encoder, images: Shaped[Tensor, "N ..."], *, batch_size: int = 256
) -> Float[Tensor, "N D"]:
    """Compute features batch by batch, without a gradient, in evaluation mode.

    A module's images are brought to its device and floating type; its modes are as before
    afterwards. The first batch is encoded twice, which shows an encoder that draws random numbers.

    Args:
        encoder: A PyTorch module, a method of one, or any function.
        images: (N, ...), N 1 or more.
        batch_size: Images that are encoded at once, 1 or more.

    Returns:
        Features (N, D), what is more than one dimension made flat; where the encoder left them.

    Raises:
        NetError: The encoder gives no vector an image, or other features the second time.
    """
    module = find_module(encoder)
    batches = torch.split(images, batch_size)
    with evaluation_mode(module), torch.no_grad():
        features = [encode_batch(encoder, module, batch) for batch in batches]
        again = encode_batch(encoder, module, batches[0])
    if {part.shape[1:] for part in features} != {features[0].shape[1:]}:
        shapes = sorted({tuple(part.shape[1:]) for part in features})
        raise NetError(f"the encoder gives features of shapes {shapes}, must be of one shape")
    limit = SAME_FEATURES * float(features[0].abs().max())
    gap = float((features[0] - again).abs().max())
    if gap > limit:  # NaN is refused by who needs finite features
        raise NetError(
            f"the encoder gives features that differ by {gap:.2g} when it is asked twice: it draws "
            "random numbers; give it without its noise or dropout, whose law is asked for apart"
        )
    return torch.cat(features)


def find_module(encoder: Encoder) -> nn.Module | None:
    """Return the module that an encoder is, or is a method of."""
    owner = encoder if isinstance(encoder, nn.Module) else getattr(encoder, "__self__", None)
    return owner if isinstance(owner, nn.Module) else None


@contextmanager
def evaluation_mode(module: nn.Module | None) -> Iterator[None]:
    """Switch all of a module to evaluation, and every part of it back to its own mode after."""
    modes = [] if module is None else [(part, part.training) for part in module.modules()]
    try:
        if module is not None:
            module.eval()
        yield
    finally:
        for part, is_training in modes:
            part.training = is_training


def encode_batch(
    encoder: Encoder, module: nn.Module | None, images: Shaped[Tensor, "B ..."]
) -> Float[Tensor, "B D"]:
    """Return flat features of one batch; NetError where they are none."""
    try:
        output = encoder(place_images(images, module))
    except FedcelError:
        raise
    except (RuntimeError, TypeError) as error:  # of shapes and types
        first = " ".join(str(error).strip().splitlines()[:1])
        raise NetError(
            f"the encoder refuses images {tuple(images.shape)} of {images.dtype}: {first}; give "
            "them as it takes them, bytes divided by 255"
        ) from error
    features = to_tensor(output, "the encoder's features")
    if features.dim() < 2 or len(features) != len(images) or not features.is_floating_point():
        raise NetError(
            f"the encoder gives {tuple(features.shape)} of {features.dtype} for {len(images)} "
            f"images, must be floating numbers of shape ({len(images)}, D)"
        )
    return features.flatten(1)


def place_images(
    images: Shaped[Tensor, "B ..."], module: nn.Module | None
) -> Shaped[Tensor, "B ..."]:
    """Return images on the device, and floating ones of the type, of a module's parameters."""
    tensors = () if module is None else chain(module.parameters(), module.buffers())
    like = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
    if like is None:
        return images
    return images.to(like.device, like.dtype if images.is_floating_point() else images.dtype)
