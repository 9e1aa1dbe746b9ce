"""A loss of the mean over positions, for cuts behind a convolution."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.losses.cel.protocol import (
    ConditionalEntropy,
    FeatureBatches,
    ReadStackedFeatures,
    StackedFeatures,
    State,
    Term,
)


@final
@dataclass(frozen=True)
class PooledFeatures:
    """A loss that sees one value a channel, the mean over its positions.

    A small spread of the means does not bound what single positions tell.

    Args:
        inner: The loss of features (B, D / positions).
        positions: Positions of each channel in z, which holds channel after channel.
    """

    inner: ConditionalEntropy
    positions: int

    @property
    def takes_stacks(self) -> bool:
        """Whether `loss` takes the batches of several clients at once, (K, B, D)."""
        return bool(getattr(self.inner, "takes_stacks", False))

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Compute the inner loss's statistics of the means; see `ConditionalEntropy.refresh`."""
        return self.inner.refresh(
            state, lambda: ((self._pool(z), y) for z, y in batches()), generator
        )

    def refresh_stack(self, state: State, read_features: ReadStackedFeatures) -> State | None:
        """Compute several clients' statistics at once, where the inner loss does so."""

        def read_pooled() -> StackedFeatures | None:
            features = read_features()
            return None if features is None else features._replace(z=self._pool(features.z))

        refresh = getattr(self.inner, "refresh_stack", None)
        refreshed: State | None = refresh and refresh(state, read_pooled)
        return refreshed

    def loss(
        self, state: State, z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"], measure: bool = True
    ) -> Term:
        """Compute the inner loss of the means; see `ConditionalEntropy.loss`."""
        return self.inner.loss(state, self._pool(z), y, measure)

    def step(self, state: State, z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"]) -> State:
        """Return the inner loss's state after the batch; see `ConditionalEntropy.step`."""
        return self.inner.step(state, self._pool(z), y)

    def _pool(self, z: Float[Tensor, "*k B D"]) -> Float[Tensor, "*k B C"]:
        """Return the mean of each channel over its positions."""
        return z.reshape(*z.shape[:-1], -1, self.positions).mean(-1)
