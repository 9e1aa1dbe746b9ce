"""A bench as Markdown or LaTeX tables: leaks of variants at equal accuracy, with intervals."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fedcel.errors import SettingsError
from sims.report.table import (
    DASH,
    Table,
    escape_latex,
    find_anchors,
    format_crossed,
    format_estimate,
    format_latex,
    format_markdown,
    format_number,
    make_table,
)
from sims.results.bench_rows import read_bench_rows, read_image_vectors
from sims.results.columns import BITS, MSE, Column, Measures, find_columns
from sims.results.file_names import FAILED_FILE
from sims.results.intervals import complete_mean, resample_rows
from sims.results.matched_accuracy import (
    Matches,
    match_samples,
    measure_rows,
    paired_differences,
    sample_areas,
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
"""Measures of which differences are taken, and which are drawn again in samples of the images."""
MOSTLY = 0.9
"""A variant that reaches an accuracy in fewer of the bootstrap samples is said to."""
VariantMatches = Mapping[str, Matches]
VariantAreas = Mapping[str, Mapping[int, Measures]]
"""Measures by variant and seed."""
SeedValues = Mapping[int, float | None]


class Comparison(NamedTuple):
    """A bench's rows, what was measured of them, and how the variants are named."""

    rows: list[BenchRow]
    measured: list[Measures]
    samples: list[list[dict[str, float]]]
    """The measures in bootstrap samples of the test images."""
    titles: dict[str, str]
    against: str | None
    """The variant that the others are compared with."""


def make_matched_tables(
    folder: Path, losses: str = "0,2,5", against: str | None = None, *, latex: bool = False
) -> str:
    """Return the text of a bench folder: a table for each allowed loss of accuracy.

    Args:
        folder: The bench's folder.
        losses: Points of accuracy below the undefended net, as '0,2,5'.
        against: The name of a variant that the others are compared with, paired by seed.
        latex: Whether to write LaTeX, for the package booktabs, in the place of Markdown.

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
    """Return a bench's rows, held to the attacks that all have met, and what was measured of them.

    Raises:
        SettingsError: When `against` is none of its variants.
        RunError: When bench.json is missing, damaged, or made by a version that wrote less.
    """
    rows = hold_to_common(read_bench_rows(folder))
    titles = {row.variant: row.name for row in rows}
    if against is not None and against not in titles:
        raise SettingsError(f"--against is {against!r}, must be one of {', '.join(titles)}")
    samples = resample_rows(rows, read_image_vectors(folder))
    return Comparison(rows, measure_rows(rows), samples, titles, against)


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

    seeds = sorted({row.seed for row in rows})
    undefended = next((row.name for row in rows if row.undefended), DASH)
    return (
        f"M = {join(row.candidates for row in rows)} targets; bits beyond the label are at most "
        f"{join((row.bits_cap for row in rows), 2)}; identification is among "
        f"{join(row.identification_candidates for row in rows)} images. "
        f"Seeds {', '.join(map(str, seeds))}; means with 95 % intervals from three seeds on. "
        f"The undefended variant is {undefended!r}, accuracy matched seed by seed, "
        "linearly between neighbouring strengths. "
        "≤: the sweep ends, or is best, at a higher accuracy, so it leaks at most this; "
        f"{DASH}: not measured. The bits are exact for these targets and one message each."
        f"{describe_attacks(rows)}{describe_failed_attacks(rows)}"
        f"{describe_intervals(bench.samples)}"
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


def describe_intervals(samples: Sequence[object]) -> str:
    """Return the meaning of the intervals."""
    if not samples:
        return " Intervals: Student's t over seeds; these test images are taken as given."
    return (
        " Intervals: Student's t over seeds and, added as variances, a bootstrap over the test "
        f"images, {len(samples)} samples, the same in every cell, candidates held fixed; of "
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
    matches, *samples = match_samples(bench.rows, [bench.measured, *bench.samples], loss)
    names = [name for name in matches if name in (only or matches)]
    below = "the undefended accuracy" if loss == 0 else f"{loss:g} points below undefended"
    seeds = len({row.seed for row in bench.rows})
    lines = [
        [
            bench.titles[name],
            *format_match(matches[name], [sample[name] for sample in samples], seeds, columns),
        ]
        for name in names
    ]
    head = ("variant", *(column.head for column in columns))
    lines += make_anchor_lines(bench.rows, columns)
    tables = [make_table("At matched accuracy", head, lines)._replace(heading=f"At {below}")]
    if bench.against is not None:
        note = f"Difference to {bench.titles[bench.against]}, paired by seed:"
        paired = make_paired_table(bench, matches, samples, against=bench.against, names=names)
        tables.append(paired._replace(note=note))
    return tables


def format_samples(column: Column, values: SeedValues, samples: Iterable[SeedValues] = ()) -> str:
    """Return the mean over seeds; the interval goes over samples of the images, too."""
    means = (complete_mean([sample.get(seed) for seed in values]) for sample in samples)
    return format_crossed(column, values.values(), means)


def format_match(
    matches: Matches, samples: Sequence[Matches], seeds: int, columns: Sequence[Column]
) -> list[str]:
    """Return a variant's measures; it says of how many seeds, where not of all of them.

    `samples` are its matches in bootstrap samples of the images.
    """
    reached = [seed for seed, match in matches.items() if match]
    if not reached:
        return [NEVER if column == BITS else DASH for column in columns]

    def values(sample: Matches, key: str) -> dict[int, float | None]:
        return {s: match.values.get(key) if (match := sample[s]) else None for s in reached}

    cells = {}
    for column in columns:
        compared = samples if column in COMPARED else ()
        of_samples = (values(sample, column.key) for sample in compared)
        cells[column.key] = format_samples(column, values(matches, column.key), of_samples)
    often = sum(None not in values(sample, BITS.key).values() for sample in samples)
    sign = "≤ " if any((match := matches[seed]) and match.is_bound for seed in reached) else ""
    note = "" if len(reached) == seeds else f" ({len(reached)} of {seeds} seeds)"
    if often < MOSTLY * len(samples):
        note += f" (in {often} of {len(samples)} samples of images)"
    return list((cells | {BITS.key: f"{sign}{cells[BITS.key]}{note}"}).values())


def make_anchor_lines(rows: Sequence[BenchRow], columns: Sequence[Column]) -> list[list[str]]:
    """Return the lines of attackers without any message: with the label, or with nothing."""
    return [
        [f"*{anchor.label}*", *(format_estimate(c, anchor.measure(c)) for c in columns)]
        for anchor in find_anchors(rows)
    ]


def make_paired_table(
    bench: Comparison,
    matches: VariantMatches,
    samples: Sequence[VariantMatches],
    *,
    against: str,
    names: Iterable[str],
) -> Table:
    """Return the differences of the variants `names` to `against`, over common seeds."""
    lines = []
    for name in names:
        if name == against:
            continue
        ours, reference = matches[name], matches[against]
        cells = {}
        for column in COMPARED:
            gaps = paired_differences(ours, reference, column.key)
            sampled = (paired_differences(s[name], s[against], column.key) for s in samples)
            cells[column.key] = format_samples(column, gaps, sampled)
        common = paired_differences(ours, reference, BITS.key)
        cells[BITS.key] = f"{format_bound(ours, reference, common)}{cells[BITS.key]}"
        lines.append([bench.titles[name], *cells.values(), str(len(common))])
    head = ["variant", *(column.head for column in COMPARED), "seeds"]
    return make_table("Differences", head, lines)


def format_bound(ours: Matches, reference: Matches, common: Iterable[int]) -> str:
    """Return the sign before a difference of bounds: at most, at least, or either."""
    seeds = list(common)
    first, second = (
        any((match := side[seed]) and match.is_bound for seed in seeds)
        for side in (ours, reference)
    )
    return {(False, False): "", (True, False): "≤ ", (False, True): "≥ "}.get((first, second), "≶ ")


def make_overall_table(bench: Comparison, most: float) -> Table:
    """Return each curve's mean bits and MSE over the losses up to `most`, fewest bits first."""
    areas, *sampled = sample_areas(bench.rows, [bench.measured, *bench.samples], most)
    columns = [
        BITS.titled(f"mean bits beyond label, 0 to {most:g} points lost"),
        MSE.titled("mean of the attack's MSE"),
    ]
    against = bench.against
    head = ["variant", *(column.head for column in columns)]
    if against:
        head += [f"{column.head}: difference to {bench.titles[against]}" for column in columns]

    def cell(name: str, other: str | None, column: Column) -> str:
        if name == other:
            return DASH
        gaps: list[SeedValues] = [
            subtract_areas(of_variants, name, other, column.key)
            for of_variants in (areas, *sampled)
        ]
        return format_samples(column, gaps[0], gaps[1:])

    lines = [
        [
            bench.titles[name],
            *(cell(name, other, c) for other in dict.fromkeys([None, against]) for c in columns),
        ]
        for name in sorted(areas, key=lambda v: fmean(seed[BITS.key] for seed in areas[v].values()))
    ]
    explanation = (
        "The area under each curve, over its width: at every loss the fewest "
        "bits that the variant reaches, or the undefended net's, and the MSE of the same net."
    )
    table = make_table("Over all losses", head, lines)
    return table._replace(heading="Over all losses.", note=explanation)


def subtract_areas(areas: VariantAreas, name: str, other: str | None, key: str) -> dict[int, float]:
    """Return a variant's areas by seed, less the other's of the same seed if there is one."""
    ours = {seed: area[key] for seed, area in areas[name].items() if key in area}
    if other is None:
        return ours
    reference = areas[other]
    return {s: v - reference[s][key] for s, v in ours.items() if key in reference.get(s, {})}
