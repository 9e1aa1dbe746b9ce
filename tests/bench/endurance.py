"""Memory and pace of the service over a long time.

`python -m tests.bench.endurance [MINUTES]` serves a run in a process of its own, asks it without a
pause over 16 connections, ten minutes by default, and prints a line a minute: answers a second,
p99, resident memory, size of the ledger.
"""

import re
import sys
import tempfile
from pathlib import Path

from tests.bench.service import CONNECTIONS, ask_steadily
from tests.system.services import new_key, serving, stored

MINUTE = 60.0


def main() -> None:
    """Serve, ask, print."""
    minutes = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    print("| minute | answers/s | p99 ms | resident MiB | ledger MiB |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as place:
        folder, ledger = Path(place), Path(place) / "ledger.db"
        changes = {"net.features": 64, "net.width": 128, "privacy.mechanism": "discrete-laplace"}
        run = stored(folder / "run", samples=16, **changes)
        key = new_key(ledger, 9e8)
        with serving(folder / "run", ledger) as service:
            for minute in range(1, minutes + 1):
                times = ask_steadily(service.url, key, run, CONNECTIONS[0], MINUTE)
                p99 = 1e3 * sorted(times)[int(0.99 * len(times))]
                memory, size = resident(service.process.pid), ledger.stat().st_size / 2**20
                rate = len(times) / MINUTE
                print(
                    f"| {minute} | {rate:.0f} | {p99:.1f} | {memory:.0f} | {size:.0f} |", flush=True
                )


def resident(process: int) -> float:
    """Return a process's resident memory in MiB."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found
    return int(found[1]) / 1024


if __name__ == "__main__":
    main()
