"""The conditional entropy loss and the rival defences."""

from typing import Annotated, Literal

from pydantic import Field

from fedcel.settings.group_base import Group, Off, Positive, part_name, part_words

CEL_KINDS = ("none", "plain", "cluster", "gated", "hybrid", "mutual-information")
DEFENCES = (
    "none",
    "noise",
    "bottleneck",
    "dropout",
    "nopeek",
    "adversarial",
    "noise+nopeek",
    "noise+adversarial",
)


class CelSettings(Group):
    """The conditional entropy loss."""

    kind: Annotated[str, part_name(CEL_KINDS), part_words(CEL_KINDS)] = Field(
        "none",
        description="none, plain, cluster, gated, hybrid, mutual-information, or an import string.",
    )
    weight: float = Field(0.3, ge=0, allow_inf_nan=False, description="Lambda, once ramped up.")
    penalty: Literal["linear", "log", "channel"] = Field(
        "channel",
        description="R(v) of spread v; channel: (D/2)log(1+v/(D sigma^2)). Not for information.",
    )
    threshold: Positive | Off = Field(
        "none", description="Tau of the log penalty; none: 0.125 sigma^2 D."
    )
    target: Literal["none", "spread", "accuracy"] = Field(
        "none", description="What an adaptive tau follows, to reach `cel.goal`; none: tau is fixed."
    )
    goal: Positive = Field(
        0.95,
        description="Spread in the batches, or validation accuracy, that `cel.target` steers to.",
    )
    share: Literal["batch-share", "mean-present", "none"] = Field(
        "batch-share", description="Beta, a class's share in the loss: n_c/B, 1/present, or 1."
    )
    warm_up: int = Field(5, ge=0, description="Rounds before the loss is switched on.")
    schedule: Literal["ramp", "constant", "rate"] = Field(
        "ramp", description="Gamma after warm-up: a linear ramp, constant, or falling with eta."
    )
    ramp: float = Field(
        0.6, ge=0, le=1, description="Fraction of the rounds at which lambda is fully on."
    )
    end: float = Field(1.0, gt=0, le=1, description="Gamma's largest value.")
    clusters: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="Clusters a class; 0: 5, at most a quarter of n_c; auto: 1, of `hybrid` 0.",
    )
    clustering: Literal["k-means", "diagonal", "full"] = Field(
        "k-means", description="How clusters are found: K-means, or Gaussians of that covariance."
    )
    form: Literal["renormalised", "original", "per-cluster", "mixture"] = Field(
        "renormalised",
        description="R of a class's spread (original: absent as 0), of each cluster's, or entropy.",
    )
    refresh: Literal["epoch", "round"] = Field(
        "epoch", description="When centres are computed anew: each local epoch or round start."
    )
    refresh_every: int = Field(
        1, ge=1, description="Local epochs of a round from one refresh to the next."
    )
    reservoir: int = Field(
        1024, ge=2, description="Smashed data kept for a refresh, at most, of each class."
    )
    outlier: Positive | Off = Field(
        "none", description="Clusters above this multiple of the median spread are seeded anew."
    )
    centres: Literal["own", "averaged"] = Field(
        "own", description="averaged: over clients; tells the server each one's means and counts."
    )
    attention: Literal["ascend", "minimise", "detach", "floor"] = Field(
        "ascend", description="Who moves the gated attention: against, with, or without the loss."
    )
    floor: float = Field(0.5, ge=0, le=1, description="Uniform share r of the attention 'floor'.")
    hidden: int = Field(0, ge=0, description="Hidden size of the attention; 0: D/4 in 64..256.")
    attention_rate: Positive = Field(0.01, description="Adam step of the attention's weights.")
    entropy: float = Field(
        0.0, ge=0, description="Weight of the attention's entropy bonus, in nats; not for 'detach'."
    )
    bound: Literal["upper", "lower"] = Field(
        "upper", description="Which pairwise bound of the information mutual-information minimises."
    )
    clip: Positive | Off = Field(
        "none", description="Largest L2 norm of the loss's gradient at an image's smashed data."
    )

    @property
    def used_clusters(self) -> int:
        """Return the clusters a class as a number, 0 by the class's size, also where `auto`.

        One centre of a hybrid would be the class mean wherever it starts, so it takes several.
        """
        if self.clusters != "auto":
            return self.clusters
        return 0 if self.kind == "hybrid" else 1


USUAL_STRENGTHS = {"none": 0.0, "noise": 0.3, "bottleneck": 16.0, "dropout": 0.5}
"""Strengths of `auto`; a weight of 1 for all other defences."""


class DefenceSettings(Group):
    """A rival defence, alone or beside the conditional entropy loss."""

    name: Annotated[str, part_name(DEFENCES), part_words(DEFENCES)] = Field(
        "none", description="A defence of smashed data, or an import string; noise+... for two."
    )
    strength: Annotated[float, Field(ge=0, allow_inf_nan=False)] | Literal["auto"] = Field(
        "auto",
        description="noise: sigma; bottleneck: values sent; dropout: chance; else the weight; "
        "auto: 0.3, 16, 0.5, 1.",
    )
    noise: Positive = Field(
        0.3, description="Sigma of noise+nopeek and noise+adversarial, in place of net.noise."
    )
    rate: Positive = Field(0.001, description="Adam step of the adversary's decoder.")
    width: int = Field(256, ge=1, description="Hidden width of the adversary's decoder.")

    @property
    def used_strength(self) -> float:
        """Return the strength as a number, also where it is `auto`."""
        if self.strength != "auto":
            return self.strength
        return USUAL_STRENGTHS.get(self.name, 1.0)
