"""Settings of the conditional entropy loss, and what its options must fulfil together.

The losses in `fedcel.losses.cel` call the same checks, so that each is refused in the same words.
"""

from typing import Annotated, Literal

from pydantic import Field

from fedcel.errors import SettingsError
from fedcel.options import Off, Options, Positive, part_name, part_words

Attention = Literal["ascend", "minimise", "detach", "floor"]
"""Who moves the attention of the gated loss."""
AttentionStep = Literal["adam", "gradient"]
"""How the attention of the gated loss steps."""
ClassShare = Literal["batch-share", "mean-present", "none"]
"""What a class's share in the loss follows."""
ClusterForm = Literal["renormalised", "original"]
"""How clusters that are absent from a batch count in their class's spread."""
Clustering = Literal["k-means", "diagonal", "full"]
"""How clusters are found."""
OutlierRule = Literal["reseed", "truncate"]
"""What is done with clusters that are far wider than the others of their class."""
Pool = Literal["flatten", "mean"]
"""What becomes of features of more than one dimension before a loss."""
InformationBound = Literal["upper", "lower"]
"""Which bound of the mutual information is minimised."""

CEL_KINDS = ("none", "plain", "cluster", "gated", "hybrid", "mutual-information")


class CelSettings(Options):
    """The conditional entropy loss."""

    kind: Annotated[str, part_name(CEL_KINDS), part_words(CEL_KINDS)] = Field(
        "none",
        description="none, plain, cluster, gated, hybrid, mutual-information, or an import string.",
    )
    weight: float = Field(
        0.3, ge=0, allow_inf_nan=False, description="Lambda, multiplied by gamma."
    )
    penalty: Literal["linear", "log", "channel"] = Field(
        "channel",
        description="R(v) of spread v; channel: (D/2)log(1+v/(D sigma^2)). Not for information.",
    )
    threshold: Positive | Off = Field(
        "none", description="Tau of the log penalty; none: 0.125 sigma^2 D."
    )
    target: Literal["none", "spread", "accuracy"] = Field(
        "none",
        description="What tau, or gamma by `cel.schedule`, follows to reach `cel.goal`; or none.",
    )
    goal: Positive = Field(
        0.95,
        description="Spread in the batches, or validation accuracy, that `cel.target` steers to.",
    )
    pool: Pool = Field(
        "flatten",
        description="mean: a loss sees each channel's mean over positions; convolutional cuts.",
    )
    share: ClassShare = Field(
        "batch-share", description="Beta, a class's share in the loss: n_c/B, 1/present, or 1."
    )
    warm_up: int = Field(5, ge=0, description="Rounds before the loss is switched on.")
    schedule: Literal["ramp", "constant", "rate", "target"] = Field(
        "ramp",
        description="Gamma after warm-up: a ramp, constant, falling with eta, or by `cel.target`.",
    )
    ramp: float = Field(
        0.6, ge=0, le=1, description="Fraction of the rounds at which gamma is largest."
    )
    end: float = Field(1.0, gt=0, le=1, description="Gamma's largest value.")
    clusters: Annotated[int, Field(ge=0)] | Literal["auto"] = Field(
        "auto",
        description="Clusters a class; 0: 5, at most a quarter of n_c; auto: 1, of `hybrid` 0.",
    )
    clustering: Clustering = Field(
        "k-means", description="How clusters are found: K-means, or Gaussians of that covariance."
    )
    form: ClusterForm = Field(
        "renormalised",
        description="A class's spread is over the clusters in the batch; original: absent as 0.",
    )
    refresh: Literal["epoch", "round"] = Field(
        "epoch", description="When centres are computed anew: each local epoch or round start."
    )
    refresh_every: int = Field(
        1, ge=1, description="Local epochs of a round from one refresh to the next."
    )
    reservoir: int = Field(
        1024, ge=2, description="Features kept for a refresh, at most, of each class."
    )
    outlier: Positive | Off = Field(
        "none", description="Multiple of a class's median spread above which a cluster is too wide."
    )
    outlier_rule: OutlierRule = Field(
        "reseed",
        description="reseed: too wide clusters start anew; truncate: far members are left out.",
    )
    attention: Attention = Field(
        "ascend", description="Who moves the gated attention: against, with, or without the loss."
    )
    floor: float = Field(0.5, ge=0, le=1, description="Uniform share r of the attention 'floor'.")
    hidden: int = Field(0, ge=0, description="Hidden size of the attention; 0: D/4 in 64..256.")
    attention_rate: Positive = Field(0.01, description="Step size of the attention's weights.")
    attention_step: AttentionStep = Field(
        "adam",
        description="gradient: a plain step along the weighted loss's gradient, as the encoder's.",
    )
    entropy: float = Field(
        0.0, ge=0, description="Weight of the attention's entropy bonus, in nats; not for 'detach'."
    )
    bound: InformationBound = Field(
        "upper", description="Which pairwise bound of the information mutual-information minimises."
    )
    clip: Positive | Off = Field(
        "none", description="Largest L2 norm of the loss's gradient at an image's features."
    )
    momentum: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="The encoder follows the running mean of the loss's gradient; 0: each step's.",
    )
    passes: Literal["one", "two"] = Field(
        "one",
        description="two: the loss has a backward pass of its own, into the encoder alone.",
    )

    @property
    def used_clusters(self) -> int:
        """Return the clusters a class as a number, 0 by the class's size, also where `auto`.

        One centre of a hybrid would be the class mean wherever it starts, so it takes several.
        """
        if self.clusters != "auto":
            return self.clusters
        return 0 if self.kind == "hybrid" else 1


def check_cel(cel: CelSettings, sigma: float) -> None:
    """Refuse options that contradict each other, have no effect, or need noise when there is none.

    Args:
        cel: The loss; its kind is not `none`.
        sigma: Standard deviation of the noise at the cut, in units of z.

    Raises:
        SettingsError: The first rule that is broken.
    """
    if cel.kind == "mutual-information":
        check_noise("kind", cel.kind, sigma)
    check_penalty(cel, sigma)
    if cel.kind in ("gated", "hybrid"):
        check_entropy_bonus(cel.entropy, cel.attention)
    if cel.kind == "hybrid":
        check_hybrid_clusters(cel.used_clusters)
    if cel.kind in ("cluster", "hybrid"):
        outlier = None if cel.outlier == "none" else cel.outlier
        check_outlier_rule(cel.outlier_rule, outlier, cel.clustering)
    if cel.refresh == "round" and cel.refresh_every != 1:
        raise SettingsError(
            f"cel.refresh-every is {cel.refresh_every} epochs, cel.refresh 'round'; set "
            "cel.refresh to 'epoch' or cel.refresh-every to 1"
        )
    if cel.schedule == "target" and cel.target == "none":
        raise SettingsError(
            "cel.schedule is 'target', cel.target 'none': gamma follows a goal; set cel.target to "
            "'accuracy' or 'spread' and cel.goal, or cel.schedule to 'ramp'"
        )
    moves_threshold = cel.target != "none" and cel.schedule != "target"
    if moves_threshold and (cel.penalty != "log" or cel.kind == "mutual-information"):
        raise SettingsError(
            f"cel.target is {cel.target!r}, cel.penalty {cel.penalty!r}, cel.kind {cel.kind!r}: "
            "only the penalty 'log' has a threshold, 'mutual-information' uses no penalty; set "
            "cel.penalty to 'log' and another kind, cel.schedule to 'target', which moves the "
            "weight, or cel.target to 'none'"
        )
    if cel.target == "accuracy" and cel.goal >= 1:
        raise SettingsError(
            f"cel.goal is {cel.goal:g}, must be a validation accuracy below 1; try 0.95"
        )


def check_followed_loss(cel: CelSettings) -> None:
    """Refuse a weight that follows a goal where there is no loss that it is of.

    Args:
        cel: The loss, of any kind.

    Raises:
        SettingsError: There is none.
    """
    if cel.kind == "none" and cel.schedule == "target":
        raise SettingsError(
            "cel.schedule is 'target', cel.kind 'none': gamma is of a conditional entropy loss, "
            "and there is none; set cel.kind to 'cluster' or another, or cel.schedule to 'ramp'"
        )


def check_penalty(cel: CelSettings, sigma: float) -> None:
    """Refuse a penalty that divides by the noise, or takes its threshold from it, without noise.

    Args:
        cel: The loss.
        sigma: Standard deviation of the noise at the cut, in units of z.

    Raises:
        SettingsError: There is no noise.
    """
    if cel.penalty == "channel" or (cel.penalty == "log" and cel.threshold == "none"):
        check_noise("penalty", cel.penalty, sigma)


NOISE_FREE_CHOICES = {"penalty": "linear", "kind": "plain"}
"""What can do without noise, of each option that may need it."""


def check_noise(option: str, value: str, sigma: float) -> None:
    """Refuse an option that is measured against the noise at the cut, where there is none.

    Args:
        option: `penalty` or `kind`.
        value: What it is set to.
        sigma: Standard deviation of the noise at the cut, in units of z.

    Raises:
        SettingsError: There is no noise.
    """
    if not sigma > 0:
        raise SettingsError(
            f"net.noise is {sigma}, must be above 0 for cel.{option} {value!r}, which is measured "
            f"against the noise; use 0.3, or cel.{option} {NOISE_FREE_CHOICES[option]!r}"
        )


def check_entropy_bonus(entropy: float, attention: str) -> None:
    """Refuse a bonus for an attention that never moves.

    Args:
        entropy: Weight of the bonus, in nats.
        attention: Who moves the attention, as in `cel.attention`.

    Raises:
        SettingsError: There is a bonus, and nobody moves the attention.
    """
    if entropy > 0 and attention == "detach":
        raise SettingsError(
            f"cel.entropy is {entropy:g}, must be 0 for cel.attention 'detach', whose attention "
            "never moves; set it to 0, or use cel.attention 'ascend'"
        )


def check_hybrid_clusters(clusters: int) -> None:
    """Refuse a hybrid loss with one cluster, whose centre is the class mean wherever it starts.

    Args:
        clusters: Clusters a class; 0: by the class's size.

    Raises:
        SettingsError: It is 1.
    """
    if clusters == 1:
        raise SettingsError(
            "cel.clusters is 1, cel.kind 'hybrid': one centre is the class mean wherever it "
            "starts; set cel.clusters to 0 (by the class's size) or more than 1, or cel.kind to "
            "'cluster'"
        )


def check_outlier_rule(rule: OutlierRule, outlier: float | None, clustering: Clustering) -> None:
    """Refuse to leave members out where nothing says which.

    Args:
        rule: As in `cel.outlier-rule`.
        outlier: As in `cel.outlier`, None: there is none.
        clustering: How clusters are found, as in `cel.clustering`.

    Raises:
        SettingsError: There is no limit, one below the median, or clusters have no radius.
    """
    if rule != "truncate":
        return
    if outlier is None or outlier < 1:
        value = "'none'" if outlier is None else f"{outlier:g}"
        raise SettingsError(
            f"cel.outlier-rule is 'truncate', cel.outlier {value}, must be 1 or more: it says who "
            "is far; set cel.outlier to 2, or cel.outlier-rule to 'reseed'"
        )
    if clustering != "k-means":
        raise SettingsError(
            f"cel.outlier-rule is 'truncate', cel.clustering {clustering!r}: only clusters of "
            "K-means have a radius; set cel.clustering to 'k-means', or cel.outlier-rule to "
            "'reseed'"
        )
