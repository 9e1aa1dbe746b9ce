"""What several messages of similar images tell the best attacker.

`python -m tests.bench.sequences RUN... [--noise SIGMA]` measures finished runs, with their own
noise or another, and prints rows. Of a run on digits the subjects are its test images, and a frame
is one of 16 random turns, scalings and shifts of it. Of a run with held-out people the subjects are
these people, and a frame is one of their pictures. `one image` is the same without any change:
fresh noise on the same features.

Each row says what M messages told, and the sum that the meter charges: M times what one told. For
frames it also says how many pairs of the same subject, and of two subjects of a class, are within
one standard deviation of the noise, where the meter takes them for the same.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from clients.device.device import NEAR_SIGMAS
from fedcel.data.augmentation import augment_images
from fedcel.leakage import measure_sequences
from fedcel.posterior import build_device_net
from fedcel.runs import Run, posterior_samples, read_run

LENGTHS = (1, 2, 4, 8, 16)
FRAMES = 16
MIN_PICTURES = 5  # of a person, else its group is too small to draw from


def main() -> None:
    """Measure each run and print its rows."""
    parser = argparse.ArgumentParser()
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--noise", type=float)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for folder in arguments.runs for row in measure_run(folder, arguments.noise)]
    print(json.dumps(rows, indent=1))


def measure_run(folder: Path, noise: float | None) -> Iterator[dict[str, object]]:
    """Yield the rows of a run: frames, and one image again and again."""
    run = read_run(folder)
    net = build_device_net(run.flat, posterior_samples(run), "head")
    sigma = noise or net.cut.sigma
    images, labels, kind = build_subjects(run)
    with torch.no_grad():
        features = torch.stack([net.encode(images[:, k]) for k in range(images.shape[1])], 1)
    for name, variants in ((kind, features), ("one image", features[:, :1])):
        stream = torch.Generator().manual_seed(0)
        leaks = measure_sequences(variants, labels, sigma, stream, lengths=LENGTHS)
        same, others = share_near(variants, labels, sigma)
        for leak in leaks:
            yield {
                "run": folder.name,
                "similar": name,
                "messages": leak.messages,
                "subjects": len(labels),
                "sigma": sigma,
                "bits": round(leak.bits, 4),
                "half-width": round(leak.half_width, 4),
                "cap": round(leak.cap, 4),
                "sum": round(leak.messages * leaks[0].bits, 4),
                "near-same": round(same, 4),
                "near-others": round(others, 4),
                "command": "python -m tests.bench.sequences RUN",
            }


def build_subjects(run: Run) -> tuple[Float[Tensor, "S A C H W"], Int[Tensor, " S"], str]:
    """Return variants of each subject, its class, and what they are."""
    if run.settings.data.held_out_classes:
        x, y = run.splits.auxiliary
        counts = y.bincount()
        people = [k for k in range(len(counts)) if counts[k] >= MIN_PICTURES]
        pictures = int(min(counts[k] for k in people))
        images = torch.stack([x[y == k][:pictures] for k in people])
        return images, torch.zeros(len(people), dtype=torch.long), "pictures of a person"
    x, y = run.splits.test
    stream = torch.Generator().manual_seed(0)
    frames = [x, *(augment_images(x, "affine", stream) for _ in range(FRAMES - 1))]
    return torch.stack(frames, 1), y, "frames of an image"


def share_near(
    features: Float[Tensor, "S A D"], labels: Int[Tensor, " S"], sigma: float
) -> tuple[float, float]:
    """Return how often two variants of a subject, and of two of a class, are within a sigma."""
    first = features[:, 0] / sigma
    last = features[:, -1] / sigma
    is_near = torch.cdist(first, last) <= NEAR_SIGMAS
    is_same = torch.eye(len(first), dtype=torch.bool)
    is_rival = (labels[:, None] == labels) & ~is_same
    others = is_near[is_rival].float().mean() if is_rival.any() else torch.zeros(())
    return float(is_near[is_same].float().mean()), float(others)


if __name__ == "__main__":
    main()
