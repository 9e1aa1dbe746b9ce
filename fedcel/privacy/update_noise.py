"""Updates that say little about their holder: clipped, perturbed, and what that is worth.

The Gaussian mechanism on a whole update, after McMahan et al., ICLR 2018 (clip, then noise), drawn
by the holder itself, so that the server sees noisy updates alone.
"""

import math
import warnings
from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from fedcel.privacy.gaussian_calibration import SLACK, least_epsilon
from fedcel.privacy.noise_mechanisms import draw_noise, gaussian_measurement


def clip_update(delta: Float[Tensor, " P"], clip: float) -> Float[Tensor, " P"]:
    """Return the update in double precision, scaled down to the L2 norm `clip` if it is longer.

    One that is not finite becomes 0, with a warning: what is sent must not depend on it.
    """
    if not delta.isfinite().all():
        warnings.warn("the update is not finite and counts as 0; lower local.rate", stacklevel=2)
        return delta.new_zeros(delta.shape).double()
    whole = delta.double()  # in single precision, rounding could make it longer than the clip
    return whole * min(1.0, clip / max(float(whole.norm()), clip))


def add_update_noise(delta: Float[Tensor, " P"], clip: float, noise: float) -> Float[Tensor, " P"]:
    """Return the clipped update with Gaussian noise of `noise` times `clip` on each parameter.

    The noise is discrete, from the system's secure generator, and cannot be seeded: nobody can draw
    it again. Two updates are at most 2 `clip` apart. RuntimeError when OpenDP states a larger loss
    than a sigma of `noise` times `clip` has.
    """
    short, sigma, apart = clip_update(delta, clip), noise * clip, 2 * clip
    mechanism = gaussian_measurement(delta.numel(), sigma, apart)
    return draw_noise(mechanism, short, apart, (SLACK * apart / sigma) ** 2 / 2).to(delta.dtype)


class Round(NamedTuple):
    """Whose updates a round took, and how much one counts in their mean."""

    holders: Collection[int]
    heaviest: float
    """The largest weight over the root of the sum of all weights' squares, in (0, 1]."""


class SpentPrivacy(NamedTuple):
    """Epsilon of all rounds together, at one delta, of the holder who loses most."""

    server: float
    """For who sees each update, the server included."""
    models: float
    """For who sees the models alone and holds no images: all holders' noise is in them."""
    rounds: int
    """The most in which one holder took part."""


def account_updates(noise: float, rounds: Iterable[Round], delta: float) -> SpentPrivacy:
    """Return what updates with this noise cost, never understated.

    All of a holder's images are protected together: whether these or any others were there. How
    many they are, and who takes part, are taken to be known; no gain is counted for chance in who
    is drawn. The sum of uploads that were each rounded to single precision counts as their sum.
    ValueError without noise, without a round, or on a delta that is not in (0, 1).
    """
    count: Counter[int] = Counter()
    squares: Counter[int] = Counter()
    for holders, heaviest in rounds:
        count.update(holders)
        squares.update(dict.fromkeys(holders, heaviest**2))
    if not noise > 0 or not count or not 0 < delta < 1:
        raise ValueError(
            f"noise is {noise}, delta {delta} and {len(count)} holders took part: noise must be "
            "above 0, delta in (0, 1), and one update sent"
        )
    most, apart = max(count.values()), 2 * SLACK / noise
    server = least_epsilon(delta, apart * math.sqrt(most))
    return SpentPrivacy(
        server, least_epsilon(delta, apart * math.sqrt(max(squares.values()))), most
    )
