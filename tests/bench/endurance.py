"""Memory and pace of the service over a long time.

`python -m tests.bench.endurance [MINUTES] [CONNECTIONS]` serves a run in a process of its own, asks
it without a pause, by default ten minutes over 16 connections, and prints a line a minute: answers
a second, p99, own memory of both its processes, size of the ledger. In the end it checks the
ledger.
"""

import re
import sys
import tempfile
from pathlib import Path

from fedcel.privacy.ledger import Ledger
from tests.bench.service import CONNECTIONS, Target, put_load
from tests.system.services import new_key, serving, stored

MINUTE = 60


def main() -> None:
    """Serve, ask, print."""
    given = dict(zip(("minutes", "connections"), map(int, sys.argv[1:]), strict=False))
    minutes, connections = given.get("minutes", 10), given.get("connections", CONNECTIONS[0])
    print("| minute | answers/s | p99 ms | memory MiB | ledger MiB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        folder, ledger = Path(place), Path(place) / "ledger.db"
        changes = {"net.features": 64, "net.width": 128, "privacy.mechanism": "discrete-laplace"}
        run = stored(folder / "run", samples=16, **changes)
        key = new_key(ledger, 9e8)
        with serving(folder / "run", ledger) as service:
            for minute in range(1, minutes + 1):
                load = put_load(Target(service.url, key, run), connections, MINUTE)
                pid = service.process.pid
                memory = sum(read_memory(process) for process in (pid, *find_children(pid)))
                size = ledger.stat().st_size / 2**20
                numbers = load.rate, 1e3 * load.p99, memory, size
                print(f"| {minute} |", " | ".join(f"{n:.0f}" for n in numbers), "|", flush=True)
        with Ledger.open(ledger) as books:
            print(f"faults of the ledger: {books.verify() or 'none'}")


def find_children(process: int) -> list[int]:
    """Return the processes that a process has started."""
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(number) for number in text.split()]


def read_memory(process: int) -> float:
    """Return a process's own memory in MiB, without the files that it shares with others."""
    found = re.search(
        r"^Pss_Anon:\s+(\d+) kB", Path(f"/proc/{process}/smaps_rollup").read_text(), re.M
    )
    assert found
    return int(found[1]) / 1024


if __name__ == "__main__":
    main()
