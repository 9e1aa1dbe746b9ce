"""The rows of a bench: read, and written with all attacks that their runs have met."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
from jaxtyping import Float

from fedcel import per_image
from fedcel.errors import RunError
from fedcel.files import lock_file, write_json
from sims.results.attack_results import (
    average_attacks,
    list_failures,
    read_attack_vectors,
    read_results,
)
from sims.results.file_names import BENCH_FILE, RESULT_FILE
from sims.results.record_files import read_records
from sims.results.records import BenchRow
from sims.results.worst_attack import hold_to_common

BENCH_LOCK = f".{BENCH_FILE}.lock"
"""Held while bench.json is written: another call may finish other cells meanwhile."""
ImageVectors = dict[str, Float[np.ndarray, " T"]]
"""A value for each test image, by run and measure, or by run, attack and measure."""
BENCH_AGAIN = "run the same `fedcel bench` again, finished cells are kept"


def read_bench_rows(folder: Path) -> list[BenchRow]:
    """Read the rows of a bench, one or more; none is held to an attack yet.

    RunError where bench.json is missing, empty, or damaged.
    """
    path = folder / BENCH_FILE
    if not path.exists():
        what = "is a single run" if (folder / RESULT_FILE).exists() else f"has no {BENCH_FILE}"
        raise RunError(f"{folder} {what}; give a folder that `fedcel bench` wrote")
    rows = read_records(path, BenchRow, BENCH_AGAIN)
    if not rows:
        raise RunError(f"{path} has no rows; run `fedcel bench` first")
    return rows


def update_bench(folder: Path) -> list[BenchRow]:
    """Give each row of a bench the attacks that its run has met by now; return the rows."""
    with lock_file(folder / BENCH_LOCK):
        return write_bench_rows(folder, read_bench_rows(folder))


def write_bench_rows(folder: Path, rows: Iterable[BenchRow]) -> list[BenchRow]:
    """Write rows with all attacks on their runs, and their values image by image as far as kept.

    Attacks that rows name are replaced by those of the runs. The caller holds `BENCH_LOCK`.
    Returns the rows held to the worst attack that all cells have met, as the file has them.
    RunError where what attacks left on a run is damaged.
    """
    gathered, vectors = [], per_image.Vectors()
    for row in rows:
        place = folder / row.run
        results = read_results(place)
        failed = list_failures(attack for result in results for attack in result.rows)
        met = {"attacks": tuple(average_attacks(results)), "failed_attacks": tuple(failed)}
        gathered.append(row.model_copy(update=met))
        measured = per_image.read_vectors(place) | read_attack_vectors(place)
        vectors |= {f"{row.run}{per_image.APART}{name}": v for name, v in measured.items()}
    compared = hold_to_common(gathered)
    write_json(folder / BENCH_FILE, [row.to_json() for row in compared])
    if compared:
        per_image.write_vectors(folder, vectors)
    return compared


def read_image_vectors(folder: Path) -> ImageVectors:
    """Return the values of each test image that a bench kept; {} where it kept none."""
    return {name: value.double().numpy() for name, value in per_image.read_vectors(folder).items()}
