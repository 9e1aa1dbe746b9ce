"""A bench as Markdown tables: what each variant leaks at equal accuracy, with intervals."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from fedcel.errors import SettingsError
from fedcel.files import read_json
from sims.report.read import FAILED
from sims.report.table import format_markdown, make_table
from sims.report.table_columns import Column, format_spread, select_numbers
from sims.report.text import DASH, format_number
from sims.results.estimate import estimate
from sims.results.intervals import complete_mean, resample_rows, select_image_vectors
from sims.results.matched_accuracy import (
    BITS,
    Matches,
    Row,
    Values,
    curve_areas,
    match_rows,
    paired_differences,
    row_seed,
)
from sims.results.rows import read_bench_rows, read_uneven
from sims.results.worst_attack import FAILED_ATTACKS

NEVER = "never this accurate"


COLUMNS = (
    Column("accuracy", "accuracy, %", 1, 100),
    Column(BITS, "bits beyond label", 2),
    Column("identification-optimal", "optimal identification, %", 1, 100),
    Column("mse", "attack's MSE", 4),
    Column("certificate-bits", "certificate, bits", 2),
    Column("certificate-bits-within-class", "certificate beyond label, bits", 2),
    Column("within-class-spread", "within-class spread", 4),
    Column("attention-share", "attention n_eff/n", 2),
    Column("train-step-ratio", "training step, ×", 2),
    Column("encoder-parameters", "encoder's parameters, k", 1, 1e-3),
    Column("flops-per-inference", "encoder, MFLOP", 3, 1e-6),
    Column("bytes-per-inference", "bytes sent", 0),
)
SURE = 0.9
"""A variant that reaches an accuracy in fewer of the bootstrap samples is said to."""
COMPARED = ("accuracy", BITS, "identification-optimal", "mse")
Of = Mapping[str, Matches]
"""By variant."""
Areas = Mapping[str, Mapping[int, Values]]
"""By variant and seed."""


def make_matched_tables(folder: Path, losses: str = "0,2,5", against: str | None = None) -> str:
    """Return the Markdown of a bench folder: a table for each allowed loss of accuracy.

    `losses` are points below the undefended net, as '0,2,5'; `against` names the variant that
    the others are compared with, paired by seed. SettingsError when either is wrong, RunError
    when bench.json is missing, damaged, or made by a version that wrote less.
    """
    rows = read_bench_rows(folder, even=True)
    points = parse_losses(losses)
    titles = {str(row["variant"]): str(row.get("title", row["variant"])) for row in rows}
    if against is not None and against not in titles:
        raise SettingsError(f"--against is {against!r}, must be one of {', '.join(titles)}")
    again = resample_rows(rows, select_image_vectors(folder, rows))
    said = (
        describe_conditions(rows)
        + describe_attacks(rows, read_uneven(folder))
        + describe_failed_attacks(rows)
        + describe_intervals(again)
    )
    parts = [f"Variants at matched accuracy.\n\n{said}{describe_failures(folder)}"]
    for loss in points:
        found, drawn = match_rows(rows, loss), [match_rows(each, loss) for each in again]
        below = "the undefended accuracy" if loss == 0 else f"{loss:g} points below undefended"
        parts.append(f"**At {below}**\n\n{make_main_table(found, drawn, titles, rows)}")
        if against is not None:
            parts.append(
                f"Difference to {titles[against]}, paired by seed:\n\n"
                f"{make_paired_table(found, drawn, titles, against)}"
            )
    if most := max(points):
        drawn_areas = [curve_areas(each, most) for each in again]
        parts.append(
            make_overall_table(curve_areas(rows, most), drawn_areas, titles, most, against)
        )
    return "\n\n".join(parts) + "\n"


def describe_failures(folder: Path) -> str:
    """Return which cells failed and so are in no row; nothing where none did."""
    found = read_json(folder / FAILED) if (folder / FAILED).exists() else []
    names = [str(each["cell"]) for each in found] if isinstance(found, list) else []
    return f" Failed, and in no row: {', '.join(names)}." if names else ""


def parse_losses(text: str) -> list[float]:
    """Return the points of accuracy that '0,2,5' names; SettingsError if it names none."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = [math.nan]
    if not all(0 <= loss < 100 for loss in found):
        raise SettingsError(f"--loss is {text!r}, must be points of accuracy below 100, as '0,2,5'")
    return found


def describe_conditions(rows: Sequence[Row]) -> str:
    """Return what the numbers hold for: targets, caps, seeds, how to read the signs."""
    seeds = sorted({row_seed(row) for row in rows})
    bare = dict.fromkeys(str(row.get("title")) for row in rows if row.get("undefended"))
    said = (
        f"M = {_all(rows, 'candidates', 0)} targets; bits beyond the label are at most "
        f"{_all(rows, 'bits-cap', 2)}; identification is among "
        f"{_all(rows, 'identification-candidates', 0)} images. "
        f"Seeds {', '.join(map(str, seeds))}; means with 95 % intervals from three seeds on. "
        f"The undefended variant is {next(iter(bare), DASH)!r}, accuracy matched seed by seed, "
        "linearly between neighbouring strengths. "
    )
    return said + (
        "≤: the sweep ends, or is best, at a higher accuracy, so it leaks at most this; "
        f"{DASH}: not measured. The bits are exact for these targets and one message each."
    )


def _plain(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def describe_attacks(rows: Sequence[Row], others: Sequence[Row]) -> str:
    """Return which trained attacks the rows' errors are of, and on how many targets if not all.

    And which others some cells alone have met.
    """
    keys = "worst-attack", "worst-knowledge", "worst-budget"
    found: dict[str, None] = {}
    scored = [row for row in rows if row.get("mse") is not None]
    for row in scored:
        said = ", ".join(_plain(row[key]) for key in keys if row.get(key) is not None)
        count = row.get("worst-targets") or row.get("candidates")
        found[said if count == row.get("candidates") else f"{said}, {count} targets"] = None
    rest = dict.fromkeys(
        ", ".join(_plain(row[key]) for key in ("attack", "knowledge", "budget") if row.get(key))
        for row in others
        if row.get("attack")
    )
    met = "every cell" if len(scored) == len(rows) else f"{len(scored)} of {len(rows)} cells"
    whose = f" MSE: the worst attack that {met} met (knowledge, budget): "
    told = f"{whose}{'; '.join(found)}." if found else ""
    return told + (f" Not on every cell, and left out: {'; '.join(rest)}." if rest else "")


def describe_failed_attacks(rows: Sequence[Row]) -> str:
    """Return which attacks failed in which runs: there the worst is that of the others."""
    found = [
        f"{row['run']} ({', '.join(map(str, names))})"
        for row in rows
        if isinstance(names := row.get(FAILED_ATTACKS), list)
    ]
    said = f" Attacks that failed, and so are in no number: {'; '.join(found)}."
    return said if found else ""


def describe_intervals(again: Sequence[object]) -> str:
    """Return what the intervals are over."""
    if not again:
        return " Intervals: Student's t over seeds; these test images are taken as given."
    return (
        " Intervals: Student's t over seeds and, added as variances, a bootstrap over the test "
        f"images, {len(again)} samples, the same in every cell, candidates held fixed; of "
        "accuracy, bits, identification and, where it was kept, the attack's error. All else is "
        "over seeds alone."
    )


def make_main_table(
    found: Of, again: Sequence[Of], titles: Mapping[str, str], rows: Sequence[Row]
) -> str:
    """Return one line per variant and the two anchors."""
    seeds = len({row_seed(row) for row in rows})
    lines = [
        [titles[name], *format_match(matches, [each[name] for each in again], seeds)]
        for name, matches in found.items()
    ]
    head = ("variant", *(c.head for c in COLUMNS))
    return format_markdown(
        make_table("At matched accuracy", head, [*lines, *make_anchor_lines(rows)])
    )


def format_match(matches: Matches, again: Sequence[Matches], seeds: int) -> list[str]:
    """Return a variant's measures; it says of how many seeds, where not of all of them.

    `again` are its matches in bootstrap samples of the images.
    """
    there = [match for match in matches.values() if match is not None]
    if not there:
        return [DASH, NEVER, *(DASH for _ in COLUMNS[2:])]

    def of(each: Matches, key: str) -> list[float | None]:
        found = (each[seed] for seed, match in matches.items() if match)
        return [match.values.get(key) if match else None for match in found]

    texts = {
        c.key: format_spread(
            c,
            of(matches, c.key),
            (complete_mean(of(each, c.key)) for each in again if c.key in COMPARED),
        )
        for c in COLUMNS
    }
    reached = sum(None not in of(each, BITS) for each in again)
    sign = "≤ " if any(match.bound for match in there) else ""
    some = "" if len(there) == seeds else f" ({len(there)} of {seeds} seeds)"
    if reached < SURE * len(again):
        some += f" (in {reached} of {len(again)} samples of images)"
    return list((texts | {BITS: f"{sign}{texts[BITS]}{some}"}).values())


def make_anchor_lines(rows: Sequence[Row], columns: Sequence[Column] = COLUMNS) -> list[list[str]]:
    """Return what an attacker knows without any message: the label, or nothing."""
    chance = [1 / float(str(n)) for row in rows if (n := row.get("identification-candidates"))]
    known = (
        (
            "*label only (class means)*",
            select_numbers(rows, "label-only-identification"),
            "oracle-mse",
        ),
        ("*nothing (mean image)*", chance, "mean-mse"),
    )
    return [
        [
            name,
            *(
                {
                    BITS: format_number(0.0, 2),
                    "identification-optimal": format_spread(c, [estimate(right).mean]),
                    "mse": format_spread(c, [estimate(select_numbers(rows, mse)).mean]),
                }.get(c.key, DASH)
                for c in columns
            ),
        ]
        for name, right, mse in known
    ]


def make_paired_table(
    found: Of, again: Sequence[Of], titles: Mapping[str, str], against: str
) -> str:
    """Return each variant's differences to one of them, with intervals over common seeds."""
    columns = [column for column in COLUMNS if column.key in COMPARED]
    theirs = found[against]

    def shifts(name: str, key: str, seeds: Iterable[int]) -> Iterator[float | None]:
        for each in again:
            gaps = paired_differences(each[name], each[against], key)
            yield complete_mean([gaps.get(seed) for seed in seeds])

    lines = []
    for name, ours in found.items():
        if name == against:
            continue
        each = {c.key: paired_differences(ours, theirs, c.key) for c in columns}
        texts = {
            c.key: format_spread(c, each[c.key].values(), shifts(name, c.key, each[c.key]))
            for c in columns
        }
        texts[BITS] = f"{format_bound(ours, theirs, each[BITS])}{texts[BITS]}"
        lines.append([titles[name], *texts.values(), str(len(each[BITS]))])
    return format_markdown(
        make_table("Differences", ["variant", *(c.head for c in columns), "seeds"], lines)
    )


def make_overall_table(
    found: Areas,
    again: Sequence[Areas],
    titles: Mapping[str, str],
    most: float,
    against: str | None,
) -> str:
    """Return each curve's mean bits and MSE over the losses up to `most`, fewest bits first."""
    columns = [
        Column(BITS, f"mean bits beyond label, 0 to {most:g} points lost", 2),
        Column("mse", "mean of the attack's MSE", 4),
    ]
    head = ["variant", *(column.head for column in columns)]
    head += [f"{c.head}: difference to {titles[against]}" for c in columns] if against else []

    def cell(name: str, other: str | None, column: Column) -> str:
        real = subtract_areas(found, name, other, column.key)
        drawn = (subtract_areas(each, name, other, column.key) for each in again)
        means = (complete_mean([each.get(seed) for seed in real]) for each in drawn)
        return DASH if name == other else format_spread(column, real.values(), means)

    lines = [
        [
            titles[name],
            *(cell(name, other, c) for other in dict.fromkeys([None, against]) for c in columns),
        ]
        for name in sorted(found, key=lambda v: fmean(own[BITS] for own in found[v].values()))
    ]
    said = (
        "**Over all losses.** The area under each curve, over its width: at every loss the fewest "
        "bits that the variant reaches, or the undefended net's, and the MSE of the same net."
    )
    return f"{said}\n\n{format_markdown(make_table('Over all losses', head, lines))}"


def subtract_areas(found: Areas, name: str, other: str | None, key: str) -> dict[int, float]:
    """Return a variant's areas by seed, less the other's of the same seed if there is one."""
    mine = {seed: own[key] for seed, own in found[name].items() if key in own}
    if other is None:
        return mine
    theirs = {seed: own[key] for seed, own in found[other].items() if key in own}
    return {seed: mine[seed] - theirs[seed] for seed in mine if seed in theirs}


def format_bound(ours: Matches, theirs: Matches, common: Iterable[int]) -> str:
    """Return what bounds make of a difference: at most, at least, or not known which."""
    seeds = list(common)
    mine, other = (any((m := side[s]) and m.bound for s in seeds) for side in (ours, theirs))
    return {(False, False): "", (True, False): "≤ ", (False, True): "≥ "}.get((mine, other), "≶ ")


def _all(rows: Sequence[Row], key: str, digits: int) -> str:
    """Return a number that rows share, or each of several; a dash where none has it."""
    found = dict.fromkeys(format_number(value, digits) for value in select_numbers(rows, key))
    return ", ".join(found) or DASH
