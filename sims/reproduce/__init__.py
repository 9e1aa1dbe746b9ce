"""Make published tables again, and compare their rows with the published ones."""

from sims.reproduce.compare_rows import ComparedNumber, Comparison, compare_rows, flatten_row
from sims.reproduce.make_tables import make_tables
from sims.reproduce.published_tables import (
    PublishedTable,
    describe_hours,
    describe_tables,
    find_tables,
    format_command_table,
    read_data,
    read_tables,
)

__all__ = [
    "ComparedNumber",
    "Comparison",
    "PublishedTable",
    "compare_rows",
    "describe_hours",
    "describe_tables",
    "find_tables",
    "flatten_row",
    "format_command_table",
    "make_tables",
    "read_data",
    "read_tables",
]
