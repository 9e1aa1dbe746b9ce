"""Parsing: from TOML tables or dotted keys to checked settings, and back to tables."""

from collections.abc import Mapping
from difflib import get_close_matches
from warnings import warn

from pydantic import ValidationError

from fedcel.errors import SettingsError
from fedcel.settings.rules import check_settings
from fedcel.settings.run_settings import Settings
from fedcel.settings.settings_reference import SELECTORS, describe_settings
from fedcel.settings_table import describe_problems

Scalar = str | int | float | bool
FORMER_ENGINES = ("loop", "batched", "processes")
"""Names that the engine `local` had."""
STEP_KEYS = "local.steps", "local.epochs"
"""Both say how many steps a client takes in a round: the later layer decides."""


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
    flat = _rename_engine(merge_layers(*layers))
    known_keys = [setting.key for setting in describe_settings()]
    for key in sorted(flat.keys() - set(known_keys)):
        near = get_close_matches(key, known_keys, 1, cutoff=0)
        raise SettingsError(f"unknown setting {key!r}; did you mean {near[0]!r}?")
    try:
        settings = Settings.model_validate(nest_settings(flat))
    except ValidationError as error:
        raise SettingsError(describe_problems(error, known_keys)) from None
    check_settings(settings)
    return settings


def _rename_engine(flat: dict[str, Scalar]) -> dict[str, Scalar]:
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


def merge_layers(*layers: Mapping[str, object]) -> dict[str, Scalar]:
    """Merge layers of settings into one.

    A layer that selects another kind of a part drops earlier keys that only the former kind had:
    `cel.clusters` of a scenario ends where a variant sets `cel.kind` to `plain`. Likewise one
    that sets `local.epochs` drops an earlier `local.steps`, and the other way round.

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
        for key, other in (STEP_KEYS, STEP_KEYS[::-1]):
            if flat.get(key):
                inherited.pop(other, None)
        merged = drop_foreign_keys(inherited, selecting) | flat
    return merged


def drop_foreign_keys(
    flat: Mapping[str, Scalar], selecting: Mapping[str, Scalar]
) -> dict[str, Scalar]:
    """Drop keys of other kinds: those that the selected kinds do not have, or do not use.

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
        allowed = {str(field.alias) for field in kind.model_fields.values()} - kind.idle_keys
        foreign |= {f"{family.table}.{key}" for key in family.list_keys().keys() - allowed}
    return {key: value for key, value in flat.items() if key not in foreign}


def dump_settings(settings: Settings) -> dict[str, object]:
    """Return settings as tables for a TOML file.

    Args:
        settings: A run's settings.

    Returns:
        Nested tables with kebab-case keys, which `parse_settings` reads back unchanged.
    """
    return settings.model_dump(by_alias=True, serialize_as_any=True)
