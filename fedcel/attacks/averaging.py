"""Ask the same question several times: the noise averages out, the image does not.

Dwork and Roth, 2014, section 1.2: answers to repeated queries add up. Where the device keys its
noise by the image, as a split client does, or the service answers a repeated message from memory,
all m answers are one and the same: they give what one gives, and the law below, which takes the
noise at the cut and that of the mechanism as drawn afresh each time, does not apply.
"""

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.protocol import Attack, Progress
from fedcel.data import Images
from fedcel.leakage import (
    FIRST_LAYER,
    LOG_PROB,
    UPDATE,
    Law,
    Observation,
    ObservationArchitecture,
    ObservationHead,
    ObservationLogits,
    ObservationMean,
    ObservationPooled,
    SmashedData,
    find_law,
)
from fedcel.nets import CPU, fastest_device


@final
@dataclass(frozen=True)
class RepeatedObservation:
    """m independent observations of each image, side by side: (B, m F)."""

    once: Observation
    repeats: int

    def __post_init__(self) -> None:
        """ValueError unless there is at least one observation."""
        if self.repeats < 1:
            raise ValueError(f"repeats is {self.repeats}, must be at least 1")

    @property
    def name(self) -> str:
        """Return such as `smashed-data*16`."""
        return f"{self.once.name}*{self.repeats}"

    @property
    def grants(self) -> frozenset[str]:
        """Return those of a single observation, without what explains a single upload."""
        return self.once.grants - {UPDATE, FIRST_LAYER}

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B mF"]:
        """Return m fresh observations per image in a row."""
        times = range(self.repeats)
        if isinstance(self.once, SmashedData):  # one encoding, m messages
            features, net = self.once.encode(images), self.once.net
            return torch.cat([net.add_noise(features, generator) for _ in times], 1)
        return torch.cat([self.once.sample(images, generator) for _ in times], 1)

    def log_prob(
        self, observed: Float[Tensor, "Q mF"], images: Float[Tensor, "M C H W"]
    ) -> Float[Tensor, "Q M"]:
        """Return the sum of the m log-likelihoods: exact where they are, for independent noise."""
        return self.law_of(images)(observed)

    def law_of(self, images: Float[Tensor, "M C H W"]) -> Law:
        """Return `log_prob` of these images; what they alone need is not done m times."""
        once = find_law(self.once, images)

        def total(observed: Float[Tensor, "Q mF"]) -> Float[Tensor, "Q M"]:
            first, *others = torch.chunk(observed, self.repeats, 1)
            found = once(first)
            for part in others:
                found = found + once(part)
            return found

        return total

    def average(self, observed: Float[Tensor, "B mF"]) -> Float[Tensor, "B F"]:
        """Return what each image's m observations tell of their mean; their mean but for a law."""
        parts = observed.view(len(observed), self.repeats, -1)
        once = self.once
        return once.pooled(parts) if isinstance(once, ObservationPooled) else parts.mean(1)


@final
@dataclass(frozen=True)
class AveragedObservation:
    """The mean of m observations, or what tells more of it: to an attack one with less noise."""

    all: RepeatedObservation

    @property
    def name(self) -> str:
        """Return the kind of the single observation."""
        return self.all.once.name

    @property
    def grants(self) -> frozenset[str]:
        """Return those of a single observation that a mean of several can keep."""
        return self.all.grants - {LOG_PROB}

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Return the mean of m fresh observations per image."""
        return self.all.average(self.all.sample(images, generator))

    def mean(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B F"]:
        """Return the mean of one, which is that of all."""
        assert isinstance(self.all.once, ObservationMean)
        return self.all.once.mean(images)

    def answer(self, observed: Float[Tensor, "B F"]) -> Float[Tensor, "B K"]:
        """Return the head's logits."""
        assert isinstance(self.all.once, ObservationHead)
        return self.all.once.answer(observed)

    def disturb(
        self, codes: Float[Tensor, "B F"], generator: torch.Generator
    ) -> Float[Tensor, "B F"]:
        """Return the mean of m messages of these codes."""
        assert isinstance(self.all.once, ObservationHead)
        one, times = self.all.once, range(self.all.repeats)
        return self.all.average(torch.cat([one.disturb(codes, generator) for _ in times], 1))

    def fresh_encoder(self, generator: torch.Generator) -> torch.nn.Module:
        """Return an encoder with new parameters."""
        assert isinstance(self.all.once, ObservationArchitecture)
        return self.all.once.fresh_encoder(generator)

    def logits(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B K"]:
        """Return the undisturbed logits."""
        assert isinstance(self.all.once, ObservationLogits)
        return self.all.once.logits(images)


def move_to_device(observation: ObservationMean) -> tuple[ObservationMean, torch.device]:
    """Return an observation on its net's fastest device and that; as it is if it cannot move."""
    many = observation.all if isinstance(observation, AveragedObservation) else None
    once = many.once if many else observation
    if not isinstance(once, SmashedData):
        return observation, CPU
    place = fastest_device(once.net)
    if place == CPU:
        return observation, CPU
    there = once.to(place)
    return (AveragedObservation(replace(many, once=there)) if many else there), place


@final
@dataclass(frozen=True)
class Averaging:
    """An attack on the mean of `repeats` observations of each target."""

    single: Attack
    repeats: int

    @property
    def name(self) -> str:
        """Return such as `decoder*16`."""
        return f"{self.single.name}*{self.repeats}"

    @property
    def needs(self) -> frozenset[str]:
        """Return what the attack on one observation needs."""
        return self.single.needs

    @property
    def observes(self) -> str:
        """Return such as `smashed-data*16`."""
        return f"{self.single.observes}*{self.repeats}"

    def reconstruct(
        self,
        observation: Observation,
        auxiliary: Images,
        observed: Float[Tensor, "T mF"],
        budget: float,
        generator: torch.Generator,
        progress: Progress | None = None,
    ) -> Float[Tensor, "T C H W"]:
        """Return one image in [0, 1] per row; ValueError unless it is of repeated messages."""
        if not isinstance(observation, RepeatedObservation):
            raise ValueError(f"{observation.name!r} is a single observation; wrap it in Repeated")
        return self.single.reconstruct(
            AveragedObservation(observation),
            auxiliary,
            observation.average(observed),
            budget,
            generator,
            progress,
        )
