"""The constants of a round of Langevin dynamics, from the settings and the round's number alone.

Welling and Teh, ICML 2011, eq. 4, for the potential per example f_k of client k:
w <- w - eta (grad f_k + kappa (w - w_received)) + noise.
"""

import math
from collections.abc import Collection, Mapping
from typing import NamedTuple

import torch

from fedcel.errors import SettingsError
from fedcel.losses.cel import ramp_weight
from fedcel.seeding import make_generator
from fedcel.settings import Settings, burn_in_rounds


class RoundPlan(NamedTuple):
    """One client's round in plain numbers."""

    rate: float
    """eta."""
    cel_weight: float
    """lambda times the ramp gamma_t."""
    defence_weight: float
    """The defence's strength times the ramp gamma_t."""
    pull: float
    """kappa, the pull towards the received model."""
    decay: float
    """1/(N s0^2), the pull towards 0."""
    noise: float
    """The standard deviation of the client's own Langevin noise per step."""
    is_encoder_frozen: bool
    temperature: float
    threshold: float | None = None
    """tau, where the server moves it."""
    clip: float | None = None
    """The largest norm of a step's gradient."""
    steps: int = 1
    control: str = "none"
    """The control variate of this round."""

    @property
    def cel_acts(self) -> bool:
        """Say whether the conditional entropy loss has an encoder to act on and a weight."""
        return self.cel_weight > 0 and not self.is_encoder_frozen


def step_size(settings: Settings, number: int) -> float:
    """Compute eta in round `number`, from 1.

    `cosine` and `decay`, eta_1 t^-c (Welling and Teh, ICML 2011, section 4), fall to `rate-end` of
    the first value at the end of burn-in and stay there.
    """
    local = settings.local
    if local.schedule == "constant":
        return local.rate
    last = burn_in_rounds(settings)
    if number > last and last < 2:
        return local.rate * local.rate_end  # burn-in is too short to fall in
    if local.schedule == "decay":
        power = -math.log(local.rate_end) / math.log(max(2, last))
        return local.rate * float(min(number, last) ** -power)
    progress = min(1.0, (number - 1) / max(1, last - 1))
    cosine = (1 + math.cos(math.pi * progress)) / 2
    return local.rate * (local.rate_end + (1 - local.rate_end) * cosine)


def is_sample_candidate(settings: Settings, number: int) -> bool:
    """Say whether the model after a round may be a posterior sample; without noise none is.

    Args:
        settings: The run's settings.
        number: The round, from 1.

    Returns:
        Whether it may.
    """
    return settings.temperature > 0 and number > burn_in_rounds(settings)


def is_encoder_frozen(settings: Settings, number: int) -> bool:
    """Say whether the encoder stands still in a round.

    Args:
        settings: The run's settings.
        number: The round, from 1.

    Returns:
        Whether it does.
    """
    return number > burn_in_rounds(settings) and settings.chain.scope == "head"


def temperature(settings: Settings, number: int) -> float:
    """Compute the temperature of round `number`.

    The full one while sampling; in burn-in `chain.heat` of it.
    """
    if number > burn_in_rounds(settings):
        return settings.temperature
    return settings.temperature * settings.chain.heat


def loss_ramp(settings: Settings, number: int) -> float:
    """Compute gamma_t: 0 in warm-up, then up to 1 as `cel.schedule` says.

    `ramp`: linear to the fraction `cel.ramp` of the rounds, then constant; `constant`: all of it at
    once; `rate`: in proportion to the step size, so that it falls as a cosine; `target`: as `ramp`,
    which the gamma that the server sends never exceeds.
    """
    cel = settings.cel
    if cel.schedule in ("ramp", "target"):
        return ramp_weight(number, settings.rounds, warm_up=cel.warm_up, ramp=cel.ramp)
    if number <= cel.warm_up:
        return 0.0
    if cel.schedule == "constant":
        return 1.0
    return step_size(settings, number) / settings.local.rate


def temperature_ratio(rate: float, kappa: float, steps: int) -> float:
    """Compute T_eff/T = (1 + q^steps)/(1 + q), q = 1 - eta kappa, of a prior that moves each round.

    The limit for a small step; the prior's centre follows the chain, so it damps without adding
    its own share of noise.
    """
    q = 1 - rate * kappa
    return (1 + q**steps) / (1 + q)


def noise_variance(
    *,
    rate: float,
    temperature: float,
    total: int,
    weight: float,
    kappa: float = 0.0,
    steps: int = 1,
    gain: float = 1.0,
) -> float:
    """Compute the variance of the noise that gives a federation's chain temperature T.

    Each client adds 1/w_k times the noise of a chain that holds all examples, since deltas are
    averaged by w_k.

    Args:
        rate: eta.
        temperature: T.
        total: N, the examples of all clients.
        weight: w_k, of this client's delta.
        kappa: Pull of a prior around the received model, which cools the chain.
        steps: Steps of a round.
        gain: By which the server multiplies the mean delta.

    Returns:
        Per step and parameter: 2 eta T/(N w_k), divided by gain and cooling.

    References:
        Welling and Teh, ICML 2011, eq. 4.
    """
    ratio = temperature_ratio(rate, kappa, steps)
    return 2 * rate * temperature / (total * gain * ratio) / weight


def plan_round(
    settings: Settings,
    number: int,
    weight: float,
    total: int,
    *,
    gamma: float | None = None,
    proximal: float = 0.0,
) -> RoundPlan:
    """Compute the constants of round `number` for one client.

    Args:
        settings: The run's settings.
        number: The round, from 1.
        weight: w_k, which the server gives to the client's delta; 1: it holds everything.
        total: N, the training images of all clients.
        gamma: What the conditional entropy loss's gamma is at most, beside the schedule's own.
        proximal: Pull towards the received model beside the prior's, as of FedProx (Li et al.,
            MLSys 2020, eq. 2).

    Returns:
        Step size, noise, priors and weights of the round.

    Raises:
        SettingsError: Step size and priors together would make every step overshoot.
    """
    local, prior = settings.local, settings.prior
    eta = step_size(settings, number)
    round_temperature = temperature(settings, number)
    kappa, decay = prior.pull(eta, local.steps, total), prior.decay(total)
    if eta * (kappa + decay + proximal) >= 1:
        raise SettingsError(
            f"eta {eta:g} times prior.scale's {decay:.3g}, the received model's {kappa:.3g} and "
            f"FedProx's pull {proximal:g} is 1 or more: every step would "
            "overshoot; lower local.rate, or raise prior.scale"
        )
    variance = noise_variance(
        rate=eta,
        temperature=round_temperature,
        total=total,
        weight=weight,
        kappa=kappa,
        steps=local.steps,
        gain=settings.strategy.gain,
    )
    ramp = loss_ramp(settings, number)
    cel_ramp = ramp if gamma is None else min(gamma, ramp)
    return RoundPlan(
        rate=eta,
        cel_weight=0.0 if settings.cel.kind == "none" else settings.cel.weight * cel_ramp,
        defence_weight=settings.defence.used_strength * ramp,
        pull=kappa + proximal,
        decay=decay,
        noise=math.sqrt(variance),
        is_encoder_frozen=is_encoder_frozen(settings, number),
        temperature=round_temperature,
        clip=None if local.clip == "none" else local.clip,
        steps=local.steps,
        control=local.control if number > burn_in_rounds(settings) else "none",
    )


def select_clients(settings: Settings, number: int) -> list[int]:
    """Draw the clients that train in a round.

    Args:
        settings: The run's settings; `clients-per-round` says how many.
        number: The round, from 1.

    Returns:
        Their partitions, ascending.
    """
    if settings.clients_per_round in (0, settings.clients):
        return list(range(settings.clients))
    order = torch.randperm(
        settings.clients, generator=make_generator(settings.seed, "clients", number)
    )
    return sorted(order[: settings.clients_per_round].tolist())


def weigh_clients(examples: Mapping[int, int], selected: Collection[int]) -> dict[int, float]:
    """Compute the weights of the clients that take part in a round; unbiased over the draw.

    Args:
        examples: Partition -> N_k of all K clients.
        selected: The m that take part.

    Returns:
        Partition -> w_k = (K/m) N_k/N.
    """
    total = sum(examples.values())
    scale = len(examples) / len(selected)
    return {client: scale * examples[client] / total for client in selected}
