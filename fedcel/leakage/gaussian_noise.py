"""Gaussian noise at the cut, as users state it: one deviation, one a feature, or a function."""

from collections.abc import Callable, Sequence
from math import inf

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from fedcel.ranges import CHANCE
from fedcel.tensors import to_tensor

NoiseFunction = Callable[[Tensor], Tensor]
"""Features (N, D) to the standard deviation of each one's noise, (N, D)."""
Noise = float | Sequence[float] | NDArray[np.generic] | Tensor | NoiseFunction
"""Standard deviation of Gaussian noise: one for all features, one a feature, or by the features."""


def read_noise(
    noise: Noise | None, dropout: float, table: Float[Tensor, "M D"]
) -> Float[Tensor, "*M D"]:
    """Check noise and dropout, and spell the noise out for each feature.

    Args:
        noise: One standard deviation for all features, one for each, or a function of them.
        dropout: Chance that a feature is sent as 0.
        table: Features (M, D), whose type and device the noise takes.

    Returns:
        The standard deviations (D,), or (M, D) where they differ from image to image.

    Raises:
        ValueError: One of them is not allowed.
    """
    if noise is None:
        raise ValueError(
            "noise is missing: the standard deviation of the Gaussian noise that is added to the "
            "features, 0.0 for none; or give log_prob and sampler of a law of your own"
        )
    CHANCE.check("dropout", dropout)
    width = table.shape[1]
    shapes: list[tuple[int, ...]] = [(), (1,), (width,)]
    if callable(noise):
        with torch.no_grad():
            noise = noise(table.float())
        shapes.append(tuple(table.shape))
    sigma = to_tensor(noise, "noise").to(table)
    if tuple(sigma.shape) not in shapes:
        raise ValueError(
            f"noise is of shape {tuple(sigma.shape)}, must be one number or ({width},): one for "
            "each feature; if it differs from image to image, give a function of the features, "
            f"which gives {tuple(table.shape)} here"
        )
    if (is_wrong := ~((sigma >= 0) & (sigma < inf))).any():
        wrong = float(sigma[is_wrong].flatten()[0])
        raise ValueError(f"noise is {wrong}, must be finite and at least 0")
    if sigma.dim() == 2 and bool((sigma == sigma[0]).all()):
        sigma = sigma[0]
    if sigma.dim() < 2:
        if (sigma > 0).any() and not (sigma > 0).all():
            raise ValueError(
                "noise is 0 for some features only; must be above 0 for all, or 0 for all"
            )
        return sigma.expand(width)
    if dropout or not (sigma > 0).all():
        raise ValueError(
            f"noise of each image is {float(sigma.min()):g} at least, dropout {dropout}: noise "
            "must be above 0 for all, dropout 0"
        )
    return sigma
