"""Rival defences: the options that all of them share, and those that only change the cut."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr, model_validator

from fedcel.errors import SettingsError
from fedcel.losses.protocol import (
    CutShape,
    FeatureReader,
    MetricRange,
    MetricScale,
    State,
    select_row,
    stack_states,
)
from fedcel.losses.terms import LossTerm, Streams
from fedcel.nets import Cut, NetSettings, SplitNet
from fedcel.options import Kind

FORMER_PAIR = "noise+"
"""How the names of a pair began in version 0.2: noise at the cut, and a defence."""


class Rival(Kind, table="defence", selector="name"):
    """Defence of smashed data: its options, and what it makes of the net, the cut and the loss."""

    name: str = Field("none", description="A rival defence, alone or beside a loss, if any.")
    strength: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["auto"] = Field(
        "auto",
        description="noise: sigma; bottleneck: values sent; dropout: chance; else the weight; "
        "auto: a usual one.",
    )

    usual_strength: ClassVar[float] = 1.0
    """Strength where it is `auto`."""
    learned_noise_shape: ClassVar[Literal["one", "feature", "image"]] = "one"
    """What `net.noise-shape` is where that is `auto`."""
    has_loss: ClassVar[bool] = False
    """Whether it adds a loss; of an import string that shows when it is built."""
    needs_noise: ClassVar[bool] = False
    """Whether that loss is of the law of the noise."""

    _cut: CutShape = PrivateAttr(CutShape(0, 0))

    @model_validator(mode="after")
    def _check_rules(self) -> "Rival":
        """Refuse a strength that means nothing for the defence."""
        self.check_rules()
        return self

    def check_rules(self) -> None:
        """Refuse a strength that means nothing for the defence: SettingsError."""
        if not self.used_strength > 0:
            raise SettingsError(
                f"defence.strength is {self.used_strength}, must be above 0 for {self.name!r}"
            )

    @classmethod
    def find_kind(cls, name: object) -> type[Kind]:
        """Find the class of a defence; SettingsError says what takes a pair's place."""
        if isinstance(name, str) and name.startswith(FORMER_PAIR):
            raise SettingsError(
                f"defence.name is {name!r}, and pairs are gone: set net.noise to the noise, and "
                f"defence.name to {name.removeprefix(FORMER_PAIR)!r}"
            )
        return super().find_kind(name)

    @property
    def used_strength(self) -> float:
        """Strength as a number, also where it is `auto`."""
        return self.usual_strength if self.strength == "auto" else self.strength

    def find_sigma(self, net: NetSettings) -> float:
        """Return how much noise is added at the cut, in training and in use, in units of z."""
        return net.noise

    def find_noise_shape(self, net: NetSettings) -> str:
        """Return for what there is an own standard deviation: `one`, `feature` or `image`."""
        return self.learned_noise_shape if net.noise_shape == "auto" else net.noise_shape

    def adapt_net(self, net: NetSettings) -> NetSettings:
        """Choose the split network that the defence needs.

        Args:
            net: The settings group `net`.

        Returns:
            The same, with `noise-shape` as `auto` stands for where the noise is learned.
        """
        shape = self.find_noise_shape(net)
        return net if shape == "one" else net.model_copy(update={"noise_shape": shape})

    def build_cut(self, net: NetSettings) -> Cut:
        """Make what happens between encoder and head, in training and in use."""
        return Cut(self.find_sigma(net))

    def end_encoder(self, net: SplitNet, image: tuple[int, ...], run: object) -> SplitNet:
        """Let the encoder of a net end as a user's defence wants it.

        Args:
            net: The net that the settings name.
            image: An image's shape, (C, H, W).
            run: The run's settings, which a user's defence is made of.

        Returns:
            The net with the user's transform, or `net` itself without one.

        Raises:
            PluginError: The user's object is no defence, or its transform changes features in a way
                that nobody could train behind.
        """
        return net

    def declare_metrics(self, scale: MetricScale) -> dict[str, MetricRange]:
        """Declare the ranges of what the defence's loss measures; see `CEL.declare_metrics`.

        Args:
            scale: Sizes that bound the metrics.

        Returns:
            The range of each metric by name; none of a user's own loss.
        """
        return {}

    def bind(self, cut: CutShape, run: object) -> LossTerm | None:
        """Return the loss of what passes one cut.

        Args:
            cut: The features, classes and images.
            run: The run's settings, which a user's defence is made of.

        Returns:
            The loss, None for a defence without one.

        Raises:
            PluginError: The user's object makes neither a loss nor a transform, or a loss that
                breaks its contract.
        """
        return None


class LossRival(Rival, LossTerm):
    """Defence by a loss."""

    has_loss: ClassVar[bool] = True

    def bind(self, cut: CutShape, run: object) -> LossTerm:
        """Return the loss of what passes one cut; see `Rival.bind`."""
        bound = self.model_copy()
        bound._cut = cut
        return bound

    def start(
        self, state: State | None, read_features: FeatureReader, streams: Sequence[Streams]
    ) -> State:
        """Make each client's state; see `LossTerm.start`."""
        rows = [None if state is None else select_row(state, k) for k in range(len(streams))]
        pairs = zip(rows, streams, strict=True)
        return stack_states([self.start_client(row, stream("defence")) for row, stream in pairs])

    def start_client(self, state: State | None, generator: torch.Generator) -> State:
        """Make the state that one client's round starts with.

        Args:
            state: The state of its last round; None at its first.
            generator: The only source of random numbers.

        Returns:
            The state for the next batches.
        """
        return {}


class NoDefence(Rival):
    """No rival defence."""

    name: Literal["none"] = "none"
    usual_strength: ClassVar[float] = 0.0

    def check_rules(self) -> None:
        """Refuse the strength of nothing; see `Rival.check_rules`."""
        if self.used_strength:
            raise SettingsError(
                f"defence.strength is {self.used_strength}, defence.name 'none': name one"
            )


class Noise(Rival):
    """Gaussian noise at the cut, in place of `net.noise`."""

    name: Literal["noise"] = "noise"
    usual_strength: ClassVar[float] = 0.3

    def find_sigma(self, net: NetSettings) -> float:
        """Return the strength, in units of z."""
        return self.used_strength


class Bottleneck(Rival):
    """Few values are sent."""

    name: Literal["bottleneck"] = "bottleneck"
    usual_strength: ClassVar[float] = 16.0

    def check_rules(self) -> None:
        """Refuse what is no number of values; see `Rival.check_rules`."""
        if self.used_strength < 1 or self.used_strength != int(self.used_strength):
            raise SettingsError(
                f"defence.strength is {self.used_strength}, must be the number of values sent, 1 "
                "or more"
            )

    def adapt_net(self, net: NetSettings) -> NetSettings:
        """Narrow the split network; see `Rival.adapt_net`."""
        return net.model_copy(update={"features": int(self.used_strength)})


class Dropout(Rival):
    """Values are left out at random, in training and in use."""

    name: Literal["dropout"] = "dropout"
    usual_strength: ClassVar[float] = 0.5

    def check_rules(self) -> None:
        """Refuse what is no chance; see `Rival.check_rules`."""
        if not 0 < self.used_strength < 1:
            raise SettingsError(
                f"defence.strength is {self.used_strength}, must be the chance that a value is "
                "dropped, in (0, 1)"
            )

    def build_cut(self, net: NetSettings) -> Cut:
        """Make a cut that drops values; see `Rival.build_cut`."""
        return Cut(self.find_sigma(net), self.used_strength)
