"""All groups together."""

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fedcel.settings.answers import AttackSettings, PrivacySettings
from fedcel.settings.data import DataSettings, NetSettings
from fedcel.settings.group_base import to_kebab
from fedcel.settings.losses import CelSettings, DefenceSettings
from fedcel.settings.training import (
    ChainSettings,
    LocalSettings,
    PriorSettings,
    StrategySettings,
    UpdateSettings,
)


class Settings(BaseModel):
    """All settings of one run; groups are TOML tables, keys are kebab-case."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_kebab, populate_by_name=True
    )

    seed: int = Field(0, ge=0, description="Seed of every random stream of the run.")
    rounds: int = Field(120, ge=1, description="Federated rounds, burn-in and chain together.")
    clients: int = Field(8, ge=1, description="Data holders.")
    clients_per_round: int = Field(
        0, ge=0, description="Clients drawn at random each round; 0 takes all of them."
    )
    engine: Literal["ray", "loop", "processes"] = Field(
        "ray", description="ray: Flower simulation; loop: one process; processes: one a core."
    )
    temperature: float = Field(
        1.0, ge=0, description="Temperature of the chain after burn-in; 1 is the posterior, 0 SGD."
    )
    data: DataSettings = DataSettings()
    net: NetSettings = NetSettings()
    defence: DefenceSettings = DefenceSettings()
    cel: CelSettings = CelSettings()
    local: LocalSettings = LocalSettings()
    prior: PriorSettings = PriorSettings()
    strategy: StrategySettings = StrategySettings()
    update: UpdateSettings = UpdateSettings()
    chain: ChainSettings = ChainSettings()
    privacy: PrivacySettings = PrivacySettings()
    attack: AttackSettings = AttackSettings()


def cut_sigma(settings: Settings) -> float:
    """Return the sd of the noise at the cut, in units of z, in training and in use."""
    defence = settings.defence
    if defence.name == "noise":
        return defence.used_strength
    return defence.noise if defence.name.startswith("noise+") else settings.net.noise


def burn_in_rounds(settings: Settings) -> int:
    """Return the number of the last round of burn-in."""
    return math.ceil(round(settings.chain.burn_in * settings.rounds, 9))  # .55 of 100 is 55
