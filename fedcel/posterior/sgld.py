"""Stochastic gradient Langevin dynamics around a received model.

Welling and Teh, ICML 2011, eq. 4, for the potential per example f_k of client k:
w <- w - eta (grad f_k + kappa (w - w_received)) + noise.
"""

from fedcel.errors import SettingsError
from fedcel.settings_groups import Prior


def prior_pull(prior: Prior, rate: float, steps: int, total: int) -> float:
    """Return kappa, the pull per unit step towards the received model.

    `fixed`: 1/(N s^2), the gradient of -log N(w_received, s^2 I) per example.
    `consistent`: a round of `steps` steps goes back the share r: (1 - eta kappa)^steps = 1 - r.
    SettingsError when a fixed prior is so narrow that a step would overshoot (eta kappa >= 1).
    """
    if prior.mode == "none":
        return 0.0
    if prior.mode == "consistent":
        return (1 - float((1 - prior.pull) ** (1 / steps))) / rate
    kappa = 1 / (total * prior.width**2)
    if rate * kappa >= 1:
        raise SettingsError(
            f"prior.width is {prior.width}: eta*kappa is {rate * kappa:.3g}, must be below 1; "
            f"use at least {(rate / total) ** 0.5:.3g}, or a smaller local.rate"
        )
    return kappa


def temperature_ratio(rate: float, kappa: float, steps: int) -> float:
    """Return T_eff/T = (1 + q^steps)/(1 + q), q = 1 - eta kappa, of a prior that moves each round.

    The limit for a small step; the prior's centre follows the chain, so it damps without adding
    its own share of noise.
    """
    q = 1 - rate * kappa
    return float((1 + q**steps) / (1 + q))


def noise_variance(
    *,
    rate: float,
    temperature: float,
    total: int,
    share: float,
    kappa: float = 0.0,
    steps: int = 1,
    gain: float = 1.0,
) -> float:
    """Return the variance per step and parameter that gives the aggregate temperature T.

    2 eta T/(N w_k): deltas are averaged with weight w_k = `share`, so that a client must add
    1/w_k times the noise of a chain that holds all N = `total` examples. Divided by the cooling
    of the moving prior and by the server's gain.
    """
    return 2 * rate * temperature / (total * share * gain * temperature_ratio(rate, kappa, steps))
