"""Rival defences: the options that all of them share, and those that only change the cut."""

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.losses import adam
from fedcel.losses.loss_options import LossOptions
from fedcel.losses.protocol import CutShape, FeatureReader, State
from fedcel.losses.terms import LossTerm, WeightedTerm
from fedcel.nets import Cut, NetSettings, NoiseShape, SplitNet


class Rival(LossOptions, table="defence", selector="name"):
    """Defence of smashed data: its options, and what it makes of the net, the cut and the loss."""

    name: str = Field("none", description="Rival defence, with or without a loss; none: no rival.")
    strength: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["auto"] = Field(
        "auto",
        description="noise: sigma; fisher-noise: bits; bottleneck: values; dropout: chance; "
        "else weight; auto: usual.",
    )

    usual_strength: ClassVar[float] = 1.0
    """Strength where it is `auto`."""
    noise_shape: ClassVar[NoiseShape] = "one"
    """Whether the standard deviations of the noise are learned, and of what."""
    has_loss: ClassVar[bool] = False
    """Whether it adds a loss; of an import string that shows when it is built."""
    needs_noise: ClassVar[bool] = False
    """Whether that loss is defined for sigma above 0 only."""

    weight_key: ClassVar[str] = "defence.strength"
    stream_name: ClassVar[str] = "defence"

    def check_rules(self) -> None:
        """Refuse a strength that means nothing for the defence: SettingsError."""
        if not self.used_strength > 0:
            raise SettingsError(
                f"defence.strength is {self.used_strength}, must be above 0 for {self.name!r}"
            )

    @property
    def used_strength(self) -> float:
        """Strength as a number, also where it is `auto`."""
        return self.usual_strength if self.strength == "auto" else self.strength

    @property
    def weight(self) -> float:
        """Weight of the loss, where there is one."""
        return self.used_strength

    def find_sigma(self, net: NetSettings) -> float:
        """Return how much noise is added at the cut, in training and in use, in units of z."""
        return net.noise

    def check_net(self, net: NetSettings) -> None:
        """Refuse a net without the noise that the defence needs: SettingsError."""
        if self.needs_noise and self.find_sigma(net) == 0:
            raise SettingsError(
                f"net.noise is 0 and defence.name {self.name!r}, whose loss needs the noise: set "
                "net.noise above 0, such as 0.3"
            )

    def adapt_net(self, net: NetSettings) -> NetSettings:
        """Choose the split network that the defence needs."""
        return net

    def build_cut(self, net: NetSettings) -> Cut:
        """Make the cut between encoder and head, for training and use."""
        return Cut(self.find_sigma(net))

    def end_encoder(self, net: SplitNet, image: tuple[int, ...], run: object) -> SplitNet:
        """Append a user's transform to the encoder of a net, where there is one.

        `run` are the run's settings, which a user's defence is made of.

        Raises:
            PluginError: The user's object is no defence, or its transform changes features in a way
                that nobody could train behind.
        """
        return net

    def weigh(self, bound: LossTerm, run: Any) -> WeightedTerm:
        """Return the defence's loss with its weight, which no goal of `run.cel` limits."""

        def find_gamma(number: int, rounds: int, rate_share: float, limit: float | None) -> float:
            gamma: float = run.cel.find_gamma(number, rounds, rate_share)
            return gamma

        return WeightedTerm("defence", bound, self.weight, gamma=find_gamma)


class LossRival(Rival):
    """Defence by a loss, which may learn parameters of its own, theta, by Adam."""

    has_loss: ClassVar[bool] = True
    rate: ClassVar[float] = 0.0
    """By about how much a step moves theta, whatever the loss's weight."""
    learner: ClassVar[str] = ""
    """Name of the part that theta belongs to, for messages."""

    @property
    def theta_size(self) -> int:
        """Number of values of theta; 0: the loss has no state."""
        return 0

    def draw_theta(self, generator: torch.Generator) -> Float[Tensor, " P"]:
        """Make the theta that a client's first round begins with."""
        raise NotImplementedError

    def make_term(self, cut: CutShape, run: Any) -> WeightedTerm:
        """Return the loss with the schedule of `run.cel`; see `LossOptions.make_term`."""
        return self.weigh(self.bind(cut), run)

    def refresh(
        self,
        state: State | None,
        read_features: FeatureReader,
        generators: Sequence[torch.Generator],
    ) -> State:
        """Make theta ready at a round's start; SettingsError on a state of another loss or size."""
        if not self.theta_size:
            return {}
        if state is None:
            return adam.init_states([self.draw_theta(generator) for generator in generators])
        keys = "net.features or the images"
        return adam.resume_state(state, self.theta_size, self.learner, keys)

    def update(self, state: State) -> State:
        """Move theta by a step of Adam, which clears the gradient; see `LossTerm.update`."""
        return adam.take_step(state, self.rate) if state else state


class NoDefence(Rival):
    """No rival defence."""

    name: Literal["none"] = "none"
    usual_strength: ClassVar[float] = 0.0

    def check_rules(self) -> None:
        """Refuse the strength of no defence; see `Rival.check_rules`."""
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
