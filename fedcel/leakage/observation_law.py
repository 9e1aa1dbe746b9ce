"""The law of an observation, bound to the images that may be behind it."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.leakage.observation import LOG_PROB, NOISELESS, Observation, ObservationLikelihood

Law = Callable[[Float[Tensor, "Q F"]], Float[Tensor, "Q M"]]
"""log p(observed_q | image_j) of given images, in nats, up to one constant for all pairs."""


@runtime_checkable
class ObservationLaw(ObservationLikelihood, Protocol):
    """A likelihood much of whose work depends on the images alone."""

    def law_of(self, images: Float[Tensor, "M C H W"]) -> Law:
        """Return `log_prob` of these images, the work that they alone need done once."""
        ...


def find_law(observation: Observation, images: Float[Tensor, "M C H W"]) -> Law:
    """Return the law of these images; ValueError when the observation does not grant it."""
    if LOG_PROB in observation.grants and isinstance(observation, ObservationLaw):
        return observation.law_of(images)
    if LOG_PROB in observation.grants and isinstance(observation, ObservationLikelihood):
        likelihood = observation.log_prob
        return lambda observed: likelihood(observed, images)
    if NOISELESS not in observation.grants:
        raise ValueError(f"{observation.name!r} does not grant {LOG_PROB!r}: its law is not known")
    codes = observation.sample(images, torch.Generator())  # noiseless: draws nothing
    return lambda observed: exact_match_log_prob(observed, codes)


def exact_match_log_prob(
    observed: Float[Tensor, "Q F"], codes: Float[Tensor, "M F"]
) -> Float[Tensor, "Q M"]:
    """Return 0 where a row observed is the code, minus infinity elsewhere."""
    _, group = torch.unique(torch.cat([observed, codes]), dim=0, return_inverse=True)
    mine, known = group[: len(observed), None], group[None, len(observed) :]
    return torch.eq(mine, known).double().log()
