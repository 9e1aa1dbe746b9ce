"""Leak of each pixel, and the picture that a message's linear channel gives back."""

from math import log
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import NetError
from fedcel.leakage.channel_numbers import (
    compute_errors,
    compute_jacobians,
    compute_nats,
    draw_signs,
    factor_gram,
    is_computable,
    solve_exactly,
)
from fedcel.leakage.gaussian_noise import Noise
from fedcel.leakage.image_prior import ImagePrior, read_pixels
from fedcel.leakage.local_channel import LocalChannel, ready_encoder
from fedcel.nets import Encoder
from fedcel.seeding import make_generator
from fedcel.short_repr import show_shapes
from fedcel.tensors import ArrayLike, to_tensor
from fedcel.torch_state import usual_torch_state

MAP_PROBES = 64
"""Random vectors that a diagonal is estimated with."""
MAP_DIRECTIONS = 256
"""The prior's strongest directions, in which large images are taken to leak."""
VALUES_AT_ONCE = 2**22
"""Values of Jacobians, or of images, in memory."""
MAX_ITERATIONS = 400
"""Steps of conjugate gradients."""
TOLERANCE = 1e-6
"""Residual, as a share of the right side, at which they end."""
TINY = torch.finfo(torch.float64).tiny
"""Divisor in the place of 0."""


@show_shapes
class LeakMaps(NamedTuple):
    """Pictures of what messages tell and leave open, pixel by pixel.

    Attributes:
        information: Diagonal of the Fisher information I(x), (n, ...), in 1 / pixel squared.
        deviation: Standard deviation of each pixel given the message, (n, ...).
        prior_deviation: The same given the class only, (...).
        is_exact: Whether both are exact for the linear channel. Else `information` is estimated
            with 64 random vectors, to 18 % of a pixel's value, and `deviation` leaves out what
            leaks in all but the 256 strongest directions of the prior.
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
    messages: int = 1,
    differences: bool = False,
    seed: int = 0,
) -> LeakMaps:
    """Compute which pixels a message exposes, and what stays unknown.

    Example:
        >>> maps = map_leak(encoder, images[:4], noise=0.3, prior=prior)
        >>> maps.information[0], maps.deviation[0]

    Args:
        encoder: As of `measure_linearised`, and so are `noise`, `messages` and `differences`.
        images: (n, ...), those whose maps are drawn.
        noise: Standard deviation of the noise.
        prior: Law of the images.
        messages: Messages of each image.
        differences: Whether derivatives may be finite differences.
        seed: Draws random vectors, where they are needed.

    Returns:
        Maps of the images' shape, in float64.

    Raises:
        ValueError: A shape or a number is not allowed.
        NetError: The encoder has no gradient.
    """
    stack = read_pixels(images)
    function, dtype = ready_encoder(encoder, stack, differences=differences)
    generator = make_generator(seed, "leak-maps")
    prior_variances = prior.pixel_variances()
    pictures = []
    is_exact = True
    for image in torch.split(stack.to(dtype), 1):
        channel = LocalChannel(
            function, image, noise=noise, messages=messages, has_gradient=not differences
        )
        if is_computable(channel.width, image.numel()) or differences:
            pictures.append(map_exactly(channel, prior, prior_variances))
        else:
            is_exact = False
            pictures.append(map_roughly(channel, prior, prior_variances, generator))
    information, variances = (torch.stack(parts) for parts in zip(*pictures, strict=True))
    return LeakMaps(information, variances.clamp_min(0).sqrt(), prior_variances.sqrt(), is_exact)


class ImagePicture(NamedTuple):
    """Leak of one image, its encoder taken as linear around it.

    Attributes:
        bits: About the image, beyond its label where the prior knows labels.
        mmse: Mean squared error of a pixel in the best reconstruction.
        maps: Leak pixel by pixel.
    """

    bits: float
    mmse: float
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
        encoder: As of `measure_linearised`, and so are `noise` and `messages`.
        image: One image.
        noise: Standard deviation of the noise.
        prior: Law of the images.
        messages: Messages of the image.

    Returns:
        Bits, error and maps.

    Raises:
        ValueError: A shape or a number is not allowed.
        NetError: The encoder has no gradient.
    """
    stack = read_pixels(image[None])
    function, dtype = ready_encoder(encoder, stack)
    channel = LocalChannel(function, stack.to(dtype), noise=noise, messages=messages)
    numbers = solve_exactly(channel, prior)
    prior_variances = prior.pixel_variances()
    information, variances = map_exactly(channel, prior, prior_variances)
    return ImagePicture(
        float(compute_nats(numbers.information)) / log(2),
        float(compute_errors(numbers.errors)) / image.numel(),
        LeakMaps(
            information[None],
            variances[None].clamp_min(0).sqrt(),
            prior_variances.sqrt(),
            is_exact=True,
        ),
    )


def map_exactly(
    channel: LocalChannel, prior: ImagePrior, prior_variances: Float[Tensor, "*shape"]
) -> tuple[Float[Tensor, "*shape"], Float[Tensor, "*shape"]]:
    """Return the diagonals of I(x) and of the posterior covariance, from the Jacobian."""
    jacobian = compute_jacobians(channel, prior)
    information = prior.from_coefficients(jacobian[0]).square().sum(0)
    root = prior.variances.sqrt()
    scaled = jacobian * root
    factor, _ = factor_gram(scaled)
    if scaled.shape[1] <= scaled.shape[2]:
        recovered = torch.linalg.solve_triangular(factor[0], scaled[0] * root, upper=False)
        return information, prior_variances - prior.from_coefficients(recovered).square().sum(0)
    remainder = torch.linalg.solve_triangular(factor[0], torch.diag(root), upper=False)
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
    units = torch.zeros(len(strongest), prior.variances.numel(), dtype=torch.float64)
    units[torch.arange(len(strongest)), strongest] = prior.variances[strongest].sqrt()
    directions = prior.from_coefficients(units)
    columns = [channel.push(direction[None])[0].cpu().double() for direction in directions]
    scaled = torch.stack(columns, 1)
    gram = scaled.T @ scaled
    factor = torch.linalg.cholesky(gram + torch.eye(len(gram), dtype=gram.dtype))
    remainder = torch.linalg.solve_triangular(factor, directions.flatten(1), upper=False)
    gain = directions.square().sum(0) - remainder.square().sum(0).view(prior.shape)
    return information, prior_variances - gain


@usual_torch_state()
def posterior_mean(
    encoder: Encoder,
    observed: ArrayLike,
    means: ArrayLike,
    *,
    noise: Noise,
    prior: ImagePrior,
    around: ArrayLike | None = None,
    messages: int = 1,
    differences: bool = False,
) -> Float[Tensor, "n *shape"]:
    """Compute the mean of images given their messages, the encoder taken as linear.

    m + C A^T (I + A C A^T)^-1 (S^(-1/2) (message - f(x)) + A (x - m)), with A at x.

    Args:
        encoder: As of `measure_linearised`, and so are `noise` and `differences`.
        observed: Messages, (n, D), or the mean of several of each image.
        means: Mean image of each one's class, (n, ...): `prior.class_means(labels, n)`.
        noise: Standard deviation of the noise of one message.
        prior: Law of the images.
        around: Images x at which the encoder is linearised, (n, ...); None: the means.
        messages: Messages behind each row of `observed`.
        differences: Whether derivatives may be finite differences.

    Returns:
        Images (n, ...), in float64, not clamped.

    Raises:
        ValueError: A shape or a number is not allowed.
        NetError: The encoder has no gradient, or no solution is found.

    References:
        Kay, Fundamentals of Statistical Signal Processing: Estimation Theory, 1993, theorem 10.3.
    """
    centre = read_pixels(means).double()
    point = centre if around is None else read_pixels(around).double()
    function, dtype = ready_encoder(
        encoder, point.to(to_tensor(means, "means")), differences=differences
    )
    sent = to_tensor(observed, "observed")
    if sent.dim() != 2 or len(sent) != len(point):
        raise ValueError(
            f"observed are of shape {tuple(sent.shape)}, must be ({len(point)}, D): one message of "
            "each image"
        )
    is_dense = is_computable(sent.shape[1], point[0].numel()) or differences
    at_once = max(1, VALUES_AT_ONCE // (point[0].numel() * (sent.shape[1] if is_dense else 1)))
    solutions = []
    parts = (torch.split(part, at_once) for part in (point, point - centre, sent))
    for images, offset, messages_part in zip(*parts, strict=True):
        channel = LocalChannel(
            function,
            images.to(dtype),
            noise=noise,
            messages=messages,
            has_gradient=not differences,
        )
        if channel.features.shape != messages_part.shape:
            raise ValueError(
                f"observed have {sent.shape[1]} values, the encoder's features "
                f"{channel.features.shape[1]}; must be as many"
            )
        residual = channel.residual(messages_part.to(channel.features))
        solve = solve_directly if is_dense else solve_iteratively
        solutions.append(solve(channel, prior, residual, offset))
    changes = prior.from_coefficients(torch.cat(solutions) * prior.variances.sqrt())
    return centre.cpu() + changes


def solve_directly(
    channel: LocalChannel,
    prior: ImagePrior,
    residual: Float[Tensor, "B F"],
    offset: Float[Tensor, "B *shape"],
) -> Float[Tensor, "B d"]:
    """Solve (I + M^T M) c = M^T (r + A (x - m)) of each image, with Jacobians."""
    jacobians = compute_jacobians(channel, prior)
    outputs = residual.cpu().double()[:, :, None]
    outputs = outputs + jacobians @ prior.to_coefficients(offset)[:, :, None]
    scaled = jacobians * prior.variances.sqrt()
    factor, _ = factor_gram(scaled)
    if scaled.shape[1] <= scaled.shape[2]:
        return (scaled.mT @ torch.cholesky_solve(outputs, factor))[:, :, 0]
    return torch.cholesky_solve(scaled.mT @ outputs, factor)[:, :, 0]


def solve_iteratively(
    channel: LocalChannel,
    prior: ImagePrior,
    residual: Float[Tensor, "B F"],
    offset: Float[Tensor, "B *shape"],
) -> Float[Tensor, "B d"]:
    """Solve the same by conjugate gradients; NetError where they do not end."""
    root = prior.variances.sqrt()

    def pull(outputs: Float[Tensor, "B F"]) -> Float[Tensor, "B d"]:
        return root * prior.to_coefficients(channel.pull(outputs)).double()

    solution = torch.zeros(len(offset), len(root), dtype=torch.float64)
    remainder = pull(residual + channel.push(offset).detach())
    direction, size = remainder, remainder.square().sum(1, keepdim=True)
    goal = TOLERANCE**2 * size
    for _ in range(MAX_ITERATIONS):
        if bool((size <= goal).all()):
            return solution
        pushed = channel.push(prior.from_coefficients(root * direction)).detach()
        product = direction + pull(pushed)
        step = size / (direction * product).sum(1, keepdim=True).clamp_min(TINY)
        solution = solution + step * direction
        remainder = remainder - step * product
        before, size = size, remainder.square().sum(1, keepdim=True)
        direction = remainder + size / before.clamp_min(TINY) * direction
    raise NetError(
        f"{MAX_ITERATIONS} steps of conjugate gradients found no image: the noise is very small "
        "beside the features; add noise"
    )
