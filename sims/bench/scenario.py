"""A scenario: common settings, variants, strengths, seeds."""

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from fedcel.data import FileSource
from fedcel.errors import SettingsError
from fedcel.files import read_toml
from fedcel.runs import parse_run_settings
from fedcel.settings import (
    SELECTORS,
    Scalar,
    Settings,
    drop_foreign_keys,
    dump_settings,
    flatten_settings,
    merge_layers,
    parse_settings,
)

VARIANT_KEYS = {"name", "title", "settings", "strength-key", "strengths", "tune", "tuned"}
TOP_KEYS = {"title", "settings", "bench", "tune", "variant"}
GOALS = ("leak", "nll")
PACKAGED = Path(str(files("sims") / "scenarios"))
BENCH_PREFIX = "bench."  # how --set names a key of [bench]


class Variant(NamedTuple):
    """One row of the comparison."""

    name: str
    title: str
    settings: dict[str, Scalar]
    strength_key: str | None
    strengths: list[float]
    tune: dict[str, str]


class Tune(NamedTuple):
    """Ranges and goal of `fedcel tune`, and the points of accuracy that a defence may cost."""

    ranges: dict[str, str]
    loss: float = 1.0
    goal: str = GOALS[0]
    seeds: tuple[int, ...] = ()
    """Of each trial's federations; none: the variant's own."""


class Scenario(NamedTuple):
    """Variants that a bench compares, their common settings and seeds."""

    title: str
    path: Path
    settings: dict[str, Scalar]
    seeds: list[Scalar]
    variants: list[Variant]
    tune: Tune


class Cell(NamedTuple):
    """One run of a bench: a variant at a strength with a seed."""

    variant: Variant
    strength: float | None
    settings: Settings

    @property
    def name(self) -> str:
        """Return the cell's folder name."""
        strength = "" if self.strength is None else f"-{self.strength:g}"
        return f"{self.variant.name}{strength}-{self.settings.seed}"

    @property
    def is_undefended(self) -> bool:
        """Whether it can be the baseline of others: no defence and no swept strength."""
        return self.strength is None and not is_defended(self.settings)


def is_defended(settings: Settings) -> bool:
    """Whether there is a conditional entropy loss or a rival defence."""
    return settings.cel.kind != "none" or settings.defence.name != "none"


def list_packaged() -> list[str]:
    """Return the names of the scenarios that come with the package."""
    return sorted(path.stem for path in PACKAGED.glob("*.toml"))


def find_scenario(name: str) -> Path:
    """Return the path of a scenario by packaged name or file path; SettingsError if neither."""
    if name in list_packaged():
        return PACKAGED / f"{name}.toml"
    if Path(name).is_file():
        return Path(name)
    nearest = get_close_matches(name, list_packaged(), 1)
    hint = f"did you mean {nearest[0]!r}? Otherwise give" if nearest else "give"
    raise SettingsError(
        f"no scenario {name!r}; {hint} a TOML file or one of {', '.join(list_packaged())}"
    )


def read_scenario(name: str) -> Scenario:
    """Read a scenario and check every cell's settings; SettingsError names what is wrong and where.

    Args:
        name: A packaged scenario's name, or the path of a TOML file. A settings.toml of a run is a
            scenario of one variant, so that a run can be repeated.
    """
    path = find_scenario(name)
    table = read_toml(path)
    if "format" in table:
        settings = parse_run_settings(table, path)
        return Scenario(
            "A run again",
            path,
            flatten_settings(dump_settings(settings)),
            [settings.seed],
            [make_plain_variant("run")],
            Tune({}),
        )
    _refuse_unknown_keys(table, TOP_KEYS, path, "the top level")
    raw = table.get("variant", [])
    if not isinstance(raw, list) or not all(isinstance(item, dict) for item in raw):
        raise SettingsError(f"{path}: variant must be [[variant]] tables")
    variants = [_parse_variant(item, path) for item in raw] or [make_plain_variant("run")]
    names = [variant.name for variant in variants]
    if len(set(names)) < len(names):
        raise SettingsError(f"{path}: variant names {names} are not all different")
    bench = _find_table(table, "bench", path)
    _refuse_unknown_keys(bench, {"seeds"}, path, "[bench]")
    common = flatten_settings(_find_table(table, "settings", path))
    scenario = Scenario(
        str(table.get("title", path.stem)),
        path,
        common,
        _parse_seeds(bench["seeds"], path) if "seeds" in bench else [common.get("seed", 0)],
        variants,
        _parse_tune(_find_table(table, "tune", path), path),
    )
    list_cells(scenario, {})  # every cell's settings are checked before the first is trained
    return scenario


def list_cells(scenario: Scenario, overrides: dict[str, Scalar]) -> list[Cell]:
    """Return every variant x strength x seed, with settings resolved.

    Args:
        scenario: Compared variants.
        overrides: Settings in the place of the scenario's, by their keys.

    Raises:
        SettingsError: When a cell's settings are wrong.
    """
    seeds = [overrides["seed"]] if "seed" in overrides else scenario.seeds
    cells = []
    unused = set(overrides) if scenario.variants else set()
    for variant, strength in list_points(scenario):
        swept = {} if strength is None else {str(variant.strength_key): strength}
        raw = merge_variant(scenario.settings, variant.settings | swept, overrides)
        unused -= raw.keys()
        for seed in seeds:
            settings = parse_settings(raw | {"seed": seed})
            if isinstance(source := settings.data.source, FileSource):  # readable from anywhere
                data = settings.data.model_copy(update={"source": source.resolve_path()})
                settings = settings.model_copy(update={"data": data})
            cells.append(Cell(variant, strength, settings))
    if unused:  # an error says which kinds have the key
        parse_settings(scenario.settings, scenario.variants[0].settings, overrides)
    return cells


def merge_variant(
    common: Mapping[str, Scalar], special: Mapping[str, Scalar], overrides: Mapping[str, Scalar]
) -> dict[str, Scalar]:
    """Merge the settings of all variants and of one, both below the overrides; unchecked.

    Keys of kinds that the variant does not have are left out.
    """
    merged = merge_layers(common, special, overrides)
    kinds = {key: merged[key] for key in SELECTORS if key in merged}
    return merge_layers(
        drop_foreign_keys(common, kinds), special, drop_foreign_keys(overrides, kinds)
    )


def list_points(scenario: Scenario) -> list[tuple[Variant, float | None]]:
    """Return each variant with each of its strengths, as the scenario has them."""
    no_strength: list[float | None] = [None]
    return [
        (variant, strength)
        for variant in scenario.variants
        for strength in (variant.strengths or no_strength)
    ]


def refuse_fixed_sweeps(cells: Iterable[Cell]) -> None:
    """SettingsError when a cell does not have the strength it is named for.

    That is when what its variant sweeps is overridden: all strengths would be one.
    """
    for cell in cells:
        if cell.strength is None:
            continue
        key = str(cell.variant.strength_key)
        value = flatten_settings(dump_settings(cell.settings))[key]
        if value != cell.strength:
            swept = ", ".join(f"{strength:g}" for strength in cell.variant.strengths)
            raise SettingsError(
                f"{key} is {value!r} in all cells, but variant {cell.variant.name!r} sweeps it "
                f"({swept}); leave it out of --set, or change the strengths in the scenario"
            )


def is_anchored(cell: Cell, undefended: Settings) -> bool:
    """Whether the sweep's strength 0 equals the undefended net of the same seed.

    It does when the swept weight is the only defence, and net and cut match. Training rates may
    differ, each variant's are tuned.
    """
    s = cell.settings
    other_defence = {"cel.weight": s.defence.name, "defence.strength": s.cel.kind}
    if cell.strength is None or other_defence.get(str(cell.variant.strength_key)) != "none":
        return False
    zero, none = s.defence.model_copy(update={"strength": 0.0}), undefended.defence
    if zero.noise_shape != none.noise_shape:
        return False
    same_cut = zero.build_cut(s.net) == none.build_cut(undefended.net)
    return same_cut and zero.adapt_net(s.net) == none.adapt_net(undefended.net)


def override_seeds(
    scenario: Scenario, overrides: dict[str, Scalar]
) -> tuple[Scenario, dict[str, Scalar]]:
    """Return the scenario with `bench.seeds` of the overrides, and the other overrides.

    SettingsError on another key of [bench], and when `seed` is overridden as well.
    """
    bench = {
        key.removeprefix(BENCH_PREFIX): value
        for key, value in overrides.items()
        if key.startswith(BENCH_PREFIX)
    }
    if not bench:
        return scenario, overrides
    _refuse_unknown_keys(bench, {"seeds"}, "--set", "[bench]")
    if "seed" in overrides:
        raise SettingsError("--set names both seed and bench.seeds; leave one of them out")
    settings = {key: value for key, value in overrides.items() if not key.startswith(BENCH_PREFIX)}
    return scenario._replace(seeds=_parse_seeds(bench["seeds"], "--set")), settings


def make_plain_variant(name: str) -> Variant:
    """Return a variant that adds nothing to the common settings."""
    return Variant(name, name, {}, None, [], {})


def _parse_variant(raw: dict[str, object], path: Path) -> Variant:
    name = str(raw.get("name", ""))
    where = f"variant {name!r}"
    _refuse_unknown_keys(raw, VARIANT_KEYS, path, where)
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise SettingsError(f"{path}: {where} needs a name of letters, digits, '-', '_', '.'")
    key = str(raw.get("strength-key", ""))
    listed = str(raw.get("strengths", ""))
    if (key == "") != (listed == ""):
        raise SettingsError(f"{path}: {where} needs both strength-key and strengths, or neither")
    try:
        strengths = [float(part) for part in listed.split(",") if listed]
    except ValueError:
        raise SettingsError(f"{path}: {where}: strengths {listed!r} must be '0.1,0.3'") from None
    if len({f"{strength:g}" for strength in strengths}) < len(strengths):  # as folders are named
        raise SettingsError(f"{path}: {where}: strengths {listed!r} repeats a strength")
    settings = flatten_settings(_find_table(raw, "settings", path))
    return Variant(
        name,
        str(raw.get("title", name)),
        settings,
        key or None,
        strengths,
        _parse_ranges(_find_table(raw, "tune", path)),
    )


def _parse_tune(table: dict[str, object], path: Path) -> Tune:
    search_keys = ("loss", "goal", "seeds")
    ranges = _parse_ranges({key: table[key] for key in table if key not in search_keys})
    loss = table.get("loss", 1.0)
    if isinstance(loss, bool) or not isinstance(loss, int | float) or not 0 <= loss < math.inf:
        raise SettingsError(f"{path}: [tune] loss is {loss!r}, must be points of accuracy, as 1.0")
    if (goal := table.get("goal", GOALS[0])) not in GOALS:
        raise SettingsError(f"{path}: [tune] goal is {goal!r}, must be {' or '.join(GOALS)}")
    seeds = _parse_seeds(table["seeds"], path, "[tune]") if "seeds" in table else []
    return Tune(ranges, float(loss), str(goal), tuple(int(seed) for seed in seeds))


def _parse_ranges(table: dict[str, object]) -> dict[str, str]:
    return {key: str(value) for key, value in flatten_settings(table).items()}


def _parse_seeds(raw: object, path: Path | str, where: str = "[bench]") -> list[Scalar]:
    listed = str(raw)
    try:
        seeds: list[Scalar] = [int(part) for part in listed.split(",")]
    except ValueError:
        raise SettingsError(f"{path}: {where} seeds is {listed!r}, must be '0,1,2'") from None
    if len(set(seeds)) < len(seeds):
        raise SettingsError(f"{path}: {where} seeds {listed!r} repeats a seed")
    return seeds


def _find_table(table: dict[str, object], key: str, path: Path) -> dict[str, object]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise SettingsError(f"{path}: {key} is {value!r}, must be a table")
    return value


def _refuse_unknown_keys(
    table: Mapping[str, object], allowed: set[str], path: Path | str, where: str
) -> None:
    for key in sorted(table.keys() - allowed):
        nearest = get_close_matches(key, sorted(allowed), 1, cutoff=0)[0]
        raise SettingsError(
            f"{path}: {where} has an unknown key {key!r}; did you mean {nearest!r}? "
            f"Allowed: {', '.join(sorted(allowed))}"
        )
