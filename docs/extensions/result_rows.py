"""Tables and numbers of the pages, drawn from the kept rows of benches.

A page asks for a table in a comment, which holds YAML and names a file of `docs/results`:

    <!-- rows digits.json
    by: variant
    columns: [accuracy, bits-beyond-label]
    -->

All rows that share the keys `by` become one line: means, and from three rows on 95 % t-intervals
over those rows. Keys within keys are written `scores.nll`. A column is a measure that reports know,
or `{key: nll, head: "NLL", digits: 3, scale: 1}`. Further:

- `where: {engine: loop}` keeps the rows with these values; a list allows each of its values;
- `label: [title, strength]` is what the first columns show (else `by`), `heads` is their headings;
- `names: {none: no defence}` shows a value under another name;
- `order: bits-beyond-label` sorts lines by a column's mean, `only: [none, gated]` picks and orders
  them by the first of `by`;
- `anchors: true` adds what an attacker who gets no message reaches.

`<!-- matched frontier-fashion.json ... -->` reads sweeps at the accuracy `loss` points below the
undefended net's. It takes `loss`, `columns`, `only`, and `against`, which shows differences to that
variant instead.

Prose marks a number that it quotes: `[0.30 ± 0.07](row:digits.json?variant=cluster#accuracy)`, at
matched accuracy `[...](matched:digits.json?variant=cluster&loss=2#accuracy)`. For a measure that
reports do not know, `digits=0` and `scale=100` in the query say how it is shown. The text has to be
what the rows give, else the page is refused; shown is the text alone.

Rows are a list of records, or a mapping of names to records, each a row with its `name`.

Where lines of a table and `<!-- end -->` follow the comment, as in the README, they have to be what
would be drawn.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import yaml

from fedcel.runs import per_image
from sims.report.matched_table import (
    COLUMNS,
    Comparison,
    make_anchor_lines,
    make_loss_tables,
    open_comparison,
)
from sims.report.table import format_estimate, format_markdown, make_table
from sims.results import BENCH_FILE, BenchRow, Column, estimate, find_columns, match_rows

RESULTS = Path(__file__).parents[1] / "results"
TABLE = re.compile(
    r"^<!-- (?P<kind>rows|matched) (?P<file>\S+)(?P<request>.*?)-->\n"
    r"(?:(?P<kept>(?:\|.*\n)+)<!-- end -->\n)?",
    re.MULTILINE | re.DOTALL,
)
NUMBER = re.compile(
    r"\[(?P<text>[^][]+)\]\((?P<kind>row|matched):(?P<file>[^?)#\s]+)\?(?P<query>[^)#]*)#(?P<key>[^)]+)\)"
)


class StaleNumberError(ValueError):
    """A page shows what its rows do not give."""


def draw_results(text: str, page: str) -> str:
    """Return a page with its tables drawn and its quoted numbers checked.

    Raises:
        StaleNumberError: Where a number or a kept table is not what the rows give.
    """
    return NUMBER.sub(lambda found: check_number(found, page), draw_tables(text, page))


def draw_tables(text: str, page: str, *, renew: bool = False) -> str:
    """Return a page with its tables drawn; kept ones are compared, or with `renew` renewed."""

    def draw(found: re.Match[str]) -> str:
        request = yaml.safe_load(found["request"]) or {}
        make: Callable[..., str] = {"rows": draw_rows, "matched": draw_matched}[found["kind"]]
        try:
            table = make(found["file"], **request) + "\n"
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{page}: table of {found['file']}: {error!r}") from error
        if not found["kept"]:
            return table
        comment = f"<!-- {found['kind']} {found['file']}{found['request']}-->\n"
        if not renew and found["kept"] != table:
            raise StaleNumberError(f"{page}: a table of {found['file']} should be\n{table}")
        return f"{comment}{table}<!-- end -->\n"

    return TABLE.sub(draw, text)


def check_number(found: re.Match[str], page: str) -> str:
    """Return a quoted number's text, if the rows give it."""
    query = dict(parse_qsl(found["query"]))
    column = find_quoted_column(found["key"], query.pop("digits", None), query.pop("scale", "1"))
    if found["kind"] == "row":
        values = [read_value(row, column.key) for row in select_rows(found["file"], query)]
    else:
        values = match_values(found["file"], query["variant"], float(query["loss"]), column.key)
    if not any(value is not None for value in values):
        raise StaleNumberError(f"{page}: no row for {found[0]}")
    current = format_estimate(column, estimate(values))
    if normalise_number(found["text"]) not in {current, current.partition(" ±")[0]}:
        raise StaleNumberError(f"{page}: {found[0]} is {current} in its rows")
    return found["text"]


def normalise_number(text: str) -> str:
    """Return a number as tables show it: without a unit, with the sign ±."""
    return text.replace("+-", "±").replace(" %", "").replace("−", "-").strip()


@lru_cache
def read_rows(file: str) -> list[dict[str, Any]]:
    """Return the rows of a file of results."""
    kept: Any = json.loads((RESULTS / file).read_text())
    if isinstance(kept, dict):
        kept = [{"name": name, **row} for name, row in kept.items() if isinstance(row, dict)]
    rows: list[dict[str, Any]] = kept
    return rows


def select_rows(file: str, where: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows whose keys have these values, or one of them where a list is given."""
    allowed = {
        key: [str(one) for one in (value if isinstance(value, list) else [value])]
        for key, value in where.items()
    }
    return [
        row
        for row in read_rows(file)
        if all(str(read_value(row, key)) in values for key, values in allowed.items())
    ]


def read_value(row: dict[str, Any], key: str) -> Any:
    """Return the value of a key; `a.b` is a key within a key, None what is not there."""
    if key in row:
        return row[key]
    first, _, rest = key.partition(".")
    inner = row.get(first)
    return read_value(inner, rest) if rest and isinstance(inner, dict) else None


def find_column(column: str | dict[str, Any]) -> Column:
    """Return a measure's column by its key, or one that a page describes itself."""
    if isinstance(column, dict):
        return Column(**{"head": column["key"], "digits": 2} | column)
    key = column.rpartition(".")[2]
    return find_columns(key)[0]._replace(key=column)


def find_quoted_column(key: str, digits: str | None, scale: str) -> Column:
    """Return the column of a number in prose, which may say how it is shown."""
    return find_column(key) if digits is None else Column(key, key, int(digits), float(scale))


def draw_rows(
    file: str,
    *,
    by: str | list[str],
    columns: Sequence[str | dict[str, Any]],
    where: dict[str, Any] | None = None,
    label: str | list[str] | None = None,
    heads: Sequence[str] | None = None,
    names: dict[Any, str] | None = None,
    order: str | None = None,
    only: Sequence[Any] | None = None,
    anchors: bool = False,
) -> str:
    """Return the table of rows that share keys, a line for each group, as Markdown."""
    by = [by] if isinstance(by, str) else by
    label = by if label is None else [label] if isinstance(label, str) else label
    shown = [find_column(column) for column in columns]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in select_rows(file, where or {}):
        groups.setdefault(tuple(str(read_value(row, key)) for key in by), []).append(row)
    if not groups:
        raise ValueError(f"{file} has no rows with {where}")
    keys = list(groups)
    if only is not None:
        wanted = [str(one) for one in only]
        if missing := set(wanted) - {key[0] for key in keys}:
            raise ValueError(f"{file} has no {by[0]} {', '.join(missing)}")
        keys = sorted((key for key in keys if key[0] in wanted), key=lambda k: wanted.index(k[0]))
    if order is not None:
        keys.sort(key=lambda key: mean_of(groups[key], order))
    lines = [
        [
            *(name_value(read_value(groups[key][0], part), names or {}) for part in label),
            *(format_group(groups[key], column) for column in shown),
        ]
        for key in keys
    ]
    if anchors:
        parsed = [BenchRow.model_validate(row) for key in keys for row in groups[key]]
        blank = [""] * (len(label) - 1)
        lines += [[name, *blank, *cells] for name, *cells in make_anchor_lines(parsed, shown)]
    head = [*(heads or label), *(column.head for column in shown)]
    return format_markdown(make_table(file, head, lines, words=len(label)))


def name_value(value: Any, names: dict[Any, str]) -> str:
    """Return a label's cell: its name, or itself."""
    if value is None:
        return names.get("null", "")
    return names.get(value, names.get(str(value), str(value)))


def mean_of(rows: Iterable[dict[str, Any]], key: str) -> float:
    """Return the mean of a measure; infinity where no row has it, so that it sorts last."""
    mean = estimate(read_value(row, key) for row in rows).mean
    return float("inf") if mean is None else mean


def format_group(rows: Iterable[dict[str, Any]], column: Column) -> str:
    """Return mean and interval of one measure over rows."""
    return format_estimate(column, estimate(read_value(row, column.key) for row in rows))


@lru_cache
def compare_variants(file: str, against: str | None = None) -> Comparison:
    """Return a kept bench as `fedcel table` opens it, with the values of each image if kept."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(RESULTS / file, Path(folder) / BENCH_FILE)
        vectors = (RESULTS / file).with_suffix(".safetensors")
        if vectors.exists():
            shutil.copy(vectors, Path(folder) / per_image.FILE)
        return open_comparison(Path(folder), against)


def draw_matched(
    file: str,
    *,
    loss: float,
    columns: Sequence[str] = tuple(column.key for column in COLUMNS[:4]),
    only: Sequence[str] = (),
    against: str | None = None,
) -> str:
    """Return the table of variants at one accuracy, or of their differences to one of them."""
    bench = compare_variants(file, against)
    if unknown := set(only) - set(bench.titles):
        raise ValueError(f"{file} has no variant {', '.join(unknown)}")
    tables = make_loss_tables(bench, loss, columns=find_columns(*columns), only=only)
    return tables[-1].partition("\n\n")[2]


def match_values(file: str, variant: str, loss: float, key: str) -> list[float | None]:
    """Return a variant's measure by seed at an accuracy."""
    bench = compare_variants(file)
    matches = match_rows(bench.rows, bench.measured, loss)[variant]
    return [match.values.get(key) if match else None for match in matches.values()]
