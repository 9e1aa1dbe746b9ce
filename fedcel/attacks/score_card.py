"""How close reconstructions come to their originals, beside what needs no attack at all."""

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.attacks.protocol import OtherClasses
from fedcel.data import Images
from fedcel.errors import DataError
from fedcel.extras import import_optional
from fedcel.leakage import identification

SMALL_WINDOW, WINDOW = 3, 11  # Wang et al., 2004, take 11; an 8x8 image has no room for it
LARGEST_TRAINING = 5000  # images the independent classifier learns from, at most
BRIGHTEST_PSNR = 100.0  # dB, of a reconstruction without any error


def score_reconstructions(
    images: Float[Tensor, "T C H W"],
    targets: Images,
    known: Images,
    candidates: int,
    population: Images | None = None,
) -> dict[str, float]:
    """Return the score card of reconstructions; keys are those of an attack's row.

    `known` are the attacker's images, the classifier learns from them. The anchors' mean images
    are taken from `population`, usually all training images, which are more: an anchor should not
    be weak because an attacker is. Without it, from `known`. There is no `label-accuracy` where
    `known` are of other classes than the targets: nobody tells the classifier what it should read.
    There is no `ssim` of images too small for its window.
    """
    originals, everyone = targets.x, population or known
    alike, read = dict[str, float](), dict[str, float]()
    if min(originals.shape[2:]) >= SMALL_WINDOW:
        alike["ssim"] = ssim(images, originals)
    if not isinstance(known, OtherClasses):
        read["label-accuracy"] = label_accuracy(images, targets.y, known)
    return {
        "mse": mse(images, originals),
        "psnr": psnr(images, originals),
        **alike,
        "identification-1": identification_rate(images, originals, candidates, 1),
        "identification-5": identification_rate(images, originals, candidates, 5),
        **read,
        "mean-mse": mse(mean_image(targets.y, everyone), originals),
        "oracle-mse": mse(class_means(targets.y, everyone), originals),
    }


def score_each_image(
    images: Float[Tensor, "T C H W"], originals: Float[Tensor, "T C H W"], candidates: int
) -> dict[str, Float[Tensor, " T"]]:
    """Return what each reconstruction adds to the score card's `mse` and `identification-1`."""
    return {
        "mse": squared_errors(images, originals),
        "identification-1": identification_chances(images, originals, candidates, 1),
    }


def order_batches(
    images: Float[Tensor, "T C H W"], originals: Float[Tensor, "T C H W"], batch: int
) -> Float[Tensor, "T C H W"]:
    """Return the images of each batch in the order with the lowest error.

    For attacks that see a batch as a whole: which image came first nobody can tell, and the order
    that flatters the attack is that of the worst case. The last batch may be smaller.
    """
    ordered = []
    for found, true in zip(torch.split(images, batch), torch.split(originals, batch), strict=True):
        distance = torch.cdist(true.flatten(1).double(), found.flatten(1).double()).square()
        ordered.append(found[scipy.optimize.linear_sum_assignment(distance.numpy())[1]])
    return torch.cat(ordered)


def mse(images: Float[Tensor, "T C H W"], originals: Float[Tensor, "T C H W"]) -> float:
    """Return the mean squared error, unit: pixel squared."""
    return float(squared_errors(images, originals).mean())


def squared_errors(
    images: Float[Tensor, "T C H W"], originals: Float[Tensor, "T C H W"]
) -> Float[Tensor, " T"]:
    """Return each image's mean squared error, unit: pixel squared."""
    return (images - originals).double().square().flatten(1).mean(1)


def psnr(images: Float[Tensor, "T C H W"], originals: Float[Tensor, "T C H W"]) -> float:
    """Return the mean over images of -10 log10(MSE) in dB, at most 100 dB an image."""
    decibels = -10 * squared_errors(images, originals).log10()
    return float(decibels.clamp_max(BRIGHTEST_PSNR).mean())


def ssim(images: Float[Tensor, "T C H W"], originals: Float[Tensor, "T C H W"]) -> float:
    """Return the mean structural similarity, in [-1, 1]; Wang et al., 2004, equation 13.

    An 11x11 Gaussian window of sd 1.5; below 16 pixels a side a uniform 3x3 window. Sides of 3 at
    least.
    """
    side = min(images.shape[2:])
    # Imported here: it brings seconds of imports that training never needs.
    value = import_optional("torchmetrics.functional.image").structural_similarity_index_measure(
        images,
        originals,
        gaussian_kernel=side >= 16,
        kernel_size=WINDOW if side >= 16 else SMALL_WINDOW,
        data_range=1.0,
    )
    assert isinstance(value, Tensor)
    return float(value)


def identification_rate(
    images: Float[Tensor, "T C H W"],
    originals: Float[Tensor, "T C H W"],
    candidates: int,
    top: int,
) -> float:
    """Return how often a reconstruction's own original is among the `top` nearest of `candidates`.

    Averaged exactly over which other originals are drawn; see `identification`.
    """
    return float(identification_chances(images, originals, candidates, top).mean())


def identification_chances(
    images: Float[Tensor, "T C H W"],
    originals: Float[Tensor, "T C H W"],
    candidates: int,
    top: int,
) -> Float[Tensor, " T"]:
    """Return each reconstruction's own chance of what `identification_rate` is the mean of."""
    flat = images.flatten(1).double(), originals.flatten(1).double()
    distance = torch.cdist(*flat, compute_mode="donot_use_mm_for_euclid_dist")
    return identification(-distance, torch.arange(len(images)), candidates, top)


def label_accuracy(
    images: Float[Tensor, "T C H W"], labels: Int[Tensor, " T"], known: Images
) -> float:
    """Return how often an independent classifier reads the right label off a reconstruction.

    A support vector machine on the pixels of at most 5 000 of the attacker's images, drawn at
    random: they may come holder by holder, whose first know few classes.
    """
    from sklearn.svm import SVC  # a second that most commands need not wait

    order = torch.randperm(len(known.y), generator=torch.Generator().manual_seed(0))
    some = order[:LARGEST_TRAINING]
    x, y = known.x[some].flatten(1).numpy(), known.y[some].numpy()
    if (y == y[0]).all():  # nothing to tell apart
        return float((labels == int(y[0])).double().mean())
    read = SVC().fit(x, y).predict(images.flatten(1).numpy())
    return float(np.mean(read == labels.numpy()))


def mean_image(labels: Int[Tensor, " T"], known: Images) -> Float[Tensor, "T C H W"]:
    """Return for each target what one guesses who knows nothing: the mean of all images."""
    return known.x.mean(0, keepdim=True).expand(len(labels), -1, -1, -1)


def class_means(labels: Int[Tensor, " T"], known: Images) -> Float[Tensor, "T C H W"]:
    """Return for each target what one guesses who knows the label: the mean of its class.

    A class without a known image gives the mean of all. DataError when there is no image at all,
    or none whose label is a class of the targets.
    """
    if isinstance(known, OtherClasses):
        raise DataError(
            "the anchors are means of images of other classes, must be of the targets'; pass the "
            "training images as population"
        )
    if len(known.y) == 0:
        raise DataError("the attacker has no images; raise data.auxiliary")
    classes = int(torch.cat([labels, known.y]).max()) + 1
    share = torch.nn.functional.one_hot(known.y, classes).to(known.x.dtype)
    count = share.sum(0)[:, None, None, None]
    sums = torch.einsum("nk,nchw->kchw", share, known.x)
    means = torch.where(count > 0, sums / count.clamp_min(1), known.x.mean(0))
    return means[labels]
