"""Terms of several clients as losses of one client, made of their options."""

from typing import Any

import torch
from torch import Tensor

from fedcel.losses import Batch, ClientLossTerm, LossTerm, TermLoss
from fedcel.losses.cel import CEL, CutShape, FeatureBatches, State, Term
from fedcel.losses.defences import Rival


class OneClient(TermLoss):
    """A term as a loss of one client, which also has what the term has."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.term, name)


class Single(OneClient):
    """A conditional entropy of one client, of features and labels."""

    def loss(  # type: ignore[override]
        self, state: State, z: Tensor, y: Tensor, measure: bool = True
    ) -> Term:
        return super().loss(state, Batch.of_features(z, y), measure)


class SingleRival(OneClient):
    """A defence of one client, of what it reads of a batch."""

    def refresh(self, state: State | None, generator: torch.Generator) -> State:  # type: ignore[override]
        return super().refresh(state, lambda: iter(()), generator)

    def loss(  # type: ignore[override]
        self, state: State, x: Tensor, z: Tensor, smashed: Tensor, measure: bool = True
    ) -> Term:
        labels = torch.zeros(len(z), dtype=torch.long)
        return super().loss(state, Batch(x, z, smashed, labels), measure)

    def law_loss(
        self, state: State, z: Tensor, scale: Tensor, *, y: Tensor, measure: bool = True
    ) -> Term:
        """Compute the loss of the law of what is sent; of several clients as it is."""
        batch = Batch(z, z, z, y, scale)
        if z.dim() == 3:
            return self.term.loss(state, batch, measure)
        return super().loss(state, batch, measure)


def single(options: CEL, classes: int = 3, features: int = 4, sigma: float = 0.0) -> Any:
    """Return the loss of the batches of one client."""
    return Single(options.bind(CutShape(classes, features, sigma)))


def options(**values: object) -> CEL:
    """Return the options of a kind, by the names of their fields."""
    return CEL.model_validate(values)


def bind_rival(
    options: Rival,
    *,
    classes: int = 3,
    features: int = 4,
    sigma: float = 0.0,
    image: tuple[int, ...] = (1, 4, 4),
) -> Any:
    return SingleRival(options.bind(CutShape(classes, features, sigma, image=image)))


def to_term(loss: Any) -> LossTerm:
    return loss.term if isinstance(loss, TermLoss) else ClientLossTerm(loss)


def split_features(z: Tensor, y: Tensor, size: int = 1024) -> FeatureBatches:
    """Return what yields features (N, D) and labels in order, from the first at each call."""
    return lambda: zip(torch.split(z, size), torch.split(y, size), strict=True)
