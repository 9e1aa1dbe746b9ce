"""One variant's search: trials suggested by what came before, scored on the validation set.

The journal is optuna's file of studies and trials, from which a search goes on.
"""

import json
import math
import time
from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import optuna
import torch
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.samplers import TPESampler
from optuna.storages import BaseStorage, JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
from optuna.trial import FrozenTrial, TrialState

from fedcel.errors import DivergedError, RunError
from fedcel.files import write_whole
from fedcel.leakage import SmashedData, optimal_leak
from fedcel.metrics import score_probabilities
from fedcel.posterior import build_device_net, predict
from fedcel.runs import NOISE_DRAWS, posterior_samples, run_folder
from fedcel.settings import Scalar, Settings, dump_settings, flatten_settings, parse_settings
from fedcel.torch_state import make_generator, stream_seed
from sims.bench.scenario import Tune, Variant
from sims.engines import local
from sims.progress import estimate_left, print_line, show_rounds

BITS_PER_POINT = 0.5  # what a point of accuracy below the floor costs in the objective
VALUE_DIGITS = 4  # significant, of a chosen value: what is written is what was trained with
RANDOM_TRIALS = 6  # drawn at random, before the sampler learns from them
FlatSettings = dict[str, Scalar]
SearchRange = tuple[float, float] | list[Scalar]
"""The ends of a range, or the choices."""


class ValidationScore(NamedTuple):
    """Scores of a federation on the validation set."""

    accuracy: float
    bits: float  # beyond the label, for the optimal attacker
    nll: float  # nats


Outcome = ValidationScore | str
"""The score of a trial, or why it diverged."""


def journal_path(out: Path) -> Path:
    """Return where the trials behind a tuned scenario are kept."""
    return out.with_name(f"{out.name}.journal.log")


def open_journal(path: Path) -> BaseStorage:
    """Open the journal, made where there is none; several processes may have it open.

    optuna would write behind a last line that was cut off, and could never read the file again.
    So that line is removed: its trial counts as interrupted. RunError on any other damage.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    backend = JournalFileBackend(str(path))
    (lock := JournalFileSymlinkLock(str(path))).acquire()
    try:
        *lines, cut_off = path.read_bytes().split(b"\n")
        if cut_off:
            write_whole(path, b"".join(line + b"\n" for line in lines))
    finally:
        lock.release()
    try:
        return JournalStorage(backend)
    except Exception as error:  # whatever optuna's replay stumbles over
        raise RunError(
            f"{path} is damaged or no journal of trials ({error}); remove it, or name another "
            "--out, to search from the beginning"
        ) from error


def settings_id(settings: Settings) -> str:
    """Return the identity of a federation: every setting that it is trained with."""
    return json.dumps(flatten_settings(dump_settings(settings)), sort_keys=True)


def mark_trial(trial: optuna.Trial, federation: str, outcome: Outcome) -> None:
    """Write a federation's settings and outcome beside its trial."""
    trial.set_user_attr("settings", federation)
    trial.set_user_attr("outcome", outcome if isinstance(outcome, str) else outcome._asdict())


def recall_outcomes(storage: BaseStorage) -> dict[str, Outcome]:
    """Return the outcome of every federation in the journal by its settings, whatever the search.

    A search of another length, goal or floor is another study, and takes them.
    """
    names = optuna.get_all_study_names(storage)
    studies = [optuna.load_study(study_name=name, storage=storage) for name in names]
    marks = [trial.user_attrs for study in studies for trial in study.trials]
    return {mark["settings"]: read_outcome(mark) for mark in marks if "outcome" in mark}


def read_outcome(mark: Mapping[str, Any]) -> Outcome:
    """Return the outcome that `mark_trial` wrote."""
    outcome = mark["outcome"]
    return str(outcome) if isinstance(outcome, str) else ValidationScore(**outcome)


class SearchPlan(NamedTuple):
    """One variant's search: the settings it starts from, and the range of each key."""

    variant: Variant
    base: FlatSettings
    ranges: dict[str, SearchRange]
    start: Settings
    """The base with the first value of each range."""
    strength: float | None
    tune: Tune


class BestTrial(NamedTuple):
    """A variant's best trial."""

    name: str
    chosen: FlatSettings
    score: ValidationScore
    trials: int
    """Different trials: the sampler may suggest a combination of choices twice."""
    trained: int
    """Federations trained in this call; the other trials were in the journal."""


def run_search(plan: SearchPlan, trials: int, floor: float | None, journal: Path) -> BestTrial:
    """Return the best settings within the ranges and their score on the validation set.

    The search is a study in the journal, and goes on where it stopped. A trial that was
    interrupted stays in the study as one that runs, and counts for nothing. DivergedError where
    not one trial can be trained.
    """
    torch.set_num_threads(1)  # the same sums whatever runs beside this
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = open_journal(journal)
    name = plan.variant.name
    study = optuna.create_study(
        storage=storage,
        study_name=name_study(plan, floor),
        direction="maximize",
        load_if_exists=True,
    )
    outcomes = recall_outcomes(storage)
    seconds = list[float]()
    grid = list_grid(plan, trials)
    budget = len(grid) or trials
    while trial := ask_trial(study, plan, grid, budget):
        number = len(list_ended(study)) + 1
        chosen = choose_values(plan, trial)
        title = f"{name}, trial {number} of {budget}"
        seeds: list[FlatSettings] = [{"seed": seed} for seed in plan.tune.seeds] or [{}]
        federations = [parse_settings(plan.base | chosen | seed) for seed in seeds]
        federation = "\n".join(map(settings_id, federations))
        source = ", trained before"
        if federation not in outcomes:
            begin = time.monotonic()
            source = ""
            outcomes[federation] = average_outcomes(
                train_trial(settings, title) for settings in federations
            )
            seconds.append(time.monotonic() - begin)
        outcome = outcomes[federation]
        mark_trial(trial, federation, outcome)
        if isinstance(outcome, str):
            study.tell(trial, state=TrialState.PRUNED)
        else:
            study.tell(trial, tuning_objective(outcome, plan.tune.goal, floor))
        remaining = estimate_left(seconds, budget - number)
        values = format_values(chosen)
        print_line(f"{title}: {describe_outcome(outcome)} with {values}{source}{remaining}")
    ended = list_ended(study)[:budget]  # an earlier call may have tried more
    best = max(ended, key=lambda trial: -math.inf if trial.value is None else trial.value)
    score = read_outcome(best.user_attrs)
    if isinstance(score, str):
        raise DivergedError(f"{name}: all {budget} trials diverged; lower the range of local.rate")
    different = {tuple(choose_values(plan, trial).items()) for trial in ended}
    return BestTrial(name, choose_values(plan, best), score, len(different), len(seconds))


def name_study(plan: SearchPlan, floor: float | None) -> str:
    """Return the name of a search: all that decides its suggestions and their values."""
    ranges = {key: str(values) for key, values in plan.ranges.items()}
    searched = (plan.variant.name, plan.tune.goal, floor, plan.base, ranges)
    return json.dumps(searched + ((plan.tune.seeds,) if plan.tune.seeds else ()), sort_keys=True)


def list_ended(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that were scored or diverged, in their order."""
    return study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED))


def list_grid(plan: SearchPlan, trials: int) -> list[FlatSettings]:
    """Return all combinations where every key has choices and they fit in the trials; else none."""
    choices = [values for values in plan.ranges.values() if isinstance(values, list)]
    if len(choices) < len(plan.ranges) or math.prod(map(len, choices)) > trials:
        return []
    return [dict(zip(plan.ranges, values, strict=True)) for values in product(*choices)]


def ask_trial(
    study: optuna.Study, plan: SearchPlan, grid: list[FlatSettings], budget: int
) -> optuna.Trial | None:
    """Return the next trial, or None where all were.

    A small grid is tried whole and in order, so that luck plays no part. Else a suggestion depends
    on the trials before it and its own number alone, whatever was trained when.
    """
    ended = list_ended(study)
    if grid:
        tried = [trial.params for trial in ended]
        untried = [values for values in grid if values not in tried]
        if not untried:
            return None
        if not study.get_trials(states=(TrialState.WAITING,)):  # left by an interrupted search
            study.enqueue_trial(untried[0])
    elif len(ended) >= budget:
        return None
    seed = stream_seed(plan.start.seed, f"tune-{plan.variant.name}", len(ended)) % 2**31
    study.sampler = TPESampler(seed=seed, n_startup_trials=RANDOM_TRIALS, constant_liar=False)
    return study.ask({key: make_distribution(values) for key, values in plan.ranges.items()})


def tuning_objective(score: ValidationScore, goal: str, floor: float | None) -> float:
    """Return what a search maximises; `floor` is None for undefended variants."""
    if goal == "nll":
        return -score.nll
    if floor is None:
        return score.accuracy
    return -score.bits - BITS_PER_POINT * max(0.0, 100 * (floor - score.accuracy))


def train_trial(settings: Settings, title: str) -> Outcome:
    """Return the validation score of one federation, or why it diverged."""
    with TemporaryDirectory() as place, show_rounds(title, settings.rounds) as show_round:
        folder = Path(place) / "run"
        run_folder.create_run(folder, settings)
        try:
            local.train_locally(settings, folder, show_round, measure=False)
            score = score_run(run_folder.read_run(folder))
        except DivergedError as error:
            return str(error)
        return score if all(map(math.isfinite, score)) else "the score is not finite"


def average_outcomes(outcomes: Iterable[Outcome]) -> Outcome:
    """Return the mean score of a trial's federations, or why the first that diverged did."""
    scores = list[ValidationScore]()
    for outcome in outcomes:
        if isinstance(outcome, str):
            return outcome  # the other seeds are not trained
        scores.append(outcome)
    return ValidationScore(
        *(math.fsum(values) / len(scores) for values in zip(*scores, strict=True))
    )


def score_run(run: run_folder.Run) -> ValidationScore:
    """Return how a run does on its validation images; the test set is not touched."""
    x, y = run.splits.validation
    seed = run.settings.seed
    scope = run.settings.chain.scope
    samples = posterior_samples(run)
    noise = make_generator(seed, "tune-noise")
    answers = predict(run.flat, samples, x, noise, scope=scope, draws=NOISE_DRAWS)
    smashed_data = SmashedData(build_device_net(run.flat, samples, scope))
    leak = optimal_leak(smashed_data, x, y, make_generator(seed, "tune-optimal"))
    scores = score_probabilities(answers.probabilities, y.repeat(NOISE_DRAWS))
    return ValidationScore(scores["accuracy"], leak.bits_beyond_label, scores["nll"])


def describe_outcome(outcome: Outcome) -> str:
    """Return a trial's end in words."""
    if isinstance(outcome, str):
        return outcome
    return f"accuracy {outcome.accuracy:.4f}, {outcome.bits:.3f} bits, NLL {outcome.nll:.3f}"


def format_values(values: FlatSettings) -> str:
    """Return settings as one writes them after --set."""
    return " ".join(f"{key}={value}" for key, value in values.items())


def make_distribution(values: SearchRange) -> CategoricalDistribution | FloatDistribution:
    """Return how a key is drawn: log-uniformly from a range, or from the choices."""
    if isinstance(values, list):
        return CategoricalDistribution(values)
    return FloatDistribution(*values, log=True)


def choose_values(plan: SearchPlan, trial: optuna.Trial | FrozenTrial) -> FlatSettings:
    """Return a trial's values: a choice as it is, a number of a range to 4 significant digits."""
    chosen: FlatSettings = {}
    for key, values in plan.ranges.items():
        value = trial.params[key]
        if not isinstance(values, list):
            low, high = values
            value = min(max(float(f"{value:.{VALUE_DIGITS}g}"), low), high)  # rounding may lead out
        chosen[key] = value
    return chosen
