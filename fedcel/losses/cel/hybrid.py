"""Clusters that start where a learned attention looks."""

from collections.abc import Sequence
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from fedcel.errors import SettingsError
from fedcel.losses.cel.cel_module import CELModule
from fedcel.losses.cel.cluster import Cluster
from fedcel.losses.cel.conditional_entropy import check_finite
from fedcel.losses.cel.gated import Gated, attention_scores
from fedcel.losses.protocol import (
    Batch,
    FeatureReader,
    MetricRanges,
    StackedFeatures,
    State,
    Term,
)
from fedcel.tensors import add_prefix, check_labels, rank_in_class, select_prefix

GATED_PREFIX, CLUSTER_PREFIX = "gated.", "cluster."


@final
class Hybrid(Cluster, Gated):
    """The loss of `Cluster` around centres whose starts are drawn by the attention of `Gated`.

    At each refresh S members of every class are drawn without replacement, each time in proportion
    to the attention's weights alpha over all the client's examples of the class, S being the
    number of clusters asked for (5 by default; all members of smaller classes). They are the
    centres that the clusters' fit on all examples starts from, in place of the last ones; a fit
    that wants fewer clusters keeps some of them. The encoder gets only the clusters' loss. The
    attention learns as in `Gated`, from that loss on the same features as constants; it adds 0 to
    the value.

    State: that of `Gated` under `gated.`, that of `Cluster` under `cluster.`.
    """

    kind: Literal["hybrid"] = "hybrid"  # type: ignore[assignment]
    metric_ranges: ClassVar[MetricRanges] = {**Cluster.metric_ranges, **Gated.metric_ranges}
    auto_clusters: ClassVar[int] = 0
    """One centre would be the class mean wherever it starts, so it takes several."""

    def check_rules(self) -> None:
        """Refuse a single cluster whose start an attention draws; see `CEL.check_rules`."""
        super().check_rules()
        if self.used_clusters == 1:
            raise SettingsError(
                "cel.clusters is 1, cel.kind 'hybrid': one centre is the class mean wherever it "
                "starts; set cel.clusters to 0 (by the class's size) or more than 1, or cel.kind "
                "to 'cluster'"
            )

    def refresh(
        self,
        state: State | None,
        read_features: FeatureReader,
        generators: Sequence[torch.Generator],
    ) -> State:
        """Draw centres by the attention, fit the clusters; see `LossTerm.refresh`.

        Errors are those of both parts.
        """
        stored = None if state is None else select_prefix(state, GATED_PREFIX)
        attention = Gated.refresh(self, stored, read_features, generators)
        members = self._draw_members(attention["theta"].detach(), read_features, generators)
        one_per_cluster = self.model_copy(update={"clusters": self.slots, "clustering": "k-means"})
        seeds = Cluster.refresh(one_per_cluster, None, lambda: iter([members]), generators)
        clusters = Cluster.refresh(self, seeds, read_features, generators)
        return _join_states(attention, clusters)

    @torch.no_grad()
    def _draw_members(
        self,
        theta: Float[Tensor, "K P"],
        read_features: FeatureReader,
        generators: Sequence[torch.Generator],
    ) -> StackedFeatures:
        """Return the examples drawn, holding those only at any time.

        The first S of exponential clocks with rates exp(a_i) to ring are such a draw (Efraimidis
        and Spirakis, Information Processing Letters 2006), which needs no sum over the class.
        """
        classes = self._cut.classes
        z = torch.empty(0, self._cut.features)
        label, times = torch.empty(0, dtype=torch.int64), torch.empty(0)
        for piece_z, piece_y, client in read_features():
            check_finite(piece_z, piece_y)
            check_labels(piece_y, classes)
            normal = functional.layer_norm(piece_z, piece_z.shape[1:])
            counts = client.bincount(minlength=len(generators)).tolist()
            parts = [
                self._draw_times(own_theta, part, stream)
                for own_theta, part, stream in zip(
                    theta.to(piece_z.dtype), torch.split(normal, counts), generators, strict=True
                )
            ]
            piece = piece_z, client * classes + piece_y, torch.cat(parts)
            z, label, times = (
                torch.cat([old.to(new.dtype), new])
                for old, new in zip((z, label, times), piece, strict=True)
            )
            first = first_of_each_class(times, label, self.slots)
            z, label, times = z[first], label[first], times[first]
        return StackedFeatures(z, label % classes, label // classes)

    def _draw_times(
        self, theta: Float[Tensor, " P"], n: Float[Tensor, "B D"], generator: torch.Generator
    ) -> Float[Tensor, " B"]:
        """Return the logarithm of each example's exponential clock."""
        a = attention_scores(theta, n)
        return torch.empty_like(a).exponential_(generator=generator).log() - a

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the clusters' loss of one batch; see `LossTerm.loss`.

        Logged is what both parts log.
        """
        clusters, attention = (select_prefix(state, p) for p in (CLUSTER_PREFIX, GATED_PREFIX))
        around = Cluster.loss(self, clusters, batch, measure)
        weighted = Gated.loss(self, attention, batch._replace(z=batch.z.detach()), measure)
        pull = weighted.loss - weighted.loss.detach()
        return Term(around.loss + pull, weighted.metrics | around.metrics)

    def update(self, state: State) -> State:
        """Move the attention; see `LossTerm.update`."""
        attention = Gated.update(self, select_prefix(state, GATED_PREFIX))
        return _join_states(attention, select_prefix(state, CLUSTER_PREFIX))


class HybridCEL(CELModule, options=Hybrid):
    """The loss of `ClusterCEL` with initial centres that are drawn by attention."""


def _join_states(attention: State, clusters: State) -> State:
    return add_prefix(GATED_PREFIX, attention) | add_prefix(CLUSTER_PREFIX, clusters)


def first_of_each_class(
    times: Float[Tensor, " N"], y: Int[Tensor, " N"], count: int
) -> Int[Tensor, " n"]:
    """Return the indices of the `count` smallest times of each class, by class, then by time."""
    order = times.argsort(stable=True)
    order = order[y[order].argsort(stable=True)]
    return order[rank_in_class(y[order]) < count]
