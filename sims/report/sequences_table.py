"""Table of the leak of several messages of one image."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from fedcel.leakage import SequenceLeak
from sims.report.table import DASH, Table, format_number, make_table


def average_sequences(runs: Sequence[Sequence[SequenceLeak]]) -> list[SequenceLeak]:
    """Average the leak of each number of messages over the runs that have it."""
    by_number: dict[int, list[SequenceLeak]] = {}
    for part in (part for run in runs for part in run):
        by_number.setdefault(part.messages, []).append(part)
    return [
        SequenceLeak(number, fmean(p.bits for p in parts), fmean(p.mse for p in parts))
        for number, parts in by_number.items()
    ]


def tabulate_sequences(sequences: Mapping[str, Sequence[SequenceLeak]]) -> Table:
    """Return two rows for each encoder, bits and error, and a column for each number of messages.

    `sequences` are by the name of the encoder; of a single one that may be empty.
    """
    numbers = sorted({part.messages for parts in sequences.values() for part in parts})
    rows = []
    for name, parts in sequences.items():
        by_number = {part.messages: part for part in parts}
        for words, key, digits in (("bits", "bits", 1), ("least MSE", "mse", 4)):
            values = (getattr(by_number.get(number), key, None) for number in numbers)
            cells = [DASH if value is None else format_number(value, digits) for value in values]
            rows.append([f"{name}, {words}" if name else words, *cells])
    head = ("", *(f"{number} message{'s' * (number > 1)}" for number in numbers))
    return make_table("Several messages of one image", head, rows)
