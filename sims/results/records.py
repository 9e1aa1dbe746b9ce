"""The records in the files of runs and benches, and how they are read.

What writes a file and what reads it share its record. Keys in JSON are kebab-case. A key that was
never set is not written. A file that is missing or damaged is named, with the remedy.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from fedcel.attacks import AttackConditions, AttackRow, AttackScores, MeasuredLeak
from fedcel.errors import RunError
from fedcel.json_records import Number, Record
from fedcel.leakage import SequenceLeak

RESULT_FILE = "result.json"  # the measured end of a run
EVENTS_FILE = "events.jsonl"  # a line for each round of a run
ATTACKS_FOLDER = "attacks"  # in a run: a result for each attack and its settings
LIVE_FILE = "live.json"  # in a run: attacks on its live service
COST_FILE = "cost.json"  # in a run of a bench: what a training step costs
BENCH_FILE = "bench.json"  # a row for each cell of a bench
FAILED_FILE = "failed.json"  # beside it: the cells that failed
PLAN_FILE = "plan.json"  # beside it: the cells that the last call was to finish, and its beginning
ATTACK_MEASURES = [
    name.replace("_", "-")
    for name in AttackScores.model_fields
    if name not in AttackConditions.model_fields
]
"""Keys of the scores of an attack that rebuilds images."""
Parsed = TypeVar("Parsed")
REMEDY = "run it again"
AnyRecord = TypeVar("AnyRecord", bound=Record)


def attribute(key: str) -> str:
    """Return the name of a record's attribute by its key in JSON."""
    return key.replace("-", "_")


class RejectedReply(Record):
    """A client's reply that the server left out."""

    client: int | str
    reason: str


class RoundEvent(Record):
    """One round, scored on the validation set."""

    round: int
    accuracy: Number = None
    within_class_spread: Number = None
    attention_share: Number = None
    bits_beyond_label: Number = None
    """Of validation images, in the rounds in which the setting `bits-every` asks for them."""
    bits_half_width: Number = None
    bits_cap: Number = None
    r_hat: Number = None
    ess: Number = None
    seconds: Number = None
    clients: int = 0
    """Number of clients whose updates are used."""
    rejected: tuple[RejectedReply, ...] = ()
    kept_share: float | None = None
    """Of the weight of the clients that were asked, where some were left out; see `share`."""

    @property
    def share(self) -> float:
        """Kept share of the clients' weight; of their number where no weight is told."""
        if self.kept_share is not None:
            return self.kept_share
        return self.clients / (self.clients + len(self.rejected)) if self.rejected else 1.0


class PredictorScores(Record):
    """Accuracy (a share), NLL (nats), ECE and Brier score of one predictor."""

    accuracy: Number = None
    nll: Number = None
    ece: Number = None
    brier: Number = None


class ReliabilityBins(Record):
    """A reliability diagram; an empty bin has count 0."""

    confidence: tuple[Number, ...] = ()
    accuracy: tuple[Number, ...] = ()
    count: tuple[float, ...] = ()


class PrivateUtility(Record):
    """Utility of differentially private answers at one epsilon."""

    accuracy: Number = None
    top1_kept: Number = None
    confidence_before: Number = None
    confidence_after: Number = None
    ece: Number = None
    ceiling: Number = None


class RunMeasures(MeasuredLeak):
    """Measures of a run's result and of its row in a bench; older runs lack some of them."""

    accuracy: Number = None
    identification_optimal: Number = None
    candidates: int | None = None
    within_class_spread: Number = None
    answer_bits: Number = None
    clients_at_once: int | None = None
    """Clients that the engine `local` trained at once, at most."""
    bits_cap: Number = None
    identification_candidates: int | None = None
    label_only_identification: Number = None
    encoder_parameters: int | None = None
    flops_per_inference: int | None = None
    bytes_per_inference: int | None = None
    attribute_bits: Number = None
    attribute_cap: Number = None
    attribute_accuracy: Number = None
    attribute_by_label: Number = None
    attribute_by_others: Number = None
    update_epsilon: Number = None
    update_epsilon_of_models: Number = None
    linearised_bits: Number = None
    """Bits of the picture in a message, of the encoder taken as linear; an estimate."""
    linearised_bits_half_width: Number = None
    linearised_mse: Number = None
    """Error of the best reconstruction, the same way; an estimate."""
    linearised_mse_half_width: Number = None
    linearised_psnr: Number = None
    linearised_psnr_half_width: Number = None
    van_trees_mse: Number = None
    """Lower bound on the error of any reconstruction, if images of a class are Gaussian."""
    van_trees_mse_half_width: Number = None
    dfil: Number = None
    dfil_half_width: Number = None
    fsinfo: Number = None
    fsinfo_half_width: Number = None
    linearised_images: int | None = None
    linearised_bits_error: Number = None
    """Error of the estimate itself, 0 where Jacobians were computed."""
    linearised_mse_error: Number = None


class RunResult(RunMeasures, PredictorScores):
    """The measured end of a run; what has a default may be absent, older runs lack it."""

    accuracy: Number
    bits_beyond_label: Number
    information_bits: Number
    identification_optimal: Number
    certificate_bits: Number
    candidates: int
    chance_accuracy: Number = None
    """Accuracy of who always names the most frequent class; older runs lack it."""
    smallest_update_images: int | None = None
    """Images behind the smallest update of a client; None where nodes brought their own."""
    linearised_obstacle: str | None = None
    """Reason why there is no such estimate."""
    linearised_sequences: tuple[SequenceLeak, ...] = ()
    """Leak of several messages of one image together, of the encoder taken as linear."""
    convergence: str | None = None
    unrepeatable: str | None = None
    samples: int | None = None
    point: PredictorScores | None = None
    reliability: dict[str, ReliabilityBins] = Field(default_factory=dict)
    between_client_spread: Number = None
    private: dict[str, PrivateUtility] = Field(default_factory=dict)
    parameters: int | None = None
    data_notes: tuple[str, ...] = ()
    """Changes made to the images before training."""
    class_names: tuple[str, ...] = ()
    """Names of the classes, where the source of the images has some."""
    engine: str | None = None
    """Engine that trained the clients where it needs no Flower; absent in older runs."""
    versions: dict[str, str] = Field(default_factory=dict)
    seconds: Number = None


class LiveRow(AttackRow):
    """One attack on one live service with one attack seed."""

    service: str = ""
    mechanism: str
    epsilon: float
    delta: Number = None
    answers: int
    spent: float
    accuracy: float
    seed: int
    candidates: int
    mse: float
    identification_1: float
    oracle_mse: float


class CellAttack(AttackScores):
    """One attack on a cell of a bench: its scores are means over the attack seeds."""

    revision: int | None = None
    """The attack's revision when it was carried out; older benches do not say it."""
    seeds: int | None = None
    """The number of attack seeds."""


class BenchRow(RunMeasures):
    """Measures of a cell of a bench, a variant at a strength with a training seed, and all attacks.

    In the file the scores of `worst` are columns of the row, too.
    """

    variant: str
    title: str | None = None
    strength: float | None = None
    strength_key: str | None = None
    undefended: bool
    """It defends and sweeps nothing, so that others are compared with it."""
    anchored: bool | None = None
    """Its sweep begins, at strength 0, with the undefended net."""
    seed: int
    engine: str | None = None
    noise: Number = None
    attention_share: Number = None
    train_step_ratio: Number = None
    run: str
    attacks: tuple[CellAttack, ...]
    failed_attacks: tuple[str, ...] = ()
    """Attacks that failed there where nobody foresaw it: the worst is that of the others."""
    worst: CellAttack | None = Field(None, exclude=True)
    """The attack that the row is held to; see `sims.results.bench_rows`."""

    @property
    def name(self) -> str:
        """Title of the variant, or else its name."""
        return self.title or self.variant

    @property
    def point(self) -> tuple[str, float | None]:
        """Variant and strength: cells of one point differ in the training seed."""
        return self.variant, self.strength

    def measure(self, key: str) -> float | None:
        """Return a measure by its key in bench.json; an attack's is that of the worst one."""
        source = self.worst if key in ATTACK_MEASURES else self
        value: float | None = getattr(source, attribute(key), None)
        return value

    def to_json(self) -> dict[str, object]:
        """Return the row with the worst attack's scores as columns, for people and scripts."""
        named = ("attack", "knowledge", "budget", "targets")
        worst = {f"worst-{key}": getattr(self.worst, key, None) for key in named}
        scores = {key: self.measure(key) for key in ATTACK_MEASURES}
        return {**super().to_json(), **worst, **scores}


class BenchPlan(Record):
    """Work of one call of a bench; each cell is a run's folder name."""

    began: float
    """When, in seconds since 1970."""
    cells: tuple[str, ...]
    missing: tuple[str, ...]
    """Those that were not finished then."""
    jobs: int


class FailedCell(Record):
    """A cell of a bench that could not be trained or attacked, and why."""

    cell: str
    reason: str


def parse_file(path: Path, parse: Callable[[str], Parsed], remedy: str = REMEDY) -> Parsed:
    """Return what a file's text is parsed to; RunError where it is missing or damaged."""
    try:
        return parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing; {remedy}, or give another folder") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        value = "" if first["type"] == "missing" else f" (it is {first['input']!r:.60})"
        raise RunError(f"{path} is damaged: {where}: {first['msg']}{value}; {remedy}") from None
    except (OSError, TypeError, ValueError) as error:
        raise RunError(f"{path} is damaged: {error}; {remedy}") from None


def read_record(path: Path, kind: type[AnyRecord], remedy: str = REMEDY) -> AnyRecord:
    """Return the record in a file; RunError where it is missing or damaged."""
    return parse_file(path, kind.model_validate_json, remedy)


def read_records(path: Path, kind: type[AnyRecord], remedy: str = REMEDY) -> list[AnyRecord]:
    """Return a file's list of records, none where it is missing; RunError where it is damaged."""
    if not path.exists():
        return []
    return parse_file(path, TypeAdapter(list[kind]).validate_json, remedy)  # type: ignore[valid-type]


def parse_events(text: str) -> tuple[RoundEvent, ...]:
    """Return the rounds of a log; ValueError names the first line that is none."""
    events = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            events.append(RoundEvent.model_validate(json.loads(line)))
        except ValueError as error:
            raise ValueError(f"line {number} is no round: {str(error).splitlines()[0]}") from error
    return tuple(events)
