"""Settings of version 0.2: translated where that is possible, else refused with a remedy."""

from warnings import warn

from fedcel.errors import SettingsError

Scalar = str | int | float | bool
FORMER_ENGINES = ("loop", "batched", "processes")
"""Names of engines in version 0.2: all of them the engine `local` now."""

REMOVED_KEYS: dict[str, tuple[Scalar, str]] = {
    "attack.candidates": (100, "the right image is picked from 100, or from all targets"),
    "attack.langevin": (False, "set attack.received to 'heated'"),
    "cel.attention-rate": (0.01, "the attention steps by 0.01"),
    "cel.attention-step": ("adam", "the attention always steps by Adam"),
    "cel.end": (1.0, "multiply cel.weight by it"),
    "cel.entropy": (0.0, "set cel.attention to 'floor', which keeps the members too"),
    "cel.floor": (0.5, "the attention 'floor' spreads half of the weight evenly"),
    "cel.hidden": (0, "the attention is a quarter as wide as the features, from 64 to 256"),
    "cel.limit": ("none", "set cel.clip to 'task', or lower cel.weight"),
    "cel.outlier": ("none", "set cel.clustering to 'reseeded-k-means' or 'truncated-k-means'"),
    "cel.outlier-rule": ("reseed", "set cel.clustering to 'truncated-k-means'"),
    "cel.passes": ("one", "for two passes set cel.momentum to 0"),
    "cel.refresh-every": (1, "set cel.refresh to the number of epochs"),
    "cel.reservoir": (1024, "a refresh sees up to 1024 images of each class"),
    "chain.probes": (16, "a chain is diagnosed on 16 validation images"),
    "data.shards": (2, "each client gets two shards"),
    "data.repository": ("none", "set data.path to the name on the Hub"),
    "defence.marginal": ("learned", "the Gaussians of 'vib' and 'ceb' are always learned"),
    "defence.marginal-rate": (0.01, "the Gaussians of 'vib' and 'ceb' step by 0.01"),
    "defence.noise": (0.3, "set net.noise to the noise beside a defence"),
    "defence.rate": (0.001, "the adversary's decoder steps by 0.001"),
    "defence.width": (256, "the adversary's decoder is 256 wide"),
    "net.bound": ("sigmoid", "features are in [0, 1]; bring a net of your own by net.name"),
    "net.cut-after": (2, "'vgg11' is cut after its second block; bring a net of your own"),
    "net.head": ("classes", "bring a net of your own by net.name, whose head has a `potential`"),
    "net.head-width": (0, "the head is linear; bring a net of your own by net.name"),
    "net.noise-limit": (8.0, "a learned sd is from sigma / 8 to 8 sigma"),
    "prior.compensate": (True, "the noise always makes up for what the prior cools"),
    "privacy.epsilons": ("0.5,1,2,4,8", "set privacy.epsilon, or ask `fedcel privacy --epsilons`"),
    "privacy.sensitivity": ("none", "the clip's sensitivity is used"),
    "strategy.byzantine": (1, "name Flower's rule by strategy.name, with strategy.arguments"),
    "strategy.damped": (True, "for Flower's momentum set strategy.gain to 1/(1 - momentum)"),
    "strategy.proximal": (0.0, "set strategy.name to Flower's FedProx, with strategy.arguments"),
    "strategy.trim": (0.2, "name Flower's rule by strategy.name, with strategy.arguments"),
    "update.delta": (1e-6, "epsilon of the updates is stated at delta 1e-6"),
}
"""Former keys, their defaults, which are passed over, and what else takes their place."""

FORMER_VALUES: dict[tuple[str, Scalar], tuple[str, Scalar]] = {
    ("attack.langevin", True): ("attack.received", "heated"),
    ("cel.outlier", 3.0): ("cel.clustering", "reseeded-k-means"),
    ("cel.outlier-rule", "truncate"): ("cel.clustering", "truncated-k-means"),
    ("cel.refresh", "epoch"): ("cel.refresh", 1),
    ("cel.refresh", "round"): ("cel.refresh", 0),
}
"""Former values of keys, and what says the same now."""


def translate_former(flat: dict[str, Scalar]) -> dict[str, Scalar]:
    """Translate the settings of version 0.2.

    Args:
        flat: Values by dotted key.

    Returns:
        Settings of this version, otherwise unchecked; a removed key at its former default is gone.

    Raises:
        SettingsError: A removed key has another value; names what takes its place.
    """
    flat = _replace_values(_rename_engine(flat))
    for key in sorted(flat.keys() & REMOVED_KEYS.keys()):
        former_default, remedy = REMOVED_KEYS[key]
        if flat.pop(key) != former_default:
            raise SettingsError(f"{key} is gone: {remedy}")
    return flat


def _replace_values(flat: dict[str, Scalar]) -> dict[str, Scalar]:
    """Return settings with the values of version 0.2 replaced by those that say the same now."""
    former = {k: FORMER_VALUES[k, flat[k]] for k in sorted(flat) if (k, flat[k]) in FORMER_VALUES}
    if flat.get("cel.clustering") in ("diagonal", "full"):
        former.pop("cel.outlier", None)  # mixtures are no longer reseeded: refused below
    if flat.get("attack.received", "first") != "first":
        former.pop("attack.langevin", None)  # noise is on uploads of round 1: refused below
    flat = {key: value for key, value in flat.items() if key not in former} | dict(former.values())
    if flat.get("attack.candidates") == flat.get("attack.targets"):  # one says it now
        flat.pop("attack.candidates", None)
    passes = flat.get("cel.passes")
    if passes in ("one", "two") and flat.pop("cel.passes") and not flat.get("cel.momentum"):
        flat["cel.momentum"] = 0.0 if passes == "two" else "none"
    return flat


def _rename_engine(flat: dict[str, Scalar]) -> dict[str, Scalar]:
    """Return settings with an engine's name of version 0.2 replaced, with a warning."""
    name = flat.get("engine")
    if name not in FORMER_ENGINES:
        return flat
    renamed = flat | {"engine": "local"}
    if name != "batched":
        renamed.setdefault("local.at-once", 1)
    settings = ", ".join(
        f"{key} {renamed[key]!r}" for key in ("engine", "local.at-once") if key in renamed
    )
    warn(
        f"engine {name!r} is now {settings}; the old name goes with the next version", stacklevel=4
    )
    return renamed
