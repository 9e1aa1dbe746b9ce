"""Spread of features, within classes and between groups."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.tensors import number_labels


def within_class_spread(z: Float[Tensor, "N D"], y: Int[Tensor, " N"]) -> Float[Tensor, ""]:
    """Measure how far features lie from the mean of their class.

    Args:
        z: Features (N, D).
        y: Labels (N,).

    Returns:
        The mean over images of |z - mean of its class|^2, unit: z squared.
    """
    (y,) = number_labels(y)  # numbers of people would need room for all below them
    sums = z.new_zeros(int(y.max()) + 1, z.shape[1]).index_add(0, y, z)
    means = sums / y.bincount()[:, None]
    return (z - means[y]).square().sum(1).mean()


def between_group_spread(
    z: Float[Tensor, "N D"], y: Int[Tensor, " N"], group: Int[Tensor, " N"]
) -> Float[Tensor, ""]:
    """Measure how far the class means of groups, such as clients, lie apart.

    Groups that are random draws of the same images differ too, by about the within-class spread
    times (pairs of class and group - classes) / N.

    Args:
        z: Features (N, D).
        y: Labels (N,).
        group: Number of each image's group, 0 or more, (N,).

    Returns:
        The mean over images of |mean of its class in its group - mean of its class|^2, unit: z
        squared.
    """
    # Numbered by those that occur: of ten thousand groups few have an image of each class.
    (y,), (group,) = number_labels(y), number_labels(group)
    groups = int(group.max()) + 1
    occurring, pair = torch.unique(y * groups + group, return_inverse=True)
    counts, label = pair.bincount()[:, None], occurring // groups
    # In place, and a mean for each pair in the place of one for each image: a million clients'
    # images are as large as all else together.
    means = z.new_zeros(len(counts), z.shape[1]).index_add_(0, pair, z)
    sums = z.new_zeros(int(label.max()) + 1, z.shape[1]).index_add_(0, label, means)
    means.div_(counts).sub_((sums / y.bincount().clamp_min(1)[:, None])[label])
    total: Tensor = means.square_().sum(1) @ counts[:, 0].to(z.dtype)
    return total / len(y)
