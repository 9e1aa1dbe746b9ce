"""Spread around a few centres in each class, learned from all the client's data."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from fedcel.errors import DataError, SettingsError
from fedcel.losses.cel.cel_module import CELModule
from fedcel.losses.cel.conditional_entropy import (
    Members,
    RefreshedCEL,
    SpreadCEL,
    check_finite,
    class_members,
    class_shares,
    drop_singletons,
    plain_spread,
    select_measured,
    select_rows,
    uniform_weights,
    weighted_mean,
    weighted_spread,
)
from fedcel.losses.cel.kmeans import ClusteringProblem, KMeans, measure_clusters
from fedcel.losses.cel.mixture import GaussianMixtures
from fedcel.losses.protocol import (
    SHARE,
    Batch,
    FeatureReader,
    MetricRanges,
    State,
    Term,
)
from fedcel.tensors import check_labels, check_state_names

DEFAULT_CLUSTERS = 5


class Cluster(SpreadCEL, RefreshedCEL):
    """Keeps each class close to a few centres of its own.

    sum_c beta_c R(v_c), v_c = sum_s pi_cs v_cs, v_cs = mean |z_i - mu_cs|^2 over the members of
    cluster s of class c in the batch. Each example belongs to one cluster of its class: the
    nearest, or for Gaussian mixtures that of the largest posterior. Centres are constants. The
    weights pi are over the clusters in the batch, or with `form` "original" over all of them: one
    that is absent counts as a spread of 0, which biases v_c down.

    Truncated clusters ignore far members, those whose squared distance to the centre exceeds
    `OUTLIER_FACTOR` times the cluster's median, in centre, spread and loss: these leak on.

    State: `centres` (C, S, D) in units of z, `weights` (C, S), `spreads` (C, S) in units of z
    squared, `counts` (C,), the examples read; of mixtures `variances` (C, S, D) or
    `whitenings` (C, S, D, D), inverse Cholesky factors; of truncated ones `limits` (C, S) in
    units of z squared, 0 where a cluster has none. Unused clusters and absent classes weigh 0.

    References:
        Xia et al., CVPR 2025: the form `original` with the logarithmic penalty.
    """

    kind: Literal["cluster"] = "cluster"
    auto_clusters: ClassVar[int] = 1
    """Clusters a class where `clusters` is auto."""

    clusters: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="Clusters per class; 0: 5, but at most n_c / 4; auto: 1, for `hybrid` 0.",
    )
    clustering: Literal["k-means", "reseeded-k-means", "truncated-k-means", "diagonal", "full"] = (
        Field(
            "k-means",
            description="K-means, also with outliers reseeded or truncated, or Gaussian mixtures.",
        )
    )
    form: Literal["renormalised", "original"] = Field(
        "renormalised",
        description="renormalised: over clusters in the batch; original: absent ones count as 0.",
    )

    metric_ranges: ClassVar[MetricRanges] = {
        "spread": lambda scale: scale.spread,
        # Distances to centres, not to the mean: at most twice as long.
        "cluster-spread": lambda scale: scale.spread._replace(
            highest=4 * scale.spread.highest, usual=4 * scale.spread.usual
        ),
        "truncated-share": SHARE,
    }

    @property
    def used_clusters(self) -> int:
        """Clusters a class as a number, 0 by the class's size, also where it is `auto`."""
        return self.auto_clusters if self.clusters == "auto" else self.clusters

    @property
    def slots(self) -> int:
        """Clusters a class that the state has room for."""
        return self.used_clusters or DEFAULT_CLUSTERS

    @property
    def is_truncated(self) -> bool:
        """Whether clusters that are too wide lose their far members."""
        return self.clustering == "truncated-k-means"

    def find_clustering(self) -> KMeans | GaussianMixtures:
        """Return what finds the clusters."""
        if self.clustering in ("diagonal", "full"):
            return GaussianMixtures(self.clustering)
        return KMeans(self.clustering == "reseeded-k-means", self.is_truncated)

    @torch.no_grad()
    def refresh(
        self,
        state: State | None,
        read_features: FeatureReader,
        generators: Sequence[torch.Generator],
    ) -> State:
        """Fit the clusters of each class; see `LossTerm.refresh`.

        K-means starts from the last centres. With reseeding, a class is fitted once more from new
        seeds, and the fit of the smaller total distance is kept. With truncation, the outliers of a
        cluster are left out, and its weight stays. Memory: three times all features; full
        covariances C S D^2.

        Raises:
            DataError: A client has no example, or a label is not one of the classes.
            DivergedError: Features are not finite.
            SettingsError: `state` is of another shape, or full covariances are too large.
        """
        classes = self._cut.classes
        z, y, counts = gather_classes(read_features, classes, len(generators))
        means = z.new_zeros(len(counts), z.shape[1]).index_add_(0, y, z)
        means /= counts.clamp_min(1)[:, None]
        last = None
        if state is not None:
            check_state_names(state, ("centres", "weights", "spreads", "counts"), "clusters")
            shape, expected = tuple(state["centres"].shape[1:]), (classes, self.slots, z.shape[1])
            if shape != expected:
                raise SettingsError(
                    f"a client's stored centres are {shape}, must be {expected}: cel.clusters, "
                    "net.features or the data changed; start from an empty state"
                )
            last = {name: tensor.flatten(0, 1) for name, tensor in state.items()}
            last["centres"] = last["centres"].to(z.dtype) - means[:, None]
        problem = ClusteringProblem(
            z - means.index_select(0, y), y, self._active_slots(counts), generators
        )
        clusters, weights, extras = self.find_clustering().fit(problem, last)
        fitted = {
            "centres": torch.where(
                (weights > 0)[..., None], clusters.centres + means[:, None], 0.0
            ),
            "weights": weights.contiguous(),
            "spreads": measure_clusters(clusters)[1],
            "counts": counts,
        }
        return {
            name: tensor.view(len(generators), classes, *tensor.shape[1:])
            for name, tensor in (fitted | extras).items()
        }

    def _active_slots(self, counts: Int[Tensor, " C"]) -> Bool[Tensor, "C S"]:
        """Return which slots are to be used; no more than a class has examples."""
        per_class = torch.full_like(counts, self.used_clusters)
        if not self.used_clusters:
            per_class = (counts // 4).clamp(1, DEFAULT_CLUSTERS)
        slots = torch.arange(self.slots)
        return slots < per_class.minimum(counts)[:, None]

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the loss of one batch; see `LossTerm.loss`.

        Exactly 0 when the state knows none of the batch's classes. Logged: `spread`, the total one
        within classes, and `cluster-spread`, that within clusters by this batch only; they differ
        by the spread between a class's clusters. With truncated clusters also `truncated-share`,
        the share of the batch that is left out.

        Raises:
            DataError: A label is not one of the classes.
            DivergedError: Features are not finite.
        """
        z, y = batch.z, batch.y
        pi = state["weights"]
        members = class_members(y, self._cut.classes, z)
        slots, slot_members = y, members
        if pi.shape[-1] > 1:
            with torch.no_grad():
                slots = self.find_clustering().assign(state, z, y)
            slot_members = _find_slot_members(slots, pi.shape[-2:].numel(), z)
        centre = select_rows(state["centres"].flatten(-3, -2), slots)
        if self.is_truncated:
            slot_members = _leave_out_far(slot_members, z, centre, slots, limits=state["limits"])
        parts = pi * (slot_members.counts.view_as(pi) > 0)
        if self.form == "renormalised":
            total_weight = parts.sum(-1, keepdim=True)
            parts = parts / torch.where(total_weight > 0, total_weight, 1.0)
        v = weighted_spread(z, centre, uniform_weights(slot_members)).view_as(pi)
        if not v.isfinite().all():
            check_finite(z, y)
        counts = members.counts * (state["counts"] > 0)
        cost = self.charge((parts * v).sum(-1))
        loss = torch.linalg.vecdot(class_shares(counts, self.share), cost)
        if not measure:
            return Term(loss, {})
        pair_counts = drop_singletons(members.counts)
        within = {"cluster-spread": weighted_mean((parts * v).sum(-1), counts)}
        total = {"spread": weighted_mean(plain_spread(z.detach(), y, members), pair_counts)}
        if self.is_truncated:
            counted_share = slot_members.counts.sum(-1) / members.counts.sum(-1).clamp_min(1)
            within["truncated-share"] = 1 - counted_share
        return Term(
            loss,
            select_measured(within, counts.sum(-1) > 0)
            | select_measured(total, pair_counts.sum(-1) > 0),
        )


class ClusterCEL(CELModule, options=Cluster):
    """Penalises the spread of each class around a few centres, which `refresh` fits.

    Example:
        >>> cel = fedcel.ClusterCEL(classes=10, noise=0.3)
        >>> cel.refresh(features, labels)  # once an epoch
        >>> loss = cross_entropy(head(z + 0.3 * torch.randn_like(z)), y) + weight * cel(z, y)
    """


def _find_slot_members(
    slots: Int[Tensor, "*k B"], count: int, like: Float[Tensor, "*k B D"]
) -> Members:
    # Compared, not looked up: an identity matrix of all slots could be large.
    one_hot = slots[..., None].eq(torch.arange(count, device=slots.device)).to(like.dtype)
    return Members(one_hot, one_hot.sum(-2))


def _leave_out_far(
    members: Members,
    z: Float[Tensor, "*k B D"],
    centre: Float[Tensor, "*k B D"],
    slots: Int[Tensor, "*k B"],
    *,
    limits: Float[Tensor, "*k C S"],
) -> Members:
    """Return the members of each slot that lie within its limit, all where it has none."""
    limit = select_rows(limits.flatten(-2).unsqueeze(-1), slots).squeeze(-1)
    squared = (z.detach() - centre).square().sum(-1)
    is_inside = limit.eq(0) | (squared <= limit)
    one_hot = members.one_hot * is_inside.unsqueeze(-1)
    return Members(one_hot, one_hot.sum(-2))


def gather_classes(
    read_features: FeatureReader, classes: int, clients: int
) -> tuple[Float[Tensor, "M D"], Int[Tensor, " M"], Int[Tensor, " KC"]]:
    """Read all features, sorted by class; class c of client k is number k C + c.

    Returns:
        Features, their class numbers, and the examples of each class.

    Raises:
        DataError: A client has no example, or a label is not one of the classes.
        DivergedError: Features are not finite.
    """
    pieces = []
    for z, y, client in read_features():
        check_finite(z, y)
        check_labels(y, classes)
        pieces.append((z, client * classes + y))
    numbers = torch.cat([torch.empty(0, dtype=torch.long), *(part for _, part in pieces)])
    counts = numbers.bincount(minlength=clients * classes)
    if (counts.view(-1, classes).sum(1) == 0).any():
        raise DataError("a client has 0 examples, must have 1 or more; leave it out")
    numbers, order = numbers.sort(stable=True)
    z = torch.cat([part for part, _ in pieces])
    return z.index_select(0, order), numbers, counts
