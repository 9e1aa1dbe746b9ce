"""Summaries without files."""

from fedcel.settings import Settings
from sims.report.summary import FinishedRun, Summary
from sims.results.intervals import measure_rows
from sims.results.records import BenchRow, CellAttack, RoundEvent, RunResult


def cell(
    name: str,
    accuracy: float,
    bits: float | list[float] | None,
    identification: float = 0.5,
    *,
    label: str | None = None,
    validation: float | None = None,
    attack: CellAttack | None = None,
    chance: float | None = 0.12,
    **changes: object,
) -> Summary:
    """Return a summary of one seed, or of a seed for each number of bits."""
    numbers = bits if isinstance(bits, list) else [bits]
    leak = {"accuracy": accuracy, "identification_optimal": identification, "candidates": 397}
    leak |= {"identification_candidates": 100, "label_only_identification": 0.1, "bits_cap": 5.3}
    rows = [
        BenchRow.model_validate(
            {"variant": name, "seed": seed, "run": "r", "undefended": name == "none",
             "bits_beyond_label": number, "attacks": (), "worst": attack, **leak, **changes}
        )
        for seed, number in enumerate(numbers)
    ]  # fmt: skip
    result = RunResult.model_validate(
        {"bits_beyond_label": numbers[0], "information_bits": 6.0, "certificate_bits": 7.0,
         "chance_accuracy": chance, **leak}
    )  # fmt: skip
    events = () if validation is None else (RoundEvent(round=1, accuracy=validation),)
    run = FinishedRun(Settings(), events, result, (), {}, {})
    return Summary(label or name, tuple(rows), (run,) * len(rows), measure_rows(rows, {}))
