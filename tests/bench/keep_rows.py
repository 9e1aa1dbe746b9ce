"""Keep what a benchmark prints: `python -m tests.bench.keep_rows FILE python -m MODULE ...`.

The command's output is shown as it comes. If it succeeds, its tables are added to FILE, a list with
the machine, the versions, the date and how much a fixed computation varied before and after.
"""

import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import torch

from fedcel.files import read_json, write_json

REPEATS, SIZE = 30, 512
"""Products of matrices that are timed for the noise, and their size."""


def main() -> int:
    """Run the command and keep its rows; return its exit status."""
    path, words = Path(sys.argv[1]), sys.argv[2:]
    begin = datetime.now(UTC)
    noise, load = [measure_noise()], [*os.getloadavg()[:1]]
    lines = []
    command = [sys.executable if word == "python" else word for word in words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line.rstrip("\n"))
    if process.returncode:
        return process.returncode
    noise.append(measure_noise())
    load.append(os.getloadavg()[0])
    measured = {
        "command": " ".join(words),
        "date": begin.isoformat(timespec="seconds"),
        "machine": {**describe_machine(), "noise": noise, "load": load},
        "rows": list(parse_tables(lines)),
        "output": lines,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    earlier = read_json(path) if path.exists() else []
    assert isinstance(earlier, list)
    write_json(path, [*earlier, measured])
    print(f"rows: {path}", flush=True)
    return 0


def measure_noise() -> float:
    """Measure how much a fixed computation varies: its quartiles' distance over its median."""
    matrix = torch.ones(SIZE, SIZE)
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        torch.mm(matrix, matrix)
        times.append(time.perf_counter() - begin)
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle


def describe_machine() -> dict[str, object]:
    """Describe processor, cores and versions."""
    return {
        "processor": name_processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def name_processor() -> str:
    """Return the processor's name as the system tells it."""
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def parse_tables(lines: Iterable[str]) -> Iterable[dict[str, str]]:
    """Yield the rows of tables, each cell by the head of its column."""
    heads: list[str] = []
    for line in lines:
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) < 3 or cells[0] or cells[-1]:  # no row of a table: the next is a head
            heads = []
        elif not heads:
            heads = cells[1:-1]
        elif set(line) - set("|- "):
            yield dict(zip(heads, cells[1:-1], strict=False))


if __name__ == "__main__":
    sys.exit(main())
