"""Spread around a few centres in each class, learned from all the client's data."""

from dataclasses import dataclass
from math import prod
from typing import Literal, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.losses.cel import kmeans, mixture
from fedcel.losses.cel.class_spread import (
    Members,
    class_members,
    drop_singletons,
    plain_spread,
    uniform_weights,
    weighted_mean,
)
from fedcel.losses.cel.kmeans import Clusters
from fedcel.losses.cel.mixture import Mixture, diagonal_nats, full_nats
from fedcel.losses.cel.penalties import Penalty, Share, class_shares
from fedcel.losses.cel.protocol import Codes, State, Term
from fedcel.losses.cel.reservoir import check_finite, sample_reservoir
from fedcel.losses.cel.state_names import check_holds
from fedcel.settings import check_noise

DEFAULT_CLUSTERS = 5
LARGEST = 2**27
"""Values of full covariances at most, C K D D: half a gigabyte in float32."""

Form = Literal["renormalised", "original", "per-cluster", "mixture"]
Clustering = Literal["k-means", "diagonal", "full"]
SCALES = {"diagonal": "variances", "full": "whitenings"}
"""What the covariances of each kind of mixture are called in the state."""


@final
@dataclass(frozen=True)
class Cluster:
    """sum_c beta_c R(v_c), v_c = sum_k pi_ck v_ck, v_ck = mean |z_i - mu_ck|^2 in the batch.

    The conditional entropy loss of Xia et al., CVPR 2025. Each example belongs to one cluster of
    its own class: the nearest, or for Gaussian mixtures (`clustering` diagonal, full) that of the
    largest posterior. Centres are constants. `form`:

    - `renormalised`: pi over the class's clusters that are in the batch, to sum 1;
    - `original`: an absent cluster counts as spread 0, which biases v_c down;
    - `per-cluster`: sum_k pi_ck R(v_ck) in place of R(v_c), pi renormalised;
    - `mixture`: sum_k pi_ck (-ln pi_ck + 1/2 sum_d ln(1 + s_ckd / sigma^2)) nats in place of
      R(v_c), pi renormalised, s the batch's variances around mu_ck; with full covariances
      1/2 ln det(I + S_ck / sigma^2). `penalty` is not used.

    `clusters` is K_c, at most n_c; 0: a quarter of n_c, from 1 to 5. `sigma` is the noise at the
    cut, in units of z.

    State: `centres` (C, K, D) in units of z, `weights` (C, K), `spreads` (C, K) in units of z
    squared, `counts` (C,), the client's examples; of mixtures `variances` (C, K, D) or
    `whitenings` (C, K, D, D), inverse Cholesky factors. Unused clusters and absent classes weigh 0.
    SettingsError where the form and other fields are at odds.
    """

    penalty: Penalty
    share: Share
    classes: int
    clusters: int
    form: Form
    clustering: Clustering = "k-means"
    reservoir: int = 1024
    outlier: float | None = None
    sigma: float = 0.0

    def __post_init__(self) -> None:
        """Check the form against the other fields."""
        if self.form == "mixture":
            check_noise("form", self.form, self.sigma)

    @torch.no_grad()
    def refresh(self, state: State | None, codes: Codes, generator: torch.Generator) -> State:
        """Return the clusters of each class, started from those of `state`.

        Fitted on at most `reservoir` examples of each class, drawn uniformly: centres, weights and
        spreads are those of the draw, counts are exact; classes that fit in are taken whole.
        `outlier` f: clusters of a spread above f times the class's (lower) median are seeded anew
        and all refitted, once; a class takes that where its total distance is smaller. Mixtures:
        EM starts from the clusters of K-means, later from the last covariances; a class that
        lacks a component, or had one above f times the median, starts from K-means again. Memory:
        3 C reservoir D values and one piece of the codes; full covariances C K D^2.

        DataError when there is no example or a wrong label, DivergedError when z is not finite,
        SettingsError when `state` is of another shape or full covariances are too large.
        """
        z, y, counts = sample_reservoir(codes, self.classes, self.reservoir, generator)
        self._check((self.classes, self.clusters or DEFAULT_CLUSTERS, z.shape[1]), state)
        held = y.bincount(minlength=self.classes)
        wanted = self._wanted(counts, held)
        mean = _centre_features(z, held)
        kept, start = torch.zeros_like(wanted), None
        if state is not None:
            kept = (state["weights"] > 0) & wanted
            start = state["centres"].to(z.dtype) - mean[:, None]
        if self.clustering == "k-means":
            found = kmeans.find_clusters(z, y, start, kept, wanted, self.outlier, generator)
            weights = kmeans.tallies(found)[0].to(z.dtype) / held.clamp_min(1)[:, None]
            return _pack_state(found, weights, counts, mean)
        starts = self._starts(z, y, state, start, kept, wanted, generator)
        parts = torch.split(z, held.tolist())
        fits = [mixture.fit_mixture(*pair) for pair in zip(parts, starts, strict=True)]
        slot = mixture.assign_components(z, y, fits)
        weights, centres, scale = mixture.stack_components(fits, z.dtype)
        fitted = _pack_state(kmeans.make_clusters(z, slot, centres), weights, counts, mean)
        return fitted | {SCALES[self.clustering]: scale.contiguous()}

    def _check(self, shape: tuple[int, int, int], state: State | None) -> None:
        """Raise SettingsError unless the state fits the shape, and covariances the memory."""
        if state is not None:
            check_holds(state, ("centres", "weights", "spreads", "counts"), "clusters")
            if tuple(state["centres"].shape) != shape:
                raise SettingsError(
                    f"a client's stored centres are {tuple(state['centres'].shape)}, must be "
                    f"{shape}: cel.clusters, net.features or the data changed; start from an empty "
                    "state"
                )
        size = prod(shape) * shape[2]
        if self.clustering == "full" and size > LARGEST:
            raise SettingsError(
                f"cel.clustering 'full' keeps C K D^2 = {size} values, must be at most {LARGEST}; "
                "use 'diagonal', or lower net.features"
            )

    def _wanted(self, counts: Int[Tensor, " C"], held: Int[Tensor, " C"]) -> Bool[Tensor, "C K"]:
        """Return which slots are to be used; no more than there are examples."""
        number = torch.full_like(counts, self.clusters)
        if not self.clusters:
            number = (counts // 4).clamp(1, DEFAULT_CLUSTERS)
        each = torch.arange(self.clusters or DEFAULT_CLUSTERS)
        return each < number.minimum(held)[:, None]

    def _starts(
        self,
        z: Float[Tensor, "N D"],
        y: Int[Tensor, " N"],
        state: State | None,
        start: Float[Tensor, "C K D"] | None,
        kept: Bool[Tensor, "C K"],
        wanted: Bool[Tensor, "C K"],
        generator: torch.Generator,
    ) -> list[Mixture]:
        """Return where EM starts in each class."""
        name, classes = SCALES[self.clustering], range(self.classes)
        stored: list[Mixture] = []
        if state is not None and start is not None and name in state:
            if self.outlier is not None:
                kept = kept & ~kmeans.broad(state["spreads"], kept, self.outlier)
            whole = zip(state["weights"], start, state[name], strict=True)
            stored = [Mixture(*each) for each in whole]
        ready = kept.eq(wanted).all(1) if stored else wanted.new_zeros(self.classes)
        if ready.all():
            return stored
        found = kmeans.find_clusters(z, y, start, kept, wanted, self.outlier, generator)
        each, full = wanted.shape[1], self.clustering == "full"
        return [
            stored[c]
            if ready[c]
            else mixture.mixture_of_members(z[own], found.slot[own] % each, each, full)
            for c, own in enumerate(torch.eq(y, c) for c in classes)
        ]

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Return the loss, exactly 0 when the state knows none of the batch's classes.

        Logged: `spread`, the total one within classes, and `cluster-spread`, that within clusters
        by this batch alone; they differ by the spread between a class's clusters. DataError when a
        label is wrong, DivergedError when z is not finite.
        """
        pi, group = state["weights"], class_members(y, self.classes, z)
        slot = self._slots(state, z, y)
        held = _slot_members(slot, pi.numel(), z)
        part = self._parts(pi, held.counts.view_as(pi))
        gap = z - state["centres"].flatten(0, 1).index_select(0, slot)
        own = torch.linalg.vecdot(gap, gap)
        if not own.isfinite().all():
            check_finite(z, y)
        v = (own @ uniform_weights(held)).view_as(pi)
        counts = group.counts * (state["counts"] > 0)
        if self.form == "mixture":
            full = self.clustering == "full"
            nats = (
                full_nats(gap, held, self.sigma) if full else diagonal_nats(gap, held, self.sigma)
            )
            cost = torch.special.entr(part).sum(1) + (part * nats.view_as(pi)).sum(1)
        else:
            cost = self._cost(v, part)
        loss = class_shares(counts, self.share) @ cost
        if not measure:
            return Term(loss, {})
        metrics = (
            {"cluster-spread": weighted_mean((part * v).sum(1), counts)} if counts.any() else {}
        )
        pairs = drop_singletons(group.counts)
        if pairs.any():
            metrics["spread"] = weighted_mean(plain_spread(z.detach(), y, group), pairs)
        return Term(loss, metrics)

    @torch.no_grad()
    def _slots(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]
    ) -> Int[Tensor, " B"]:
        """Return the slot c K + k of each example's cluster."""
        pi, centres = state["weights"], state["centres"]
        if self.clustering == "k-means":
            middle = torch.einsum("ck,ckd->cd", pi, centres)  # a matrix product is exact near 0
            offset = centres - middle[:, None]
            return y * pi.shape[1] + kmeans.centre_scores(z - middle[y], y, offset, pi > 0).argmin(
                1
            )
        scale = state[SCALES[self.clustering]]
        fits = [Mixture(*each) for each in zip(pi, centres, scale, strict=True)]
        return mixture.assign_components(z, y, fits)

    def _parts(self, pi: Float[Tensor, "C K"], here: Float[Tensor, "C K"]) -> Float[Tensor, "C K"]:
        """Return each cluster's part in its class: pi over those in the batch."""
        present = pi * (here > 0)
        if self.form == "original":
            return present
        whole = present.sum(1, keepdim=True)
        return present / torch.where(whole > 0, whole, 1.0)

    def _cost(self, v: Float[Tensor, "C K"], part: Float[Tensor, "C K"]) -> Float[Tensor, " C"]:
        """Return R of each class's spread, or the mean R of its clusters' spreads."""
        if self.form == "per-cluster":
            return (part * self.penalty(v.flatten()).view_as(v)).sum(1)
        return self.penalty((part * v).sum(1))

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Return the state: centres move in `refresh` only."""
        return state


def _slot_members(slot: Int[Tensor, " B"], slots: int, like: Float[Tensor, "B D"]) -> Members:
    """Return the members of each slot; an identity matrix of all slots could be large."""
    one_hot = slot[:, None].eq(torch.arange(slots, device=slot.device)).to(like.dtype)
    return Members(one_hot, one_hot.sum(0))


def _centre_features(z: Float[Tensor, "N D"], held: Int[Tensor, " C"]) -> Float[Tensor, "C D"]:
    """Return the class means, after taking them from z in place; classes follow each other."""
    mean = z.new_zeros(len(held), z.shape[1])
    for c, part in enumerate(torch.split(z, held.tolist())):
        if len(part):
            mean[c] = part.mean(0)
            part.sub_(mean[c])
    return mean


def _pack_state(
    found: Clusters,
    weights: Float[Tensor, "C K"],
    counts: Int[Tensor, " C"],
    mean: Float[Tensor, "C D"],
) -> State:
    """Return the state of clusters around class means that were taken off."""
    used = (weights > 0)[..., None]
    return {
        "centres": torch.where(used, found.centres + mean[:, None], 0.0),
        "weights": weights.contiguous(),
        "spreads": kmeans.tallies(found)[1],
        "counts": counts,
    }
