"""Leak of several messages: from a run's file to the table of the report."""

import json

from fedcel.leakage import SequenceLeak
from sims.report.sequences_table import average_sequences, tabulate_sequences
from sims.results.records import RunResult
from tests.sims.report.made import cell


def test_a_file_keeps_the_sequences() -> None:
    """As records of a result, which older files lack."""
    result = cell("none", 0.9, 1.0).results[0]
    assert result.linearised_sequences == ()
    parts = [{"messages": 1, "bits": 2.0, "mse": 0.04}, {"messages": 4, "bits": 3.5, "mse": 0.03}]
    written = json.loads(result.model_dump_json(by_alias=True)) | {"linearised-sequences": parts}
    again = RunResult.model_validate_json(json.dumps(written))
    assert again.linearised_sequences == (SequenceLeak(1, 2.0, 0.04), SequenceLeak(4, 3.5, 0.03))


def test_rows_of_each_encoder() -> None:
    """Bits and error, mean over runs; a dash where a number of messages is missing."""
    runs = [[SequenceLeak(1, 2.0, 0.04), SequenceLeak(4, 3.0, 0.03)], [SequenceLeak(1, 4.0, 0.02)]]
    table = tabulate_sequences(
        {"noise": average_sequences(runs), "": [SequenceLeak(16, 9.0, 0.01)]}
    )
    assert table.head == ("", "1 message", "4 messages", "16 messages")
    assert table.rows == (
        ("noise, bits", "3.0", "3.0", "–"),
        ("noise, least MSE", "0.0300", "0.0300", "–"),
        ("bits", "–", "–", "9.0"),
        ("least MSE", "–", "–", "0.0100"),
    )
