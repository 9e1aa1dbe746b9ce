"""What several messages of similar images tell: frames of one scene, pictures of one person.

A subject s (a scene, a person) has A variants. Each message is of a variant drawn at random, with
noise of its own. The optimal attacker knows the variants of all subjects, and Bayes' rule is the
attack:

    log p(z_1 .. z_M | s) = sum over m of log (1/A) sum over a of N(z_m; f(x_sa), sigma^2)

With one variant all messages are of one image, and their noise averages out: M messages with noise
sigma tell what one with sigma / sqrt(M) tells. Messages are independent given the subject, so M of
them never tell more than M times what one does: I(s; z_1 .. z_M) <= sum over m of I(s; z_m).
"""

from collections.abc import Sequence
from functools import partial
from math import log
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.metrics import sample_half_width
from fedcel.ranges import POSITIVE
from fedcel.torch_state import usual_torch_state


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
