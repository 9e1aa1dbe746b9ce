"""Losses of one client, made of their options."""

from typing import Any

import torch
from torch import Tensor

from fedcel.losses import Batch, LossTerm
from fedcel.losses.cel import CEL, CELTerm, CutShape, OneClient, State, Term
from fedcel.losses.defences import DefenceTerm, Rival
from fedcel.losses.protocol import select_row, stack_states


class SingleCEL(OneClient):
    """A loss of one client that also has what the loss of all has."""

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the loss of all."""
        return getattr(self.term, name)


def single(options: CEL, classes: int = 3, features: int = 4, sigma: float = 0.0) -> Any:
    """Return the loss of the batches of one client."""
    loss = options.bind(CutShape(classes, features, sigma))
    if isinstance(loss, CELTerm):
        return loss._loss
    assert isinstance(loss, CEL)
    return SingleCEL(loss)


def options(**values: object) -> CEL:
    """Return the options of a kind, by the names of their fields."""
    return CEL.model_validate(values)


class SingleRival:
    """A defence of one client, in the words of a user's own."""

    def __init__(self, term: Any) -> None:
        self.term = term

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the defence of all."""
        return getattr(self.term, name)

    def refresh(self, state: State | None, generator: torch.Generator) -> State:
        """Make the state that a round starts with."""
        started: State = self.term.start_client(state, generator)
        return started

    def loss(
        self, state: State, x: Tensor, z: Tensor, smashed: Tensor, measure: bool = True
    ) -> Term:
        """Compute the loss of one batch."""
        labels = torch.zeros(len(z), dtype=torch.long)
        return self._evaluate(state, (x, z, smashed, labels, None), measure)

    def law_loss(
        self, state: State, z: Tensor, scale: Tensor, *, y: Tensor, measure: bool = True
    ) -> Term:
        """Compute the loss of the law of what is sent; of several clients as it is."""
        if z.dim() == 3:
            term: Term = self.term.loss(state, Batch(z, z, z, y, scale), measure)
            return term
        return self._evaluate(state, (z, z, z, y, scale), measure)

    def step(self, state: State) -> State:
        """Move what the defence learns itself."""
        stacked = stack_states([state])
        for name, tensor in state.items():
            gradient, tensor.grad = tensor.grad, None
            stacked[name].grad = None if gradient is None else gradient.unsqueeze(0)
        nobody = torch.zeros(1, 0, 1)
        return select_row(
            self.term.update(stacked, Batch(nobody, nobody, nobody, nobody.long())), 0
        )

    def _evaluate(self, state: State, parts: tuple[Tensor | None, ...], measure: bool) -> Term:
        rows = {name: tensor.unsqueeze(0) for name, tensor in state.items()}
        batch = Batch(*(None if part is None else part.unsqueeze(0) for part in parts))
        loss, metrics = self.term.loss(rows, batch, measure)
        return Term(loss[0], {name: value[0] for name, value in metrics.items()})


def bind_rival(
    options: Rival,
    *,
    classes: int = 3,
    features: int = 4,
    sigma: float = 0.0,
    image: tuple[int, ...] = (1, 4, 4),
) -> Any:
    """Return a defence of one client at one cut."""
    return SingleRival(options.bind(CutShape(classes, features, sigma, image=image), None))


def cel_term(loss: Any) -> LossTerm:
    """Return the loss of all clients, of the loss of one."""
    return loss.term if isinstance(loss, OneClient) else CELTerm(loss)


def defence_term(defence: Any) -> LossTerm:
    """Return the defence of all clients, of the defence of one."""
    return defence.term if isinstance(defence, SingleRival) else DefenceTerm(defence)
