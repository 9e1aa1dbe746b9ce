"""What each conditional entropy loss costs against batch, features and clusters.

`python -m tests.bench.loss_cost` times forward and backward pass of each loss at one size and at
others of one kind, on one thread, in CPU time; beside it the bytes of the tensors that the forward
pass keeps for the backward pass. It writes docs/results/loss-cost.json. Sizes alternate, and the
least time counts, so that other work on the machine moves it little.
"""

import json
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedcel.losses import ClientLoss
from fedcel.losses.protocol import State
from tests.fedcel.losses.single import options, single, split_features

CLASSES, SIGMA, EXAMPLES, TURNS, CALLS = 10, 0.3, 640, 9, 20
LOSSES = ("plain", "cluster", "gated", "mutual-information")


class Size(NamedTuple):
    """Images of a batch, features of an image, centres of a class."""

    batch: int = 128
    features: int = 64
    clusters: int = 1


SIZES = (
    *(Size(), Size(batch=32), Size(batch=512), Size(features=1024), Size(features=4096)),
    *(Size(clusters=5), Size(clusters=20)),
)


class Task(NamedTuple):
    """A loss with its state, and the batch that it is computed on."""

    loss: ClientLoss
    state: State
    z: Tensor
    y: Tensor


def build_loss(name: str, size: Size) -> ClientLoss:
    """Return a loss with its usual options."""
    clusters = {"clusters": size.clusters} if name == "cluster" else {}
    loss: ClientLoss = single(options(kind=name, **clusters), CLASSES, size.features, SIGMA)
    return loss


def make_task(name: str, size: Size) -> Task:
    """Return a loss after its first refresh."""
    stream = torch.Generator().manual_seed(0)
    z = torch.rand(EXAMPLES, size.features, generator=stream)
    y = torch.arange(EXAMPLES) % CLASSES
    loss = build_loss(name, size)
    state = loss.refresh(None, split_features(z, y), stream)
    return Task(loss, state, z[: size.batch].clone().requires_grad_(), y[: size.batch])


def measure_time(task: Task) -> float:
    """Return the CPU seconds of a call, forward and backward."""
    begin = time.process_time()
    for _ in range(CALLS):
        task.z.grad = None
        term = task.loss.loss(task.state, task.z, task.y, measure=False)
        torch.autograd.backward(term.loss)
    return (time.process_time() - begin) / CALLS


def measure_memory(task: Task) -> int:
    """Return the bytes that the forward pass keeps for the backward pass, the batch not counted."""
    kept: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        loss = task.loss.loss(task.state, task.z, task.y, measure=False).loss
    kept.pop(task.z.untyped_storage().data_ptr(), None)
    assert loss.requires_grad
    return sum(kept.values())


def main() -> None:
    """Measure all, print a table, write the rows."""
    torch.set_num_threads(1)
    cases = [
        (name, size) for name in LOSSES for size in SIZES if size.clusters == 1 or name == "cluster"
    ]
    tasks = [make_task(*case) for case in cases]
    for task in tasks:
        measure_time(task)
    times = [[measure_time(task) for task in tasks] for _ in range(TURNS)]
    rows = [
        {
            "loss": name,
            **size._asdict(),
            "milliseconds": round(1e3 * min(turn[number] for turn in times), 3),
            "kilobytes": round(measure_memory(tasks[number]) / 1000, 1),
            "command": "python -m tests.bench.loss_cost",
        }
        for number, (name, size) in enumerate(cases)
    ]
    for row in rows:
        print(" | ".join(str(value) for value in row.values()))
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/results/loss-cost.json")
    out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
