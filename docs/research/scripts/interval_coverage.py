"""How often the intervals of measured bits and rates hold the truth, and how wide they are.

`interval_coverage.py` prints the rows of `docs/results/interval-coverage.json`.
Messages of M images are drawn many thousand times each: their mean is the truth. A seed draws a few
of them anew. Beside each share of seeds stands that of the interval without its floor, 1.96
standard errors of the sample; `ratio` is the mean half width over the ideal one, 1.96 true standard
errors.
"""

import json
from math import log2
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.leakage.exact_bits import (
    bits_half_width,
    noise_half_width,
    raise_squares,
    score_messages,
)
from fedcel.leakage.messages import Messages, disturb_features

SEEDS = 1000
POOL = 400_000  # messages of all images together
POINTS = {2: (0.5, 0.8, 1.0, 2.0), 30: (0.1, 0.15, 0.2, 0.5, 1.0), 100: (0.15, 0.3, 1.0)}
"""Images, and standard deviations of the noise."""
DRAWS = (2, 8, None)
"""Messages of an image; None: 3 200 of all together."""
CLASSES = 3
MEASURES = ("identification", "information", "beyond the label")


class Coverage(NamedTuple):
    """What one kind of interval did over all seeds."""

    covered: float
    covered_before: float
    half_width: float
    ratio: float
    truth: float


def main() -> None:
    """Print a row for each number of images and draws, noise and measure."""
    torch.set_num_threads(1)
    rows = [
        {
            "measure": measure,
            "M": count,
            "sigma": sigma,
            "draws": draws or 3200 // count,
            "seeds": SEEDS,
            "command": "python docs/research/scripts/interval_coverage.py",
        }
        | {key.replace("_", "-"): float(f"{v:.4g}") for key, v in found._asdict().items()}
        for count, sigmas in POINTS.items()
        for sigma in sigmas
        for draws in DRAWS
        for measure, found in measure_coverage(count, sigma, draws, SEEDS).items()
    ]
    print(json.dumps(rows, indent=1))


def measure_coverage(
    count: int, sigma: float, draws: int | None, seeds: int
) -> dict[str, Coverage]:
    """Measure the coverage of messages of equal noise.

    Two images lie at 0 and 4 and are of one class, more are Gaussian in four directions.
    """
    stream = torch.Generator().manual_seed(count)
    points = torch.tensor([[0.0], [4.0]]) if count == 2 else torch.randn(count, 4, generator=stream)
    labels = torch.zeros(2).long() if count == 2 else torch.arange(count) % CLASSES
    noise = torch.full((points.shape[1],), sigma, dtype=torch.float64)
    messages = disturb_features(points.double(), noise, 0.0)
    return cover_truth(messages, labels, draws, seeds, stream)


def measure_rare_coverage(dropout: float | None, seeds: int) -> dict[str, Coverage]:
    """Measure the coverage of two images one of which rarely looks exactly like the other.

    Dropped at times without noise; or, dropout None, with noise of 1 and of .001.
    """
    points = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    if dropout is None:
        messages = disturb_features(points, torch.tensor([[1.0], [0.001]], dtype=torch.float64))
    else:
        messages = disturb_features(points, torch.zeros(1, dtype=torch.float64), dropout)
    return cover_truth(
        messages, torch.zeros(2).long(), None, seeds, torch.Generator().manual_seed(2)
    )


def cover_truth(
    messages: Messages,
    labels: Tensor,
    draws: int | None,
    seeds: int,
    stream: torch.Generator,
) -> dict[str, Coverage]:
    """Return by measure how often the interval of its mean held the truth."""
    count = len(labels)
    pool, squares_pool = draw_scores(messages, labels, stream)
    draws = draws or 3200 // count
    picked = torch.randint(pool.shape[2], (seeds, count, draws), generator=stream)
    caps = torch.full((count,), log2(count)), (labels[:, None] == labels).sum(1).double().log2()
    found = {}
    for place, measure in enumerate(MEASURES):
        truth = float(pool[place].mean())
        ideal = 1.96 * float((pool[place].var(1).mean() / (count * draws)).sqrt())
        sample = pool[place].expand(seeds, -1, -1).gather(2, picked)
        gaps = (sample.mean((1, 2)) - truth).abs()
        means = sample.mean(2)
        expected = squares_pool[place].expand(seeds, -1, -1).gather(2, picked).mean(2)
        squares = raise_squares(sample.square().mean(2), expected)
        widths = torch.tensor(
            [
                bits_half_width(*pair, draws, caps[place - 1])
                if place
                else noise_half_width(*pair, draws)
                for pair in zip(means, squares, strict=True)
            ]
        )
        before = 1.96 * (sample.var(2).sum(1) / draws).sqrt() / count
        held, held_before = (
            float((gaps <= wide + 1e-12).double().mean()) for wide in (widths, before)
        )
        found[measure] = Coverage(
            held,
            held_before,
            float(widths.mean()),
            float(widths.mean()) / max(ideal, 1e-12),
            truth + (float(caps[place - 1].mean()) if place else 0),
        )
    return found


def draw_scores(
    messages: Messages, labels: Tensor, stream: torch.Generator
) -> Float[Tensor, "2 3 M n"]:
    """Return the three scores of many messages of each image, and their expected squares."""
    count = len(labels)
    scores = []
    for sender in range(count):
        senders = torch.full((POOL // count,), sender)
        log_prob = messages.law(messages.sample(senders, stream))
        scores.append(score_messages(log_prob, senders, labels, 100))
    return torch.stack(scores, 2)


if __name__ == "__main__":
    main()
