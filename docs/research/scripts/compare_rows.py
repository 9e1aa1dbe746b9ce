"""Rows made again against the published ones: each number inside or outside its interval."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from fedcel.json_records import Record
from sims.results.intervals import estimate

IDENTITY = (
    "variant", "strength", "data", "name", "measure", "attack", "observation", "knowledge",
    "budget", "epsilon", "shadows", "runs",
)  # fmt: skip
"""Keys that identify a row; rows that share them differ in the seed."""
SEEDS = ("seed", "training-seed")
NOT_COMPARED = {
    *SEEDS, "seconds", "measure-seconds", "attack-seconds", "seeds", "revision", "train-step-ratio",
}  # fmt: skip
"""Numbers of the machine, or of the way in which a row was made."""
SINGLE_SHARE = 0.02
"""Relative difference allowed to a number without an interval: of one or two seeds."""
ROUNDING = 1e-6
"""Relative difference of sums in another order."""
MOST_SHOWN = 10
"""Numbers, and rows, that are listed on the terminal."""


class ComparedNumber(Record):
    """One number of a table: as published, and as made again."""

    row: str
    key: str
    published: float
    half: float | None
    """Half the width of its interval; None below three seeds."""
    again: float | None
    """None where it was not made."""
    verdict: Literal["inside", "outside", "missing"]

    @property
    def gap(self) -> float:
        """Return the difference, in units of the interval or else of the number."""
        scale = self.half or abs(self.published) or 1.0
        return abs((self.again or 0.0) - self.published) / scale


class Comparison(Record):
    """One file of rows compared with the rows made again."""

    file: str
    rows_published: int
    rows_again: int
    numbers: tuple[ComparedNumber, ...]
    unpublished: tuple[str, ...] = ()
    """Rows that were made and have no published one of the same seed."""

    def count(self, verdict: str) -> int:
        """Return the count of numbers with this verdict."""
        return sum(number.verdict == verdict for number in self.numbers)

    def count_equal(self) -> int:
        """Return the count of numbers that differ by the order of sums only."""
        return sum(
            number.again is not None
            and abs(number.again - number.published) <= ROUNDING * abs(number.published)
            for number in self.numbers
        )

    def __str__(self) -> str:
        """Return the counts of all verdicts, the numbers outside, the unpublished rows."""
        outside = [
            f"  {number.row}: {number.key} is {number.again:.4g}, published {number.published:.4g}"
            + ("" if number.half is None else f" ± {number.half:.3g}")
            for number in sorted(self.numbers, key=lambda number: -number.gap)
            if number.verdict == "outside"
        ]
        lines = [
            f"{self.file}: {self.rows_again} rows made, {self.rows_published} published; of "
            f"{len(self.numbers)} numbers {self.count('inside')} inside "
            f"({self.count_equal()} equal), {self.count('outside')} outside, "
            f"{self.count('missing')} missing"
        ]
        for items in (outside, [f"  made, not published: {row}" for row in self.unpublished]):
            lines += items[:MOST_SHOWN]
            if (more := len(items) - MOST_SHOWN) > 0:
                lines.append(f"  and {more} more, see comparison.json")
        return "\n".join(lines)


def compare_rows(
    file: str, published: Sequence[Mapping[str, Any]], again: Sequence[Mapping[str, Any]]
) -> Comparison:
    """Compare each number's mean over seeds with the interval of the published ones.

    From three published seeds on, inside is within the 95 % interval of their mean; below, within
    2 % of the number. Times and counts of seeds are left out. Rows that were made and are not
    published are named.
    """
    names = {_name_row(row, *SEEDS) for row in published}
    rows_again = dict.fromkeys(_name_row(row, *SEEDS) for row in again)
    remade = _group_rows(again)
    numbers = [
        _judge(identity, key, values, remade.get(identity, {}).get(key, []))
        for identity, measures in _group_rows(published).items()
        for key, values in measures.items()
    ]
    return Comparison(
        file=file,
        rows_published=len(published),
        rows_again=len(again),
        numbers=tuple(numbers),
        unpublished=tuple(name for name in rows_again if name not in names),
    )


def flatten_row(row: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the finite numbers of a row by keys such as `scores.nll`.

    Those of an attack in it have keys such as `attacks.decoder:smashed-data:held-out:1.0.mse`.
    """
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from flatten_row(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, Mapping):
                    parts = ("attack", "observation", "knowledge", "budget")
                    label = ":".join(str(item.get(part)) for part in parts)
                    yield from flatten_row(item, f"{prefix}{key}.{label}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            is_left_out = key in NOT_COMPARED or (not prefix and key in IDENTITY)
            if math.isfinite(value) and not is_left_out:
                yield f"{prefix}{key}", float(value)


def _group_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Group the values of each number over the rows that differ in the seed only."""
    groups: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        group = groups.setdefault(_name_row(row), {})
        for key, value in flatten_row(row):
            group.setdefault(key, []).append(value)
    return groups


def _name_row(row: Mapping[str, Any], *more: str) -> str:
    """Name a row by the keys that identify it, and by these."""
    return " ".join(f"{key}={row[key]}" for key in (*IDENTITY, *more) if row.get(key) is not None)


def _judge(
    row: str, key: str, published: Sequence[float], again: Sequence[float]
) -> ComparedNumber:
    """Compare one number."""
    before, now = estimate(published), estimate(again)
    mean = before.mean or 0.0
    allowed = SINGLE_SHARE * abs(mean) if before.half is None else before.half
    verdict: Literal["inside", "outside", "missing"] = "missing"
    if now.mean is not None:
        is_inside = abs(now.mean - mean) <= allowed + ROUNDING * abs(mean)
        verdict = "inside" if is_inside else "outside"
    return ComparedNumber(
        row=row, key=key, published=mean, half=before.half, again=now.mean, verdict=verdict
    )
