"""Choose every variant's settings on the validation set, with the same number of trials."""

from collections.abc import Callable
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory

import optuna
import tomli_w

from fedcel import runs
from fedcel.attacks import SmashedData, optimal
from fedcel.errors import DivergedError, SettingsError
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
Score = tuple[float, float]  # validation accuracy, validation bits beyond the label


def tune(scenario: Scenario, trials: int, overrides: dict[str, Scalar]) -> dict[str, object]:
    """Return the scenario with each variant's best trial written into its settings.

    Undefended variants (no CEL) maximise validation accuracy. The others minimise the bits beyond
    the label that the optimal attacker gets from validation images, with a cost for accuracy that
    falls more than `loss` points below the first undefended variant. SettingsError when the
    scenario names no ranges in [tune].
    """
    if not scenario.tune.ranges:
        raise SettingsError(f"{scenario.path}: [tune] names no ranges, such as local.rate")
    floor = -inf
    table = read_toml(scenario.path)
    tables = table.get("variant")
    assert isinstance(tables, list)
    for variant, written in zip(scenario.variants, tables, strict=True):
        ranges = scenario.tune.ranges | variant.tune
        base = scenario.settings | variant.settings | overrides | {"engine": "loop"}
        defended = base.get("cel.kind", "none") != "none"
        best, score = search(variant, base, ranges, trials, floor if defended else None)
        if floor == -inf and not defended:
            floor = score[0] - scenario.tune.loss / 100
        say(f"{variant.name}: accuracy {score[0]:.4f}, bits {score[1]:.3f} with {best}")
        written["settings"] = nested(variant.settings | best)
        written["tuned"] = {"accuracy": score[0], "bits-beyond-label": score[1], "trials": trials}
    return table


def search(
    variant: Variant,
    base: dict[str, Scalar],
    ranges: dict[str, str],
    trials: int,
    floor: float | None,
) -> tuple[dict[str, Scalar], Score]:
    """Return the best settings within `ranges` and their score on the validation set."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = stream_seed(int(str(base.get("seed", 0))), f"tune-{variant.name}") % 2**31
    study = optuna.create_study(
        direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=6)
    )
    draw = {key: drawn(text, key) for key, text in ranges.items()}

    def objective(trial: optuna.Trial) -> float:
        chosen = {key: suggest(trial, key) for key, suggest in draw.items()}
        try:
            accuracy, bits = trained(parse(base | chosen))
        except DivergedError as error:
            say(f"{variant.name} {trial.number + 1}/{trials}: {error}")
            raise optuna.TrialPruned from None
        trial.set_user_attr("score", (accuracy, bits))
        head = f"{variant.name} {trial.number + 1}/{trials}"
        say(f"{head}: accuracy {accuracy:.4f}, {bits:.3f} bits with {chosen}")
        if floor is None:
            return accuracy
        return -bits - BITS_PER_POINT * max(0.0, 100 * (floor - accuracy))

    study.optimize(objective, n_trials=trials)
    return dict(study.best_params), study.best_trial.user_attrs["score"]


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


def drawn(text: str, key: str) -> Callable[[optuna.Trial, str], Scalar]:
    """Return how to draw a value: '0.1..2' log-uniform, or 'a|b|c' one of them."""
    low, dots, high = text.partition("..")
    if dots:
        try:
            ends = float(low), float(high)
        except ValueError:
            raise SettingsError(
                f"[tune] {key} is {text!r}, must be 'LOW..HIGH' or 'A|B|C'"
            ) from None
        return lambda trial, name: trial.suggest_float(name, *ends, log=True)
    choices: list[Scalar] = [number(part) for part in text.split("|")]
    return lambda trial, name: trial.suggest_categorical(name, choices)  # type: ignore[return-value]


def number(text: str) -> Scalar:
    """Return an int or float where the text is one."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def nested(flat: dict[str, Scalar]) -> dict[str, object]:
    """Return {"cel": {"weight": 1}} of {"cel.weight": 1}."""
    tree: dict[str, object] = {}
    for key, value in flat.items():
        group, _, name = key.rpartition(".")
        table = tree.setdefault(group, {}) if group else tree
        assert isinstance(table, dict)
        table[name] = round(value, 4) if isinstance(value, float) else value
    return tree


def write(table: dict[str, object], path: Path) -> None:
    """Write a tuned scenario."""
    write_whole(path, tomli_w.dumps(table))
