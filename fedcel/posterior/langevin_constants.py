"""Stochastic gradient Langevin dynamics around a received model: the constants of a round.

Welling and Teh, ICML 2011, eq. 4, for the potential per example f_k of client k:
w <- w - eta (grad f_k + kappa (w - w_received)) + noise.
"""

import math
from typing import overload

from jaxtyping import Float
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.settings import PriorSettings


def prior_pull(
    prior: PriorSettings, rate: float, steps: int, total: int, temperature: float = 1.0
) -> float:
    """Return kappa, the pull per unit step towards the received model.

    `fixed`: 1/(N s^2), the gradient of -log N(w_received, s^2 I) per example.
    `consistent`: a round of `steps` steps goes back the share r: (1 - eta kappa)^steps = 1 - r.
    `patent-code`: `fixed` with the standard deviation of a step's noise, sqrt(2 eta T/N), in the
    place of the variance s^2: a pull so weak that it is FedAvg, kept to compare with.
    SettingsError when a prior is so narrow that a step would overshoot (eta kappa >= 1).
    """
    if prior.mode == "none":
        return 0.0
    if prior.mode == "consistent":
        return (1 - float((1 - prior.pull) ** (1 / steps))) / rate
    code = prior.mode == "patent-code"
    variance = math.sqrt(2 * rate * temperature / total) if code else prior.width**2
    kappa = 1 / (total * variance)
    if rate * kappa >= 1:
        raise SettingsError(
            f"prior.mode is {prior.mode!r}, prior.width {prior.width}: eta*kappa is "
            f"{rate * kappa:.3g}, must be below 1; use mode 'fixed' with a width of at least "
            f"{(rate / total) ** 0.5:.3g}, or a smaller local.rate"
        )
    return kappa


@overload
def temperature_ratio(rate: float, kappa: float, steps: int) -> float: ...
@overload
def temperature_ratio(
    rate: Float[Tensor, " P"], kappa: float, steps: int
) -> Float[Tensor, " P"]: ...
def temperature_ratio(
    rate: float | Float[Tensor, " P"], kappa: float, steps: int
) -> float | Float[Tensor, " P"]:
    """Return T_eff/T = (1 + q^steps)/(1 + q), q = 1 - eta kappa, of a prior that moves each round.

    The limit for a small step; the prior's centre follows the chain, so it damps without adding
    its own share of noise. With a step size for each parameter, one ratio for each.
    """
    q = 1 - rate * kappa
    return (1 + q**steps) / (1 + q)


def noise_variance(
    *,
    rate: float,
    temperature: float,
    total: int,
    share: float,
    kappa: float = 0.0,
    steps: int = 1,
    gain: float = 1.0,
    common: float = 0.0,
) -> tuple[float, float]:
    """Return the variances per step and parameter, own and shared, that give temperature T.

    Own noise is drawn by each client, 2 eta T/(N w_k) (1 - rho^2): deltas are averaged with weight
    w_k = `share`, so that a client must add 1/w_k times the noise of a chain that holds all N =
    `total` examples. Shared noise is the same on all clients, 2 eta T/N rho^2, rho = `common`.
    Both are divided by the cooling of the moving prior and by the server's gain.
    """
    whole = 2 * rate * temperature / (total * gain * temperature_ratio(rate, kappa, steps))
    return whole * (1 - common**2) / share, whole * common**2
