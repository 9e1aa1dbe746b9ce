"""All settings of a run."""

from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fedcel.attacks import AttackSettings
from fedcel.data import DataSettings
from fedcel.losses.cel import CEL, NoCEL
from fedcel.losses.defences import NoDefence, Rival
from fedcel.nets import Mlp, NetSettings
from fedcel.posterior import ChainSettings, ConsistentPrior, LocalSettings, Prior
from fedcel.privacy import LabelOnlyAnswers, PrivacySettings, UpdateSettings
from fedcel.settings.strategy import StrategySettings
from fedcel.settings_table import to_kebab


class Settings(BaseModel):
    """All settings of one run; groups are TOML tables, keys are kebab-case."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_kebab, populate_by_name=True
    )

    seed: int = Field(0, ge=0, description="Seed of every random stream of the run.")
    rounds: int = Field(120, ge=1, description="Federated rounds, burn-in and chain together.")
    clients: int = Field(8, ge=1, description="Number of clients.")
    clients_per_round: int = Field(
        0, ge=0, description="Clients that are selected at random in each round; 0: all."
    )
    engine: Literal["ray", "local", "auto"] = Field(
        "auto",
        description="ray: Flower on Ray; local: this process; auto: ray on a cluster, else local.",
    )
    temperature: float = Field(
        1.0,
        ge=0,
        allow_inf_nan=False,
        description="Temperature of the chain after burn-in; 1: posterior, 0: plain SGD.",
    )
    bits_every: int = Field(
        0,
        ge=0,
        description="Rounds between measurements of the leak on validation images; 0: none.",
    )
    data: DataSettings = DataSettings()
    net: NetSettings = Mlp()
    defence: Rival = NoDefence()
    cel: CEL = NoCEL()
    local: LocalSettings = LocalSettings()
    prior: Prior = ConsistentPrior()
    strategy: StrategySettings = StrategySettings()
    update: UpdateSettings = UpdateSettings()
    chain: ChainSettings = ChainSettings()
    privacy: PrivacySettings = LabelOnlyAnswers()
    attack: AttackSettings = AttackSettings()

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        """Yield what differs from the defaults, by dotted key: all keys would fill a screen."""
        changed = self.model_dump(by_alias=True, serialize_as_any=True, exclude_defaults=True)
        for name, value in changed.items():
            table = value if isinstance(value, dict) else {"": value}
            yield from ((f"{name}.{key}".rstrip("."), part) for key, part in table.items())

    def __str__(self) -> str:
        """Show the same to `print`."""
        return repr(self)

    @property
    def samples_whole_net(self) -> bool:
        """Whether the chain runs over encoder and head together."""
        return self.chain.scope == "full" and self.temperature > 0


def burn_in_rounds(settings: Settings) -> int:
    """Return the number of the last round of burn-in.

    Args:
        settings: The run's settings.

    Returns:
        The number, 0 to `rounds`; the rounds after it are sampled.
    """
    return settings.chain.burn_in_rounds(settings.rounds)
