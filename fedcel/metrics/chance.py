"""Chance accuracy, and whether a model beats it."""

import torch
from jaxtyping import Int
from torch import Tensor

from fedcel.metrics.intervals import share_interval


def chance_accuracy(labels: Int[Tensor, " N"]) -> float:
    """Compute the accuracy of always naming the most frequent class.

    Args:
        labels: (N,), any whole numbers.

    Returns:
        That class's share, in (0, 1].

    Raises:
        ValueError: There are no labels.
    """
    if not len(labels):
        raise ValueError("0 labels, must be 1 or more")
    return int(torch.unique(labels, return_counts=True)[1].max()) / len(labels)


def is_at_chance(accuracy: float, count: int, chance: float) -> bool:
    """Test whether answers are too few or too bad to tell a model from a guess.

    They cannot where the lower end of the 95 % interval of its accuracy is not above the guess's.

    Args:
        accuracy: Share of right answers, in [0, 1].
        count: Number of images that were answered, 1 or more.
        chance: Accuracy of the guess, see `chance_accuracy`.

    Returns:
        Whether nothing was learned that these images show.

    Raises:
        ValueError: There was no image.
    """
    return share_interval(accuracy, count)[0] <= chance
