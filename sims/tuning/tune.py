"""Choose every variant's settings on the validation set, with the same number of trials."""

import math
from contextlib import closing
from functools import partial
from pathlib import Path

import tomli_w

from fedcel.data import load_splits
from fedcel.errors import SettingsError
from fedcel.files import read_toml, write_whole
from fedcel.settings import Scalar, nest_settings, parse_settings
from sims.bench.scenario import Scenario, Variant, is_defended, merge_variant
from sims.engines.simulate import print_notes
from sims.parallel_jobs import run_items, time_call
from sims.progress import estimate_left, print_line
from sims.tuning.search import (
    BestTrial,
    FlatSettings,
    SearchPlan,
    SearchRange,
    format_values,
    open_journal,
    run_search,
)


def tune_scenario(
    scenario: Scenario, trials: int, overrides: FlatSettings, journal: Path, *, jobs: int = 1
) -> dict[str, object]:
    """Return the scenario with each variant's best trial written into its settings.

    Undefended variants come first and maximise validation accuracy. The others minimise the bits
    beyond the label that the optimal attacker gets from validation images, with a cost for accuracy
    that falls more than `loss` points below the first undefended variant that sweeps nothing.
    With the goal `nll` all variants minimise the negative log-likelihood of validation labels.
    A variant with strengths is tuned at the first that is not 0, or at the best one of a range for
    its `strength-key`, which then leads its strengths; all of them share its settings.
    `overrides` are written into the scenario too. Trials are kept in the journal and not trained
    twice; the result depends neither on that nor on `jobs`, the variants searched at once.

    Raises:
        SettingsError: Before anything is trained, when the scenario has no variant, no undefended
            one, or no valid ranges in [tune].
    """
    table, plans = prepare_searches(scenario, overrides)
    tables = table["variant"]
    assert isinstance(tables, list)
    open_journal(journal)  # damage is named before the work
    print_notes(plan.start for plan in plans)
    best: dict[str, BestTrial] = {}
    floor: float | None = None
    seconds: list[float] = []
    for defended in (False, True):
        stage = [plan for plan in plans if is_defended(plan.start) == defended]
        task = partial(run_search, trials=trials, floor=floor, journal=journal)
        with closing(run_items(partial(time_call, task), stage, jobs)) as searches:
            for trial, spent in searches:
                best[trial.name] = trial
                seconds += [spent] if trial.trained else []
                score = f"accuracy {trial.score.accuracy:.4f}, bits {trial.score.bits:.3f}"
                remaining = estimate_left(seconds, len(plans) - len(best), jobs)
                print_line(f"{trial.name}: {score} with {format_values(trial.chosen)}")
                print_line(f"{len(best)}/{len(plans)} variants searched{remaining}")
        if floor is None:
            reference = min(stage, key=lambda plan: plan.strength is not None).variant.name
            floor = best[reference].score.accuracy - scenario.tune.loss / 100
    for plan, variant_table in zip(plans, tables, strict=True):
        variant_table |= tune_variant_table(plan, best[plan.variant.name], overrides)
    return table | {"settings": nest_settings(scenario.settings | overrides)}


def prepare_searches(
    scenario: Scenario, overrides: FlatSettings
) -> tuple[dict[str, object], list[SearchPlan]]:
    """Return the scenario's file and each variant's search; errors as of `tune_scenario`."""
    table = read_toml(scenario.path)
    if not table.get("variant"):
        raise SettingsError(f"{scenario.path}: no [[variant]] to tune; add one for each row")
    if not scenario.tune.ranges:
        raise SettingsError(f"{scenario.path}: [tune] names no ranges, such as local.rate")
    fixed = overrides | {"engine": "local"}
    plans = [plan_search(scenario, variant, fixed) for variant in scenario.variants]
    if all(is_defended(plan.start) for plan in plans):
        raise SettingsError(
            f"{scenario.path}: every variant has a cel.kind or a defence.name; add one without, "
            "whose accuracy the others are held to"
        )
    if scenario.tune.goal == "leak":
        starts = (plan.start for plan in plans)
        for data, clients, seed in {(s.data, s.clients, s.seed) for s in starts}:
            labels = load_splits(data, clients, seed).validation.y
            if len(set(labels.tolist())) == len(labels):  # nothing tells two of a class apart
                raise SettingsError(
                    f"data.validation is {len(labels)}, one image of each class at most: bits "
                    "beyond the label would be 0 whatever leaks; raise it, or set goal to 'nll' in "
                    "[tune]"
                )
    return table, plans


def plan_search(scenario: Scenario, variant: Variant, fixed: FlatSettings) -> SearchPlan:
    """Return a variant's search; SettingsError when its settings or ranges are not valid."""
    strength = next((s for s in variant.strengths if s), None)
    swept: FlatSettings = {} if strength is None else {str(variant.strength_key): strength}
    base = merge_variant(scenario.settings, variant.settings | swept, fixed)
    texts = scenario.tune.ranges | variant.tune
    for key in sorted(texts.keys() & fixed.keys()):
        raise SettingsError(f"--set {key} and [tune] {key} are at odds; leave one of them out")
    ranges = {key: parse_range(text, key) for key, text in texts.items()}
    start = base | {key: values[0] for key, values in ranges.items()}
    for key, values in ranges.items():
        for value in values if isinstance(values, list) else sample_range(*values):
            parse_settings(start | {key: value})
    return SearchPlan(variant, base, ranges, parse_settings(start), strength, scenario.tune)


def tune_variant_table(
    plan: SearchPlan, best: BestTrial, overrides: FlatSettings
) -> dict[str, object]:
    """Return a variant's tuned settings, and how they were found, as its table has them."""
    settings = {key: overrides.get(key, value) for key, value in plan.variant.settings.items()}
    strength_key = str(plan.variant.strength_key)
    strength = best.chosen.get(strength_key, plan.strength)
    tuned: dict[str, object] = {
        "accuracy": best.score.accuracy,
        "bits-beyond-label": best.score.bits,
        "nll": best.score.nll,
        "trials": best.trials,
    }
    if strength is not None:
        tuned["strength"] = strength
    settings |= {key: value for key, value in best.chosen.items() if key != strength_key}
    table: dict[str, object] = {"settings": nest_settings(settings), "tuned": tuned}
    if strength_key in best.chosen:
        swept = [f"{value:g}" for value in (strength, *plan.variant.strengths)]
        table["strengths"] = ",".join(dict.fromkeys(swept))
    return table


def sample_range(low: float, high: float) -> tuple[float, float, float]:
    """Return the ends of a range and a number between them, no integer where they differ."""
    return low, high, low ** (2 / 3) * high ** (1 / 3)


def parse_range(text: str, key: str) -> SearchRange:
    """Return the ends of 'LOW..HIGH', or the choices of 'A|B|C'; SettingsError if it is neither."""
    low, dots, high = text.partition("..")
    if not dots:
        return [parse_choice(part) for part in text.split("|")]
    try:
        ends = float(low), float(high)
    except ValueError:
        raise SettingsError(f"[tune] {key} is {text!r}, must be 'LOW..HIGH' or 'A|B|C'") from None
    if not 0 < ends[0] <= ends[1] < math.inf:
        raise SettingsError(
            f"[tune] {key} is {text!r}, must be 'LOW..HIGH' with 0 < LOW <= HIGH: values are drawn "
            "evenly in their logarithm"
        )
    return ends


def parse_choice(text: str) -> Scalar:
    """Return an int or float where the text is one, .7 among them."""
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return text


def write_scenario(table: dict[str, object], path: Path) -> None:
    """Write a tuned scenario."""
    write_whole(path, tomli_w.dumps(table))
