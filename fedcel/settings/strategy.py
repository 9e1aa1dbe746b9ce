"""Settings of the server's side, and which strategy takes what."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from fedcel.errors import SettingsError
from fedcel.settings_table import Options, Positive, Words

OWN_STRATEGY = "posterior"


def parse_strategy_arguments(text: str) -> dict[str, str]:
    """Parse `strategy.arguments`: what a strategy of Flower's is made with, beyond the settings.

    Args:
        text: "none", or name=value pairs, comma-separated.

    Returns:
        Each value as text, by its name.

    Raises:
        ValueError: A pair is not of the form name=value, or a name comes twice.
    """
    arguments: dict[str, str] = {}
    for pair in [] if text == "none" else text.split(","):
        name, equals, value = (part.strip() for part in pair.partition("="))
        if not (equals and value and name.isidentifier()):
            raise ValueError(
                f"must be none or name=value pairs, comma-separated, as 'eta=0.1,tau=0.001'; "
                f"{pair.strip()!r} is no such pair"
            )
        if name in arguments:
            raise ValueError(f"must have each name once; {name!r} comes twice")
        arguments[name] = value
    return arguments


def _check_arguments(text: str) -> str:
    """Return the arguments as they are; ValueError where they cannot be parsed."""
    parse_strategy_arguments(text)
    return text


Arguments = Annotated[
    str, AfterValidator(_check_arguments), Words("none, or name=value pairs, comma-separated")
]


class StrategySettings(Options):
    """The server's side."""

    name: str = Field(
        OWN_STRATEGY, description="posterior, or a Flower strategy as 'package.module:object'."
    )
    arguments: Arguments = Field(
        "none",
        description="Further arguments of a Flower strategy, as 'eta=0.1,tau=0.001'.",
    )
    upload: Literal["delta", "weights"] = Field(
        "delta", description="Content of a client's reply; Flower's strategies average weights."
    )
    momentum: float = Field(
        0.0, ge=0, lt=1, description="Momentum beta of the server, a sliding average of deltas."
    )
    gain: Positive = Field(1.0, description="Step size of the server along that average.")
    timeout: Positive = Field(
        3600.0, description="Seconds that a round waits for replies; later ones are left out."
    )
    least_share: float = Field(
        0.5,
        ge=0,
        le=1,
        description="Least share of a round's weight; below it a round waits, then the run ends.",
    )
    aggregation: Literal["mean", "geometric-median"] = Field(
        "mean", description="Aggregation of deltas; geometric-median needs temperature 0."
    )

    def check_rules(self) -> None:
        """Refuse a strategy that has no such name, or takes other uploads: SettingsError."""
        if self.name != OWN_STRATEGY and ":" not in self.name:
            raise SettingsError(
                f"strategy.name is {self.name!r}, must be {OWN_STRATEGY!r} or "
                "'package.module:object'"
            )
        if self.name == OWN_STRATEGY and self.upload == "weights":
            raise SettingsError(
                f"strategy.upload is 'weights'; {OWN_STRATEGY!r} aggregates 'delta'"
            )
        if self.name == OWN_STRATEGY and self.arguments != "none":
            raise SettingsError(
                f"strategy.arguments is {self.arguments!r}, which {OWN_STRATEGY!r} does not take; "
                "set it to 'none'"
            )
