"""One variant's search: trials suggested by what came before, scored on the validation set."""

import time
from collections.abc import Sequence
from itertools import product
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import optuna
import torch
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.trial import TrialState, create_trial

from fedcel.errors import DivergedError
from fedcel.leakage import SmashedData, optimal_leak
from fedcel.metrics import score_probabilities
from fedcel.posterior import build_device_net, predict
from fedcel.runs import NOISE_DRAWS, posterior_samples, run_folder
from fedcel.seeding import make_generator, stream_seed
from fedcel.settings import Scalar, Settings, parse_settings
from sims.bench.scenario import Variant
from sims.commands.progress import print_line
from sims.engines import local
from sims.tuning.trials import Memory, Outcome, Score, keep_trial, trial_id

BITS_PER_POINT = 0.5  # what a point of accuracy below the floor costs in the objective
DIGITS = 4  # significant, of a chosen value: what is written is what was trained with
STARTUP = 6  # trials drawn at random, before the sampler learns from them
Flat = dict[str, Scalar]
Among = tuple[float, float] | list[Scalar]
"""The ends of a range, or the choices."""


class SearchPlan(NamedTuple):
    """One variant's search: the settings it starts from, and what each key is chosen among."""

    variant: Variant
    base: Flat
    among: dict[str, Among]
    seed: int
    defended: bool
    strength: float | None
    goal: str


class Trial(NamedTuple):
    """One federation of a search: the sampler's parameters, the settings made of them, the end."""

    params: dict[str, Scalar]
    chosen: Flat
    outcome: Outcome


class BestTrial(NamedTuple):
    """A variant's best trial."""

    name: str
    chosen: Flat
    score: Score
    trials: int
    """Different ones: a small grid is gone through again and again."""
    trained: int
    """Of this call; the rest were kept."""


def run_search(
    plan: SearchPlan, trials: int, floor: float | None, store: Path, memory: Memory
) -> BestTrial:
    """Return the best settings within the ranges and their score on the validation set.

    Each suggestion depends on the trials before it and its own number alone, whatever was trained
    when. DivergedError when not one trial can be trained.
    """
    torch.set_num_threads(1)  # the same sums whatever runs beside this
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name, spent, fresh = plan.variant.name, 0.0, 0
    tried: list[Trial] = []
    for number in range(trials):
        params = suggest_trial(plan, tried, floor, trials)
        chosen = {key: round_value(params[key], among) for key, among in plan.among.items()}
        settings = parse_settings(plan.base | chosen)
        outcome = memory.get(trial_id(settings))
        if outcome is None:
            begin = time.monotonic()
            outcome = attempt_trial(settings)
            keep_trial(store, settings, outcome)
            memory = memory | {trial_id(settings): outcome}
            spent, fresh = spent + time.monotonic() - begin, fresh + 1
        tried.append(Trial(params, chosen, outcome))
        left = f"about {spent / fresh * (trials - number - 1):.0f} s left" if fresh else "kept"
        print_line(
            f"{name} {number + 1}/{trials}: {describe_outcome(outcome)} with {chosen}, {left}"
        )
    sound = [(t.chosen, t.outcome) for t in tried if isinstance(t.outcome, Score)]
    if not sound:
        raise DivergedError(f"{name}: all {trials} trials diverged; lower the range of local.rate")
    best = max(sound, key=lambda one: objective(one[1], plan.goal, floor))
    return BestTrial(name, *best, len({tuple(trial.chosen.items()) for trial in tried}), fresh)


def objective(score: Score, goal: str, floor: float | None) -> float:
    """Return what a search maximises; `floor` is None for undefended variants."""
    if goal == "nll":
        return -score.nll
    if floor is None:
        return score.accuracy
    return -score.bits - BITS_PER_POINT * max(0.0, 100 * (floor - score.accuracy))


def suggest_trial(
    plan: SearchPlan, tried: Sequence[Trial], floor: float | None, trials: int
) -> dict[str, Scalar]:
    """Return the parameters of the next trial, a pure function of those before it.

    No more combinations of choices than trials are all tried, in order, so that luck plays no part.
    """
    choices = [among for among in plan.among.values() if isinstance(among, list)]
    if len(choices) == len(plan.among) and prod(map(len, choices)) <= trials:
        every = [dict(zip(plan.among, values, strict=True)) for values in product(*choices)]
        return every[len(tried) % len(every)]
    purpose = f"tune-{plan.variant.name}"
    seed = stream_seed(plan.seed, purpose, len(tried)) % 2**31
    sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    space = {key: choose_distribution(among) for key, among in plan.among.items()}
    for trial in tried:
        score = trial.outcome if isinstance(trial.outcome, Score) else None
        study.add_trial(
            create_trial(
                state=TrialState.PRUNED if score is None else TrialState.COMPLETE,
                value=None if score is None else objective(score, plan.goal, floor),
                params=trial.params,
                distributions=space,
            )
        )
    return study.ask(space).params


def attempt_trial(settings: Settings) -> Outcome:
    """Return the score of one federation, or why it diverged."""
    try:
        return train_trial(settings)
    except DivergedError as error:
        return str(error)


def describe_outcome(outcome: Outcome) -> str:
    """Return a trial's end in words."""
    if isinstance(outcome, str):
        return outcome
    return f"accuracy {outcome.accuracy:.4f}, {outcome.bits:.3f} bits, NLL {outcome.nll:.3f}"


def train_trial(settings: Settings) -> Score:
    """Return validation accuracy and bits of one federation; the test set is not touched."""
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        run_folder.create_run(folder, settings)
        local.train_locally(settings, folder, lambda _: None, measure=False)
        run = run_folder.read_run(folder)
    x, y = run.splits.validation
    many, labels = x.repeat(NOISE_DRAWS, 1, 1, 1), y.repeat(NOISE_DRAWS)
    stream = make_generator(settings.seed, "tune-noise")
    found = predict(run.flat, posterior_samples(run), many, stream, scope=settings.chain.scope)
    net = build_device_net(run.flat, posterior_samples(run), settings.chain.scope)
    leak = optimal_leak(SmashedData(net), x, y, make_generator(settings.seed, "tune-optimal"))
    score = score_probabilities(found.probabilities, labels)
    return Score(score["accuracy"], leak.bits_beyond_label, score["nll"])


def choose_distribution(among: Among) -> BaseDistribution:
    """Return how a key is drawn: log-uniformly from a range, or from the choices."""
    if isinstance(among, list):
        return CategoricalDistribution(among)
    return FloatDistribution(*among, log=True)


def round_value(drawn: Scalar, among: Among) -> Scalar:
    """Return a choice as it is, and a number of a range to 4 significant digits."""
    if isinstance(among, list):
        return drawn
    low, high = among
    return min(max(float(f"{drawn:.{DIGITS}g}"), low), high)  # rounding may lead out of the range
