"""Bits about an image in the answers: a lower bound on every leak at this behaviour."""

import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import one_hot

CLASS_WEIGHT = 2.0
"""Draws' worth of its class's answers that each image is given beside its own."""


def answer_bits(answers: Int[Tensor, "R N"], labels: Int[Tensor, " N"], classes: int) -> float:
    """Bound from below the bits about an image in its answers, beyond its label.

    That is I(image; answer | label), the image drawn uniformly from those of its class. An answer
    is computed from the message, so I(image; message | label) is at least as large (data
    processing): no encoder whose answers follow the same law leaks less beyond the label. A perfect
    classifier has 0, one without randomness H(answer | label).

    Never too large in expectation: the mean of log2 n q(image | answer) bounds the information
    from below for every law q, and here each draw is scored by a q counted on the other R - 1
    draws, smoothed towards the class's answers. By chance it may fall a little below 0.

    Args:
        answers: Classes answered to R fresh messages about N images, (R, N); R is 2 or more.
        labels: The images' labels, (N,).
        classes: Number of classes that may be answered.

    Returns:
        The bound, in bits.

    Raises:
        ValueError: There is one draw only.

    References:
        Cover and Thomas, Elements of Information Theory, 2006, theorem 2.8.1 (data processing).
        Barber and Agakov, NIPS 2003 (the bound for every q).
    """
    if len(answers) < 2:
        raise ValueError(f"answers hold {len(answers)} draw, must hold at least 2; pass 64 or more")
    total = 0.0
    for label in torch.unique(labels):
        given_answers = one_hot(answers[:, labels == label], classes).double()  # (R, n, classes)
        counts = given_answers.sum(0) - given_answers  # of the other draws
        smooth = counts + CLASS_WEIGHT * counts.mean(1, keepdim=True) / (len(answers) - 1)
        # An answer that no other draw gave anywhere in the class tells q nothing: it is uniform.
        per_answer = smooth.sum(1, keepdim=True)
        ratio = given_answers.shape[1] * smooth / per_answer.clamp_min(1e-9)
        ratio = torch.where(per_answer > 0, ratio, 1.0)
        total += float((ratio * given_answers).sum(2).log2().mean(0).sum())
    return total / len(labels)
