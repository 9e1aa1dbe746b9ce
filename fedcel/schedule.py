"""What a round asks of a client, from the settings and the round's number alone."""

import math
from typing import NamedTuple

import torch

from fedcel.posterior.sgld import noise_variance, prior_pull
from fedcel.seeding import generator
from fedcel.settings import Settings


class Plan(NamedTuple):
    """One client's round in plain numbers."""

    rate: float  # eta
    cel_weight: float  # lambda * gamma_t
    defence_weight: float  # strength * gamma_t
    pull: float  # kappa, towards the received model
    decay: float  # 1/(N s0^2), towards 0
    noise: float  # standard deviation of the Langevin noise per step
    freeze: bool  # the encoder does not move
    temperature: float
    threshold: float | None = None  # tau, where the server moves it

    @property
    def cel_acts(self) -> bool:
        """Say whether the conditional entropy loss has an encoder to act on and a weight."""
        return self.cel_weight > 0 and not self.freeze


def burn_in_rounds(settings: Settings) -> int:
    """Return the number of the last round of burn-in."""
    return math.ceil(round(settings.chain.burn_in * settings.rounds, 9))  # .55 of 100 is 55


def rate(settings: Settings, number: int) -> float:
    """Return eta in round `number` (from 1): a cosine until burn-in ends, then constant."""
    local = settings.local
    if local.schedule == "constant":
        return local.rate
    way = min(1.0, (number - 1) / max(1, burn_in_rounds(settings) - 1))
    return local.rate * (local.rate_end + (1 - local.rate_end) * (1 + math.cos(math.pi * way)) / 2)


def gamma(settings: Settings, number: int) -> float:
    """Return gamma_t: 0 in warm-up, then up to `cel.end` as `cel.schedule` says.

    `ramp`: linear to the fraction `cel.ramp` of the rounds, then constant; `constant`: all of it at
    once; `rate`: in proportion to the step size, so that it falls as a cosine.
    """
    cel = settings.cel
    start, end = cel.warm_up, cel.ramp * settings.rounds
    if number <= start:
        return 0.0
    if cel.schedule == "rate":
        return cel.end * rate(settings, number) / settings.local.rate
    if cel.schedule == "constant" or number >= end:
        return cel.end
    return cel.end * (number - start) / (end - start)


def plan(settings: Settings, number: int, share: float, total: int) -> Plan:
    """Return round `number`'s plan for a client of weight `share` among `total` examples."""
    s = settings
    sampling = number > burn_in_rounds(s)
    heat = s.temperature * (1.0 if sampling else s.chain.heat)
    eta = rate(s, number)
    kappa = prior_pull(s.prior, eta, s.local.steps, total)
    variance = noise_variance(
        rate=eta,
        temperature=heat,
        total=total,
        share=share,
        kappa=kappa,
        steps=s.local.steps,
        gain=s.strategy.gain,
    )
    return Plan(
        rate=eta,
        cel_weight=0.0 if s.cel.kind == "none" else s.cel.weight * gamma(s, number),
        defence_weight=s.defence.strength * gamma(s, number),
        pull=kappa,
        decay=0.0 if s.prior.scale == "none" else 1 / (total * s.prior.scale**2),
        noise=math.sqrt(variance),
        freeze=sampling and s.chain.scope == "head",
        temperature=heat,
    )


def chosen(settings: Settings, number: int) -> list[int]:
    """Return the partitions that train in round `number`, ascending."""
    if settings.clients_per_round in (0, settings.clients):
        return list(range(settings.clients))
    order = torch.randperm(settings.clients, generator=generator(settings.seed, "clients", number))
    return sorted(order[: settings.clients_per_round].tolist())


def shares(
    settings: Settings, examples: dict[int, int], taking_part: list[int]
) -> dict[int, float]:
    """Return w_k = (K/m) N_k/N of the m clients that take part; unbiased over the draw."""
    total = sum(examples.values())
    scale = len(examples) / len(taking_part)
    return {client: scale * examples[client] / total for client in taking_part}
