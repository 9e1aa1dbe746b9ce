"""Spread around a few centres in each class, learned from all the client's data."""

from dataclasses import dataclass
from typing import Literal, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.cel.base import Codes, State, Term
from fedcel.cel.kmeans import Clusters, distances, lloyd, seeded
from fedcel.cel.penalty import Penalty, Share, shares
from fedcel.cel.spread import average, members, paired, plain_spread, spread
from fedcel.errors import DataError, SettingsError

DEFAULT_CLUSTERS = 5
Form = Literal["renormalised", "original", "per-cluster", "mixture"]
RESTARTS = 4
"""Cold starts of which each class keeps its best; a warm start runs once."""


@final
@dataclass(frozen=True)
class Cluster:
    """sum_c beta_c R(v_c), v_c = sum_k pi_ck mean |z_i - mu_ck|^2 over c's clusters in the batch.

    The conditional entropy loss of Xia et al., CVPR 2025, with hard assignment to the nearest
    centre of the own class; centres are constants. pi is renormalised over the clusters present in
    the batch; form `original` counts an absent cluster as spread 0, which biases v_c down.
    `clusters` is K_c, at most n_c; 0: a quarter of n_c, from 1 to 5.

    State: `centres` (C, K, D) in units of z, `weights` (C, K), `spreads` (C, K) in units of z
    squared, `counts` (C,), the client's examples. Unused clusters and absent classes weigh 0.
    """

    penalty: Penalty
    share: Share
    classes: int
    clusters: int
    form: Form

    @torch.no_grad()
    def refresh(self, state: State | None, codes: Codes, generator: torch.Generator) -> State:
        """Return the K-means clusters of each class, started from those of `state`.

        DataError when there is no example; SettingsError when `state` is of another shape.
        """
        z, y = (torch.cat(parts) for parts in zip(*codes(), strict=True))
        if not len(z):
            raise DataError("a client has 0 examples, must have 1 or more; leave it out")
        counts = y.bincount(minlength=self.classes)
        shape = (self.classes, self.clusters or DEFAULT_CLUSTERS, z.shape[1])
        wanted = torch.arange(shape[1]) < self._wanted(counts)[:, None]
        if state is None:
            starts = [(torch.zeros(shape, dtype=z.dtype), torch.zeros_like(wanted))] * RESTARTS
        elif tuple(state["centres"].shape) != shape:
            raise SettingsError(
                f"a client's stored centres are {tuple(state['centres'].shape)}, must be {shape}: "
                "cel.clusters, net.features or the data changed; start from an empty state"
            )
        else:
            starts = [(state["centres"].to(z.dtype), (state["weights"] > 0) & wanted)]
        runs = [
            lloyd(z, y, seeded(z, y, centres, kept, wanted, generator), wanted)
            for centres, kept in starts
        ]
        return _state(z, y, _best(runs, y, self.classes), counts)

    def _wanted(self, counts: Int[Tensor, " C"]) -> Int[Tensor, " C"]:
        if self.clusters:
            return counts.clamp_max(self.clusters)
        return (counts // 4).clamp(1, DEFAULT_CLUSTERS).minimum(counts)

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Return the loss, exactly 0 when the state knows none of the batch's classes.

        Logged: `spread`, the total one within classes, and `cluster-spread`, that within clusters;
        they differ by the spread between a class's clusters.
        """
        centres, pi = state["centres"], state["weights"]
        group = members(y, self.classes, z)
        with torch.no_grad():
            slot = y * pi.shape[1] + distances(z, y, centres, pi > 0).argmin(1)
            weights = group.one_hot * self._coefficients(pi, slot, y)[:, None]
        v = spread(z, centres.flatten(0, 1)[slot], weights)
        counts = group.counts * (state["counts"] > 0)
        loss = shares(counts, self.share) @ self.penalty(v)
        if not measure:
            return Term(loss, {})
        total = average(plain_spread(z.detach(), y, group), paired(group.counts))
        return Term(loss, {"spread": total, "cluster-spread": average(v, counts)})

    def _coefficients(
        self, pi: Float[Tensor, "C K"], slot: Int[Tensor, " B"], y: Int[Tensor, " B"]
    ) -> Float[Tensor, " B"]:
        """Return pi_ck / n_ck of each example's cluster, over the pi of those present."""
        counts = slot.bincount(minlength=pi.numel())
        coefficients = pi.flatten()[slot] / counts[slot]
        if self.form == "original":
            return coefficients
        present = (pi * (counts > 0).view_as(pi)).sum(1)
        known: Bool[Tensor, " C"] = present > 0
        return coefficients / torch.where(known, present, 1.0)[y]

    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Return the state: centres move in `refresh` only."""
        return state


def _best(runs: list[Clusters], y: Int[Tensor, " N"], classes: int) -> Clusters:
    """Return for each class its clusters of the smallest total distance."""
    if len(runs) == 1:
        return runs[0]
    costs = [y.bincount(run.distance, minlength=classes) for run in runs]
    best = torch.stack(costs).argmin(0)
    own, each = best[y], torch.arange(len(y))
    return Clusters(
        torch.stack([run.centres for run in runs])[best, torch.arange(classes)],
        torch.stack([run.slot for run in runs])[own, each],
        torch.stack([run.distance for run in runs])[own, each],
    )


def _state(
    z: Float[Tensor, "N D"], y: Int[Tensor, " N"], found: Clusters, counts: Int[Tensor, " C"]
) -> State:
    shape = found.centres.shape[:2]
    sizes = found.slot.bincount(minlength=shape.numel()).to(z.dtype)
    sums = torch.zeros(shape.numel(), dtype=z.dtype).index_add(0, found.slot, found.distance)
    return {
        "centres": found.centres.contiguous(),
        "weights": sizes.view(shape) / counts.clamp_min(1)[:, None],
        "spreads": (sums / sizes.clamp_min(1)).view(shape),
        "counts": counts,
    }
