"""What the answers alone tell about an image: the floor under every leak at this behaviour."""

from math import log

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

SMOOTHING = 2.0
"""Draws' worth of its class's answers that each image is given beside its own."""


def answer_bits(answers: Int[Tensor, "R N"], labels: Int[Tensor, " N"], classes: int) -> float:
    """Return I(image; answer | label) in bits, from R answers to fresh messages about N images.

    The image is drawn uniformly from those of its class. An answer is computed from the message,
    so I(image; message | label) is at least this (data processing; Cover and Thomas, 2006, theorem
    2.8.1): no encoder whose answers follow the same law leaks less beyond the label. A perfect
    classifier has 0, one without randomness H(answer | label).

    Never too large in expectation: the mean of log2 n q(image | answer) bounds the information
    from below for every law q (Barber and Agakov, NIPS 2003), and here each draw is scored by a q
    counted on the other R - 1 draws, smoothed towards the class's answers. It may fall a little
    below 0 by chance. `plug_in_bits` errs to the other side. ValueError unless R is at least 2.
    """
    if len(answers) < 2:
        raise ValueError(f"answers hold {len(answers)} draw, must hold at least 2; pass 64 or more")
    total = 0.0
    for label in torch.unique(labels):
        drawn = one_hot(answers[:, labels == label], classes).double()  # (R, n, classes)
        others = drawn.sum(0) - drawn
        smooth = others + SMOOTHING * others.mean(1, keepdim=True) / (len(answers) - 1)
        # An answer that no other draw gave anywhere in the class tells q nothing: it is uniform.
        known = smooth.sum(1, keepdim=True)
        ratio = torch.where(known > 0, drawn.shape[1] * smooth / known.clamp_min(1e-9), 1.0)
        total += float((ratio * drawn).sum(2).log2().mean(0).sum())
    return total / len(labels)


def plug_in_bits(answers: Int[Tensor, "R N"], labels: Int[Tensor, " N"], classes: int) -> float:
    """Return H(answer | label) - H(answer | image) in bits, both of the frequencies counted.

    Never too small in expectation: information is convex in the law of the answer given the image
    (Cover and Thomas, 2006, theorem 2.7.4), so that frequencies in its place raise it.
    """
    law = one_hot(answers, classes).double().mean(0)
    total = 0.0
    for label in torch.unique(labels):
        own = law[labels == label]
        total += len(own) * float(entropy(own.mean(0)) - entropy(own).mean())
    return total / len(labels)


def entropy(p: Float[Tensor, "*rows K"]) -> Float[Tensor, "*rows"]:
    """Return the entropy of each row of probabilities, in bits."""
    return -torch.xlogy(p, p).sum(-1) / log(2)
