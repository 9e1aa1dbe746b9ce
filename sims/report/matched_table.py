"""A bench as Markdown or LaTeX tables: leaks of variants at equal accuracy, with intervals."""

import math
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedcel.errors import SettingsError
from sims.report.table import (
    DASH,
    Table,
    escape_latex,
    find_anchors,
    format_estimate,
    format_latex,
    format_markdown,
    format_number,
    make_table,
)
from sims.results.bench_rows import read_bench_rows, read_image_vectors
from sims.results.columns import BITS, MSE, POSITIONS, Column, find_columns
from sims.results.file_names import FAILED_FILE
from sims.results.intervals import crossed_interval, resample_rows
from sims.results.matched_accuracy import (
    Curves,
    Match,
    Matches,
    average_curves,
    make_curves,
    match_curves,
    measure_rows,
    paired_differences,
)
from sims.results.record_files import read_records
from sims.results.records import BenchRow, CellAttack, FailedCell
from sims.results.worst_attack import common_attacks, comparable_attacks, hold_to_common

NEVER = "never this accurate"
COLUMNS = find_columns(
    *("accuracy", "bits-beyond-label", "identification-optimal", "mse", "certificate-bits"),
    *("certificate-bits-within-class", "within-class-spread", "attention-share"),
    *("train-step-ratio", "encoder-parameters", "flops-per-inference", "bytes-per-inference"),
)
COMPARED = COLUMNS[:4]
"""Measures that are compared: as differences, and in bootstrap samples of the images."""
MOSTLY = 0.9
"""A variant that reaches an accuracy in fewer of the bootstrap samples is said to."""


class Comparison(NamedTuple):
    """A bench's rows, held to the attacks that all have met, and their curves."""

    rows: list[BenchRow]
    measured: Float[np.ndarray, "S R K"]
    """The measures, and the same in bootstrap samples of the test images."""
    curves: Curves
    against: str | None
    """The variant that the others are compared with."""

    @property
    def titles(self) -> dict[str, str]:
        """Names of the variants in tables."""
        return {row.variant: row.name for row in self.rows}

    @property
    def seeds(self) -> list[int]:
        """Training seeds."""
        return sorted({row.seed for row in self.rows})


def make_matched_tables(
    folder: Path, losses: str = "0,2,5", against: str | None = None, *, latex: bool = False
) -> str:
    """Return a bench folder's tables in Markdown, or in LaTeX for the package booktabs.

    Args:
        folder: The bench's folder.
        losses: Points of accuracy below the undefended net, a table each, as '0,2,5'.
        against: The name of a variant that the others are compared with, paired by seed.
        latex: Whether to write LaTeX.

    Raises:
        SettingsError: When losses or variant are wrong.
        RunError: When bench.json is missing, damaged, or made by a version that wrote less.
    """
    points = parse_losses(losses)
    bench = open_comparison(folder, against)
    tables = [table for loss in points for table in make_loss_tables(bench, loss)]
    if most := max(points):
        tables.append(make_overall_table(bench, most))
    failed = [cell.cell for cell in read_records(folder / FAILED_FILE, FailedCell)]
    conditions = describe_all(bench)
    conditions += f" Failed, and in no row: {', '.join(failed)}." if failed else ""
    if latex:
        parts = [escape_latex(conditions), *map(format_latex, tables)]
    else:
        parts = ["Variants at matched accuracy.", conditions]
        parts += [f"{caption_markdown(table)}\n\n{format_markdown(table)}" for table in tables]
    return "\n\n".join(parts) + "\n"


def caption_markdown(table: Table) -> str:
    """Return heading and note of a table as Markdown."""
    heading = f"**{table.heading}**" if table.heading else ""
    return " ".join(filter(None, (heading, table.note)))


def open_comparison(folder: Path, against: str | None = None) -> Comparison:
    """Return a bench, held to the attacks that all cells have met, and what was measured of it.

    Raises:
        SettingsError: When `against` is none of its variants.
        RunError: When bench.json is missing, damaged, or made by a version that wrote less.
    """
    rows = hold_to_common(read_bench_rows(folder))
    variants = dict.fromkeys(row.variant for row in rows)
    if against is not None and against not in variants:
        raise SettingsError(f"--against is {against!r}, must be one of {', '.join(variants)}")
    samples = resample_rows(rows, read_image_vectors(folder))
    measured = np.concatenate([measure_rows(rows)[None], samples])
    return Comparison(rows, measured, make_curves(rows, measured), against)


def parse_losses(text: str) -> list[float]:
    """Return the points of accuracy that '0,2,5' names; SettingsError if it names none."""
    try:
        losses = [float(part) for part in text.split(",")]
    except ValueError:
        losses = [math.nan]
    if not all(0 <= loss < 100 for loss in losses):
        raise SettingsError(f"--loss is {text!r}, must be points of accuracy below 100, as '0,2,5'")
    return losses


def describe_all(bench: Comparison) -> str:
    """Return the conditions of the numbers: targets, caps, seeds, signs, attacks, intervals."""
    rows = bench.rows

    def join(values: Iterable[float | None], digits: int = 0) -> str:
        texts = dict.fromkeys(format_number(v, digits) for v in values if v is not None)
        return ", ".join(texts) or DASH

    undefended = next((row.name for row in rows if row.undefended), DASH)
    return (
        f"M = {join(row.candidates for row in rows)} targets; bits beyond the label are at most "
        f"{join((row.bits_cap for row in rows), 2)}; identification is among "
        f"{join(row.identification_candidates for row in rows)} images. "
        f"Seeds {', '.join(map(str, bench.seeds))}; means with 95 % intervals from three seeds on. "
        f"The undefended variant is {undefended!r}, accuracy matched seed by seed, "
        "linearly between neighbouring strengths. "
        "≤: the sweep ends, or is best, at a higher accuracy, so it leaks at most this; "
        f"{DASH}: not measured. The bits are exact for these targets and one message each."
        f"{describe_attacks(rows)}{describe_failed_attacks(rows)}"
        f"{describe_intervals(len(bench.measured) - 1)}"
    )


def describe_attacks(rows: Sequence[BenchRow]) -> str:
    """Return the trained attacks behind the rows' errors, and on how many targets if not all.

    And what is left out: attacks that only some cells have met, cells that met none of the others.
    """
    worst: dict[str, None] = {}
    others: dict[str, None] = {}
    common = common_attacks(rows)
    for row in rows:
        if row.worst:
            count = row.worst.targets or row.candidates
            few = "" if count == row.candidates else f", {count} targets"
            worst[f"{name_attack(row.worst)}{few}"] = None
        attacks = comparable_attacks(row).items()
        others |= dict.fromkeys(name_attack(a) for key, a in attacks if key not in common)
    outside = [row.run for row in rows if row.worst is None]
    met = f"{len(rows) - len(outside)} of {len(rows)} cells" if outside else "every cell"
    text = ""
    if worst:
        text = f" MSE: the worst attack that {met} met (knowledge, budget): {'; '.join(worst)}."
    if worst and outside:
        text += f" Cells without it, and so without MSE: {', '.join(outside)}."
    return text + (f" Not on every cell, and left out: {'; '.join(others)}." if others else "")


def describe_failed_attacks(rows: Sequence[BenchRow]) -> str:
    """Return the attacks that failed, by run: there the worst is that of the others."""
    failed = [f"{row.run} ({', '.join(row.failed_attacks)})" for row in rows if row.failed_attacks]
    return f" Attacks that failed, and so are in no number: {'; '.join(failed)}." if failed else ""


def describe_intervals(samples: int) -> str:
    """Return the meaning of the intervals; `samples` is the number of bootstrap samples."""
    if not samples:
        return " Intervals: Student's t over seeds; these test images are taken as given."
    return (
        " Intervals: Student's t over seeds and, added as variances, a bootstrap over the test "
        f"images, {samples} samples, the same in every cell, candidates held fixed; of "
        "accuracy, bits, identification and, where it was kept, the attack's error. All else is "
        "over seeds alone."
    )


def name_attack(attack: CellAttack) -> str:
    """Return an attack's name, knowledge and budget, as far as they are known."""
    budget = "" if attack.budget is None else f"{attack.budget:g}"
    return ", ".join(part for part in (attack.attack, attack.knowledge, budget) if part)


def make_loss_tables(
    bench: Comparison,
    loss: float,
    *,
    columns: Sequence[Column] = COLUMNS,
    only: Collection[str] = (),
) -> list[Table]:
    """Return the table of one allowed loss, and that of the differences if they are asked for.

    `columns` are the measures of the first table, the bits among them; `only` names the variants of
    both, all of them without it.
    """
    matches = match_curves(bench.curves, loss)
    names = [name for name in matches if name in (only or matches)]
    below = "the undefended accuracy" if loss == 0 else f"{loss:g} points below undefended"
    lines = [[bench.titles[name], *format_match(matches[name], bench, columns)] for name in names]
    head = ("variant", *(column.head for column in columns))
    lines += make_anchor_lines(bench.rows, columns)
    tables = [make_table("At matched accuracy", head, lines)._replace(heading=f"At {below}")]
    if bench.against is not None:
        lines = [
            [bench.titles[name], *format_gaps(matches[name], matches[bench.against]).values()]
            for name in names
            if name != bench.against
        ]
        head = ("variant", *(column.head for column in COMPARED), "seeds")
        note = f"Difference to {bench.titles[bench.against]}, paired by seed:"
        tables.append(make_table("Differences", head, lines)._replace(note=note))
    return tables


def seed_values(matches: Iterable[Match], column: Column) -> list[Float[np.ndarray, " S"]]:
    """Return a measure under each seed, in all samples of the images."""
    return [match.values[:, POSITIONS[column.key]] for match in matches]


def format_seeds(column: Column, seeds: Iterable[Float[np.ndarray, " S"]]) -> str:
    """Return the mean over seeds; the interval of what is compared goes over images, too."""
    values = list(seeds)
    images = np.mean(values, 0)[1:] if values and column.key in {c.key for c in COMPARED} else ()
    return format_estimate(column, crossed_interval((value[0] for value in values), images))


def format_match(matches: Matches, bench: Comparison, columns: Sequence[Column]) -> list[str]:
    """Return a variant's measures; it says of how many seeds, where not of all of them."""
    reached = [match for match in matches.values() if match.is_reached]
    if not reached:
        return [NEVER if column == BITS else DASH for column in columns]
    cells = {column.key: format_seeds(column, seed_values(reached, column)) for column in columns}
    bits = np.stack(seed_values(reached, BITS))[:, 1:]
    samples, often = bits.shape[1], int((~np.isnan(bits)).all(0).sum())
    sign = "≤ " if any(match.is_bound for match in reached) else ""
    note = ""
    if len(reached) < len(bench.seeds):
        note += f" ({len(reached)} of {len(bench.seeds)} seeds)"
    if often < MOSTLY * samples:
        note += f" (in {often} of {samples} samples of images)"
    return list((cells | {BITS.key: f"{sign}{cells[BITS.key]}{note}"}).values())


def make_anchor_lines(rows: Sequence[BenchRow], columns: Sequence[Column]) -> list[list[str]]:
    """Return the lines of attackers without any message: with the label, or with nothing."""
    return [
        [f"*{anchor.label}*", *(format_estimate(c, anchor.measure(c)) for c in columns)]
        for anchor in find_anchors(rows)
    ]


def format_gaps(ours: Matches, reference: Matches) -> dict[str, str]:
    """Return the differences of a variant to another over common seeds by key, and their number.

    Before a difference of bounds stands whether it is at most, at least, or either.
    """
    gaps = {c.key: paired_differences(ours, reference, c.key) for c in COMPARED}
    cells = {column.key: format_seeds(column, gaps[column.key].values()) for column in COMPARED}
    common = gaps[BITS.key].keys()
    is_most, is_least = (any(side[s].is_bound for s in common) for side in (ours, reference))
    sign = ("≶ " if is_least else "≤ ") if is_most else ("≥ " if is_least else "")
    return {**cells, BITS.key: sign + cells[BITS.key], "seeds": str(len(common))}


def make_overall_table(bench: Comparison, most: float) -> Table:
    """Return each curve's mean bits and MSE over the losses up to `most`, fewest bits first."""
    averages = average_curves(bench.curves, most)
    columns = [
        BITS.titled(f"mean bits beyond label, 0 to {most:g} points lost"),
        MSE.titled("mean of the attack's MSE"),
    ]
    against = bench.against
    head = ["variant", *(column.head for column in columns)]
    if against:
        head += [f"{column.head}: difference to {bench.titles[against]}" for column in columns]

    lines = []
    for name in sorted(averages, key=lambda name: mean_bits(averages[name])):
        line = [bench.titles[name]]
        line += [format_seeds(c, seed_values(averages[name].values(), c)) for c in columns]
        if against:
            gaps = (paired_differences(averages[name], averages[against], c.key) for c in columns)
            is_other = name != against
            line += [
                format_seeds(c, gap.values()) if is_other else DASH
                for c, gap in zip(columns, gaps, strict=True)
            ]
        lines.append(line)
    explanation = (
        "The area under each curve, over its width: at every loss the fewest "
        "bits that the variant reaches, or the undefended net's, and the MSE of the same net."
    )
    table = make_table("Over all losses", head, lines)
    return table._replace(heading="Over all losses.", note=explanation)


def mean_bits(matches: Matches) -> float:
    """Return the mean of the bits over seeds, on the images as measured."""
    return float(np.mean([values[0] for values in seed_values(matches.values(), BITS)]))
