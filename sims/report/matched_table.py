"""A bench as Markdown or LaTeX tables: leaks of variants at equal accuracy, with intervals."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedcel.errors import SettingsError
from sims.report.table import (
    DASH,
    Table,
    escape_latex,
    format_estimate,
    format_latex,
    format_markdown,
    join_numbers,
    list_anchors,
    make_table,
    tabulate,
)
from sims.results.bench_rows import (
    common_attacks,
    comparable_attacks,
    read_bench_rows,
    read_image_vectors,
)
from sims.results.columns import BITS, MSE, Column, find_columns
from sims.results.intervals import estimate_samples, measure_rows
from sims.results.matched_accuracy import (
    Curves,
    Matches,
    average_curves,
    make_curves,
    match_curves,
    paired_differences,
)
from sims.results.records import FAILED_FILE, BenchRow, CellAttack, FailedCell, read_records

NEVER = "never this accurate"
SIGNS = (
    "Accuracy is matched seed by seed, linearly between neighbouring strengths. ±: 95 % interval "
    "over seeds by Student's t, from three on; of accuracy, bits, identification and MSE also over "
    "test images, by a bootstrap with the candidates held fixed, where each image's values were "
    f"kept. ≤: the sweep ends, or is best, at a higher accuracy, so it leaks at most this. {DASH}: "
    "not measured. Over losses: the area under each curve, over its width, where at every loss the "
    "undefended net counts if it leaks no more. The bits are exact for these targets and one "
    "message each."
)
COLUMNS = find_columns(
    *("accuracy", "bits-beyond-label", "identification-optimal", "mse", "certificate-bits"),
    *("certificate-bits-within-class", "within-class-spread", "attention-share"),
    *("train-step-ratio", "encoder-parameters", "flops-per-inference", "bytes-per-inference"),
)
AVERAGED = (BITS, MSE)
"""Measures over all losses."""
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

    `losses` are points of accuracy below the undefended net, a table each; variants are compared
    with `against`, paired by seed. SettingsError when one of these is wrong, RunError when
    bench.json is missing, empty or damaged.
    """
    points = parse_losses(losses)
    bench = open_comparison(folder, against)
    tables = list[Table]()
    for loss in points:
        name = f"At {loss:g} points below undefended" if loss else "At the undefended accuracy"
        tables += tabulate_matches(name, bench, match_curves(bench.curves, loss))
    if most := max(points):
        name, averages = f"Over losses of 0 to {most:g} points", average_curves(bench.curves, most)
        tables += tabulate_matches(name, bench, averages, AVERAGED)
    conditions = describe_conditions(bench, read_records(folder / FAILED_FILE, FailedCell))
    if latex:
        parts = [escape_latex(conditions), *map(format_latex, tables)]
    else:
        parts = ["Variants at matched accuracy.", conditions]
        parts += [f"**{table.name}.**\n\n{format_markdown(table)}" for table in tables]
    return "\n\n".join(parts) + "\n"


def open_comparison(folder: Path, against: str | None = None) -> Comparison:
    """Return a bench, held to the attacks that all cells have met, and what was measured of it."""
    rows = read_bench_rows(folder)
    variants = dict.fromkeys(row.variant for row in rows)
    if against is not None and against not in variants:
        raise SettingsError(f"--against is {against!r}, must be one of {', '.join(variants)}")
    measured = measure_rows(rows, read_image_vectors(folder))
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


def describe_conditions(bench: Comparison, failed: Sequence[FailedCell]) -> str:
    """Return the meaning of the signs, and under which conditions the numbers hold."""
    rows, common = bench.rows, common_attacks(bench.rows)
    left_out = dict.fromkeys(
        name_attack(attack, row)
        for row in rows
        for key, attack in comparable_attacks(row).items()
        if key not in common
    )
    worst = dict.fromkeys(name_attack(row.worst, row) for row in rows if row.worst)
    caps = (row.bits_cap and round(row.bits_cap, 2) for row in rows)
    failures = (f"{r.run} ({', '.join(r.failed_attacks)})" for r in rows if r.failed_attacks)
    facts = {
        "Targets M": join_numbers(row.candidates for row in rows),
        "Most bits beyond the label": join_numbers(caps),
        "Images to identify among": join_numbers(row.identification_candidates for row in rows),
        "Seeds": ", ".join(map(str, bench.seeds)),
        "Undefended": next((row.name for row in rows if row.undefended), ""),
        "MSE of the worst attack that all cells met (knowledge, budget)": "; ".join(worst),
        "Cells without it": ", ".join(row.run for row in rows if worst and row.worst is None),
        "Attacks that not all cells met, left out": "; ".join(left_out),
        "Attacks that failed": "; ".join(failures),
        "Cells that failed, and are in no row": ", ".join(cell.cell for cell in failed),
        "Bootstrap samples of the test images": str(len(bench.measured) - 1),
    }
    return SIGNS + "".join(f" {name}: {value}." for name, value in facts.items() if value)


def name_attack(attack: CellAttack, row: BenchRow) -> str:
    """Return an attack's name, knowledge and budget, its targets if not all, whether it stopped."""
    budget = "" if attack.budget is None else f"{attack.budget:g}"
    few = f"{attack.targets} targets" if attack.targets not in (None, row.candidates) else ""
    parts = (attack.attack, attack.knowledge, budget, few, attack.stop_note)
    return ", ".join(part for part in parts if part)


def tabulate_matches(
    name: str,
    bench: Comparison,
    matches: Mapping[str, Matches],
    columns: Sequence[Column] = COLUMNS,
    *,
    only: Collection[str] = (),
) -> list[Table]:
    """Return the table of the variants' measures, and that of differences if they are asked for.

    The bits are among the `columns`; `only` names the variants of both, all of them without it.
    """
    names = [variant for variant in matches if variant in (only or matches)]
    lines = [[bench.titles[part], *format_match(matches[part], bench, columns)] for part in names]
    anchors = tabulate(name, ["variant"], columns, list_anchors(bench.rows))
    tables = [make_table(name, anchors.head, [*lines, *anchors.rows])]
    if bench.against is not None:
        compared = [column for column in columns if column in COMPARED]
        lines = [
            [bench.titles[part], *format_gaps(matches[part], matches[bench.against], compared)]
            for part in names
            if part != bench.against
        ]
        head = ("variant", *(column.head for column in compared), "seeds")
        title = f"{name}, differences to {bench.titles[bench.against]}, paired by seed"
        tables.append(make_table(title, head, lines))
    return tables


def format_seeds(column: Column, seeds: Iterable[Float[np.ndarray, " S"]]) -> str:
    """Return the mean over seeds; the interval of what is compared goes over images, too."""
    values = list(seeds)
    if not values:
        return DASH
    samples = np.stack(values, 1)
    is_compared = column.key in {compared.key for compared in COMPARED}
    return format_estimate(column, estimate_samples(samples if is_compared else samples[:1]))


def format_match(matches: Matches, bench: Comparison, columns: Sequence[Column]) -> list[str]:
    """Return a variant's measures; it says of how many seeds, where not of all of them."""
    reached = [match for match in matches.values() if match.is_reached]
    if not reached:
        return [NEVER if column == BITS else DASH for column in columns]
    cells = {c.key: format_seeds(c, (match.read(c.key) for match in reached)) for c in columns}
    bits = np.stack([match.read(BITS.key)[1:] for match in reached])
    samples, often = bits.shape[1], int((~np.isnan(bits)).all(0).sum())
    sign = "≤ " if any(match.is_bound for match in reached) else ""
    note = ""
    if len(reached) < len(bench.seeds):
        note += f" ({len(reached)} of {len(bench.seeds)} seeds)"
    if often < MOSTLY * samples:
        note += f" (in {often} of {samples} samples of images)"
    return list((cells | {BITS.key: f"{sign}{cells[BITS.key]}{note}"}).values())


def format_gaps(ours: Matches, reference: Matches, columns: Sequence[Column]) -> list[str]:
    """Return the differences of a variant to another over common seeds, and the seeds' number.

    Before a difference of bounds stands whether it is at most, at least, or either.
    """
    cells, common = list[str](), paired_differences(ours, reference, BITS.key).keys()
    is_most, is_least = (any(side[s].is_bound for s in common) for side in (ours, reference))
    sign = ("≶ " if is_least else "≤ ") if is_most else ("≥ " if is_least else "")
    for column in columns:
        cell = format_seeds(column, paired_differences(ours, reference, column.key).values())
        cells.append(sign + cell if column == BITS else cell)
    return [*cells, str(len(common))]
