"""Noise whose shape is learned: as much for each feature as the answers allow."""

from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.losses.defences.rival import LossRival
from fedcel.losses.protocol import State, Term


def measure_scale(scale: Float[Tensor, "*k B D"]) -> Float[Tensor, "*k"]:
    """Return the geometric mean of standard deviations in units of sigma, without a gradient."""
    return scale.detach().log().mean((-2, -1)).exp()


@final
class LearnedNoise(LossRival):
    """Rewards noise: the loss is -sum_d log s_d, s_d the noise's sd in units of the cut's sigma.

    Beside the cross-entropy, whose noise is learned through what it does to the answers, a feature
    gets the more noise the less the answers need it. In nats, like the bounds of `vib` and `ceb`,
    of which it is the part that the noise alone decides. There is no state: the scale is a part of
    the net.

    References:
        Mireshghallah et al., Shredder, ASPLOS 2020, section 2.3.
    """

    name: Literal["learned-noise"] = "learned-noise"
    usual_strength: ClassVar[float] = 0.003
    learned_noise_shape: ClassVar[Literal["one", "feature", "image"]] = "feature"

    needs_noise: ClassVar[bool] = True

    takes_stacks: ClassVar[bool] = True
    """Whether `law_loss` takes the batches of several clients at once, (K, B, D)."""

    def refresh(self, state: State | None, generator: torch.Generator) -> State:
        """Return an empty state; see `Defence.refresh`."""
        return {}

    def law_loss(
        self,
        state: State,
        z: Float[Tensor, "*k B D"],
        scale: Float[Tensor, "*k B D"],
        *,
        y: Int[Tensor, "*k B"],
        measure: bool = True,
    ) -> Term:
        """Compute -sum_d log s_d in nats, mean over images; see `LawDefence.law_loss`.

        Logged as `noise-scale`: the geometric mean of s.
        """
        loss = -scale.log().sum(-1).mean(-1)
        return Term(loss, {"noise-scale": measure_scale(scale)} if measure else {})

    def step(self, state: State) -> State:
        """Return the state as it is; see `Defence.step`."""
        return state
