"""Choose every variant's settings on the validation set, with the same number of trials."""

import math
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryDirectory
from typing import NamedTuple

import optuna
import tomli_w
from optuna.trial import TrialState

from fedcel import runs
from fedcel.attacks import SmashedData, optimal
from fedcel.errors import DivergedError, RunError, SettingsError
from fedcel.files import read_toml, write_whole
from fedcel.metrics import scores
from fedcel.outcome import NOISE_DRAWS, sampled
from fedcel.posterior.predict import predict, what_is_sent
from fedcel.seeding import generator, stream_seed
from fedcel.settings import Scalar, Settings, parse
from sims import loop
from sims.progress import say
from sims.scenario import Scenario, Variant

BITS_PER_POINT = 0.5  # what a point of accuracy below the floor costs in the objective
DIGITS = 4  # significant, of a chosen value: what is written is what was trained with
Flat = dict[str, Scalar]
Score = tuple[float, float]  # validation accuracy, validation bits beyond the label
Among = tuple[float, float] | list[Scalar]  # the ends of a range, or the choices


def tune(scenario: Scenario, trials: int, overrides: Flat) -> dict[str, object]:
    """Return the scenario with each variant's best trial written into its settings.

    Undefended variants (no CEL) come first and maximise validation accuracy. The others minimise
    the bits beyond the label that the optimal attacker gets from validation images, with a cost for
    accuracy that falls more than `loss` points below the first undefended variant. `overrides` are
    written into the scenario too. SettingsError, before anything is trained, when the scenario has
    no variant, no undefended one, or no sound ranges in [tune].
    """
    table = read_toml(scenario.path)
    tables = table.get("variant")
    if not isinstance(tables, list) or not tables:
        raise SettingsError(f"{scenario.path}: no [[variant]] to tune; add one for each row")
    if not scenario.tune.ranges:
        raise SettingsError(f"{scenario.path}: [tune] names no ranges, such as local.rate")
    fixed: Flat = overrides | {"engine": "loop"}
    plans = [planned(scenario, variant, fixed) for variant in scenario.variants]
    if all(plan.defended for plan in plans):
        raise SettingsError(
            f"{scenario.path}: every variant has a cel.kind; add one without, whose accuracy the "
            "others are held to"
        )
    floor: float | None = None
    by_name = {variant.name: raw for variant, raw in zip(scenario.variants, tables, strict=True)}
    for plan in sorted(plans, key=lambda plan: plan.defended):
        name, own = plan.variant.name, plan.variant.settings
        best, score = search(plan, trials, floor if plan.defended else None)
        if floor is None:
            floor = score[0] - scenario.tune.loss / 100
        say(f"{name}: accuracy {score[0]:.4f}, bits {score[1]:.3f} with {best}")
        overridden = {key: overrides.get(key, value) for key, value in own.items()}
        by_name[name]["settings"] = nested(overridden | best)
        by_name[name]["tuned"] = {
            "accuracy": score[0],
            "bits-beyond-label": score[1],
            "trials": trials,
        }
    return table | {"settings": nested(scenario.settings | overrides)}


class Plan(NamedTuple):
    """One variant's search: the settings it starts from, and what each key is chosen among."""

    variant: Variant
    base: Flat
    among: dict[str, Among]
    seed: int

    @property
    def defended(self) -> bool:
        """Say whether there is a conditional entropy loss."""
        return self.base.get("cel.kind", "none") != "none"


def planned(scenario: Scenario, variant: Variant, fixed: Flat) -> Plan:
    """Return a variant's search; SettingsError when its settings or ranges are not sound."""
    base = scenario.settings | variant.settings | fixed
    among = {key: ends(text, key) for key, text in (scenario.tune.ranges | variant.tune).items()}
    for key in sorted(among.keys() & fixed.keys()):
        raise SettingsError(f"--set {key} and [tune] {key} are at odds; leave one of them out")
    first = parse(base | {key: values[0] for key, values in among.items()})
    return Plan(variant, base, among, first.seed)


def search(plan: Plan, trials: int, floor: float | None) -> tuple[Flat, Score]:
    """Return the best settings within the ranges and their score on the validation set.

    DivergedError when not one trial can be trained.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    name = plan.variant.name
    seed = stream_seed(plan.seed, f"tune-{name}") % 2**31
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=6)
    )

    def objective(trial: optuna.Trial) -> float:
        chosen = {key: suggest(trial, key, among) for key, among in plan.among.items()}
        head = f"{name} {trial.number + 1}/{trials}"
        try:
            accuracy, bits = trained(parse(plan.base | chosen))
        except DivergedError as error:
            say(f"{head}: {error}")
            raise optuna.TrialPruned from None
        trial.set_user_attr("chosen", chosen)
        trial.set_user_attr("score", (accuracy, bits))
        say(f"{head}: accuracy {accuracy:.4f}, {bits:.3f} bits with {chosen}")
        if floor is None:
            return accuracy
        return -bits - BITS_PER_POINT * max(0.0, 100 * (floor - accuracy))

    study.optimize(objective, n_trials=trials)
    if not study.get_trials(states=[TrialState.COMPLETE]):
        raise DivergedError(f"{name}: all {trials} trials diverged; lower the range of local.rate")
    kept = study.best_trial.user_attrs
    return dict(kept["chosen"]), kept["score"]


def trained(settings: Settings) -> Score:
    """Return validation accuracy and bits of one federation; the test set is not touched."""
    with TemporaryDirectory() as place:
        folder = Path(place) / "run"
        runs.create(folder, settings)
        loop.train(settings, folder, lambda _: None, measure=False)
        run = runs.read(folder)
    x, y = run.splits.validation
    many, labels = x.repeat(NOISE_DRAWS, 1, 1, 1), y.repeat(NOISE_DRAWS)
    stream = generator(settings.seed, "tune-noise")
    found = predict(run.flat, sampled(run), many, stream, settings.chain.scope)
    net = what_is_sent(run.flat, sampled(run), settings.chain.scope)
    leak = optimal(SmashedData(net), x, y, generator(settings.seed, "tune-optimal"))
    return scores(found.probabilities, labels)["accuracy"], leak.bits_beyond_label


def ends(text: str, key: str) -> Among:
    """Return the ends of 'LOW..HIGH', or the choices of 'A|B|C'; SettingsError if it is neither."""
    low, dots, high = text.partition("..")
    if not dots:
        return [number(part) for part in text.split("|")]
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


def suggest(trial: optuna.Trial, key: str, among: Among) -> Scalar:
    """Return a value drawn log-uniformly from a range, to 4 significant digits, or a choice."""
    if isinstance(among, list):
        choice: Scalar = trial.suggest_categorical(key, among)  # type: ignore[assignment]
        return choice
    low, high = among
    value = float(f"{trial.suggest_float(key, low, high, log=True):.{DIGITS}g}")
    return min(max(value, low), high)  # rounding may lead out of the range


def number(text: str) -> Scalar:
    """Return an int or float where the text is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def nested(flat: Flat) -> dict[str, object]:
    """Return {"cel": {"weight": 1}} of {"cel.weight": 1}."""
    tree: dict[str, object] = {}
    for key, value in flat.items():
        group, _, name = key.rpartition(".")
        table = tree.setdefault(group, {}) if group else tree
        assert isinstance(table, dict)
        table[name] = value
    return tree


def writable(path: Path) -> None:
    """Refuse, before hours of trials, a file that cannot be written: RunError or OSError."""
    if path.is_dir():
        raise RunError(f"{path} is a folder; --out names the file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    with NamedTemporaryFile(dir=path.parent):
        pass


def write(table: dict[str, object], path: Path) -> None:
    """Write a tuned scenario."""
    write_whole(path, tomli_w.dumps(table))
