"""The groups of settings, one table of the TOML file each."""

from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

Off = Literal["none"]
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


def kebab(name: str) -> str:
    """Return the TOML spelling of a Python name."""
    return name.replace("_", "-")


def _numbers(text: str) -> str:
    values = [float(part) for part in text.split(",")]  # ValueError is reported by pydantic
    if not all(0 < value < float("inf") for value in values):
        raise ValueError("each number must be finite and above 0")
    return text


def _part(names: tuple[str, ...]) -> AfterValidator:
    def known(name: str) -> str:
        if name in names or ":" in name:
            return name
        near = get_close_matches(name, names, 1, cutoff=0)[0]
        raise ValueError(
            f"must be one of {', '.join(names)} or 'package.module:object'; nearest: {near!r}"
        )

    return AfterValidator(known)


PositiveList = Annotated[str, AfterValidator(_numbers)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Group(BaseModel):
    """A frozen table; unknown keys are refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=kebab,
        populate_by_name=True,
        coerce_numbers_to_str=True,  # a list of one number is read as a number
    )


class Data(Group):
    """Where images come from and who holds which."""

    source: str = Field("digits", description="digits, idx, or 'package.module:object'.")
    path: str = Field("none", description="Folder of the images, for sources that read files.")
    seed: int = Field(
        0,
        ge=0,
        description="Seed of who is test, validation and auxiliary image; all seeds share it.",
    )
    partition: Literal["iid", "dirichlet", "shards"] = Field(
        "dirichlet", description="How training images are dealt out to the clients."
    )
    alpha: Positive = Field(
        0.5, description="Dirichlet concentration; small values give each client few classes."
    )
    shards: int = Field(2, ge=1, description="Shards a client, for the partition 'shards'.")
    train: int = Field(0, ge=0, description="Training images of all clients together; 0: all left.")
    validation: int = Field(150, ge=2, description="Images the server chooses settings on.")
    auxiliary: int = Field(250, ge=2, description="Images of the attacker, nobody else's.")
    test: int = Field(400, ge=2, description="Test images; they are the targets of the attacks.")


class Net(Group):
    """The split network."""

    name: str = Field("mlp", description="mlp, cnn, strided, or 'package.module:object'.")
    features: int = Field(64, ge=1, description="Values of the smashed data, D.")
    width: int = Field(128, ge=1, description="Hidden width of the encoder.")
    head_width: int = Field(0, ge=0, description="Hidden width of the head; 0: a linear head.")
    bound: Literal["sigmoid", "norm", "none"] = Field(
        "sigmoid", description="How smashed data are kept bounded; 'none' only for study."
    )
    noise: float = Field(
        0.3, ge=0, allow_inf_nan=False, description="Sigma of the Gaussian noise at the cut."
    )


class Cel(Group):
    """The conditional entropy loss."""

    kind: Annotated[str, _part(CEL_KINDS)] = Field(
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
    clusters: int = Field(1, ge=0, description="Clusters a class; 0: 5, at most a quarter of n_c.")
    clustering: Literal["k-means", "diagonal", "full"] = Field(
        "k-means", description="How clusters are found: K-means, or Gaussians of that covariance."
    )
    form: Literal["renormalised", "original", "per-cluster", "mixture"] = Field(
        "renormalised",
        description="R of a class's spread (original: absent as 0), of each cluster's, or entropy.",
    )
    blend: float = Field(
        0.0, ge=0, description="a of rho = min(1, a n_batch/n), batch against epoch; 0: batch only."
    )
    refresh: Literal["epoch", "round"] = Field(
        "epoch", description="When centres are computed anew: each local epoch or round start."
    )
    refresh_every: int = Field(1, ge=1, description="Local epochs from one refresh to the next.")
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
    leave_out: bool = Field(
        False, description="Measure each member against the mean of the others (leave-one-out)."
    )
    bound: Literal["upper", "lower"] = Field(
        "upper", description="Which pairwise bound of the information mutual-information minimises."
    )
    bank: int = Field(
        0,
        ge=0,
        description="m earlier codes of each class in the loss; each code then counts n/(n+m).",
    )
    clip: Positive | Off = Field(
        "none", description="Largest L2 norm of the loss's gradient at an image's smashed data."
    )


class Defence(Group):
    """A rival defence, alone or beside the conditional entropy loss."""

    name: Annotated[str, _part(DEFENCES)] = Field(
        "none", description="A defence of smashed data, or an import string; noise+... for two."
    )
    strength: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="noise: sigma; bottleneck: values sent; dropout: chance; else the weight.",
    )
    noise: Positive = Field(
        0.3, description="Sigma of noise+nopeek and noise+adversarial, in place of net.noise."
    )
    rate: Positive = Field(0.001, description="Adam step of the adversary's decoder.")
    width: int = Field(256, ge=1, description="Hidden width of the adversary's decoder.")


class Local(Group):
    """What a client does in a round."""

    steps: int = Field(20, ge=1, description="Steps a client takes in a round.")
    batch_size: int = Field(32, ge=1, description="Images a step; at most what the client holds.")
    balance: bool = Field(
        False, description="Draw batches with equally many images of each class that a client has."
    )
    augment: Literal["none", "affine", "affine-flip"] = Field(
        "none", description="Small random turns, scalings and shifts of training images; mirrored."
    )
    rate: Positive = Field(1.0, description="Step size eta at the start.")
    schedule: Literal["cosine", "constant"] = Field(
        "cosine", description="How eta falls until burn-in ends; it is constant afterwards."
    )
    rate_end: float = Field(
        0.05, gt=0, le=1, description="Eta at the end of the cosine, as a share of local.rate."
    )


class Prior(Group):
    """The Gaussian priors of the local posterior."""

    mode: Literal["none", "fixed", "consistent"] = Field(
        "consistent", description="Prior at the received model: none, of a fixed width, or by pull."
    )
    width: Positive = Field(1.0, description="Standard deviation s of the 'fixed' prior.")
    pull: float = Field(
        0.1, gt=0, lt=1, description="Share of a round's way that 'consistent' pulls back."
    )
    scale: Positive | Off = Field(
        "none", description="Standard deviation s0 of the prior at 0 (weight decay 1/(N s0^2))."
    )


class Strategy(Group):
    """The server's side."""

    name: str = Field(
        "posterior", description="posterior, or a Flower strategy as 'package.module:object'."
    )
    upload: Literal["delta", "weights"] = Field(
        "delta", description="What a client sends; stock strategies of Flower average weights."
    )
    momentum: float = Field(0.5, ge=0, lt=1, description="Beta of the sliding average of deltas.")
    gain: Positive = Field(1.0, description="Gamma, the server's step along that average.")
    proximal: float = Field(
        0.0, ge=0, description="Mu of Flower's FedProx: the pull mu (w - w_received) per step."
    )
    max_norm: Positive | Off = Field(
        "none", description="Largest L2 norm of a delta that the server accepts."
    )


class Chain(Group):
    """Which global models are kept as posterior samples."""

    scope: Literal["head", "full"] = Field(
        "head", description="head: the encoder is frozen after burn-in; full: all is sampled."
    )
    burn_in: float = Field(0.8, ge=0, le=1, description="Fraction of the rounds before sampling.")
    heat: float = Field(
        0.0, ge=0, description="Temperature during burn-in, as a share of `temperature`."
    )
    thin: int = Field(2, ge=1, description="Rounds from one kept sample to the next.")
    samples: int = Field(16, ge=1, description="Samples kept at most; the oldest goes first.")


class Privacy(Group):
    """How served logits are perturbed."""

    mechanism: Literal["laplace", "none"] = Field(
        "laplace", description="Noise on the served logits."
    )
    epsilon: Positive = Field(4.0, description="Privacy loss of one served answer.")
    epsilons: PositiveList = Field(
        "0.5,1,2,4,8", description="Epsilons at which result.json states the utility."
    )
    clip: Positive = Field(
        1.0, description="c: centred logits are clamped to [-c, c], or projected to |.|_1 <= c."
    )
    clip_kind: Literal["clamp", "l1", "probabilities"] = Field(
        "l1", description="What enforces the sensitivity: 2cC, 2c, or 2 on probabilities."
    )


class Attack(Group):
    """Who attacks, and with what."""

    names: str = Field(
        "optimal,decoder,logit-inversion", description="Attacks to run, or import strings."
    )
    knowledge: Literal["held-out", "training-size"] = Field(
        "held-out", description="Auxiliary images: a disjoint set, or the training images."
    )
    budget: Positive = Field(1.0, description="Multiple of each attack's default effort.")
    seeds: int = Field(3, ge=1, description="Attack seeds; each is a row of attacks.json.")
    candidates: int = Field(100, ge=2, description="Images to pick the right one from.")
