"""A bench as Markdown tables: what each variant leaks at equal accuracy, with intervals."""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fedcel.errors import RunError, SettingsError
from fedcel.files import read_json
from sims.matched import BITS, Matches, Row, areas, differences, matched, seed_of
from sims.report.read import FAILED
from sims.report.summary import estimate
from sims.report.text import NOTHING, interval, number

NEVER = "never this accurate"


class Column(NamedTuple):
    """A measure as the table shows it: its heading, decimals, and what it is multiplied with."""

    key: str
    head: str
    digits: int
    scale: float = 1.0


COLUMNS = (
    Column("accuracy", "accuracy, %", 1, 100),
    Column(BITS, "bits beyond label", 2),
    Column("identification-optimal", "optimal identification, %", 1, 100),
    Column("mse", "worst attack's MSE", 4),
    Column("certificate-bits", "certificate, bits", 2),
    Column("certificate-bits-within-class", "certificate beyond label, bits", 2),
    Column("within-class-spread", "within-class spread", 4),
    Column("attention-share", "attention n_eff/n", 2),
    Column("train-step-ratio", "training step, ×", 2),
    Column("encoder-parameters", "encoder's parameters, k", 1, 1e-3),
    Column("flops-per-inference", "encoder, MFLOP", 3, 1e-6),
    Column("bytes-per-inference", "bytes sent", 0),
)
COMPARED = ("accuracy", BITS, "identification-optimal", "mse")


def table(folder: Path, losses: str = "0,2,5", against: str | None = None) -> str:
    """Return the Markdown of a bench folder: a table for each allowed loss of accuracy.

    `losses` are points below the undefended net, as '0,2,5'; `against` names the variant that
    the others are compared with, paired by seed. SettingsError when either is wrong, RunError
    when bench.json is missing, damaged, or made by a version that wrote less.
    """
    rows = read(folder)
    points = allowed(losses)
    titles = {str(row["variant"]): str(row.get("title", row["variant"])) for row in rows}
    if against is not None and against not in titles:
        raise SettingsError(f"--against is {against!r}, must be one of {', '.join(titles)}")
    parts = [f"Variants at matched accuracy.\n\n{conditions(rows)}{left_out(folder)}"]
    for loss in points:
        found = matched(rows, loss)
        below = "the undefended accuracy" if loss == 0 else f"{loss:g} points below undefended"
        parts.append(f"**At {below}**\n\n{main(found, titles, rows)}")
        if against is not None:
            parts.append(
                f"Difference to {titles[against]}, paired by seed:\n\n"
                f"{paired(found, titles, against)}"
            )
    if max(points) > 0:
        parts.append(overall(areas(rows, max(points)), titles, max(points), against))
    return "\n\n".join(parts) + "\n"


def read(folder: Path) -> list[Row]:
    """Return the rows of a bench folder; RunError when it has none."""
    rows = read_json(folder / "bench.json")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise RunError(f"{folder / 'bench.json'} has no rows; run `fedcel bench` first")
    for row in rows:
        if "variant" not in row:
            raise RunError(f"{folder / 'bench.json'} is damaged: a row names no variant")
    return rows


def left_out(folder: Path) -> str:
    """Return which cells failed and so are in no row; nothing where none did."""
    found = read_json(folder / FAILED) if (folder / FAILED).exists() else []
    names = [str(each["cell"]) for each in found] if isinstance(found, list) else []
    return f" Failed, and in no row: {', '.join(names)}." if names else ""


def allowed(text: str) -> list[float]:
    """Return the points of accuracy that '0,2,5' names; SettingsError if it names none."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(0 <= loss < 100 for loss in found):
        raise SettingsError(f"--loss is {text!r}, must be points of accuracy below 100, as '0,2,5'")
    return found


def conditions(rows: Sequence[Row]) -> str:
    """Return what the numbers hold for: targets, caps, seeds, how to read the signs."""
    seeds = sorted({seed_of(row) for row in rows})
    bare = dict.fromkeys(str(row.get("title")) for row in rows if row.get("undefended"))
    said = (
        f"M = {_all(rows, 'candidates', 0)} targets; bits beyond the label are at most "
        f"{_all(rows, 'bits-cap', 2)}; identification is among "
        f"{_all(rows, 'identification-candidates', 0)} images. "
        f"Seeds {', '.join(map(str, seeds))}; mean ± 95 % t-interval over seeds, from three on. "
        f"The undefended variant is {next(iter(bare), NOTHING)!r}, accuracy matched seed by seed, "
        "linearly between neighbouring strengths. "
    )
    return said + (
        "≤: the sweep ends, or is best, at a higher accuracy, so it leaks at most this; "
        f"{NOTHING}: not measured. The bits are exact for these targets and one message each."
    )


def main(found: Mapping[str, Matches], titles: Mapping[str, str], rows: Sequence[Row]) -> str:
    """Return one line per variant and the two anchors."""
    seeds = len({seed_of(row) for row in rows})
    lines = [[titles[name], *cells(matches, seeds)] for name, matches in found.items()]
    return markdown(["variant", *(c.head for c in COLUMNS)], [*lines, *anchors(rows)])


def cells(matches: Matches, seeds: int) -> list[str]:
    """Return a variant's measures; it says of how many seeds, where not of all of them."""
    there = [match for match in matches.values() if match is not None]
    if not there:
        return [NOTHING, NEVER, *(NOTHING for _ in COLUMNS[2:])]
    texts = {c.key: spread(c, (match.values.get(c.key) for match in there)) for c in COLUMNS}
    sign = "≤ " if any(match.bound for match in there) else ""
    some = "" if len(there) == seeds else f" ({len(there)} of {seeds} seeds)"
    return list((texts | {BITS: f"{sign}{texts[BITS]}{some}"}).values())


def anchors(rows: Sequence[Row], columns: Sequence[Column] = COLUMNS) -> list[list[str]]:
    """Return what an attacker knows without any message: the label, or nothing."""
    chance = [1 / float(str(n)) for row in rows if (n := row.get("identification-candidates"))]
    known = (
        ("*label only (class means)*", numbers(rows, "label-only-identification"), "oracle-mse"),
        ("*nothing (mean image)*", chance, "mean-mse"),
    )
    return [
        [
            name,
            *(
                {
                    BITS: number(0.0, 2),
                    "identification-optimal": spread(c, [estimate(right).mean]),
                    "mse": spread(c, [estimate(numbers(rows, mse)).mean]),
                }.get(c.key, NOTHING)
                for c in columns
            ),
        ]
        for name, right, mse in known
    ]


def paired(found: Mapping[str, Matches], titles: Mapping[str, str], against: str) -> str:
    """Return each variant's differences to one of them, with intervals over common seeds."""
    columns = [column for column in COLUMNS if column.key in COMPARED]
    theirs = found[against]
    lines = []
    for name, ours in found.items():
        if name == against:
            continue
        each = {c.key: differences(ours, theirs, c.key) for c in columns}
        texts = {c.key: spread(c, each[c.key].values()) for c in columns}
        texts[BITS] = f"{sign(ours, theirs, each[BITS])}{texts[BITS]}"
        lines.append([titles[name], *texts.values(), str(len(each[BITS]))])
    return markdown(["variant", *(c.head for c in columns), "seeds"], lines)


def overall(
    found: Mapping[str, Mapping[int, float]],
    titles: Mapping[str, str],
    most: float,
    against: str | None,
) -> str:
    """Return each curve's mean bits over the losses up to `most`, the least first."""
    column = Column(BITS, f"mean bits beyond label, 0 to {most:g} points lost", 2)
    head = ["variant", column.head]
    head += [f"difference to {titles[against]}, paired by seed"] if against else []
    lines = []
    for name, area in sorted(found.items(), key=lambda item: fmean(item[1].values())):
        line = [titles[name], spread(column, area.values())]
        if against:
            other = found[against]
            gaps = [area[seed] - other[seed] for seed in area if seed in other]
            line.append(NOTHING if name == against else spread(column, gaps))
        lines.append(line)
    said = (
        "**Over all losses.** The area under each curve, over its width: at every loss the fewest "
        "bits that the variant reaches, or the undefended net's."
    )
    return f"{said}\n\n{markdown(head, lines)}"


def sign(ours: Matches, theirs: Matches, common: Iterable[int]) -> str:
    """Return what bounds make of a difference: at most, at least, or not known which."""
    seeds = list(common)
    mine, other = (any((m := side[s]) and m.bound for s in seeds) for side in (ours, theirs))
    return {(False, False): "", (True, False): "≤ ", (False, True): "≥ "}.get((mine, other), "≶ ")


def numbers(rows: Iterable[Row], key: str) -> list[float]:
    """Return a key's numbers, where rows have one."""
    return [float(str(row[key])) for row in rows if row.get(key) is not None]


def markdown(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; a bar within a cell would end it and is escaped."""
    rule = ["---"] * len(head)
    rows = [[cell.replace("|", "\\|") for cell in line] for line in (head, rule, *lines)]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def spread(column: Column, values: Iterable[float | None]) -> str:
    """Return mean and interval of a column's values."""
    return interval(estimate(values), column.digits, column.scale)


def _all(rows: Sequence[Row], key: str, digits: int) -> str:
    """Return a number that rows share, or each of several; a dash where none has it."""
    found = dict.fromkeys(number(value, digits) for value in numbers(rows, key))
    return ", ".join(found) or NOTHING
