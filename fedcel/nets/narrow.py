"""Messages of few values: those directions of a cut's features that the rest of the net reads."""

from math import ceil

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedcel.errors import NetError
from fedcel.nets.encode_images import (
    choose_batch_size,
    encode_images,
    evaluation_mode,
    place_images,
)
from fedcel.ranges import check_whole
from fedcel.torch_state import make_generator

GRADIENTS = 20
"""Gradients for each value, or one an image where these are more."""
LEAST_SHARE = 1e-5
"""Of the strongest direction, in another that is still told from rounding."""


def narrow(
    encoder: nn.Module,
    head: nn.Module,
    images: Shaped[Tensor, "N ..."],
    *,
    values: int = 16,
    seed: int = 0,
) -> tuple[nn.Module, nn.Module]:
    """Narrow a cut to the few values on which the head's answers depend.

    The features' covariance and that of the logits' gradients are balanced: of all linear maps to
    so few values, these lose least of the logits where the head is linear and the features are
    Gaussian. A value's standard deviation is its share of the logits, so that noise of one standard
    deviation harms the answer about equally in each. No label is needed and nothing is trained.

    Example:
        >>> encoder, head = fedcel.split(model, "layer3")
        >>> encoder, head = fedcel.narrow(encoder, head, images, values=16)

    Args:
        encoder: As of `split`, from images to features (B, ...).
        head: As of `split`, from features to logits (B, classes).
        images: (N, ...), as many as values or more, as the encoder takes them.
        values: Values of a message, at most. There are fewer where the logits depend on fewer, such
            as classes - 1 behind a linear head.
        seed: Decides the directions of the logits whose gradients are taken.

    Returns:
        Encoder, to values (B, k), and head from these. Both hold the layers of those given.

    Raises:
        NetError: The encoder refuses the images, or the logits depend on no value of the cut.
        ValueError: The cut has as few values already, or there are fewer images.

    References:
        Otto, Padovan and Rowley, SIAM Journal on Scientific Computing 45(5), 2023 (CoBRAS).
    """
    with evaluation_mode(encoder), torch.no_grad():
        shape = encoder(place_images(images[:1], encoder).clone()).shape[1:]
    features = encode_images(encoder, images)
    return narrow_features(encoder, head, features, shape=tuple(shape), values=values, seed=seed)


def narrow_features(
    encoder: nn.Module,
    head: nn.Module,
    features: Float[Tensor, "N D"],
    *,
    shape: tuple[int, ...],
    values: int,
    seed: int,
) -> tuple[nn.Sequential, nn.Sequential]:
    """Narrow a cut, as `narrow` does, whose features of some images are known.

    Args:
        encoder: From images to features.
        head: From features in their own shape to logits.
        features: (N, D), of N images.
        shape: That of one image's features.
        values: Values of a message, at most.
        seed: Decides the directions of the logits whose gradients are taken.

    Returns:
        Encoder, which ends in a linear layer from D features to k values, and head.

    Raises:
        NetError: The logits depend on no value of the cut.
        ValueError: There are as few features, or fewer images.
    """
    count, width = features.shape
    check_whole("values", values, 1)
    if values >= width or values > count:
        raise ValueError(
            f"values is {values}, must be below the {width} of the cut and at most {count}, the "
            "number of images"
        )
    draws = ceil(GRADIENTS * values / count)
    gradients = pull_gradients(head, features, shape=shape, draws=draws, seed=seed)
    table = features.float().cpu()
    mean = table.mean(0)
    centred = table - mean
    u, shares, v = decompose_product(gradients, centred)
    shares = shares / (len(gradients) * count) ** 0.5
    size = min(values, int((shares > LEAST_SHARE * shares[0]).sum()))
    if not size:
        raise NetError("the head's logits depend on no value of the cut")
    u, shares, v = u[:, :size].float(), shares[:size].float(), v[:size].float()
    reader, writer = nn.Linear(width, size), nn.Linear(size, width)
    with torch.no_grad():
        reader.weight.copy_(u.T @ gradients / len(gradients) ** 0.5)
        reader.bias.copy_(-(reader.weight @ mean))
        writer.weight.copy_(centred.T @ v.T / (count**0.5 * shares))
        writer.bias.copy_(mean)
    place = next((tensor.device for tensor in head.parameters()), features.device)
    reader, writer = (layer.to(place, features.dtype) for layer in (reader, writer))
    return (
        nn.Sequential(encoder, nn.Flatten(), reader),
        nn.Sequential(writer, nn.Unflatten(1, shape), head),
    )


def decompose_product(
    first: Float[Tensor, "G D"], second: Float[Tensor, "N D"]
) -> tuple[Float[Tensor, "G k"], Float[Tensor, " k"], Float[Tensor, "k N"]]:
    """Return the singular values of first @ second^T and their directions, as PyTorch's SVD does.

    Of more rows than columns the factors of both are decomposed, which have only D rows.
    """
    count, width = second.shape
    if count <= width:
        u, shares, v = torch.linalg.svd((first @ second.T).double(), full_matrices=False)
        return u, shares, v
    first_basis, first_factor = torch.linalg.qr(first.double())
    second_basis, second_factor = torch.linalg.qr(second.double())
    u, shares, v = torch.linalg.svd(first_factor @ second_factor.T, full_matrices=False)
    return first_basis @ u, shares, v @ second_basis.T


def pull_gradients(
    head: nn.Module,
    features: Float[Tensor, "N D"],
    *,
    shape: tuple[int, ...],
    draws: int,
    seed: int,
) -> Float[Tensor, "G D"]:
    """Return gradients of random sums of the logits, whose common shift no answer depends on."""
    generator = make_generator(seed, "narrow")
    gradients = []
    with evaluation_mode(head), torch.enable_grad():
        for rows in torch.split(features, choose_batch_size(features)):
            for _ in range(draws):
                z = place_images(rows.detach().reshape(-1, *shape), head).requires_grad_()
                logits = head(z.clone())  # which it may change in place
                weights = torch.randn(logits.shape, generator=generator).to(logits)
                centred = logits - logits.mean(1, keepdim=True)
                (gradient,) = torch.autograd.grad((centred * weights).sum(), z)
                gradients.append(gradient.flatten(1).float().cpu())
    return torch.cat(gradients)
