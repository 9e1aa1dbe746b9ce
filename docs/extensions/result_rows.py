"""Tables and numbers of the pages, drawn from the kept rows of benches.

A page asks for a table in a comment, which holds YAML and names a file of `docs/results`:

    <!-- rows digits.json
    by: variant
    columns: [accuracy, bits-beyond-label]
    -->

All rows that share the keys `by` become one line: means, and from three rows on 95 % t-intervals
over those rows. Keys within keys are written `scores.nll`, those of an attack on the row's cell
`attacks.decoder.mse`, `attacks.decoder:4.mse` for four times the effort, or with what it knows
`attacks.kernel-ridge:training-size.mse` or also sees `attacks.attribute:held-out:smashed-data.mse`.
A column is a measure that reports know, or
`{key: nll, head: "NLL", digits: 3, scale: 1}`; a measure's head, digits and scale may be left out.
Further:

- `where: {engine: loop}` keeps the rows with these values; a list allows each of its values;
- `label: [title, strength]` is what the first columns show (else `by`), `heads` is their headings;
- `names: {none: no defence}` shows a value under another name;
- `order: bits-beyond-label` sorts lines by a column's mean, `only: [none, gated]` picks and orders
  them by the first of `by`, `only: [none, [plain, 0.1]]` by the first ones;
- `against: cluster` or `against: [plain, 0.1]` names a line, `compare: [bits-beyond-label]` adds
  columns of the differences to it, paired by seed;
- `across: epsilon` makes a column of each value of that key, of which `columns` are measured;
- `anchors: true` adds what an attacker who gets no message reaches.

A file `NAME.toml` is the packaged scenario of that name; its variants are the rows.

`<!-- matched frontier-fashion.json ... -->` reads sweeps at the accuracy `loss` points below the
undefended net's. It takes `loss`, `columns`, `only`, and `against`, which shows differences to that
variant instead, or beside the columns those of the measures in `compare`. With `over: 5` in the
place of `loss` it draws means over all losses up to 5 points.

Prose marks a number that it quotes: `[0.30 ± 0.07](row:digits.json?variant=cluster#accuracy)`, at
matched accuracy `[...](matched:digits.json?variant=cluster&loss=2#accuracy)`, over all losses
`[...](matched:digits.json?variant=cluster&over=5#bits-beyond-label)`. A difference paired by seed
has `against=plain` at matched accuracy, and between rows the keys in which the other row differs:
`row:digits.json?variant=plain&against.variant=cluster`. `digits=3` and `scale=100` say how a row's
number is shown, also one of which reports know nothing. `trials=8` says that each row's number is
the share of 8 trials: `[79, 60 to 91](row:...)` has Wilson's 95 % interval over the trials of all
rows, which stays between 0 and 100 %. The text has to be what the rows give, else
the page is refused; it may leave out the interval and how many seeds it holds for, and not that it
is a bound (≤). Shown is the text alone.

Rows are a list of records, or a mapping of names to records, each a row with its `name`.

Where lines of a table and `<!-- end -->` follow the comment, as in the README, they have to be what
would be drawn.
"""

import json
import re
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import yaml
from scipy.stats import binomtest

from fedcel import per_image
from sims.report.matched_table import (
    AVERAGED,
    COLUMNS,
    Comparison,
    format_gaps,
    format_match,
    open_comparison,
    tabulate_matches,
)
from sims.report.table import format_estimate, format_markdown, list_anchors, make_table, tabulate
from sims.results.columns import BITS, Column, find_columns
from sims.results.intervals import estimate
from sims.results.matched_accuracy import Matches, average_curves, match_curves
from sims.results.records import BENCH_FILE, BenchRow

RESULTS = Path(__file__).parents[1] / "results"
SCENARIOS = Path(__file__).parents[2] / "sims" / "scenarios"
TABLE = re.compile(
    r"^<!-- (?P<kind>rows|matched) (?P<file>\S+)(?P<request>.*?)-->\n"
    r"(?:(?P<kept>(?:\|.*\n)+)<!-- end -->\n)?",
    re.MULTILINE | re.DOTALL,
)
NOTE = re.compile(r" \([^)]*(?:seeds|images)\)")
"""Of how few seeds or samples of images a number is, after it."""
ANY = object()
"""Stands for every value of a key."""
OTHER = "against."
"""Before the keys in which the row that a row is compared with differs from it."""
FORM = ("digits", "scale", "trials")
"""What a query says of a number's form, beside the keys that its rows have."""
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
    quote = quote_row if found["kind"] == "row" else quote_match
    try:
        current = quote(found["file"], dict(parse_qsl(found["query"])), found["key"])
    except (KeyError, ValueError) as error:
        raise StaleNumberError(f"{page}: no row for {found[0]}: {error!r}") from error
    without_note = NOTE.sub("", current)
    allowed = {current, without_note, re.split(" ±|, ", without_note)[0]}
    if normalise_number(found["text"]) not in {normalise_number(text) for text in allowed}:
        raise StaleNumberError(f"{page}: {found[0]} is {current} in its rows")
    return found["text"]


def quote_row(file: str, query: dict[str, str], key: str) -> str:
    """Return the mean of a measure over the rows of a query, or of differences paired by seed.

    Raises:
        ValueError: When no row has the measure.
    """
    changed = {
        name.removeprefix(OTHER): value for name, value in query.items() if name.startswith(OTHER)
    }
    form = {name: float(query[name]) for name in FORM if name in query}
    where = {
        name: value
        for name, value in query.items()
        if not name.startswith(OTHER) and name not in FORM
    }
    trials = int(form.pop("trials", 0))
    column = find_column({"key": key} | form)
    column = column._replace(digits=int(column.digits))
    rows = select_rows(file, where)
    if changed:
        other = select_rows(file, where | changed)
        values: Sequence[float | None] = subtract_rows(rows, other, column.key)
    else:
        values = [read_value(row, column.key) for row in rows]
    if all(value is None for value in values):
        raise ValueError(f"no row has {key}")
    if trials:
        return format_share_of(column, values, trials)
    return format_estimate(column, estimate(values))


def format_share_of(column: Column, shares: Sequence[float | None], trials: int) -> str:
    """Return the share of all rows' trials that succeeded, and Wilson's 95 % interval.

    Raises:
        ValueError: When a row's number is no share of so many trials.
    """
    counts = [float(share) * trials for share in shares if share is not None]
    if any(abs(count - round(count)) > 1e-6 for count in counts):
        raise ValueError(f"{column.key} is {shares}, no shares of {trials} trials")
    found = binomtest(round(sum(counts)), trials * len(counts))
    interval = found.proportion_ci(method="wilson")
    ends = (found.statistic, interval.low, interval.high)
    share, low, high = (f"{column.scale * end:.{int(column.digits)}f}" for end in ends)
    return f"{share}, {low} to {high}"


def quote_match(file: str, query: dict[str, str], key: str) -> str:
    """Return a variant's measure, or its difference to another's, as the tables have it.

    Raises:
        ValueError: When nothing was measured.
    """
    variant, against = query["variant"], query.get("against")
    column = find_column(key)
    at = {name: float(query[name]) for name in ("loss", "over") if name in query}
    matches = match_bench(file, **at)
    if against:
        current = format_gaps(matches[variant], matches[against], [column, BITS])[0]
    else:
        columns = tuple(dict.fromkeys([column, BITS]))
        current = format_match(matches[variant], compare_variants(file), columns)[0]
    if not any(character.isdigit() for character in current):
        raise ValueError(f"{variant} has no {key} there: {current}")
    return current


def normalise_number(text: str) -> str:
    """Return a number as tables show it: without a unit, with the signs ± and ≤."""
    text = text.replace("+-", "±").replace(" %", "").replace("at most ", "≤ ")
    return text.replace("−", "-").strip()


@lru_cache
def read_rows(file: str) -> list[dict[str, Any]]:
    """Return the rows of a file of results."""
    kept: Any
    if file.endswith(".toml"):
        kept = tomllib.loads((SCENARIOS / file).read_text())["variant"]
    else:
        kept = json.loads((RESULTS / file).read_text())
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
    if rest and isinstance(inner, list):
        attack, _, rest = rest.partition(".")
        inner = find_attack(inner, attack)
    return read_value(inner, rest) if rest and isinstance(inner, dict) else None


def find_attack(attacks: Iterable[dict[str, Any]], wanted: str) -> dict[str, Any] | None:
    """Return the attack called `name`, `name:budget`, `name:knowledge` or more, if it was made.

    What it observes may be named as what it knows is: `attribute:held-out:smashed-data`. Without a
    budget it is the usual one, 1, or a lower one where there is no other.

    Raises:
        ValueError: When several have these.
    """
    name, *rest = wanted.split(":")
    budgets = [float(part) for part in rest if part.isdecimal()]
    conditions = {part for part in rest if not part.isdecimal()}
    named = [
        attack
        for attack in attacks
        if attack["attack"] == name
        and conditions <= {attack["knowledge"], attack.get("observation")}
    ]
    found = [one for one in named if one["budget"] is None or one["budget"] in (budgets or [1.0])]
    if not found and not budgets:
        found = [one for one in named if one["budget"] < 1]
    if len(found) > 1:
        raise ValueError(f"{wanted} names {len(found)} attacks; say what it knows")
    return found[0] if found else None


def find_column(column: str | dict[str, Any]) -> Column:
    """Return a measure's column by its key, or one that a page describes itself."""
    if isinstance(column, dict):
        try:
            known = find_column(column["key"])._asdict()
        except KeyError:
            known = {"head": column["key"], "digits": 2}
        return Column(**known | column)
    key = column.rpartition(".")[2]
    return find_columns(key)[0]._replace(key=column)


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
    against: Any = None,
    compare: Sequence[str | dict[str, Any]] = (),
    across: str | None = None,
) -> str:
    """Return the table of rows that share keys, a line for each group, as Markdown."""
    by = [by] if isinstance(by, str) else by
    label = by if label is None else [label] if isinstance(label, str) else label
    shown = [find_column(column) for column in columns]
    compared = [find_column(column) for column in compare]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    selected = select_rows(file, where or {})
    spread = list_columns(selected, shown, across, names or {})
    for row in selected:
        groups.setdefault(tuple(str(read_value(row, key)) for key in by), []).append(row)
    if not groups:
        raise ValueError(f"{file} has no rows with {where}")
    keys = list(groups)
    if only is not None:
        keys = [key for start in map(as_key, only) for key in find_keys(keys, start, file)]
    if order is not None:
        keys.sort(key=lambda key: mean_of(groups[key], order))
    lines = [
        [
            *(name_value(read_value(groups[key][0], part), names or {}) for part in label),
            *(
                format_group(
                    (row for row in groups[key] if value in (ANY, read_value(row, across or ""))),
                    column,
                )
                for value, column in spread
            ),
        ]
        for key in keys
    ]
    if against is not None:
        (reference,) = find_keys(list(groups), as_key(against), file)
        for key, line in zip(keys, lines, strict=True):
            gaps = ([] if key == reference else groups[key], groups[reference])
            line += [format_gap(*gaps, column) for column in compared]
    if anchors:
        parsed = [BenchRow.model_validate(row) for key in keys for row in groups[key]]
        before, after = [""] * (len(label) - 1), [""] * len(compared)
        plain = [column._replace(key=column.key.rpartition(".")[2]) for column in shown]
        found = tabulate(file, ["variant"], plain, list_anchors(parsed))
        lines += [[name, *before, *cells, *after] for name, *cells in found.rows]
    head = [*(heads or label), *(column.head for _, column in spread)]
    head += [f"{column.head}: difference" for column in compared]
    return format_markdown(make_table(file, head, lines, words=len(label)))


def list_columns(
    rows: Iterable[dict[str, Any]],
    columns: Sequence[Column],
    across: str | None,
    names: dict[Any, str],
) -> list[tuple[Any, Column]]:
    """Return each column with the value of `across` that its rows have; `ANY` without `across`."""
    if across is None:
        return [(ANY, column) for column in columns]
    values = dict.fromkeys(read_value(row, across) for row in rows)
    return [
        (value, column.titled(name_value(value, names) + suffix))
        for value in values
        for column in columns
        for suffix in [f": {column.head}" if len(columns) > 1 else ""]
    ]


def as_key(one: Any) -> tuple[str, ...]:
    """Return what starts a group's key: one value, or a list of the first ones."""
    return tuple(str(part) for part in (one if isinstance(one, list) else [one]))


def find_keys(
    keys: Sequence[tuple[str, ...]], start: tuple[str, ...], file: str
) -> list[tuple[str, ...]]:
    """Return the keys that start so; ValueError if there is none."""
    found = [key for key in keys if key[: len(start)] == start]
    if not found:
        raise ValueError(f"{file} has no {', '.join(start)}")
    return found


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


def subtract_rows(
    rows: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]], key: str
) -> list[float]:
    """Return the differences of a measure in rows of the same seed, where both have it.

    Raises:
        ValueError: When several rows of one side have the same seed.
    """
    ours, reference = (
        {row["seed"]: read_value(row, key) for row in side} for side in (rows, other)
    )
    if len(ours) < len(rows) or len(reference) < len(other):
        raise ValueError("several rows have the same seed; name more of their keys")
    return [
        ours[seed] - reference[seed]
        for seed in sorted(ours.keys() & reference.keys())
        if ours[seed] is not None and reference[seed] is not None
    ]


def format_gap(
    rows: Sequence[dict[str, Any]], other: Sequence[dict[str, Any]], column: Column
) -> str:
    """Return the mean difference of rows paired by seed; nothing of no pair."""
    gaps = subtract_rows(rows, other, column.key)
    return format_estimate(column, estimate(gaps)) if gaps else ""


@lru_cache
def compare_variants(file: str, against: str | None = None) -> Comparison:
    """Return a kept bench as `fedcel table` opens it, with the values of each image if kept."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(RESULTS / file, Path(folder) / BENCH_FILE)
        vectors = (RESULTS / file).with_suffix(".safetensors")
        if vectors.exists():
            shutil.copy(vectors, Path(folder) / per_image.FILE)
        return open_comparison(Path(folder), against)


@lru_cache
def match_bench(
    file: str, loss: float | None = None, over: float | None = None
) -> dict[str, Matches]:
    """Return the variants of a kept bench at an accuracy, or their means over all losses.

    Raises:
        ValueError: When neither `loss` nor `over` is given.
    """
    curves = compare_variants(file).curves
    if over is not None:
        return average_curves(curves, over)
    if loss is None:
        raise ValueError("neither loss nor over says at which accuracy")
    return match_curves(curves, loss)


def draw_matched(
    file: str,
    *,
    loss: float | None = None,
    over: float | None = None,
    columns: Sequence[str] = tuple(column.key for column in COLUMNS[:4]),
    only: Sequence[str] = (),
    against: str | None = None,
    compare: Sequence[str] = (),
) -> str:
    """Return the table of variants at one accuracy, or of their differences to one of them."""
    bench = compare_variants(file, against)
    if unknown := set(only) - set(bench.titles):
        raise ValueError(f"{file} has no variant {', '.join(unknown)}")
    matches = match_bench(file, loss, over)
    if over is not None:
        columns = compare = [column.key for column in AVERAGED]
    if compare and against:
        names = list(only or matches)
        return draw_beside(bench, matches, columns, names, compare)
    tables = tabulate_matches(file, bench, matches, find_columns(*columns), only=only)
    return format_markdown(tables[-1])


def draw_beside(
    bench: Comparison,
    matches: dict[str, Matches],
    columns: Sequence[str],
    names: Sequence[str],
    compare: Sequence[str],
) -> str:
    """Return measures of variants, and beside them differences to `bench.against`."""
    shown, compared, against = find_columns(*columns), find_columns(*compare), str(bench.against)
    nothing = [""] * len(compare)
    lines = []
    for name in names:
        gaps = format_gaps(matches[name], matches[against], compared)[:-1]
        cells = format_match(matches[name], bench, shown)
        lines.append([bench.titles[name], *cells, *(nothing if name == against else gaps)])
    anchors = tabulate("", ["variant"], shown, list_anchors(bench.rows))
    lines += [[*line, *nothing] for line in anchors.rows]
    heads = [f"{column.head}: to {bench.titles[against]}" for column in compared]
    return format_markdown(make_table("", [*anchors.head, *heads], lines))
