"""Clusters that start where a learned attention looks."""

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from fedcel.losses.cel.class_spread import class_members
from fedcel.losses.cel.cluster import DEFAULT_CLUSTERS, Cluster
from fedcel.losses.cel.gated import Gated, attention_scores
from fedcel.losses.cel.protocol import FeatureBatches, State, Term, split_features
from fedcel.losses.cel.reservoir import check_finite
from fedcel.named_tensors import add_prefix, select_prefix
from fedcel.settings import check_hybrid_clusters

GATED_PREFIX, CLUSTER_PREFIX = "gated.", "cluster."


@final
@dataclass(frozen=True)
class Hybrid:
    """The loss of `Cluster` around centres whose starts are drawn by the attention of `Gated`.

    At each refresh K members of every class are drawn without replacement, each time in proportion
    to the attention's weights alpha over all the client's examples of the class, K being the
    number of clusters asked for (5 by default; all members of smaller classes). They are the
    centres that the clusters' fit on all examples starts from, in place of the last ones; a fit
    that wants fewer clusters keeps some of them. The encoder gets the clusters' loss alone. The
    attention learns as in `Gated`, from that loss on the same features as constants; it adds 0 to
    the value.

    State: that of `Gated` under `gated.`, that of `Cluster` under `cluster.`.

    Args:
        gated: The loss that the attention learns from.
        cluster: The loss that the encoder learns from.
    """

    gated: Gated
    cluster: Cluster

    def __post_init__(self) -> None:
        """Refuse a single cluster whose start an attention draws."""
        check_hybrid_clusters(self.cluster.clusters)

    @property
    def takes_stacks(self) -> bool:
        """Whether `loss` takes the batches of several clients at once, (K, B, D)."""
        return self.cluster.takes_stacks

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Draw centres by the attention and fit the clusters; see `ConditionalEntropy.refresh`.

        Errors are those of both parts.
        """
        stored = None if state is None else select_prefix(state, GATED_PREFIX)
        attention = self.gated.refresh(stored, batches, generator)
        members = self._draw_members(attention["theta"].detach(), batches, generator)
        one_per_cluster = replace(self.cluster, clusters=self._draws, clustering="k-means")
        seeds = one_per_cluster.refresh(None, split_features(*members), generator)
        return _join_states(attention, self.cluster.refresh(seeds, batches, generator))

    @property
    def _draws(self) -> int:
        return self.cluster.clusters or DEFAULT_CLUSTERS

    @torch.no_grad()
    def _draw_members(
        self, theta: Float[Tensor, " P"], batches: FeatureBatches, generator: torch.Generator
    ) -> tuple[Float[Tensor, "S D"], Int[Tensor, " S"]]:
        """Return the features and labels drawn, holding those alone at any time.

        The first K of exponential clocks with rates exp(a_i) to ring are such a draw (Efraimidis
        and Spirakis, Information Processing Letters 2006), which needs no sum over the class.
        """
        z = torch.empty(0, self.gated.features)
        y, times = torch.empty(0, dtype=torch.int64), torch.empty(0)
        for batch_z, batch_y in batches():
            check_finite(batch_z, batch_y)
            class_members(batch_y, self.gated.classes, batch_z)  # refuses labels that are no class
            normal = functional.layer_norm(batch_z, batch_z.shape[1:])
            a = attention_scores(theta.to(batch_z.dtype), normal, self.gated.hidden_size)
            batch_times = torch.empty_like(a).exponential_(generator=generator).log() - a
            z, y, times = (
                torch.cat([old.to(new.dtype), new])
                for old, new in ((z, batch_z), (y, batch_y), (times, batch_times))
            )
            first = first_of_each_class(times, y, self._draws)
            z, y, times = z[first], y[first], times[first]
        return z, y

    def loss(
        self, state: State, z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"], measure: bool = True
    ) -> Term:
        """Compute the clusters' loss of one batch; see `ConditionalEntropy.loss`.

        Logged is what both parts log.
        """
        around = self.cluster.loss(select_prefix(state, CLUSTER_PREFIX), z, y, measure)
        weighted = self.gated.loss(select_prefix(state, GATED_PREFIX), z.detach(), y, measure)
        pull = weighted.loss - weighted.loss.detach()
        return Term(around.loss + pull, weighted.metrics | around.metrics)

    def step(self, state: State, z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"]) -> State:
        """Move the attention; see `ConditionalEntropy.step`."""
        attention = self.gated.step(select_prefix(state, GATED_PREFIX), z, y)
        return _join_states(attention, select_prefix(state, CLUSTER_PREFIX))


def _join_states(attention: State, clusters: State) -> State:
    return add_prefix(GATED_PREFIX, attention) | add_prefix(CLUSTER_PREFIX, clusters)


def first_of_each_class(
    times: Float[Tensor, " N"], y: Int[Tensor, " N"], count: int
) -> Int[Tensor, " S"]:
    """Return the indices of the `count` smallest times of each class, by class, then by time."""
    order = times.argsort(stable=True)
    order = order[y[order].argsort(stable=True)]
    sizes = y.bincount()
    rank = torch.arange(len(y)) - (sizes.cumsum(0) - sizes)[y[order]]
    return order[rank < count]
