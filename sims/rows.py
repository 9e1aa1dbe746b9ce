"""A bench's rows: those of bench.json, with the worst attack of escalated.json on each."""

from collections.abc import Sequence
from pathlib import Path

from fedcel import per_image
from fedcel.errors import RunError
from fedcel.files import read_json
from sims.matched import Row
from sims.report.read import ESCALATED
from sims.worst import merged, of_attack

NEEDED = {"variant", "strength", "seed", "attack", "budget"}


def read(folder: Path) -> Sequence[Row]:
    """Return a bench's rows, each with its worst attack of all; RunError when it has none."""
    if not (folder / "bench.json").exists() and (folder / "result.json").exists():
        raise RunError(f"{folder} is a single run; give a folder that `fedcel bench` wrote")
    rows = read_json(folder / "bench.json")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise RunError(f"{folder / 'bench.json'} has no rows; run `fedcel bench` first")
    for row in rows:
        for key in ("variant", "run"):
            if key not in row:
                raise RunError(f"{folder / 'bench.json'} is damaged: a row names no {key}")
    return merged(rows, escalated(folder))


def escalated(folder: Path) -> list[Row]:
    """Return the rows of escalated.json, none where it is missing; RunError when it is damaged."""
    path = folder / ESCALATED
    found = read_json(path) if path.exists() else []
    if isinstance(found, list) and all(isinstance(r, dict) and r.keys() >= NEEDED for r in found):
        return found
    raise RunError(f"{path} is damaged: rows with {', '.join(sorted(NEEDED))}; remove it")


def gather(folder: Path) -> None:
    """Write what a bench's rows are means of, by run and measure; what runs lack is left out."""
    vectors = per_image.Vectors()
    for row in read(folder):
        place = folder / str(row["run"])
        each = per_image.of_run(place) | of_attack(place, row)
        vectors |= {f"{row['run']}{per_image.APART}{key}": value for key, value in each.items()}
    per_image.write(folder, vectors)
