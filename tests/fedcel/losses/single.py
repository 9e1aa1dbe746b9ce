"""Losses of one client, made of their options."""

from typing import Any

import torch
from torch import Tensor

from fedcel.losses import Batch, LossTerm
from fedcel.losses.cel import CEL, CELTerm, CutShape, OneClient, State, Term
from fedcel.losses.defences import DefenceTerm, Rival


class Single(OneClient):
    """A loss of one client that also has what the loss of all has."""

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the loss of all."""
        return getattr(self.term, name)


def single(options: CEL, classes: int = 3, features: int = 4, sigma: float = 0.0) -> Any:
    """Return the loss of the batches of one client."""
    loss = options.bind(CutShape(classes, features, sigma))
    assert loss is not None
    return loss._loss if isinstance(loss, CELTerm) else Single(loss)


def options(**values: object) -> CEL:
    """Return the options of a kind, by the names of their fields."""
    return CEL.model_validate(values)


class SingleRival(Single):
    """A defence of one client, in the words of a user's own."""

    def refresh(self, state: State | None, generator: torch.Generator) -> State:  # type: ignore[override]
        """Make the state that a round starts with."""
        return super().refresh(state, lambda: iter(()), generator)

    def loss(  # type: ignore[override]
        self, state: State, x: Tensor, z: Tensor, smashed: Tensor, measure: bool = True
    ) -> Term:
        """Compute the loss of one batch."""
        labels = torch.zeros(len(z), dtype=torch.long)
        return self.evaluate_batch(state, Batch(x, z, smashed, labels), measure)

    def law_loss(
        self, state: State, z: Tensor, scale: Tensor, *, y: Tensor, measure: bool = True
    ) -> Term:
        """Compute the loss of the law of what is sent; of several clients as it is."""
        batch = Batch(z, z, z, y, scale)
        if z.dim() == 3:
            return self.term.loss(state, batch, measure)
        return self.evaluate_batch(state, batch, measure)

    def step(self, state: State) -> State:  # type: ignore[override]
        """Move what the defence learns itself."""
        return super().step(state, torch.zeros(0, 1), torch.zeros(0, dtype=torch.long))


def bind_rival(
    options: Rival,
    *,
    classes: int = 3,
    features: int = 4,
    sigma: float = 0.0,
    image: tuple[int, ...] = (1, 4, 4),
) -> Any:
    """Return a defence of one client at one cut."""
    term = options.bind(CutShape(classes, features, sigma, image=image), None)
    assert term is not None
    return SingleRival(term)


def cel_term(loss: Any) -> LossTerm:
    """Return the loss of all clients, of the loss of one."""
    return loss.term if isinstance(loss, OneClient) else CELTerm(loss)


def defence_term(defence: Any) -> LossTerm:
    """Return the defence of all clients, of the defence of one."""
    return defence.term if isinstance(defence, SingleRival) else DefenceTerm(defence)
