"""Spread around a few centres in each class, learned from all the client's data."""

from collections.abc import Sequence
from math import prod
from typing import Annotated, ClassVar, Literal, final

import torch
from jaxtyping import Bool, Float, Int
from pydantic import Field
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.losses.cel import kmeans, mixture
from fedcel.losses.cel.class_spread import (
    Members,
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
from fedcel.losses.cel.conditional_entropy import RefreshedCEL
from fedcel.losses.cel.kmeans import ClassClusters, ClusteringProblem
from fedcel.losses.cel.mixture import Mixture
from fedcel.losses.cel.reservoir import check_finite, sample_reservoir
from fedcel.losses.cel.spread_penalties import SpreadCEL
from fedcel.losses.cel.state_names import check_state_names
from fedcel.losses.protocol import (
    SHARE,
    FeatureReader,
    MetricRange,
    MetricScale,
    State,
    Term,
)
from fedcel.options import Off, Positive

DEFAULT_CLUSTERS = 5
RESERVOIR_SIZE = 1024
"""Examples of a class that clusters are fitted on, at most."""
MAX_COVARIANCE_VALUES = 2**27
"""Values of full covariances at most, C K D D: half a gigabyte in float32."""

SCALE_NAMES = {"diagonal": "variances", "full": "whitenings"}
"""What the covariances of each kind of mixture are called in the state."""


class ClusteredCEL(SpreadCEL, RefreshedCEL):
    """Options of clusters within each class, their fit and what they charge."""

    auto_clusters: ClassVar[int] = 1
    """Clusters a class where `clusters` is auto."""

    clusters: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="Clusters a class; 0: 5, at most a quarter of n_c; auto: 1, of `hybrid` 0.",
    )
    clustering: Literal["k-means", "truncated-k-means", "diagonal", "full"] = Field(
        "k-means",
        description="K-means, the same less far members, or Gaussians of that covariance.",
    )
    form: Literal["renormalised", "original"] = Field(
        "renormalised",
        description="A class's spread is over the clusters in the batch; original: absent as 0.",
    )
    outlier: Positive | Off = Field(
        "none",
        description="Multiple of a class's median spread above which a cluster is reseeded, or "
        "truncated.",
    )

    @property
    def used_clusters(self) -> int:
        """Clusters a class as a number, 0 by the class's size, also where it is `auto`."""
        return self.auto_clusters if self.clusters == "auto" else self.clusters

    @property
    def slots(self) -> int:
        """Clusters a class that the state has room for."""
        return self.used_clusters or DEFAULT_CLUSTERS

    def check_rules(self) -> None:
        """Refuse to leave members out where nothing says which; see `CEL.check_rules`."""
        super().check_rules()
        if self.is_truncated and (self.outlier == "none" or self.outlier < 1):
            value = "'none'" if self.outlier == "none" else f"{self.outlier:g}"
            raise SettingsError(
                f"cel.clustering is 'truncated-k-means', cel.outlier {value}, must be 1 or more: "
                "it says which members are far; set cel.outlier to 2, or cel.clustering to "
                "'k-means'"
            )

    @property
    def is_truncated(self) -> bool:
        """Whether clusters that are too wide lose their far members."""
        return self.clustering == "truncated-k-means"

    @torch.no_grad()
    def fit_clusters(
        self,
        state: State | None,
        read_features: FeatureReader,
        generators: Sequence[torch.Generator],
    ) -> State:
        """Fit the clusters of each class anew.

        Fitted on at most `RESERVOIR_SIZE` examples of each class, drawn uniformly: centres, weights
        and spreads are those of the draw, counts are exact; classes that fit in are taken whole.
        K-means starts from the last centres. With `outlier`, a class is refitted once and takes
        that where its total distance is smaller; or its outliers are truncated, which changes no
        weight. Mixtures: EM starts from the clusters of K-means,
        later from the last covariances; a class that lacks a component, or had an outlier, starts
        from K-means again. Memory: 3 C RESERVOIR_SIZE D values and one piece of each client;
        full covariances C K D^2.

        Raises:
            DataError: A client has no example, or a label is not one of the classes.
            DivergedError: Features are not finite.
            SettingsError: `state` is of another shape, or full covariances are too large.
        """
        z, y, counts = sample_reservoir(
            read_features, self._cut.classes, RESERVOIR_SIZE, generators
        )
        self._check_size((self._cut.classes, self.slots, z.shape[1]), state)
        sizes = y.bincount(minlength=len(counts))
        active = self._active_slots(counts, sizes)
        means = z.new_zeros(len(sizes), z.shape[1]).index_add_(0, y, z)
        means /= sizes.clamp_min(1)[:, None]
        centred = z - means.index_select(0, y)
        is_retained = torch.zeros_like(active)
        previous_centres = previous = None
        if state is not None:
            previous = {name: tensor.flatten(0, 1) for name, tensor in state.items()}
            is_retained = (previous["weights"] > 0) & active
            previous_centres = previous["centres"].to(z.dtype) - means[:, None]
        problem = ClusteringProblem(centred, y, active, generators)
        outlier = None if self.outlier == "none" else self.outlier
        if self.clustering not in SCALE_NAMES:
            reseeded = None if self.is_truncated else outlier
            clusters = kmeans.find_clusters(problem, previous_centres, is_retained, reseeded)
            weights = kmeans.measure_clusters(clusters)[0].to(z.dtype) / sizes.clamp_min(1)[:, None]
            packed = _pack_state(clusters, weights, counts, means)
            if outlier is not None and self.is_truncated:
                centres, limits, spreads = kmeans.truncate_clusters(centred, clusters, outlier)
                packed = _pack_state(clusters._replace(centres=centres), weights, counts, means)
                packed |= {"limits": limits, "spreads": spreads}
        else:
            initial_mixtures = self._choose_initial_mixtures(
                problem, previous, previous_centres, is_retained
            )
            clusters, weights, scales = _fit_mixtures(centred, y, sizes, initial_mixtures)
            packed = _pack_state(clusters, weights, counts, means)
            packed[SCALE_NAMES[self.clustering]] = scales.contiguous()
        shape = len(generators), self._cut.classes
        return {name: tensor.view(*shape, *tensor.shape[1:]) for name, tensor in packed.items()}

    def cluster_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of the clusters' state, by its name."""
        slots, features = (self._cut.classes, self.slots), self._cut.features
        shapes: dict[str, tuple[int, ...]] = {
            "centres": (*slots, features),
            "weights": slots,
            "spreads": slots,
            "counts": slots[:1],
        }
        if self.clustering in SCALE_NAMES:
            scale = (features,) if self.clustering == "diagonal" else (features, features)
            shapes[SCALE_NAMES[self.clustering]] = (*slots, *scale)
        return shapes | ({"limits": slots} if self.is_truncated else {})

    def _check_size(self, shape: tuple[int, int, int], state: State | None) -> None:
        """Raise SettingsError unless the state fits the shape, and covariances the memory."""
        if state is not None:
            check_state_names(state, ("centres", "weights", "spreads", "counts"), "clusters")
            stored = tuple(state["centres"].shape[1:])
            if stored != shape:
                raise SettingsError(
                    f"a client's stored centres are {stored}, must be "
                    f"{shape}: cel.clusters, net.features or the data changed; start from an empty "
                    "state"
                )
        size = prod(shape) * shape[2]
        if self.clustering == "full" and size > MAX_COVARIANCE_VALUES:
            raise SettingsError(
                f"cel.clustering 'full' keeps C K D^2 = {size} values, must be at most "
                f"{MAX_COVARIANCE_VALUES}; use 'diagonal', or lower net.features"
            )

    def _active_slots(
        self, counts: Int[Tensor, " C"], sizes: Int[Tensor, " C"]
    ) -> Bool[Tensor, "C K"]:
        """Return which slots are to be used; no more than there are examples in the draw."""
        per_class = torch.full_like(counts, self.used_clusters)
        if not self.used_clusters:
            per_class = (counts // 4).clamp(1, DEFAULT_CLUSTERS)
        slots = torch.arange(self.slots)
        return slots < per_class.minimum(sizes)[:, None]

    def _choose_initial_mixtures(
        self,
        problem: ClusteringProblem,
        state: State | None,
        previous_centres: Float[Tensor, "C K D"] | None,
        is_retained: Bool[Tensor, "C K"],
    ) -> list[Mixture]:
        """Return where EM starts in each class: the stored mixture if complete, else K-means."""
        z, y, active, _ = problem
        outlier = None if self.outlier == "none" else self.outlier
        scale_name = SCALE_NAMES[self.clustering]
        stored_mixtures: list[Mixture] = []
        is_complete = active.new_zeros(len(active))
        if state is not None and previous_centres is not None and scale_name in state:
            if outlier is not None:
                outliers = kmeans.find_outliers(state["spreads"], is_retained, outlier)
                is_retained = is_retained & ~outliers
            stored_mixtures = _unstack_mixtures(
                state["weights"], previous_centres, state[scale_name]
            )
            is_complete = is_retained.eq(active).all(1)
        if is_complete.all():
            return stored_mixtures
        slots = kmeans.find_clusters(problem, previous_centres, is_retained, outlier).slots
        per_class = active.shape[1]
        is_full = self.clustering == "full"
        initial_mixtures = []
        for c in range(len(active)):
            members, components = z[y == c], slots[y == c] % per_class
            initial_mixtures.append(
                stored_mixtures[c]
                if is_complete[c]
                else mixture.mixture_of_members(members, components, per_class, is_full)
            )
        return initial_mixtures

    def charge_clusters(
        self, state: State, z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"], measure: bool
    ) -> Term:
        """Compute the loss of one batch.

        Exactly 0 when the state knows none of the batch's classes. Logged: `spread`, the total one
        within classes, and `cluster-spread`, that within clusters by this batch alone; they differ
        by the spread between a class's clusters. With truncated clusters also `truncated-share`,
        the share of the batch that is left out.

        Raises:
            DataError: A label is not one of the classes.
            DivergedError: Features are not finite.
        """
        pi = state["weights"]
        members = class_members(y, self._cut.classes, z)
        slots = self._assign_slots(state, z, y)
        if pi.shape[-1] == 1:
            slot_members = members
        else:
            slot_members = _find_slot_members(slots, pi.shape[-2:].numel(), z)
        centre = select_rows(state["centres"].flatten(-3, -2), slots)
        if self.is_truncated:
            slot_members = _leave_out_far(slot_members, z, centre, slots, limits=state["limits"])
        parts = self._cluster_parts(pi, slot_members.counts.view_as(pi))
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

    def declare_metrics(self, scale: MetricScale) -> dict[str, MetricRange]:
        """Declare the ranges of what the loss measures; see `CEL.declare_metrics`."""
        spread = scale.spread  # distances to centres, not to the mean: at most twice as long
        around = spread._replace(highest=4 * spread.highest, usual=4 * spread.usual)
        return super().declare_metrics(scale) | {
            "spread": spread,
            "cluster-spread": around,
            "truncated-share": SHARE,
        }

    @torch.no_grad()
    def _assign_slots(
        self, state: State, z: Float[Tensor, "*k B D"], y: Int[Tensor, "*k B"]
    ) -> Int[Tensor, "*k B"]:
        """Return the slot c K + k of each example's cluster."""
        pi, centres = state["weights"], state["centres"]
        if pi.shape[-1] == 1:
            return y
        if self.clustering not in SCALE_NAMES:
            # Centred first: the expanded squared distance loses precision far from 0.
            means = torch.einsum("...ck,...ckd->...cd", pi, centres)
            centred = z - select_rows(means, y)
            scores = kmeans.centre_scores(centred, y, centres - means.unsqueeze(-2), pi > 0)
            return y * pi.shape[-1] + scores.argmin(-1)
        scales = state[SCALE_NAMES[self.clustering]]
        leading = y.shape[:-1].numel()
        if y.dim() > 1:
            pi, centres, scales = (part.flatten(0, 1) for part in (pi, centres, scales))
            first = torch.arange(leading, device=y.device)[:, None] * self._cut.classes
            slots = mixture.assign_components(
                z.flatten(0, 1), (y + first).flatten(), _unstack_mixtures(pi, centres, scales)
            )
            return slots.view(y.shape) - first * pi.shape[-1]
        return mixture.assign_components(z, y, _unstack_mixtures(pi, centres, scales))

    def _cluster_parts(
        self, pi: Float[Tensor, "*k C K"], batch_counts: Float[Tensor, "*k C K"]
    ) -> Float[Tensor, "*k C K"]:
        """Return each cluster's part in its class: pi over those in the batch."""
        present = pi * (batch_counts > 0)
        if self.form == "original":
            return present
        total = present.sum(-1, keepdim=True)
        return present / torch.where(total > 0, total, 1.0)


@final
class Cluster(ClusteredCEL):
    """Keeps each class close to a few centres of its own.

    sum_c beta_c R(v_c), v_c = sum_k pi_ck v_ck, v_ck = mean |z_i - mu_ck|^2 over the members of
    cluster k of class c in the batch. Each example belongs to one cluster of its class: the
    nearest, or for Gaussian mixtures that of the largest posterior. Centres are constants.

    Truncated clusters leave members whose squared distance to the centre exceeds `outlier` times
    their cluster's median out of its centre, its spread and the loss: they are not drawn in, and
    leak on.

    State: `centres` (C, K, D) in units of z, `weights` (C, K), `spreads` (C, K) in units of z
    squared, `counts` (C,), the client's examples; of mixtures `variances` (C, K, D) or
    `whitenings` (C, K, D, D), inverse Cholesky factors; of truncated ones `limits` (C, K) in
    units of z squared, 0 where a cluster has none. Unused clusters and absent classes weigh 0.

    References:
        Xia et al., CVPR 2025: the form `original` with the logarithmic penalty.
    """

    kind: Literal["cluster"] = "cluster"

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of the state; see `CEL.state_shapes`."""
        return self.cluster_shapes()

    def fit(
        self,
        state: State | None,
        read_features: FeatureReader,
        generators: Sequence[torch.Generator],
    ) -> State:
        """Fit the clusters of each class anew; see `ClusteredCEL.fit_clusters`."""
        return self.fit_clusters(state, read_features, generators)

    def evaluate(
        self, state: State, z: Float[Tensor, "K B D"], y: Int[Tensor, "K B"], measure: bool
    ) -> Term:
        """Compute the loss of one batch; see `ClusteredCEL.charge_clusters`."""
        return self.charge_clusters(state, z, y, measure)


def _unstack_mixtures(
    weights: Float[Tensor, "C K"], centres: Float[Tensor, "C K D"], scales: Float[Tensor, "C K ..."]
) -> list[Mixture]:
    """Return the mixture of each class."""
    return [Mixture(*parts) for parts in zip(weights, centres, scales, strict=True)]


def _fit_mixtures(
    z: Float[Tensor, "N D"],
    y: Int[Tensor, " N"],
    sizes: Int[Tensor, " C"],
    initial_mixtures: list[Mixture],
) -> tuple[ClassClusters, Float[Tensor, "C K"], Float[Tensor, "C K ..."]]:
    """Return the clusters, weights and scales of each class's mixture, fitted by EM."""
    pairs = zip(torch.split(z, sizes.tolist()), initial_mixtures, strict=True)
    fits = [mixture.fit_mixture(members, initial) for members, initial in pairs]
    slots = mixture.assign_components(z, y, fits)
    weights, centres, scales = mixture.stack_components(fits, z.dtype)
    return kmeans.make_clusters(z, slots, centres), weights, scales


def _find_slot_members(
    slots: Int[Tensor, "*k B"], count: int, like: Float[Tensor, "*k B D"]
) -> Members:
    """Return the members of each slot."""
    # Compared, not looked up: an identity matrix of all slots could be large.
    one_hot = slots[..., None].eq(torch.arange(count, device=slots.device)).to(like.dtype)
    return Members(one_hot, one_hot.sum(-2))


def _leave_out_far(
    members: Members,
    z: Float[Tensor, "*k B D"],
    centre: Float[Tensor, "*k B D"],
    slots: Int[Tensor, "*k B"],
    *,
    limits: Float[Tensor, "*k C K"],
) -> Members:
    """Return the members of each slot that lie within its limit, all where it has none."""
    limit = select_rows(limits.flatten(-2).unsqueeze(-1), slots).squeeze(-1)
    squared = (z.detach() - centre).square().sum(-1)
    is_inside = limit.eq(0) | (squared <= limit)
    one_hot = members.one_hot * is_inside.unsqueeze(-1)
    return Members(one_hot, one_hot.sum(-2))


def _pack_state(
    clusters: ClassClusters,
    weights: Float[Tensor, "C K"],
    counts: Int[Tensor, " C"],
    means: Float[Tensor, "C D"],
) -> State:
    """Return the state of clusters around class means that were taken off."""
    used = (weights > 0)[..., None]
    return {
        "centres": torch.where(used, clusters.centres + means[:, None], 0.0),
        "weights": weights.contiguous(),
        "spreads": kmeans.measure_clusters(clusters)[1],
        "counts": counts,
    }
