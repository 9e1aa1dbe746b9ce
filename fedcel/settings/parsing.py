"""Parsing: from TOML tables or dotted keys to checked settings, and back to tables."""

from collections.abc import Mapping
from difflib import get_close_matches
from warnings import warn

from pydantic import ValidationError

from fedcel.errors import SettingsError
from fedcel.options import describe_problems
from fedcel.settings.run_settings import Settings, check_settings
from fedcel.settings.settings_reference import SELECTORS, describe_settings

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


def flatten_settings(tree: Mapping[str, object], prefix: str = "") -> dict[str, Scalar]:
    """Flatten nested tables to dotted keys: {"cel.weight": 0.1, ...}.

    Args:
        tree: Tables as in a TOML file, or dotted keys already.
        prefix: What is put before each key.

    Returns:
        Every value by its dotted key.

    Raises:
        SettingsError: A value is no scalar.
    """
    flat: dict[str, Scalar] = {}
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat |= flatten_settings(value, f"{path}.")
        elif isinstance(value, str | int | float | bool):
            flat[path] = value
        else:
            raise SettingsError(
                f"{path} is {value!r}; settings are scalars, write lists as 'a,b,c'"
            )
    return flat


def nest_settings(flat: Mapping[str, Scalar]) -> dict[str, object]:
    """Nest dotted keys into tables, {"cel": {"weight": 0.1}}, as `flatten_settings` takes them.

    Args:
        flat: Values by dotted key.

    Returns:
        Values by key, those of a group in a table.
    """
    tree: dict[str, object] = {}
    for key, value in flat.items():
        group, _, name = key.rpartition(".")
        table = tree.setdefault(group, {}) if group else tree
        assert isinstance(table, dict)
        table[name] = value
    return tree


def parse_settings(*layers: Mapping[str, object]) -> Settings:
    """Check the settings of a run.

    Example:
        >>> settings = parse_settings({"cel.kind": "cluster", "rounds": 20})
        >>> settings.cel.kind, settings.clients
        ('cluster', 8)

    Args:
        layers: Nested tables as in a TOML file, or flat dotted keys; a later layer wins. What is
            left out has its default.

    Returns:
        The settings of a run, all of them.

    Raises:
        SettingsError: One line a problem: what, its value, what is allowed, the nearest name.
    """
    flat = _translate_former(_rename_engine(merge_layers(*layers)))
    known_keys = [setting.key for setting in describe_settings()]
    for key in sorted(flat.keys() & REMOVED_KEYS.keys()):
        former_default, remedy = REMOVED_KEYS[key]
        if flat.pop(key) != former_default:
            raise SettingsError(f"{key} is gone: {remedy}")
    for key in sorted(flat.keys() - set(known_keys)):
        near = get_close_matches(key, known_keys, 1, cutoff=0)
        raise SettingsError(f"unknown setting {key!r}; did you mean {near[0]!r}?")
    try:
        settings = Settings.model_validate(nest_settings(flat))
    except ValidationError as error:
        raise SettingsError(describe_problems(error, known_keys)) from None
    check_settings(settings)
    return settings


def merge_layers(*layers: Mapping[str, object]) -> dict[str, Scalar]:
    """Merge layers of settings into one.

    A layer that selects another kind of a part drops what earlier layers say of kinds that they
    had: `cel.clusters` of a scenario ends where a variant sets `cel.kind` to `plain`.

    Args:
        layers: As of `parse_settings`.

    Returns:
        Values by dotted key, unchecked.

    Raises:
        SettingsError: A value is no scalar.
    """
    merged: dict[str, Scalar] = {}
    for layer in layers:
        flat = flatten_settings(layer)
        inherited = {key: value for key, value in merged.items() if key not in flat}
        selecting = {key: value for key, value in flat.items() if key in SELECTORS}
        merged = drop_foreign_keys(inherited, selecting) | flat
    return merged


def drop_foreign_keys(
    flat: Mapping[str, Scalar], selecting: Mapping[str, Scalar]
) -> dict[str, Scalar]:
    """Drop the keys that the selected kinds do not have, and other kinds do.

    Args:
        flat: Values by dotted key.
        selecting: Names of kinds by the keys that select them.

    Returns:
        The values that stay.
    """
    foreign: set[str] = set()
    for selector, name in selecting.items():
        family = SELECTORS[selector]
        try:
            kind = family.find_kind(name)
        except SettingsError:
            continue  # is refused where it is parsed
        allowed = {str(field.alias) for field in kind.model_fields.values()}
        foreign |= {f"{family.table}.{key}" for key in family.list_keys().keys() - allowed}
    return {key: value for key, value in flat.items() if key not in foreign}


def _translate_former(flat: dict[str, Scalar]) -> dict[str, Scalar]:
    """Return settings with what earlier versions wrote replaced by what says the same now."""
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
        f"engine {name!r} is now {settings}; the old name goes with the next version", stacklevel=3
    )
    return renamed


def dump_settings(settings: Settings) -> dict[str, object]:
    """Return settings as tables for a TOML file.

    Args:
        settings: A run's settings.

    Returns:
        Nested tables with kebab-case keys, which `parse_settings` reads back unchanged.
    """
    return settings.model_dump(by_alias=True, serialize_as_any=True)
