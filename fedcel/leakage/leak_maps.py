"""Leak of each pixel by a message, its encoder taken as linear."""

from math import log
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.leakage.channel_numbers import (
    compute_errors,
    compute_fsinfo,
    compute_nats,
    draw_signs,
    solve_exactly,
)
from fedcel.leakage.gaussian_noise import Noise
from fedcel.leakage.image_prior import ImagePrior, read_pixels
from fedcel.leakage.local_channel import (
    LocalChannel,
    factor_gram,
    is_computable,
    ready_encoder,
)
from fedcel.nets import Encoder
from fedcel.short_repr import show_shapes
from fedcel.tensors import ArrayLike
from fedcel.torch_state import make_generator, map_on_threads, usual_torch_state

MAP_PROBES = 32
"""Random vectors that a diagonal is estimated with."""
MAP_DIRECTIONS = 128
"""The prior's strongest directions, in which large images are taken to leak."""
PIXELS_AT_ONCE = 2**14


@show_shapes
class LeakMaps(NamedTuple):
    """Pictures of what messages tell and leave open, pixel by pixel.

    Attributes:
        information: Diagonal of the Fisher information I(x), (n, ...), in 1 / pixel squared.
        deviation: Standard deviation of each pixel given the message, (n, ...).
        prior_deviation: The same given the class only, (...).
        is_exact: Whether both are exact for the linear channel. Else `information` is estimated
            with 32 random vectors, to 25 % of a pixel's value, and `deviation` leaves out what
            leaks in all but the 128 strongest directions of the prior.
    """

    information: Float[Tensor, "n *shape"]
    deviation: Float[Tensor, "n *shape"]
    prior_deviation: Float[Tensor, "*shape"]
    is_exact: bool


@usual_torch_state()
def map_leak(
    encoder: Encoder,
    images: ArrayLike,
    *,
    noise: Noise,
    prior: ImagePrior,
) -> LeakMaps:
    """Compute which pixels a message exposes, and what stays unknown.

    Example:
        >>> maps = map_leak(encoder, images[:4], noise=0.3, prior=prior)
        >>> maps.information[0], maps.deviation[0]

    Args:
        encoder: As of `measure_linearised`.
        images: (n, ...), those whose maps are drawn.
        noise: Standard deviation of the noise.
        prior: Law of the images.

    Returns:
        Maps of the images' shape, in float64.

    Raises:
        ValueError: A shape or a number is not allowed.
        NetError: The encoder has no gradient.
    """
    stack = read_pixels(images)
    function, dtype = ready_encoder(encoder, stack)
    prior_variances = prior.pixel_variances()

    def draw(number: int, image: Float[Tensor, "1 *shape"]) -> tuple[Tensor, Tensor, bool]:
        channel = LocalChannel(function, image, noise=noise)
        if is_computable(channel.width, image.numel()):
            return *map_exactly(channel.jacobians(prior)[0], prior, prior_variances), True
        generator = make_generator(0, "leak-maps", number)
        return *map_roughly(channel, prior, prior_variances, generator), False

    pictures = map_on_threads(draw, range(len(stack)), torch.split(stack.to(dtype), 1))
    information, variances, are_exact = zip(*pictures, strict=True)
    return LeakMaps(
        torch.stack(information),
        torch.stack(variances).clamp_min(0).sqrt(),
        prior_variances.sqrt(),
        all(are_exact),
    )


class ImagePicture(NamedTuple):
    """Leak of one image, its encoder taken as linear around it.

    Attributes:
        bits: About the image, beyond its label where the prior knows labels.
        mmse: Mean squared error of a pixel in the best reconstruction.
        dfil: Fisher information per pixel, tr I(x) / d.
        fsinfo: FSInfo in nats, see `LinearisedLeak`.
        maps: Leak pixel by pixel.
    """

    bits: float
    mmse: float
    dfil: float
    fsinfo: float
    maps: LeakMaps


@usual_torch_state()
def image_picture(
    encoder: Encoder,
    image: Float[Tensor, "*shape"],
    *,
    noise: Noise,
    prior: ImagePrior,
    messages: int = 1,
) -> ImagePicture:
    """Estimate how much of one picture its messages tell, from the encoder's Jacobian.

    Args:
        encoder: As of `measure_linearised`, and so is `noise`.
        image: One image.
        noise: Standard deviation of the noise.
        prior: Law of the images.
        messages: Messages of the image, each with fresh noise.

    Returns:
        Bits, error, Fisher information and maps.

    Raises:
        ValueError: A shape or a number is not allowed.
        NetError: The encoder has no gradient.
    """
    stack = read_pixels(image[None])
    function, dtype = ready_encoder(encoder, stack)
    numbers = solve_exactly(LocalChannel(function, stack.to(dtype), noise=noise), prior)
    assert numbers.jacobians is not None
    gain = float(messages)
    jacobian = gain**0.5 * numbers.jacobians[0]
    prior_variances = prior.pixel_variances()
    information, variances = map_exactly(jacobian, prior, prior_variances)
    nats = compute_nats(numbers.information, gain)
    return ImagePicture(
        float(nats) / log(2),
        float(compute_errors(numbers.errors, gain)) / image.numel(),
        float(information.mean()),
        float(compute_fsinfo(nats, prior.variances)),
        LeakMaps(
            information[None],
            variances[None].clamp_min(0).sqrt(),
            prior_variances.sqrt(),
            is_exact=True,
        ),
    )


def map_exactly(
    jacobian: Float[Tensor, "F d"], prior: ImagePrior, prior_variances: Float[Tensor, "*shape"]
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Return the diagonals of I(x) and of the posterior covariance, from the Jacobian."""
    information = prior.from_coefficients(jacobian).square().sum(0)
    root = prior.variances.sqrt()
    scaled = jacobian * root
    factor = factor_gram(scaled[None])[0]
    if len(scaled) <= len(root):
        recovered = torch.linalg.solve_triangular(factor, scaled * root, upper=False)
        return information, prior_variances - prior.from_coefficients(recovered).square().sum(0)
    remainder = torch.linalg.solve_triangular(factor, torch.diag(root), upper=False)
    return information, prior.from_coefficients(remainder).square().sum(0)


def map_roughly(
    channel: LocalChannel,
    prior: ImagePrior,
    prior_variances: Float[Tensor, "*shape"],
    generator: torch.Generator,
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Return both diagonals, one by random vectors, one in the prior's strongest directions."""
    information = torch.zeros(prior.shape, dtype=torch.float64)
    for signs in draw_signs((MAP_PROBES, channel.width), generator):
        information += channel.pull(signs[None])[0].cpu().double().square() / MAP_PROBES
    strongest = prior.variances.argsort(descending=True)[:MAP_DIRECTIONS]
    directions = torch.empty(len(strongest), prior.variances.numel())
    scaled = torch.empty(channel.width, len(strongest), dtype=torch.float64)
    for place, number in enumerate(strongest):
        unit = torch.zeros(1, prior.variances.numel(), dtype=torch.float64)
        unit[0, number] = prior.variances[number].sqrt()
        direction = prior.from_coefficients(unit)
        directions[place] = direction.flatten()
        scaled[:, place] = channel.push(direction)[0]
    gram = scaled.T @ scaled
    factor = torch.linalg.cholesky(gram + torch.eye(len(gram), dtype=gram.dtype))
    gains = []
    for pixels in torch.split(directions, PIXELS_AT_ONCE, 1):
        remainder = torch.linalg.solve_triangular(factor, pixels.double(), upper=False)
        gains.append(pixels.double().square().sum(0) - remainder.square().sum(0))
    gain = torch.cat(gains).view(prior.shape)
    return information, prior_variances - gain
