"""A round of many clients beside fedjax: `python -m tests.bench.fedjax_rounds PYTHON` prints rows.

PYTHON is the interpreter of another environment, with `pip install fedjax==0.0.17 jax==0.4.25
jaxlib==0.4.25 "numpy<2" "scipy<1.13"`: fedjax does not run with a newer jax. Federated averaging of
the same MLP on the same number of random images, 20 steps of batches of 32, one thread, with and
without noise at the cut. Processor time, A B A B ..., after a first round that compiles.
"""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from tests.bench.batched import CLIENTS, EACH, PAIRS, at_once, configure, print_row, seconds

NOISE = 0.3
WORKER = Path(__file__).with_name("fedjax_worker.py")
Round = Callable[[], float]
"""Takes a round and returns its seconds of processor time."""


def main(python: str) -> None:
    """Time every pair and print the rows."""
    torch.set_num_threads(1)
    print("| a round of | against | times as fast | quartiles | ms a client |")
    print("|---|---|---|---|---|")
    for clients in CLIENTS:
        for noise in (0.0, NOISE):
            settings = configure(clients, "none", **{"net.noise": noise})
            with begin_fedjax(python, clients, noise) as other:
                work = at_once(settings)
                work()
                times = [(seconds(work), other()) for _ in range(PAIRS)]
                print_row(f"{clients} clients at once, noise {noise}", "fedjax", times, clients)


@contextmanager
def begin_fedjax(python: str, clients: int, noise: float) -> Iterator[Round]:
    """Hand out a round of fedjax in a process of its own, compiled."""
    command = [python, str(WORKER), str(clients), str(EACH), str(noise)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    ) as worker:
        assert worker.stdin is not None and worker.stdout is not None
        asking, answers = worker.stdin, worker.stdout

        def take_round() -> float:
            asking.write("round\n")
            return float(answers.readline())

        take_round()
        try:
            yield take_round
        finally:
            asking.close()


if __name__ == "__main__":
    main(sys.argv[1])
