"""The losses of several clients at once: those that do not compute them so, by `torch.vmap`."""

from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.errors import StackingError
from fedcel.losses.cel.protocol import ConditionalEntropy, FeatureBatches, State, Term
from fedcel.losses.composite import Losses, TermSource
from fedcel.losses.defences.protocol import Defence


def stack_losses(losses: Losses) -> Losses:
    """Return losses of which each takes the batches of several clients at once.

    A loss with a true `takes_stacks` does so by itself; its state and batch then have a first
    dimension, a client a row, and so has its value.

    Args:
        losses: Those of each client.

    Returns:
        The same, others than those mapped over the clients.
    """
    cel, defence = losses.cel, losses.defence
    if cel and not getattr(cel, "takes_stacks", False):
        cel = MappedCEL(cel, losses.cel_source)
    if isinstance(defence, Defence) and not getattr(defence, "takes_stacks", False):
        defence = MappedDefence(defence, losses.defence_source)
    return losses._replace(cel=cel, defence=defence)


@final
class MappedCEL:
    """A conditional entropy loss without a state, of several clients at once.

    Args:
        loss: The loss of one client.
        source: How errors name it.
    """

    def __init__(self, loss: ConditionalEntropy, source: TermSource) -> None:
        self._loss, self._source = loss, source

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Return one client's state; see `ConditionalEntropy.refresh`."""
        return self._loss.refresh(state, batches, generator)

    def loss(
        self, state: State, z: Float[Tensor, "K B D"], y: Int[Tensor, "K B"], measure: bool = True
    ) -> Term:
        """Return each client's loss, without metrics; StackingError where there is a state."""
        _refuse_state(state, self._source)
        mapped = torch.vmap(lambda z, y: self._loss.loss({}, z, y, False).loss)
        return Term(mapped(z, y), {})

    def step(self, state: State, z: Float[Tensor, "K B D"], y: Int[Tensor, "K B"]) -> State:
        """Return the state, which stays empty; StackingError where it does not."""
        for row_z, row_y in zip(z, y, strict=True):
            _refuse_state(self._loss.step({}, row_z, row_y), self._source)
        return {}


@final
class MappedDefence:
    """A defence's loss without a state, of several clients at once.

    Args:
        defence: The defence of one client.
        source: How errors name it.
    """

    def __init__(self, defence: Defence, source: TermSource) -> None:
        self._defence, self._source = defence, source

    def refresh(self, state: State | None, generator: torch.Generator) -> State:
        """Return one client's state; see `Defence.refresh`."""
        return self._defence.refresh(state, generator)

    def loss(
        self,
        state: State,
        x: Float[Tensor, "K B C H W"],
        z: Float[Tensor, "K B D"],
        smashed: Float[Tensor, "K B D"],
        measure: bool = True,
    ) -> Term:
        """Return each client's loss, without metrics; StackingError where there is a state."""
        _refuse_state(state, self._source)
        mapped = torch.vmap(lambda x, z, smashed: self._defence.loss({}, x, z, smashed, False).loss)
        return Term(mapped(x, z, smashed), {})

    def step(self, state: State) -> State:
        """Return the state, which stays empty; StackingError where it does not."""
        _refuse_state(self._defence.step({}), self._source)
        return {}


def _refuse_state(state: State, source: TermSource) -> None:
    if state:
        raise StackingError(f"{source.name} keeps a state and takes one client's batch at a time")
