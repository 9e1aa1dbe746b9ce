"""What a round asks of a client, from the settings and the round's number alone."""

import math
from typing import NamedTuple

import torch

from fedcel.errors import SettingsError
from fedcel.posterior.langevin_constants import noise_variance, prior_pull
from fedcel.seeding import make_generator
from fedcel.settings import Settings, burn_in_rounds


class RoundPlan(NamedTuple):
    """One client's round in plain numbers."""

    rate: float  # eta
    cel_weight: float  # lambda * gamma_t
    defence_weight: float  # strength * gamma_t
    pull: float  # kappa, towards the received model
    decay: float  # 1/(N s0^2), towards 0
    noise: float  # standard deviation of the client's own Langevin noise per step
    freeze: bool  # the encoder does not move
    temperature: float
    threshold: float | None = None  # tau, where the server moves it
    common: float = 0.0  # standard deviation of the noise that all clients draw alike
    clip: float | None = None  # largest norm of a step's gradient
    steps: int = 1
    compensate: bool = True  # the noise makes up for the moving prior's cooling
    control: str = "none"  # the control variate of this round

    @property
    def cel_acts(self) -> bool:
        """Say whether the conditional entropy loss has an encoder to act on and a weight."""
        return self.cel_weight > 0 and not self.freeze


def step_size(settings: Settings, number: int) -> float:
    """Return eta in round `number`, from 1.

    `cosine` and `decay`, eta_1 t^-c (Welling and Teh, ICML 2011, section 4), fall to `rate-end` of
    the first value at the end of burn-in and stay there; `cyclical` falls by a cosine in each cycle
    (Zhang et al., ICLR 2020, eq. 1), to that value too.
    """
    local = settings.local
    if local.schedule == "constant":
        return local.rate
    last = burn_in_rounds(settings)
    if local.schedule == "decay":
        power = -math.log(local.rate_end) / math.log(max(2, last))
        return local.rate * float(min(number, max(1, last)) ** -power)
    cyclical = local.schedule == "cyclical"
    way = (
        cycle_position(settings, number) if cyclical else min(1.0, (number - 1) / max(1, last - 1))
    )
    return local.rate * (local.rate_end + (1 - local.rate_end) * (1 + math.cos(math.pi * way)) / 2)


def cycle_position(settings: Settings, number: int) -> float:
    """Return how far round `number` is in its cycle, in [0, 1)."""
    return ((number - 1) * settings.local.cycles % settings.rounds) / settings.rounds


def is_sampling(settings: Settings, number: int) -> bool:
    """Say whether round `number` may give a sample: after burn-in, and late in a cycle."""
    late = settings.local.schedule != "cyclical"
    late = late or cycle_position(settings, number) >= settings.local.explore
    return number > burn_in_rounds(settings) and late


def is_kept(settings: Settings, number: int) -> bool:
    """Say whether the model after round `number` may be a sample; without noise none is."""
    return settings.temperature > 0 and is_sampling(settings, number)


def is_encoder_frozen(settings: Settings, number: int) -> bool:
    """Say whether the encoder stands still in round `number`."""
    return number > burn_in_rounds(settings) and settings.chain.scope == "head"


def temperature(settings: Settings, number: int) -> float:
    """Return the temperature of round `number`.

    The full one while sampling, 0 while a cycle explores; in burn-in `chain.heat` of it, constant
    or, annealed, growing linearly to 1.
    """
    chain, last = settings.chain, burn_in_rounds(settings)
    if number > last:
        return settings.temperature if is_sampling(settings, number) else 0.0
    share = chain.heat + (1 - chain.heat) * number / last if chain.anneal else chain.heat
    return settings.temperature * share


def gamma(settings: Settings, number: int) -> float:
    """Return gamma_t: 0 in warm-up, then up to `cel.end` as `cel.schedule` says.

    `ramp`: linear to the fraction `cel.ramp` of the rounds, then constant; `constant`: all of it at
    once; `step_size`: in proportion to the step size, so that it falls as a cosine.
    """
    cel = settings.cel
    start, end = cel.warm_up, cel.ramp * settings.rounds
    if number <= start:
        return 0.0
    if cel.schedule == "rate":
        return cel.end * step_size(settings, number) / settings.local.rate
    if cel.schedule == "constant" or number >= end:
        return cel.end
    return cel.end * (number - start) / (end - start)


def plan_round(settings: Settings, number: int, share: float, total: int) -> RoundPlan:
    """Return round `number`'s plan for a client of weight `share` among `total` examples."""
    s, eta, hot = settings, step_size(settings, number), temperature(settings, number)
    kappa = prior_pull(s.prior, eta, s.local.steps, total, s.temperature)
    decay = 0.0 if s.prior.scale == "none" else 1 / (total * s.prior.scale**2)
    if eta * (kappa + decay + s.strategy.proximal) >= 1:
        raise SettingsError(
            f"eta {eta:g} times prior.scale's {decay:.3g}, the received model's {kappa:.3g} and "
            f"strategy.proximal's pull {s.strategy.proximal:g} is 1 or more: every step would "
            "overshoot; lower local.rate, or raise prior.scale"
        )
    own, common = noise_variance(
        rate=eta,
        temperature=hot,
        total=total,
        share=share,
        kappa=kappa if s.prior.compensate else 0.0,
        steps=s.local.steps,
        gain=s.strategy.gain,
        common=s.local.shared_noise,
    )
    return RoundPlan(
        rate=eta,
        cel_weight=0.0 if s.cel.kind == "none" else s.cel.weight * gamma(s, number),
        defence_weight=s.defence.used_strength * gamma(s, number),
        pull=kappa + s.strategy.proximal,
        decay=decay,
        noise=math.sqrt(own),
        freeze=is_encoder_frozen(s, number),
        temperature=hot,
        common=math.sqrt(common),
        clip=None if s.local.clip == "none" else s.local.clip,
        steps=s.local.steps,
        compensate=s.prior.compensate,
        control=s.local.control if is_sampling(s, number) else "none",
    )


def select_clients(settings: Settings, number: int) -> list[int]:
    """Return the partitions that train in round `number`, ascending."""
    if settings.clients_per_round in (0, settings.clients):
        return list(range(settings.clients))
    order = torch.randperm(
        settings.clients, generator=make_generator(settings.seed, "clients", number)
    )
    return sorted(order[: settings.clients_per_round].tolist())


def client_weights(
    settings: Settings, examples: dict[int, int], taking_part: list[int]
) -> dict[int, float]:
    """Return w_k = (K/m) N_k/N of the m clients that take part; unbiased over the draw."""
    total = sum(examples.values())
    scale = len(examples) / len(taking_part)
    return {client: scale * examples[client] / total for client in taking_part}
