"""Scores of reconstructions, next to baselines that need no attack."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from fedcel.attacks.attack import OtherClasses
from fedcel.data import Images, to_floats
from fedcel.errors import DataError
from fedcel.extras import import_optional
from fedcel.leakage import identification
from fedcel.short_repr import show_shapes

UNIFORM_WINDOW, GAUSSIAN_WINDOW = 3, 11  # Wang et al. take 11; an 8x8 image has no room for it
MIN_GAUSSIAN_SIDE = 16  # pixels, from which the window is Gaussian
MAX_CLASSIFIER_IMAGES = 5000
MAX_CLASSIFIER_SIDE = 64  # pixels of images that it sees as they are
_VALUES_OF_SSIM = 2**20  # of images that are compared together; each becomes some 80
_VALUES_AT_ONCE = 2**24  # of images that are summed together
MAX_PSNR = 100.0  # dB, of a reconstruction without any error


@dataclass(frozen=True)
class ReconstructionScores:
    """The score card of one attack's reconstructions; fields are those of an `AttackRow`."""

    mse: float
    psnr: float
    ssim: float | None
    """None where images are too small for its window."""
    identification_1: float
    identification_5: float
    label_accuracy: float | None
    """None where the attacker has no images of the targets' classes to train the classifier."""
    mean_mse: float
    oracle_mse: float


@show_shapes
class ImageScores(NamedTuple):
    """Scores of each reconstruction."""

    mse: Float[Tensor, " T"]
    """Mean squared error."""
    identification_1: Float[Tensor, " T"]
    """Chance that the original is the nearest; of which others: see `identification`."""
    identification_5: Float[Tensor, " T"]
    """Chance that the original is among the five nearest."""


@show_shapes
class Anchors(NamedTuple):
    """Guesses at an image without an attack."""

    mean: Float[Tensor, "C H W"]
    """The mean of all images."""
    class_means: Float[Tensor, "K C H W"]
    """The mean of each class; of a class without an image the mean of all."""

    def guess(self, labels: Int[Tensor, " T"]) -> Float[Tensor, "T C H W"]:
        """Guess images (T, C, H, W) from their labels (T,)."""
        is_known = (labels < len(self.class_means))[:, None, None, None]
        means = self.class_means[labels.clamp_max(len(self.class_means) - 1)]
        return torch.where(is_known, means, self.mean)


def score_reconstructions(
    images: Float[Tensor, "T C H W"],
    targets: Images,
    auxiliary: Images,
    candidates: int,
    *,
    anchors: Anchors | None = None,
    image_scores: ImageScores | None = None,
) -> ReconstructionScores:
    """Score reconstructions and two baselines without an attack: the mean image and the class mean.

    The anchors' mean images are taken from all training images where these are given, because an
    anchor should not be weak because an attacker is; without any they are those of `auxiliary`,
    which the classifier learns from. DataError where there is no image to take them from.
    """
    originals = targets.x
    anchors = anchors or find_anchors(auxiliary)
    image_scores = image_scores or score_images(images, originals, candidates)
    has_room = min(originals.shape[2:]) >= UNIFORM_WINDOW
    knows_classes = not isinstance(auxiliary, OtherClasses) and bool(
        torch.isin(targets.y, auxiliary.y).any()
    )
    return ReconstructionScores(
        mse=float(image_scores.mse.mean()),
        psnr=psnr(images, originals),
        ssim=ssim(images, originals) if has_room else None,
        identification_1=float(image_scores.identification_1.mean()),
        identification_5=float(image_scores.identification_5.mean()),
        label_accuracy=label_accuracy(images, targets.y, auxiliary) if knows_classes else None,
        mean_mse=mse(anchors.mean.expand_as(originals), originals),
        oracle_mse=mse(anchors.guess(targets.y), originals),
    )


def order_batches(
    images: Float[Tensor, "T C H W"], originals: Float[Tensor, "T C H W"], batch: int
) -> Float[Tensor, "T C H W"]:
    """Return the images of each batch in the order with the lowest error.

    For attacks that see a batch as a whole: the order of its images is unknown, and the order
    that flatters the attack is that of the worst case. The last batch may be smaller.
    """
    ordered = []
    batches = zip(torch.split(images, batch), torch.split(originals, batch), strict=True)
    for rebuilt, true in batches:
        distance = torch.cdist(true.flatten(1).double(), rebuilt.flatten(1).double()).square()
        ordered.append(rebuilt[scipy.optimize.linear_sum_assignment(distance.numpy())[1]])
    return torch.cat(ordered)


def mse(images: Float[Tensor, "T C H W"], originals: Float[Tensor, "T C H W"]) -> float:
    """Measure the mean squared error of reconstructions.

    Args:
        images: Reconstructions (T, C, H, W) in [0, 1].
        originals: (T, C, H, W) in [0, 1].

    Returns:
        The error, unit: pixel squared.
    """
    return float(squared_errors(images, originals).mean())


def squared_errors(
    images: Float[Tensor, "T C H W"], originals: Float[Tensor, "T C H W"]
) -> Float[Tensor, " T"]:
    """Return each image's mean squared error, unit: pixel squared."""
    size = max(1, _VALUES_AT_ONCE // images[0].numel())
    parts = zip(*(torch.split(x, size) for x in (images, originals)), strict=True)
    return torch.cat([(a - b).double().square().flatten(1).mean(1) for a, b in parts])


def psnr(images: Float[Tensor, "T C H W"], originals: Float[Tensor, "T C H W"]) -> float:
    """Return the mean over images of -10 log10(MSE) in dB, at most 100 dB an image."""
    decibels = -10 * squared_errors(images, originals).log10()
    return float(decibels.clamp_max(MAX_PSNR).mean())


def ssim(images: Float[Tensor, "T C H W"], originals: Float[Tensor, "T C H W"]) -> float:
    """Return the mean structural similarity, in [-1, 1]; Wang et al., 2004, equation 13.

    An 11x11 Gaussian window of sd 1.5; below 16 pixels a side a uniform 3x3 window. Sides of 3 at
    least.
    """
    # From torchmetrics although it serves this one function: SSIM depends on its windows, edges and
    # constants, so only that of a library compares with published numbers. Neither scikit-learn nor
    # SciPy has it. Imported here: it brings seconds of imports that training never needs.
    measure = import_optional("torchmetrics.functional.image").structural_similarity_index_measure
    is_gaussian = min(images.shape[2:]) >= MIN_GAUSSIAN_SIDE
    window = GAUSSIAN_WINDOW if is_gaussian else UNIFORM_WINDOW
    size = max(1, _VALUES_OF_SSIM // images[0].numel())
    total = 0.0
    for part, true in zip(*(torch.split(x, size) for x in (images, originals)), strict=True):
        value = measure(part, true, gaussian_kernel=is_gaussian, kernel_size=window, data_range=1.0)
        total += float(value) * len(part)
    return total / len(images)


def score_images(
    images: Float[Tensor, "T C H W"], originals: Float[Tensor, "T C H W"], candidates: int
) -> ImageScores:
    """Score each reconstruction; chances are exact over which others are drawn as `candidates`."""
    true = originals.flatten(1).double()
    size = max(1, _VALUES_AT_ONCE // true.shape[1])
    parts = (part.double() for part in torch.split(images.flatten(1), size))
    products = torch.cat([2 * part @ true.T - part.square().sum(1)[:, None] for part in parts])
    nearness = products - true.square().sum(1)  # minus the squared distance
    first, five = (
        identification(nearness, torch.arange(len(images)), candidates, top) for top in (1, 5)
    )
    return ImageScores(squared_errors(images, originals), first, five)


def label_accuracy(
    images: Float[Tensor, "T C H W"], labels: Int[Tensor, " T"], auxiliary: Images
) -> float:
    """Return how often an independent classifier reads the right label off a reconstruction.

    A support vector machine on the pixels of at most 5 000 of the attacker's images, drawn at
    random: they may come holder by holder, whose first know few classes. Images of more than 64
    pixels a side become 32x32, each pixel the mean of a block.
    """
    from sklearn.svm import SVC  # a second that most commands need not wait

    order = torch.randperm(len(auxiliary.y), generator=torch.Generator().manual_seed(0))
    rows = order[:MAX_CLASSIFIER_IMAGES]
    y = auxiliary.y[rows].numpy()
    if (y == y[0]).all():  # nothing to tell apart
        return float((labels == int(y[0])).double().mean())
    examples, rebuilt = (
        (x if max(x.shape[2:]) <= MAX_CLASSIFIER_SIDE else adaptive_avg_pool2d(x, 32)).flatten(1)
        for x in (auxiliary.x[rows], images)
    )
    predicted = SVC().fit(examples.numpy(), y).predict(rebuilt.numpy())
    return float(np.mean(predicted == labels.numpy()))


def find_anchors(auxiliary: Images) -> Anchors:
    """Return the means of the attacker's images; DataError where they are of other classes."""
    if isinstance(auxiliary, OtherClasses):
        raise DataError(
            "the anchors are means of images of other classes, must be of the targets'; pass those "
            "of the training images as anchors"
        )
    return compute_anchors([auxiliary])


def compute_anchors(parts: Iterable[Images]) -> Anchors:
    """Compute the mean of all images and of each class, of few images at a time.

    Args:
        parts: Images (N, C, H, W) with labels, bytes or floats.

    Returns:
        The means.

    Raises:
        DataError: There is no image.
    """
    sums: dict[int, Tensor] = {}
    counts = Counter[int]()
    for part in parts:
        size = max(1, _VALUES_AT_ONCE // part.x.shape[1:].numel())
        for x, y in zip(*(torch.split(tensor, size) for tensor in part), strict=True):
            for label in y.unique().tolist():
                chosen = to_floats(x[torch.eq(y, label)])
                sums[label] = sums.get(label, 0) + chosen.sum(0, dtype=torch.float64)
                counts[label] += len(chosen)
    if not sums:
        raise DataError("the attacker has no images; raise data.auxiliary")
    mean = torch.stack(list(sums.values())).sum(0) / counts.total()
    labels = range(max(sums) + 1)
    means = torch.stack([sums[k] / counts[k] if k in sums else mean for k in labels])
    return Anchors(mean.float(), means.float())
