"""Choose every variant's settings on the validation set, with the same number of trials."""

import math
from contextlib import closing
from functools import partial
from pathlib import Path

import tomli_w

from fedcel.data import load_splits
from fedcel.errors import SettingsError
from fedcel.files import read_toml, write_whole
from fedcel.settings import DataSettings, Scalar, Settings, parse_settings
from sims.bench.scenario import Scenario, Variant
from sims.commands.progress import estimate_left, print_line
from sims.engines.process_pool import run_items, time_call
from sims.results import is_defended
from sims.tuning.search import Among, BestTrial, Flat, SearchPlan, run_search
from sims.tuning.trials import recall_trials


def tune_scenario(
    scenario: Scenario, trials: int, overrides: Flat, store: Path, jobs: int = 1
) -> dict[str, object]:
    """Return the scenario with each variant's best trial written into its settings.

    Undefended variants come first and maximise validation accuracy. The others minimise the bits
    beyond the label that the optimal attacker gets from validation images, with a cost for accuracy
    that falls more than `loss` points below the first undefended variant that sweeps nothing.
    With the goal `nll` all variants minimise the negative log-likelihood of validation labels.
    A variant with strengths is tuned at the first that is not 0, or at the best one of a range for
    its `strength-key`, which then leads its strengths; all of them share its settings.
    `overrides` are written into the scenario too. Trials are kept in `store` and not trained
    twice; the result depends neither on that nor on `jobs`, the variants searched at once.
    SettingsError, before anything is trained, when the scenario has no variant, no undefended one,
    or no sound ranges in [tune].
    """
    table, plans = prepare_searches(scenario, overrides)
    tables = table["variant"]
    assert isinstance(tables, list)
    found: dict[str, BestTrial] = {}
    floor: float | None = None
    seconds: list[float] = []
    for stage in ([p for p in plans if not p.defended], [p for p in plans if p.defended]):
        task = partial(
            run_search, trials=trials, floor=floor, store=store, memory=recall_trials(store)
        )
        with closing(run_items(partial(time_call, task), stage, jobs)) as running:
            for one, spent in running:
                found[one.name] = one
                seconds += [spent] if one.trained else []
                rest = estimate_left(seconds, len(plans) - len(found), jobs)
                told = f"accuracy {one.score.accuracy:.4f}, bits {one.score.bits:.3f}"
                print_line(f"{one.name}: {told} with {one.chosen}")
                print_line(f"{len(found)}/{len(plans)} variants searched{rest}")
        if floor is None:
            first = min(stage, key=lambda plan: plan.strength is not None).variant.name
            floor = found[first].score.accuracy - scenario.tune.loss / 100
    for plan, raw in zip(plans, tables, strict=True):
        raw |= write_best(plan, found[plan.variant.name], overrides)
    return table | {"settings": nest_settings(scenario.settings | overrides)}


def prepare_searches(
    scenario: Scenario, overrides: Flat
) -> tuple[dict[str, object], list[SearchPlan]]:
    """Return the scenario's file and each variant's search; errors as of `tune_scenario`."""
    table = read_toml(scenario.path)
    if not table.get("variant"):
        raise SettingsError(f"{scenario.path}: no [[variant]] to tune; add one for each row")
    if not scenario.tune.ranges:
        raise SettingsError(f"{scenario.path}: [tune] names no ranges, such as local.rate")
    plans = [
        plan_search(scenario, variant, overrides | {"engine": "loop"})
        for variant in scenario.variants
    ]
    if all(plan.defended for plan in plans):
        raise SettingsError(
            f"{scenario.path}: every variant has a cel.kind or a defence.name; add one without, "
            "whose accuracy the others are held to"
        )
    if scenario.tune.goal == "leak":
        for first in {(s.data, s.clients, s.seed) for s in map(starting_settings, plans)}:
            check_measurable(*first)
    return table, plans


def starting_settings(plan: SearchPlan) -> Settings:
    """Return the settings that a variant's search starts from."""
    return parse_settings(plan.base | {key: values[0] for key, values in plan.among.items()})


def check_measurable(data: DataSettings, clients: int, seed: int) -> None:
    """Refuse data whose validation images have nothing that tells two of a class apart."""
    labels = load_splits(data, clients, seed).validation.y
    if len(set(labels.tolist())) == len(labels):
        raise SettingsError(
            f"data.validation is {len(labels)}, one image of each class at most: bits beyond the "
            "label would be 0 whatever leaks; raise it, or set goal to 'nll' in [tune]"
        )


def plan_search(scenario: Scenario, variant: Variant, fixed: Flat) -> SearchPlan:
    """Return a variant's search; SettingsError when its settings or ranges are not sound."""
    strength = next((s for s in variant.strengths if s), None)
    swept: Flat = {} if strength is None else {str(variant.strength_key): strength}
    base = scenario.settings | variant.settings | swept | fixed
    among = {
        key: parse_ends(text, key) for key, text in (scenario.tune.ranges | variant.tune).items()
    }
    for name in sorted(among.keys() & fixed.keys()):
        raise SettingsError(f"--set {name} and [tune] {name} are at odds; leave one of them out")
    plan = SearchPlan(variant, base, among, 0, False, strength, scenario.tune.goal)
    first = starting_settings(plan)
    for key, values in among.items():
        for other in values if isinstance(values, list) else range_ends(*values):
            parse_settings(base | {name: each[0] for name, each in among.items()} | {key: other})
    return plan._replace(seed=first.seed, defended=is_defended(first))


def write_best(plan: SearchPlan, found: BestTrial, overrides: Flat) -> dict[str, object]:
    """Return a variant's tuned settings, and how they were found, as its table has them."""
    own = {key: overrides.get(key, value) for key, value in plan.variant.settings.items()}
    key = plan.variant.strength_key
    strength = found.chosen.get(str(key), plan.strength)
    at = {} if strength is None else {"strength": strength}
    rest = {name: value for name, value in found.chosen.items() if name != key}
    score = {"accuracy": found.score.accuracy, "bits-beyond-label": found.score.bits}
    score["nll"] = found.score.nll
    tuned: dict[str, object] = {
        "settings": nest_settings(own | rest),
        "tuned": {**score, "trials": found.trials, **at},
    }
    if key in found.chosen:
        first = f"{strength:g}"
        others = (f"{other:g}" for other in plan.variant.strengths)
        tuned["strengths"] = ",".join([first, *(other for other in others if other != first)])
    return tuned


def range_ends(low: float, high: float) -> tuple[float, float, float]:
    """Return the ends of a range and a number between them, no integer where they differ."""
    return low, high, low ** (2 / 3) * high ** (1 / 3)


def parse_ends(text: str, key: str) -> Among:
    """Return the ends of 'LOW..HIGH', or the choices of 'A|B|C'; SettingsError if it is neither."""
    low, dots, high = text.partition("..")
    if not dots:
        return [parse_number(part) for part in text.split("|")]
    try:
        first, last = float(low), float(high)
    except ValueError:
        raise SettingsError(f"[tune] {key} is {text!r}, must be 'LOW..HIGH' or 'A|B|C'") from None
    if not 0 < first <= last < math.inf:
        raise SettingsError(
            f"[tune] {key} is {text!r}, must be 'LOW..HIGH' with 0 < LOW <= HIGH: values are drawn "
            "evenly in their logarithm"
        )
    return first, last


def parse_number(text: str) -> Scalar:
    """Return an int or float where the text is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def nest_settings(flat: Flat) -> dict[str, object]:
    """Return {"cel": {"weight": 1}} of {"cel.weight": 1}."""
    tree: dict[str, object] = {}
    for key, value in flat.items():
        group, _, name = key.rpartition(".")
        table = tree.setdefault(group, {}) if group else tree
        assert isinstance(table, dict)
        table[name] = value
    return tree


def write_scenario(table: dict[str, object], path: Path) -> None:
    """Write a tuned scenario."""
    write_whole(path, tomli_w.dumps(table))
