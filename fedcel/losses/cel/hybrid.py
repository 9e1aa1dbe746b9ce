"""Clusters that start where a learned attention looks."""

from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from fedcel.losses.cel.class_spread import class_members
from fedcel.losses.cel.cluster import DEFAULT_CLUSTERS, Cluster
from fedcel.losses.cel.gated import Gated, attention_scores, hidden_size
from fedcel.losses.cel.protocol import Codes, State, Term, split_pieces
from fedcel.losses.cel.reservoir import check_finite
from fedcel.losses.cel.state_names import add_prefix, select_prefix
from fedcel.settings import check_hybrid_clusters

GATED, CLUSTER = "gated.", "cluster."


@final
@dataclass(frozen=True)
class Hybrid:
    """The loss of `cluster` around centres whose starts are drawn by the attention of `gated`.

    At each refresh K members of every class are drawn without replacement, each time in proportion
    to the attention's weights alpha over all the client's examples of the class, K being the
    number of clusters asked for (5 by default; all members of smaller classes). They are the
    centres that the clusters' fit on all examples starts from, in place of the last ones; a fit
    that wants fewer clusters keeps some of them. The encoder gets the clusters' loss alone. The
    attention learns as in `gated`, from that loss on the same codes as constants; it adds 0 to the
    value.

    State: that of `gated` under `gated.`, that of `cluster` under `cluster.`.
    """

    gated: Gated
    cluster: Cluster

    def __post_init__(self) -> None:
        """Refuse a single cluster whose start an attention draws."""
        check_hybrid_clusters(self.cluster.clusters)

    def refresh(self, state: State | None, codes: Codes, generator: torch.Generator) -> State:
        """Return both parts' states; errors are those of the parts."""
        known = None if state is None else select_prefix(state, GATED)
        attention = self.gated.refresh(known, codes, generator)
        starts = self._starts(attention["theta"].detach(), codes, generator)
        exact = replace(self.cluster, clusters=self._wanted, clustering="k-means")
        seeded = exact.refresh(None, split_pieces(*starts), generator)
        found = self.cluster.refresh(seeded, codes, generator)
        return add_prefix(GATED, attention) | add_prefix(CLUSTER, found)

    @property
    def _wanted(self) -> int:
        return self.cluster.clusters or DEFAULT_CLUSTERS

    @torch.no_grad()
    def _starts(
        self, theta: Float[Tensor, " P"], codes: Codes, generator: torch.Generator
    ) -> tuple[Float[Tensor, "S D"], Int[Tensor, " S"]]:
        """Return the codes and labels drawn, holding those alone at any time.

        The first K of exponential clocks with rates exp(a_i) to ring are such a draw (Efraimidis
        and Spirakis, Information Processing Letters 2006), which needs no sum over the class.
        """
        hidden = hidden_size(self.gated.features, self.gated.hidden)
        z = torch.empty(0, self.gated.features)
        y, time = torch.empty(0, dtype=torch.int64), torch.empty(0)
        for some, labels in codes():
            check_finite(some, labels)
            class_members(labels, self.gated.classes, some)  # DataError on a label that is no class
            a = attention_scores(
                theta.to(some.dtype), functional.layer_norm(some, some.shape[1:]), hidden
            )
            clock = torch.empty_like(a).exponential_(generator=generator).log() - a
            z, y, time = (
                torch.cat([old.to(new.dtype), new])
                for old, new in ((z, some), (y, labels), (time, clock))
            )
            kept = first_of_each_class(time, y, self._wanted)
            z, y, time = z[kept], y[kept], time[kept]
        return z, y

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Return the clusters' loss; logged is what both parts log."""
        around = self.cluster.loss(select_prefix(state, CLUSTER), z, y, measure)
        weighted = self.gated.loss(select_prefix(state, GATED), z.detach(), y, measure)
        pull = weighted.loss - weighted.loss.detach()
        return Term(around.loss + pull, weighted.metrics | around.metrics)

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Return the state after both parts' steps."""
        attention = self.gated.step(select_prefix(state, GATED), z, y)
        found = self.cluster.step(select_prefix(state, CLUSTER), z, y)
        return add_prefix(GATED, attention) | add_prefix(CLUSTER, found)


def first_of_each_class(
    time: Float[Tensor, " N"], y: Int[Tensor, " N"], most: int
) -> Int[Tensor, " S"]:
    """Return the indices of the `most` smallest times of each class, by class, then by time."""
    order = time.argsort(stable=True)
    order = order[y[order].argsort(stable=True)]
    counts = y.bincount()
    rank = torch.arange(len(y)) - (counts.cumsum(0) - counts)[y[order]]
    return order[rank < most]
