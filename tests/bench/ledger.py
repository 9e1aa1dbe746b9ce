"""What a durable charge costs: `python -m tests.bench.ledger [FOLDER]` prints a table.

Commits are bound by the disk: give a folder on the disk that the ledger will be on. PostgreSQL is
measured beside SQLite where it is installed: on this machine, over a unix socket.
"""

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from fedcel.privacy.ledger import Charge, Ledger
from tests.fedcel.privacy.ledger.postgres import LACKING, find_programs, serve_postgres

GROUPS = (1, 8, 64)
ROUNDS = 60


def main() -> None:
    """Time charges in each database at each group size, in turn; print the medians."""
    with open_ledgers(sys.argv[1] if len(sys.argv) > 1 else None) as ledgers:
        times: dict[tuple[str, int], list[float]] = {
            (name, size): [] for name in ledgers for size in GROUPS
        }
        for ledger in ledgers.values():
            ledger.grant("ann", 10**12)
        for turn in range(ROUNDS):
            for (name, size), seconds in times.items():
                requests = [f"{turn}-{size}-{k}" for k in range(size)]
                seconds.append(time_charge(ledgers[name], requests))
        print("| database | group | ms | ms an answer |\n|---|---|---|---|")
        for (name, size), seconds in times.items():
            group = 1e3 * statistics.median(seconds)
            print(f"| {name} | {size} | {group:.2f} | {group / size:.3f} |")
        for name, ledger in ledgers.items():
            rows = len(ledger.rows())
            begin = time.perf_counter()
            assert ledger.verify() == []
            seconds = time.perf_counter() - begin
            print(f"{name}, verify: {1e6 * seconds / rows:.1f} us a row, {rows} rows")


@contextmanager
def open_ledgers(folder: str | None) -> Iterator[dict[str, Ledger]]:
    """Yield a new ledger in each database, by its name."""
    with ExitStack() as stack:
        place = Path(stack.enter_context(TemporaryDirectory(dir=folder)))
        ledgers = {"SQLite": stack.enter_context(Ledger.open(place / "ledger.db"))}
        if find_programs() is None:
            print(LACKING)
        else:
            url = stack.enter_context(serve_postgres(folder)).make_database()
            ledgers["PostgreSQL"] = stack.enter_context(Ledger.open(url))
        yield ledgers


def time_charge(ledger: Ledger, requests: list[str]) -> float:
    """Return the seconds of one group's charge, its answers stored."""
    digests = [sha256(request.encode()).digest() for request in requests]
    charges = [
        Charge(request, "ann", "v1", 1, 0.0, digest)
        for request, digest in zip(requests, digests, strict=True)
    ]
    answers = [b"an answer of some hundred bytes" * 4] * len(charges)
    begin = time.perf_counter()
    ledger.charge(charges, answers)
    return time.perf_counter() - begin


if __name__ == "__main__":
    main()
