"""Compare rows made again with the published ones: each number inside or outside its interval."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from fedcel.json_records import Record
from sims.results import estimate

IDENTITY = (
    "variant", "strength", "name", "attack", "observation", "knowledge", "budget", "epsilon",
    "shadows", "runs",
)  # fmt: skip
"""Keys that say what a row is of; rows that share them differ in the seed."""
SEEDS = ("seed", "training-seed")
"""Keys that say which of several rows of one thing a row is."""
NOT_COMPARED = {*SEEDS, "seconds", "seeds", "revision", "train-step-ratio"}
"""Numbers of the machine, or of how a row was made."""
SINGLE_SHARE = 0.02
"""Of a number without an interval that it may differ by, of one or two seeds."""
ROUNDING = 1e-6
"""By which sums in another order may differ, as a share."""
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


class Comparison(Record):
    """One file of rows compared with the rows made again."""

    file: str
    rows_published: int
    rows_again: int
    numbers: tuple[ComparedNumber, ...]
    unpublished: tuple[str, ...] = ()
    """Rows that were made and have no published one of the same seed."""

    def count(self, verdict: str) -> int:
        """Return how many numbers have this verdict."""
        return sum(number.verdict == verdict for number in self.numbers)

    def count_equal(self) -> int:
        """Return how many numbers are the published ones, but for the order of sums."""
        return sum(
            number.again is not None
            and abs(number.again - number.published) <= ROUNDING * abs(number.published)
            for number in self.numbers
        )

    def __str__(self) -> str:
        """Say how many numbers are inside, outside and missing; list outside, and unpublished."""
        lines = [
            f"{self.file}: {self.rows_again} rows made, {self.rows_published} published; of "
            f"{len(self.numbers)} numbers {self.count('inside')} inside "
            f"({self.count_equal()} equal), {self.count('outside')} outside, "
            f"{self.count('missing')} missing"
        ]
        outside = [number for number in self.numbers if number.verdict == "outside"]
        outside.sort(key=lambda number: -abs(_gap(number)))
        for number in outside[:MOST_SHOWN]:
            width = "" if number.half is None else f" ± {number.half:.3g}"
            lines.append(
                f"  {number.row}: {number.key} is {number.again:.4g}, published "
                f"{number.published:.4g}{width}"
            )
        lines += _say_more(outside)
        lines += [f"  made, not published: {row}" for row in self.unpublished[:MOST_SHOWN]]
        lines += _say_more(self.unpublished)
        return "\n".join(lines)


def compare_rows(
    file: str, published: Sequence[Mapping[str, Any]], again: Sequence[Mapping[str, Any]]
) -> Comparison:
    """Compare each number's mean over seeds with the interval of the published ones.

    Args:
        file: The rows' name.
        published: Published rows.
        again: Rows made again.

    Returns:
        A verdict for each number. From three published seeds on, inside is within the 95 %
        interval of their mean; below, within 2 % of the number. Times and counts of seeds are left
        out. Rows that were made and not published are named.
    """
    names = {_name_row(row, (*IDENTITY, *SEEDS)) for row in published}
    rows_again = dict.fromkeys(_name_row(row, (*IDENTITY, *SEEDS)) for row in again)
    first, second = _group_rows(published), _group_rows(again)
    numbers = [
        _judge(identity, key, values, second.get(identity, {}).get(key, []))
        for identity, measures in first.items()
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
    """Yield the numbers of a row, those within keys and of each attack too.

    Args:
        row: One row.
        prefix: What stands before its keys.

    Yields:
        Keys such as `scores.nll` or `attacks.decoder:held-out:1.0.mse`, with finite numbers.
    """
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from flatten_row(value, f"{prefix}{key}.")
        elif isinstance(value, list):
            for item in value:
                if isinstance(item, Mapping):
                    parts = [item.get(part) for part in ("attack", "observation", "knowledge")]
                    label = ":".join(str(part) for part in [*parts, item.get("budget")])
                    yield from flatten_row(item, f"{prefix}{key}.{label}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            is_left_out = key in NOT_COMPARED or (not prefix and key in IDENTITY)
            if math.isfinite(value) and not is_left_out:
                yield f"{prefix}{key}", float(value)


def _group_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return the values of each number over the rows that differ in the seed alone."""
    groups: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        group = groups.setdefault(_name_row(row, IDENTITY), {})
        for key, value in flatten_row(row):
            group.setdefault(key, []).append(value)
    return groups


def _name_row(row: Mapping[str, Any], keys: Iterable[str]) -> str:
    """Return what a row is of, by these of its keys."""
    return " ".join(f"{key}={row[key]}" for key in keys if row.get(key) is not None)


def _say_more(items: Sequence[object]) -> list[str]:
    """Return a line that says how many are not listed; none where all are."""
    more = len(items) - MOST_SHOWN
    return [f"  and {more} more, see comparison.json"] if more > 0 else []


def _judge(
    row: str, key: str, published: Sequence[float], again: Sequence[float]
) -> ComparedNumber:
    """Return the verdict on one number."""
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


def _gap(number: ComparedNumber) -> float:
    """Return how far a number is from the published one, in units of its interval or itself."""
    scale = number.half or abs(number.published) or 1.0
    return ((number.again or 0.0) - number.published) / scale
