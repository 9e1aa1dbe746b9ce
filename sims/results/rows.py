"""A bench's rows: those of bench.json, with the worst attack of escalated.json on each."""

from collections.abc import Sequence
from pathlib import Path

import torch

from fedcel.errors import RunError
from fedcel.files import read_json
from fedcel.runs import per_image
from sims.report.read import ESCALATED
from sims.results.attack_results import read_image_scores
from sims.results.intervals import EVEN
from sims.results.matched_accuracy import Row
from sims.results.worst_attack import NAMED, OF_ATTACKS, common_attacks, is_mean, merge_rows

NEEDED = {"variant", "strength", "seed", "attack", "budget"}


def read_bench_rows(folder: Path, even: bool = False) -> Sequence[Row]:
    """Return a bench's rows, each with its worst attack of all; RunError when it has none.

    `even`: the worst of those that were run on every cell, see `common_attacks`.
    """
    rows, more = read_cells(folder), read_escalated(folder)
    return merge_rows(*common_attacks(rows, more)) if even else merge_rows(rows, more)


def read_uneven(folder: Path) -> list[Row]:
    """Return the rows of escalated.json that `read_bench_rows` leaves out when it is to be even."""
    more = read_escalated(folder)
    stay = common_attacks(read_cells(folder), more).more
    return [row for row in more if row not in stay]


def read_cells(folder: Path) -> list[Row]:
    """Return the rows of bench.json, as they are there; RunError when it has none."""
    if not (folder / "bench.json").exists():
        single = (folder / "result.json").exists()
        what = "is a single run" if single else "has no bench.json"
        raise RunError(f"{folder} {what}; give a folder that `fedcel bench` wrote")
    rows = read_json(folder / "bench.json")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise RunError(f"{folder / 'bench.json'} has no rows; run `fedcel bench` first")
    for row in rows:
        for key in ("variant", "run"):
            if key not in row:
                raise RunError(f"{folder / 'bench.json'} is damaged: a row names no {key}")
    return rows


def read_escalated(folder: Path) -> list[Row]:
    """Return the rows of escalated.json, none where it is missing; RunError when it is damaged."""
    path = folder / ESCALATED
    found = read_json(path) if path.exists() else []
    if isinstance(found, list) and all(isinstance(r, dict) and r.keys() >= NEEDED for r in found):
        return found
    raise RunError(f"{path} is damaged: rows with {', '.join(sorted(NEEDED))}; remove it")


def gather_vectors(folder: Path) -> None:
    """Write what a bench's rows are means of, by run and measure; what runs lack is left out."""
    vectors = per_image.Vectors()
    rows, more = read_cells(folder), read_escalated(folder)
    even = merge_rows(*common_attacks(rows, more))
    for row, compared in zip(merge_rows(rows, more), even, strict=True):
        place = folder / str(row["run"])
        each = per_image.read_vectors(place) | worst_image_scores(place, row)
        if row != compared:
            each |= {
                f"{EVEN}{key}": value for key, value in worst_image_scores(place, compared).items()
            }
        vectors |= {f"{row['run']}{per_image.APART}{key}": value for key, value in each.items()}
    per_image.write_vectors(folder, vectors)


def worst_image_scores(folder: Path, row: Row) -> per_image.Vectors:
    """Return what the worst attack of a bench's row scored of each target, mean over its seeds.

    {} where not all is kept. `folder` is the run's.
    """
    found = per_image.Vectors()
    wanted = {key: row.get(f"worst-{key}") for key in NAMED}
    for key in OF_ATTACKS:
        each = read_image_scores(folder, wanted, key)
        if not each:
            continue
        mean = torch.stack(each).mean(0)
        if is_mean(row.get(key), mean.double().numpy()):
            found[key] = mean
    return found
