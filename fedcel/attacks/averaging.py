"""Ask the same question several times: the noise averages out, the image does not."""

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.attack import Attack, Attacker, BaseAttack, Reconstructions
from fedcel.leakage import (
    FIRST_LAYER,
    LOG_PROB,
    UPDATE,
    Law,
    Observation,
    ObservationArchitecture,
    ObservationHead,
    ObservationMean,
    ObservationPooled,
    SmashedData,
    find_law,
)
from fedcel.nets import CPU, fastest_device


@final
@dataclass(frozen=True)
class RepeatedObservation:
    """m independent observations of each image, side by side: (B, m F).

    Where the device keys its noise by the image, as a split client does, or the service answers a
    repeated message from memory, all m answers are one and the same: they give what one gives, and
    the law below, which takes the noise at the cut and that of the mechanism as drawn afresh each
    time, does not apply.

    Args:
        once: The single observation.
        repeats: How many there are of each image, 1 or more.

    Raises:
        ValueError: `repeats` is below 1.

    References:
        Dwork and Roth, 2014, section 1.2 (answers to repeated queries add up).
    """

    once: Observation
    repeats: int

    def __post_init__(self) -> None:
        """Refuse fewer than one observation."""
        if self.repeats < 1:
            raise ValueError(f"repeats is {self.repeats}, must be at least 1")

    @property
    def name(self) -> str:
        """The kind, such as `smashed-data*16`."""
        return f"{self.once.name}*{self.repeats}"

    @property
    def grants(self) -> frozenset[str]:
        """Grants of a single observation, without those that explain a single upload."""
        return self.once.grants - {UPDATE, FIRST_LAYER}

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B mF"]:
        """Observe each image m times, side by side; see `Observation.sample`."""
        repeats = range(self.repeats)
        if isinstance(self.once, SmashedData):  # one encoding, m messages
            features = self.once.encode(images)
            return torch.cat([self.once.send(features, generator) for _ in repeats], 1)
        return torch.cat([self.once.sample(images, generator) for _ in repeats], 1)

    def law_of(self, images: Float[Tensor, "M C H W"]) -> Law:
        """Sum the m log-likelihoods: exact where they are, for independent noise."""
        law = find_law(self.once, images)

        def repeated_law(observed: Float[Tensor, "Q mF"]) -> Float[Tensor, "Q M"]:
            first, *further = torch.chunk(observed, self.repeats, 1)
            total = law(first)
            for part in further:
                total = total + law(part)
            return total

        return repeated_law

    def average(self, observed: Float[Tensor, "B mF"]) -> Float[Tensor, "B F"]:
        """Estimate each image's mean observation from its m: by their mean, or by their law."""
        parts = observed.view(len(observed), self.repeats, -1)
        once = self.once
        return once.pooled(parts) if isinstance(once, ObservationPooled) else parts.mean(1)


@final
@dataclass(frozen=True)
class AveragedObservation:
    """The mean of m observations, or what tells more of it: to an attack one with less noise."""

    repeated: RepeatedObservation

    @property
    def once(self) -> Observation:
        """The single observation."""
        return self.repeated.once

    @property
    def name(self) -> str:
        """The kind of the single observation."""
        return self.once.name

    @property
    def grants(self) -> frozenset[str]:
        """Grants of a single observation that hold for a mean of several."""
        return self.repeated.grants - {LOG_PROB}

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Return the mean of m fresh observations per image."""
        return self.repeated.average(self.repeated.sample(images, generator))

    def mean(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B F"]:
        """Return the mean of one, which is that of all."""
        assert isinstance(self.once, ObservationMean)
        return self.once.mean(images)

    def answer(self, observed: Float[Tensor, "B F"]) -> Float[Tensor, "B K"]:
        """Return the head's logits."""
        assert isinstance(self.once, ObservationHead)
        return self.once.answer(observed)

    def disturb(
        self, features: Float[Tensor, "B F"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Return the mean of m messages of these features."""
        once = self.once
        assert isinstance(once, ObservationHead)
        messages = [once.disturb(features, generator) for _ in range(self.repeated.repeats)]
        return self.repeated.average(torch.cat(messages, 1))

    def fresh_encoder(self, generator: torch.Generator) -> torch.nn.Module:
        """Return an encoder with new parameters."""
        assert isinstance(self.once, ObservationArchitecture)
        return self.once.fresh_encoder(generator)


def observe_repeatedly(observation: Observation, repeats: int) -> Observation:
    """Return the observation of an attack on `repeats` observations of each image."""
    return observation if repeats == 1 else RepeatedObservation(observation, repeats)


def move_to_device(observation: ObservationMean) -> tuple[ObservationMean, torch.device]:
    """Return an observation on its net's fastest device and that; as it is if it cannot move."""
    repeated = observation.repeated if isinstance(observation, AveragedObservation) else None
    once = repeated.once if repeated else observation
    if not isinstance(once, SmashedData) or (device := fastest_device(once.net)) == CPU:
        return observation, CPU
    moved = once.to(device)
    return (AveragedObservation(replace(repeated, once=moved)) if repeated else moved), device


@final
class Averaging(BaseAttack):
    """Attack the mean of several observations of each target.

    Args:
        single: An attack on one observation.
        repeats: Observations of each target, 1 or more.
    """

    def __init__(self, single: Attack, repeats: int) -> None:
        self.single = single
        self.name, self.needs = f"{single.name}*{repeats}", single.needs
        self.observes = f"{single.observes}*{repeats}"

    def invert(self, attacker: Attacker, observed: Float[Tensor, "T mF"]) -> Reconstructions:
        """Return one image per row of m observations.

        Raises:
            ValueError: `observation` is no `RepeatedObservation`.
        """
        observation = attacker.observation
        if not isinstance(observation, RepeatedObservation):
            raise ValueError(
                f"{observation.name!r} is a single observation; wrap it in RepeatedObservation"
            )
        return self.single.reconstruct(
            AveragedObservation(observation),
            attacker.auxiliary,
            observation.average(observed),
            attacker.budget,
            attacker.generator,
            attacker.progress,
        )
