"""What a durable charge costs: `python -m tests.bench.ledger [FOLDER]` prints a table.

Commits are bound by the disk: give a folder on the disk that the ledger will be on.
"""

import statistics
import sys
import time
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from fedcel.privacy.ledger import Charge, Ledger

GROUPS = (1, 8, 64)
ROUNDS = 60


def main() -> None:
    """Time charge and settle at each group size, in turn, and print the medians."""
    folder = sys.argv[1] if len(sys.argv) > 1 else None
    times: dict[int, list[tuple[float, float]]] = {size: [] for size in GROUPS}
    with TemporaryDirectory(dir=folder) as place, Ledger.open(Path(place) / "ledger.db") as ledger:
        ledger.grant("ann", 10**12)
        for turn in range(ROUNDS):
            for size in GROUPS:
                times[size].append(timed(ledger, [f"{turn}-{size}-{k}" for k in range(size)]))
        print("| group | charge, ms | settle, ms | both, ms an answer |\n|---|---|---|---|")
        for size, pairs in times.items():
            charge, settle = (1e3 * statistics.median(part) for part in zip(*pairs, strict=True))
            print(f"| {size} | {charge:.2f} | {settle:.2f} | {(charge + settle) / size:.3f} |")
        rows = len(ledger.rows())
        begin = time.perf_counter()
        assert ledger.verify() == []
        print(f"verify: {1e6 * (time.perf_counter() - begin) / rows:.1f} us a row, {rows} rows")


def timed(ledger: Ledger, requests: list[str]) -> tuple[float, float]:
    """Return the seconds of one group's charge and settlement."""
    digests = [sha256(request.encode()).digest() for request in requests]
    charges = [
        Charge(request, "ann", "v1", 1, 0.0, digest)
        for request, digest in zip(requests, digests, strict=True)
    ]
    begin = time.perf_counter()
    ledger.charge(charges)
    middle = time.perf_counter()
    ledger.settle([(request, b"an answer of some hundred bytes" * 4) for request in requests])
    return middle - begin, time.perf_counter() - middle


if __name__ == "__main__":
    main()
