"""What a report is made of: frozen records of the files of runs and benches."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, FiniteFloat

from fedcel.posterior import Trace
from fedcel.settings import Settings
from sims.results.worst_attack import AttackId

Images = Float[np.ndarray, "N C H W"]
Vector = Float[np.ndarray, " T"]
Number = FiniteFloat | None
"""A measured number; None: not measured."""


class Part(BaseModel):
    """A JSON object with kebab-case keys; keys this report does not show are left alone."""

    model_config = ConfigDict(
        frozen=True,
        extra="ignore",
        populate_by_name=True,
        alias_generator=lambda name: name.replace("_", "-"),
    )


class Rejected(Part):
    """A client's reply that the server left out."""

    client: int | str
    reason: str


class Event(Part):
    """One round, scored on the validation set."""

    round: int
    accuracy: Number = None
    within_class_spread: Number = None
    cel_weight: Number = None
    rejected: tuple[Rejected, ...] = ()


class Scores(Part):
    """Accuracy (a share), NLL (nats), ECE and Brier score of one predictor."""

    accuracy: Number = None
    nll: Number = None
    ece: Number = None
    brier: Number = None


class Bins(Part):
    """A reliability diagram; an empty bin has count 0."""

    confidence: tuple[Number, ...] = ()
    accuracy: tuple[Number, ...] = ()
    count: tuple[float, ...] = ()


class Private(Part):
    """What differentially private answers are worth at one epsilon."""

    accuracy: Number = None
    top1_kept: Number = None
    confidence_before: Number = None
    confidence_after: Number = None
    ceiling: Number = None


class Result(Scores):
    """The measured end of a run; what has a default may be absent, older runs lack it."""

    accuracy: Number
    bits_beyond_label: Number
    information_bits: Number
    identification_optimal: Number
    certificate_bits: Number
    candidates: int
    bits_half_width: Number = None
    information_half_width: Number = None
    convergence: str | None = None
    samples: int | None = None
    point: Scores | None = None
    reliability: dict[str, Bins] = {}
    bits_cap: Number = None
    identification_candidates: int | None = None
    label_only_identification: Number = None
    certificate_bits_within_class: Number = None
    fano_identification: Number = None
    answer_bits: Number = None
    gaussianity_gap_bits: Number = None
    gaussianity_direction_bits: Number = None
    gaussianity_kurtosis: Number = None
    within_class_spread: Number = None
    between_client_spread: Number = None
    private: dict[str, Private] = {}
    parameters: int | None = None
    encoder_parameters: int | None = None
    flops_per_inference: int | None = None
    bytes_per_inference: int | None = None
    versions: dict[str, str] = {}
    seconds: Number = None


class Attack(Part):
    """One attack with one attack seed, or the reason why it was not run."""

    attack: str
    observation: str = ""
    knowledge: str = ""
    seed: int | None = None
    budget: Number = None
    targets: int | None = None
    queries: int | None = None
    mse: Number = None
    psnr: Number = None
    ssim: Number = None
    identification_1: Number = None
    identification_5: Number = None
    label_accuracy: Number = None
    mean_mse: Number = None
    oracle_mse: Number = None
    identification_optimal: Number = None
    identification_half_width: Number = None
    identification_candidates: int | None = None
    candidates: int | None = None
    bits_beyond_label: Number = None
    information_bits: Number = None
    seconds: Number = None
    skipped: str | None = None

    @property
    def who(self) -> AttackId:
        """Return what runs of one attack have in common, whatever their seed."""
        return AttackId(self.attack, self.observation, self.knowledge, self.budget, self.targets)


class Row(Part):
    """One cell of a bench: a variant at a strength with a training seed.

    `undefended` as in `sims.bench.run`; None in a bench.json that does not say.
    """

    variant: str
    strength: float | None = None
    undefended: bool | None = None
    seed: int = 0
    title: str | None = None
    accuracy: Number = None
    bits_beyond_label: Number = None
    information_bits: Number = None
    identification_optimal: Number = None
    worst_attack: str | None = None
    failed_attacks: tuple[str, ...] = ()
    mse: Number = None
    psnr: Number = None
    ssim: Number = None
    identification_1: Number = None
    certificate_bits: Number = None
    train_step_ratio: Number = None
    oracle_mse: Number = None
    mean_mse: Number = None
    noise: Number = None
    run: str


class Failed(Part):
    """A cell of a bench that could not be trained or attacked, and why."""

    cell: str
    reason: str


class Escalated(Part):
    """A cell attacked once more, by one attack with one budget; none where all failed."""

    variant: str
    strength: float | None = None
    seed: int = 0
    title: str | None = None
    accuracy: Number = None
    bits_beyond_label: Number = None
    attack: str | None = None
    knowledge: str | None = None
    budget: FiniteFloat
    revision: int | None = None
    targets: int | None = None
    mse: Number = None
    psnr: Number = None
    ssim: Number = None
    identification_1: Number = None
    oracle_mse: Number = None
    mean_mse: Number = None


@dataclass(frozen=True)
class Run:
    """All that the report shows of one run folder."""

    name: str
    settings: Settings
    events: tuple[Event, ...]
    result: Result
    attacks: tuple[Attack, ...]
    images: dict[str, Images]
    trace: Trace | None = None
    """What its chain is judged by; without rows where nothing was sampled."""


@dataclass(frozen=True)
class Book:
    """A bench, or one run as a bench of one row."""

    title: str
    kind: Literal["bench", "run"]
    rows: tuple[Row, ...]
    runs: dict[str, Run]
    failed: tuple[Failed, ...] = ()
    escalated: tuple[Escalated, ...] = ()
    images: dict[str, dict[str, Vector]] = field(default_factory=dict)
    """By run and measure, a value for each test image; {} where they were not kept."""
    compared: "Book | None" = None
    """The same with the worst attack of those that every cell met, where another is worse: of that
    curves are drawn."""
