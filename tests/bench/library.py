"""Time and memory of `measure_leakage`: `python -m tests.bench.library` prints a table.

Each row is a process of its own on one thread. Memory is the peak less that of a process which has
measured a handful of images, libraries and all.
"""

import resource
import subprocess
import sys
import time

import torch

import fedcel

ROWS = [(400, 64), (2000, 512), (10_000, 64), (10_000, 512)]
THREADS = 1


def main() -> None:
    """Print a row for each size."""
    print("| images | features | seconds | of processors | memory, MiB |\n|---|---|---|---|---|")
    for count, width in ROWS:
        words = [sys.executable, "-m", "tests.bench.library", str(count), str(width)]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        print(done.stdout, end="", flush=True)


def measure(count: int, width: int) -> None:
    """Print one row: features in ten classes, noise 0.3, everything as by default."""
    torch.set_num_threads(THREADS)
    stream = torch.Generator().manual_seed(0)
    y = torch.arange(count) % 10
    z = torch.rand(10, width, generator=stream)[y]
    z += 0.03 * torch.randn(count, width, generator=stream)
    fedcel.measure_leakage(features=z[:100], labels=y[:100], noise=0.3)
    before, wall, processor = peak_memory(), time.perf_counter(), time.process_time()
    leak = fedcel.measure_leakage(features=z, labels=y, noise=0.3)
    seconds = time.perf_counter() - wall, time.process_time() - processor
    assert leak.certificate_bits is not None
    assert leak.information_bits < leak.certificate_bits + leak.information_half_width
    print(
        f"| {count} | {width} | {seconds[0]:.1f} | {seconds[1]:.1f} | "
        f"{peak_memory() - before:.0f} |"
    )


def peak_memory() -> float:
    """Return the process's peak memory in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    if sys.argv[1:]:
        measure(*map(int, sys.argv[1:]))
    else:
        main()
