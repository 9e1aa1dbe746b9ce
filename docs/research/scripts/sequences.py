"""What several messages of similar images tell the best attacker.

`sequences.py RUN... [--noise SIGMA]` measures finished runs, with their own
noise or another, and prints rows. Of a run on digits the subjects are its test images, and a frame
is one of 16 random turns, scalings and shifts of it. Of a run with held-out people the subjects are
these people, and a frame is one of their pictures. `one image` is the same without any change:
fresh noise on the same features.

Each row says what M messages told, and the sum that the meter charges: M times what one told. For
frames it also says how many pairs of the same subject, and of two subjects of a class, are within
one standard deviation of the noise, where the meter takes them for the same.

A subject s has A variants. Each message is of a variant drawn at random, with noise of its own. The
optimal attacker knows the variants of all subjects, and Bayes' rule is the attack:

    log p(z_1 .. z_M | s) = sum over m of log (1/A) sum over a of N(z_m; f(x_sa), sigma^2)

With one variant all messages are of one image, and their noise averages out: M messages with noise
sigma tell what one with sigma / sqrt(M) tells. Messages are independent given the subject, so M of
them never tell more than M times what one does: I(s; z_1 .. z_M) <= sum over m of I(s; z_m).
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from functools import partial
from math import log
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.data.augmentation import augment_images
from fedcel.metrics import sample_half_width
from fedcel.posterior import build_device_net
from fedcel.ranges import POSITIVE
from fedcel.runs import Run, posterior_samples, read_run
from fedcel.torch_state import usual_torch_state

LENGTHS = (1, 2, 4, 8, 16)
FRAMES = 16
NEAR_SIGMAS = 1.0
"""Two images so near are told apart by one message in at most 69 % of cases: Phi(1/2)."""
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
                "command": "python docs/research/scripts/sequences.py RUN",
            }


class SequenceLeak(NamedTuple):
    """What M messages of one subject tell the best attacker about who or what it is."""

    messages: int
    """M."""
    bits: float
    """I(subject; messages | label), for subjects drawn uniformly from those of a class."""
    half_width: float
    """Half of the width of a 95 % interval over the subjects and the noise."""
    cap: float
    """Mean over subjects of log2(subjects of the same class): all of it."""


@usual_torch_state()
def measure_sequences(
    features: Float[Tensor, "S A D"],
    labels: Int[Tensor, " S"],
    noise: float,
    generator: torch.Generator,
    *,
    lengths: Sequence[int],
    draws: int = 16,
) -> list[SequenceLeak]:
    """Measure what the best attacker learns of a subject from several messages.

    Args:
        features: What the encoder computes of each variant of each subject, (S, A, D).
        labels: Class of each subject, (S,); what tells only the class is not counted.
        noise: Standard deviation of the noise at the cut, above 0.
        generator: Draws variants and noise.
        lengths: Numbers of messages, 1 or more each.
        draws: Sequences of each subject.

    Returns:
        What that many messages tell, for each length.

    Raises:
        ValueError: A length is below 1, or noise is not above 0.

    References:
        Cover and Thomas, Elements of Information Theory, 2006, equation 2.28, for a uniform input.
    """
    POSITIVE.check("noise", noise)
    if not lengths or min(lengths) < 1:
        raise ValueError(f"lengths are {list(lengths)}, must be 1 or more messages each")
    subjects, variants, _ = features.shape
    refs = features.detach().double()
    longest = max(lengths)
    is_rival = labels[:, None] == labels
    counts = is_rival.sum(1)
    told_bits = torch.empty(draws, len(lengths), subjects, dtype=torch.float64)
    for draw in range(draws):
        picked = torch.randint(variants, (subjects, longest), generator=generator)
        clean = refs[torch.arange(subjects)[:, None], picked]
        xi = torch.randn(clean.shape, generator=generator, dtype=torch.float32)
        messages = clean + noise * xi
        log_likelihood = torch.zeros(subjects, subjects, dtype=torch.float64)
        for position in range(longest):
            log_likelihood += score_subjects(messages[:, position], refs, noise)
            for place, length in enumerate(lengths):
                if length == position + 1:
                    rivals = log_likelihood.masked_fill(~is_rival, -torch.inf)
                    own_posterior = rivals.diagonal() - rivals.logsumexp(1)
                    told_bits[draw, place] = (own_posterior / log(2)) + counts.double().log2()
    caps = counts.double().log2()
    half_width = partial(sample_half_width, low=0.0, high=float(caps.max()))
    return [
        SequenceLeak(length, float(bits.mean()), half_width(bits), float(caps.mean()))
        for length, bits in zip(lengths, told_bits.mean(0), strict=True)
    ]


def score_subjects(
    messages: Float[Tensor, "Q D"], refs: Float[Tensor, "S A D"], noise: float
) -> Float[Tensor, "Q S"]:
    """Return log p(message | subject), up to one number for all pairs."""
    subjects, variants, size = refs.shape
    distances = torch.cdist(messages, refs.reshape(-1, size)) / noise
    by_variant = distances.square().div(-2).reshape(len(messages), subjects, variants)
    return by_variant.logsumexp(2) - log(variants)


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
