"""A bench as Markdown or LaTeX tables: what variants leak at equal accuracy, with intervals."""

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

from fedcel.errors import SettingsError
from sims.report.table import (
    DASH,
    CaptionedTable,
    Table,
    escape_latex,
    find_anchors,
    format_captioned,
    format_crossed,
    format_latex,
    format_number,
    make_table,
)
from sims.results import (
    BITS,
    FAILED_FILE,
    MSE,
    BenchRow,
    CellAttack,
    Column,
    FailedCell,
    Matches,
    Measures,
    common_attacks,
    comparable_attacks,
    complete_mean,
    curve_areas,
    find_columns,
    hold_to_common,
    match_rows,
    match_samples,
    measure_rows,
    paired_differences,
    read_bench_rows,
    read_image_vectors,
    read_records,
    resample_rows,
    sample_areas,
)

NEVER = "never this accurate"
COLUMNS = find_columns(
    *("accuracy", "bits-beyond-label", "identification-optimal", "mse", "certificate-bits"),
    *("certificate-bits-within-class", "within-class-spread", "attention-share"),
    *("train-step-ratio", "encoder-parameters", "flops-per-inference", "bytes-per-inference"),
)
COMPARED = COLUMNS[:4]
"""What differences are taken of, and what is drawn again in bootstrap samples of the images."""
MOSTLY = 0.9
"""A variant that reaches an accuracy in fewer of the bootstrap samples is said to."""
VariantMatches = Mapping[str, Matches]
VariantAreas = Mapping[str, Mapping[int, Measures]]
"""Measures by variant and seed."""


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
    conditions = f"{describe_all(bench)}{describe_failures(folder)}"
    if latex:
        parts = [escape_latex(conditions), *map(format_latex, tables)]
    else:
        parts = ["Variants at matched accuracy.", conditions, *map(format_captioned, tables)]
    return "\n\n".join(parts) + "\n"


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


def describe_all(bench: Comparison) -> str:
    """Return what the numbers hold for, as sentences: conditions, attacks, intervals."""
    return (
        describe_conditions(bench.rows)
        + describe_attacks(bench.rows)
        + describe_failed_attacks(bench.rows)
        + describe_intervals(bench.samples)
    )


def parse_losses(text: str) -> list[float]:
    """Return the points of accuracy that '0,2,5' names; SettingsError if it names none."""
    try:
        losses = [float(part) for part in text.split(",")]
    except ValueError:
        losses = [math.nan]
    if not all(0 <= loss < 100 for loss in losses):
        raise SettingsError(f"--loss is {text!r}, must be points of accuracy below 100, as '0,2,5'")
    return losses


def describe_failures(folder: Path) -> str:
    """Return which cells failed and so are in no row; nothing where none did."""
    names = [failed.cell for failed in read_records(folder / FAILED_FILE, FailedCell)]
    return f" Failed, and in no row: {', '.join(names)}." if names else ""


def describe_conditions(rows: Sequence[BenchRow]) -> str:
    """Return what the numbers hold for: targets, caps, seeds, how to read the signs."""
    seeds = sorted({row.seed for row in rows})
    undefended = next((row.name for row in rows if row.undefended), DASH)
    return (
        f"M = {_join_numbers(row.candidates for row in rows)} targets; "
        "bits beyond the label are at most "
        f"{_join_numbers((row.bits_cap for row in rows), 2)}; identification is among "
        f"{_join_numbers(row.identification_candidates for row in rows)} images. "
        f"Seeds {', '.join(map(str, seeds))}; means with 95 % intervals from three seeds on. "
        f"The undefended variant is {undefended!r}, accuracy matched seed by seed, "
        "linearly between neighbouring strengths. "
        "≤: the sweep ends, or is best, at a higher accuracy, so it leaks at most this; "
        f"{DASH}: not measured. The bits are exact for these targets and one message each."
    )


def _join_numbers(values: Iterable[float | None], digits: int = 0) -> str:
    """Return a number that rows share, or each of several; a dash where none has it."""
    texts = dict.fromkeys(format_number(value, digits) for value in values if value is not None)
    return ", ".join(texts) or DASH


def describe_attacks(rows: Sequence[BenchRow]) -> str:
    """Return which trained attacks the rows' errors are of, and on how many targets if not all.

    And what is left out: attacks that some cells alone have met, cells that met none of the others.
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
    sentences = []
    if worst:
        sentences.append(
            f" MSE: the worst attack that {met} met (knowledge, budget): {'; '.join(worst)}."
        )
        if outside:
            sentences.append(f" Cells without it, and so without MSE: {', '.join(outside)}.")
    if others:
        sentences.append(f" Not on every cell, and left out: {'; '.join(others)}.")
    return "".join(sentences)


def name_attack(attack: CellAttack) -> str:
    """Return an attack's name, knowledge and budget, as far as they are known."""
    budget = "" if attack.budget is None else f"{attack.budget:g}"
    return ", ".join(part for part in (attack.attack, attack.knowledge, budget) if part)


def describe_failed_attacks(rows: Sequence[BenchRow]) -> str:
    """Return which attacks failed in which runs: there the worst is that of the others."""
    failed = [f"{row.run} ({', '.join(row.failed_attacks)})" for row in rows if row.failed_attacks]
    return f" Attacks that failed, and so are in no number: {'; '.join(failed)}." if failed else ""


def describe_intervals(samples: Sequence[object]) -> str:
    """Return what the intervals are over."""
    if not samples:
        return " Intervals: Student's t over seeds; these test images are taken as given."
    return (
        " Intervals: Student's t over seeds and, added as variances, a bootstrap over the test "
        f"images, {len(samples)} samples, the same in every cell, candidates held fixed; of "
        "accuracy, bits, identification and, where it was kept, the attack's error. All else is "
        "over seeds alone."
    )


def make_loss_tables(
    bench: Comparison,
    loss: float,
    *,
    columns: Sequence[Column] = COLUMNS,
    only: Collection[str] = (),
) -> list[CaptionedTable]:
    """Return the table of one allowed loss, and that of the differences if they are asked for.

    `columns` are the measures of the first table, the bits among them; `only` names the variants of
    both, all of them without it.
    """
    matches = match_rows(bench.rows, bench.measured, loss)
    samples = match_samples(bench.rows, bench.samples, loss)
    shown = {name: of_seeds for name, of_seeds in matches.items() if name in (only or matches)}
    below = "the undefended accuracy" if loss == 0 else f"{loss:g} points below undefended"
    main = make_main_table(bench, shown, samples, columns)
    tables = [CaptionedTable(f"At {below}", "", main)]
    if bench.against is not None:
        paired = make_paired_table(bench, matches, samples, against=bench.against, names=shown)
        note = f"Difference to {bench.titles[bench.against]}, paired by seed:"
        tables.append(CaptionedTable("", note, paired))
    return tables


def make_main_table(
    bench: Comparison,
    matches: VariantMatches,
    samples: Sequence[VariantMatches],
    columns: Sequence[Column],
) -> Table:
    """Return one line per variant and the two anchors."""
    seeds = len({row.seed for row in bench.rows})
    lines = []
    for name, of_seeds in matches.items():
        cells = format_match(of_seeds, [sample[name] for sample in samples], seeds, columns)
        lines.append([bench.titles[name], *cells])
    head = ("variant", *(column.head for column in columns))
    anchors = make_anchor_lines(bench.rows, columns)
    return make_table("At matched accuracy", head, [*lines, *anchors])


def format_match(
    matches: Matches, samples: Sequence[Matches], seeds: int, columns: Sequence[Column]
) -> list[str]:
    """Return a variant's measures; it says of how many seeds, where not of all of them.

    `samples` are its matches in bootstrap samples of the images.
    """
    reached = [match for match in matches.values() if match is not None]
    if not reached:
        return [NEVER if column == BITS else DASH for column in columns]

    def of(sample: Matches, key: str) -> list[float | None]:
        points = (sample[seed] for seed, match in matches.items() if match)
        return [match.values.get(key) if match else None for match in points]

    cells = {}
    for column in columns:
        means = (complete_mean(of(sample, column.key)) for sample in samples if column in COMPARED)
        cells[column.key] = format_crossed(column, of(matches, column.key), means)
    often = sum(None not in of(sample, BITS.key) for sample in samples)
    sign = "≤ " if any(match.is_bound for match in reached) else ""
    note = "" if len(reached) == seeds else f" ({len(reached)} of {seeds} seeds)"
    if often < MOSTLY * len(samples):
        note += f" (in {often} of {len(samples)} samples of images)"
    return list((cells | {BITS.key: f"{sign}{cells[BITS.key]}{note}"}).values())


def make_anchor_lines(rows: Sequence[BenchRow], columns: Sequence[Column]) -> list[list[str]]:
    """Return what an attacker knows without any message: the label, or nothing."""
    anchors = find_anchors(
        label_only=[row.label_only_identification for row in rows],
        choices=[row.identification_candidates for row in rows],
        oracle_mse=[row.measure("oracle-mse") for row in rows],
        mean_mse=[row.measure("mean-mse") for row in rows],
    )
    return [[f"*{anchor.name}*", *anchor.format_cells(columns)] for anchor in anchors]


def make_paired_table(
    bench: Comparison,
    matches: VariantMatches,
    samples: Sequence[VariantMatches],
    *,
    against: str,
    names: Iterable[str],
) -> Table:
    """Return the differences of the variants `names` to `against`, over common seeds."""
    reference = matches[against]

    def sample_means(name: str, key: str, seeds: Iterable[int]) -> Iterator[float | None]:
        for sample in samples:
            gaps = paired_differences(sample[name], sample[against], key)
            yield complete_mean([gaps.get(seed) for seed in seeds])

    lines = []
    for name in names:
        if name == against:
            continue
        ours = matches[name]
        gaps = {column.key: paired_differences(ours, reference, column.key) for column in COMPARED}
        cells = {}
        for column in COMPARED:
            of_seeds = gaps[column.key]
            means = sample_means(name, column.key, of_seeds)
            cells[column.key] = format_crossed(column, of_seeds.values(), means)
        common = gaps[BITS.key]
        cells[BITS.key] = f"{format_bound(ours, reference, common)}{cells[BITS.key]}"
        lines.append([bench.titles[name], *cells.values(), str(len(common))])
    head = ["variant", *(column.head for column in COMPARED), "seeds"]
    return make_table("Differences", head, lines)


def format_bound(ours: Matches, reference: Matches, common: Iterable[int]) -> str:
    """Return the sign before a difference of bounds: at most, at least, or either."""
    seeds = list(common)
    first, second = (
        any((m := side[s]) and m.is_bound for s in seeds) for side in (ours, reference)
    )
    return {(False, False): "", (True, False): "≤ ", (False, True): "≥ "}.get((first, second), "≶ ")


def make_overall_table(bench: Comparison, most: float) -> CaptionedTable:
    """Return each curve's mean bits and MSE over the losses up to `most`, fewest bits first."""
    areas = curve_areas(bench.rows, bench.measured, most)
    sampled_areas = sample_areas(bench.rows, bench.samples, most)
    columns = [
        BITS.titled(f"mean bits beyond label, 0 to {most:g} points lost"),
        MSE.titled("mean of the attack's MSE"),
    ]
    head = ["variant", *(column.head for column in columns)]
    against = bench.against
    if against:
        head += [f"{column.head}: difference to {bench.titles[against]}" for column in columns]

    def cell(name: str, other: str | None, column: Column) -> str:
        if name == other:
            return DASH
        of_seeds = subtract_areas(areas, name, other, column.key)
        gaps = (subtract_areas(sample, name, other, column.key) for sample in sampled_areas)
        means = (complete_mean([gap.get(seed) for seed in of_seeds]) for gap in gaps)
        return format_crossed(column, of_seeds.values(), means)

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
    return CaptionedTable("Over all losses.", explanation, table)


def subtract_areas(areas: VariantAreas, name: str, other: str | None, key: str) -> dict[int, float]:
    """Return a variant's areas by seed, less the other's of the same seed if there is one."""
    ours = {seed: area[key] for seed, area in areas[name].items() if key in area}
    if other is None:
        return ours
    reference = {seed: area[key] for seed, area in areas[other].items() if key in area}
    return {seed: ours[seed] - reference[seed] for seed in ours if seed in reference}
