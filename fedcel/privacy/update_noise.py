"""Differentially private updates of clients: clip, noise and accounting.

The Gaussian mechanism on a whole update, after McMahan et al., ICLR 2018 (clip, then noise). The
client adds the noise, so the server sees only noisy updates.
"""

import math
import warnings
from collections import Counter
from collections.abc import Collection, Iterable
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from fedcel.privacy.gaussian_calibration import SLACK, least_epsilon
from fedcel.privacy.noise_mechanisms import add_gaussian_noise
from fedcel.ranges import POSITIVE


def clip_update(delta: Float[Tensor, " P"], clip: float) -> Float[Tensor, " P"]:
    """Scale an update down to an L2 norm, if it is longer.

    Args:
        delta: (P,). An update that is not finite becomes 0, with a warning.
        clip: Largest norm, above 0.

    Returns:
        The update (P,), in double precision.
    """
    if not delta.isfinite().all():
        warnings.warn("the update is not finite and counts as 0; lower local.rate", stacklevel=2)
        return delta.new_zeros(delta.shape).double()
    doubles = delta.double()  # in single precision, rounding could make it longer than the clip
    return doubles * min(1.0, clip / max(float(doubles.norm()), clip))


def add_update_noise(delta: Float[Tensor, " P"], clip: float, noise: float) -> Float[Tensor, " P"]:
    """Clip an update and add Gaussian noise to each parameter.

    The noise is discrete, from the system's secure generator, and cannot be seeded: nobody can draw
    it again. Two updates are at most twice the clip apart.

    Args:
        delta: (P,).
        clip: Largest L2 norm, above 0.
        noise: Standard deviation, in units of the clip, above 0.

    Returns:
        The noisy update (P,), in the dtype of `delta`.

    Raises:
        RuntimeError: OpenDP states a larger loss than such noise has.

    References:
        McMahan et al., ICLR 2018.
    """
    return add_gaussian_noise(clip_update(delta, clip), noise * clip, 2 * clip).to(delta.dtype)


class NoisyRound(NamedTuple):
    """Clients whose updates a round used, and the largest weight among them.

    Attributes:
        clients: Numbers of the clients whose updates were taken.
        largest_weight: The largest over the root of the sum of all weights' squares, in (0, 1].
    """

    clients: Collection[int]
    largest_weight: float


class SpentPrivacy(NamedTuple):
    """Epsilon of all rounds together, at one delta, for the client with the largest loss.

    Attributes:
        server: Epsilon against everyone who sees updates, the server included.
        models: Epsilon against everyone who sees only the models and is not a client: the models
            contain the noise of all clients.
        rounds: Largest number of rounds in which one client took part.
    """

    server: float
    models: float
    rounds: int


def account_updates(noise: float, rounds: Iterable[NoisyRound], delta: float) -> SpentPrivacy:
    """Compute an upper bound on the epsilon of all noisy updates together.

    All of a client's images are protected together. Their number, and which clients take part,
    count as known; random selection of clients is not counted as privacy amplification. Rounding
    of updates to single precision is neglected in their sum.

    Args:
        noise: Standard deviation, in units of the clip, above 0.
        rounds: The rounds in which updates were sent.
        delta: The delta at which epsilon is stated, in (0, 1).

    Returns:
        Epsilons of the client with the largest loss.

    Raises:
        ValueError: There is no noise or no round, or delta is out of range.
    """
    count: Counter[int] = Counter()
    squares: Counter[int] = Counter()
    for clients, largest_weight in rounds:
        count.update(clients)
        squares.update(dict.fromkeys(clients, largest_weight**2))
    POSITIVE.check("noise", noise)
    if not count:
        raise ValueError("no holder took part in a round; nothing was spent")
    most_rounds = max(count.values())
    shift = 2 * SLACK / noise
    return SpentPrivacy(
        server=least_epsilon(delta, shift * math.sqrt(most_rounds)),
        models=least_epsilon(delta, shift * math.sqrt(max(squares.values()))),
        rounds=most_rounds,
    )
