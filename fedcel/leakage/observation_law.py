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
        """Bind `log_prob` to these images; the work that they alone need is done once."""
        ...


def find_law(observation: Observation, images: Float[Tensor, "M C H W"]) -> Law:
    """Bind the law of an observation to the images that may be behind it.

    Args:
        observation: What is seen; it must grant `LOG_PROB` or `NOISELESS`.
        images: (M, C, H, W) in [0, 1].

    Returns:
        A function from observations (Q, F) to log p(observed_q | image_j), (Q, M) in nats. Without
        noise it is 0 where the observation is that of the image, minus infinity elsewhere.

    Raises:
        ValueError: The observation grants neither.
    """
    if LOG_PROB in observation.grants and isinstance(observation, ObservationLaw):
        return observation.law_of(images)
    if LOG_PROB in observation.grants and isinstance(observation, ObservationLikelihood):
        likelihood = observation.log_prob
        return lambda observed: likelihood(observed, images)
    if NOISELESS not in observation.grants:
        raise ValueError(f"{observation.name!r} does not grant {LOG_PROB!r}: its law is not known")
    exact = observation.sample(images, torch.Generator())  # noiseless: draws nothing
    return lambda observed: exact_match_log_prob(observed, exact)


def exact_match_log_prob(
    observed: Float[Tensor, "Q F"], exact: Float[Tensor, "M F"]
) -> Float[Tensor, "Q M"]:
    """Return 0 where an observed row equals an image's observation, minus infinity elsewhere."""
    _, group = torch.unique(torch.cat([observed, exact]), dim=0, return_inverse=True)
    observed_group, exact_group = group[: len(observed), None], group[None, len(observed) :]
    return torch.eq(observed_group, exact_group).double().log()
