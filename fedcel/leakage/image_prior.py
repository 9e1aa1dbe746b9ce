"""Gaussian prior of images within their classes: what is known of an image before its message."""

from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.fft import dctn, idctn
from torch import Tensor

from fedcel.short_repr import show_shapes
from fedcel.tensors import ArrayLike, to_labels, to_tensor
from fedcel.torch_state import make_generator

MAX_FULL = 1024
"""Pixels, times channels, up to which covariances of all pairs are estimated."""
MIN_DEVIATIONS = 2
"""Images beyond the first of their class that an estimate of the spread needs."""
MAX_VALUES = 2**25
"""Values of all images that a prior is fitted to, where it chooses them itself."""
VALUES_AT_ONCE = 2**22
"""Values of images that are transformed at once."""
LEAST_SHARE = 1e-12
"""Variance of a direction, as a share of the largest, below which no image differs in it."""


@show_shapes
@dataclass(frozen=True)
class ImagePrior:
    """Gaussian law of images given their class: one mean a class, one covariance C for all.

    C = Q diag(variances) Q^T with an orthonormal Q, which `to_coefficients` and `from_coefficients`
    apply. Up to `MAX_FULL` values an image, Q holds the eigenvectors of the covariance within
    classes, shrunk towards its diagonal in the cosine transform. Above, Q is the cosine transform
    of decorrelated channels, which diagonalises the covariance of stationary images.

    Attributes:
        shape: Of an image, such as (C, H, W).
        variances: Of the coefficients in Q's d directions, (d,), in units of a pixel squared.
        means: Of each class, (K, ...).
        classes: Label of each mean, (K,); of images without labels one 0.
        is_within_class: Whether the images had labels: else C is that of all images together.
        estimator: The estimate of C, in words.
        channels: Decorrelates the channels, (c, c), a column each.
        rotation: Eigenvectors in coordinates of the cosine transform, (d, d); None: none.
    """

    shape: tuple[int, ...]
    variances: Float[Tensor, " d"]
    means: Float[Tensor, "K *shape"]
    classes: Int[Tensor, " K"]
    is_within_class: bool
    estimator: str
    channels: Float[Tensor, "c c"]
    rotation: Float[Tensor, "d d"] | None

    @property
    def variance(self) -> float:
        """Mean variance of a pixel: the squared error of an attacker who knows the class only."""
        return float(self.variances.mean())

    def to_coefficients(self, images: Float[Tensor, "N *shape"]) -> Float[Tensor, "N d"]:
        """Compute Q^T x of images or their differences, on the processor, in their own type."""
        coefficients = transform_cosine(images.detach().cpu(), self.shape, self.channels)
        return (
            coefficients if self.rotation is None else coefficients @ self.rotation.to(coefficients)
        )

    def from_coefficients(self, coefficients: Float[Tensor, "N d"]) -> Float[Tensor, "N *shape"]:
        """Compute Q c, the inverse of `to_coefficients`."""
        if self.rotation is not None:
            coefficients = coefficients @ self.rotation.T.to(coefficients)
        stack = coefficients.reshape(-1, *plane_shape(self.shape)).numpy()
        if len(self.shape) > 1:
            stack = idctn(stack, axes=(-2, -1), norm="ortho")
        planes = torch.from_numpy(stack).flatten(2)
        return (self.channels.to(planes) @ planes).reshape(-1, *self.shape)

    def pixel_variances(self) -> Float[Tensor, "*shape"]:
        """Compute the diagonal of C as an image."""
        if self.rotation is not None:
            root = self.from_coefficients(torch.diag(self.variances.sqrt()))
            return root.square().sum(0)
        channels, height, width = plane_shape(self.shape)
        power = self.variances.reshape(channels, height, width)
        squares = [self.channels.square()]
        for size in (height, width):
            basis = dctn(np.eye(size), axes=(0,), norm="ortho") if size > 1 else np.ones((1, 1))
            squares.append(torch.from_numpy(basis).square())
        if len(self.shape) == 1:
            squares[2] = torch.eye(width, dtype=torch.float64)
        return torch.einsum("cab,ec,ah,bw->ehw", power, *squares).reshape(self.shape)

    def class_means(self, labels: ArrayLike | None, count: int) -> Float[Tensor, "N *shape"]:
        """Return the mean image of each label's class.

        Args:
            labels: (N,), each of a class that the prior knows; None where it knows none.
            count: N.

        Returns:
            (N, ...), in float64.

        Raises:
            ValueError: Labels are missing, are not wanted, or are of an unknown class.
        """
        if (labels is not None) != self.is_within_class:
            raise ValueError(
                f"labels are {'missing' if labels is None else 'given'}, and the prior was fitted "
                f"{'with' if self.is_within_class else 'without'} labels; do both alike"
            )
        if labels is None:
            return self.means.expand(count, *self.shape)
        numbers = to_labels(labels, count).cpu()
        places = torch.searchsorted(self.classes, numbers).clamp_max(len(self.classes) - 1)
        if (is_unknown := self.classes[places] != numbers).any():
            raise ValueError(
                f"labels hold {int(numbers[is_unknown][0])}, of which the prior has seen no image; "
                "fit it to images of all classes"
            )
        return self.means[places]


def fit_image_prior(images: ArrayLike, labels: ArrayLike | None = None) -> ImagePrior:
    """Estimate mean and covariance of images within their classes.

    Example:
        >>> prior = fit_image_prior(reference_images, reference_labels)
        >>> leak = measure_linearised(encoder, images, noise=0.3, prior=prior)

    Args:
        images: (n, ...), floating numbers; the last two dimensions of (n, C, H, W) or (n, H, W)
            are space. At best others than those that are measured.
        labels: Integers from 0, (n,); None: all images are of one class.

    Returns:
        The prior; `estimator` says how it was estimated.

    Raises:
        ValueError: There are too few images, or they are not finite.

    References:
        Schäfer and Strimmer, Stat. Appl. Genet. Mol. Biol. 2005, table 2, target D: the shrinkage.
    """
    stack = read_pixels(images).cpu()
    count, shape = len(stack), tuple(stack.shape[1:])
    groups = torch.zeros(count, dtype=torch.long)
    if labels is not None:
        groups = to_labels(labels, count).cpu()
    classes, places, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    freedom = count - len(classes)
    if freedom < MIN_DEVIATIONS:
        raise ValueError(
            f"there are {count} images of {len(classes)} classes, must be {MIN_DEVIATIONS} or more "
            "beyond the first of each class for their spread; give more images, or no labels"
        )
    sums = torch.zeros(len(classes), *shape, dtype=torch.float64)
    batches = torch.split(torch.arange(count), max(1, VALUES_AT_ONCE // prod(shape)))
    for rows in batches:
        sums.index_add_(0, places[rows], stack[rows].double())
    means = sums / sizes.double().view(-1, *[1] * len(shape))

    def deviate(rows: Int[Tensor, " b"]) -> Float[Tensor, "b *shape"]:
        gap: Tensor = stack[rows].double() - means[places[rows]]
        return gap

    products = torch.zeros(())
    for rows in batches:
        planes = deviate(rows).reshape(len(rows), *plane_shape(shape)).transpose(0, 1).flatten(1)
        products = products + planes @ planes.T
    channels = torch.linalg.eigh(products).eigenvectors
    is_full = prod(shape) <= MAX_FULL
    transformed, power = [], torch.zeros(prod(shape), dtype=torch.float64)
    for rows in batches:
        coefficients = transform_cosine(deviate(rows), shape, channels)
        power += coefficients.square().sum(0)
        transformed += [coefficients] if is_full else []
    variances = power / freedom
    words = "within classes" if labels is not None else "of all images together"
    rotation = None
    if is_full:
        covariance, share = shrink_covariance(torch.cat(transformed), freedom)
        variances, rotation = torch.linalg.eigh(covariance)
        estimator = (
            f"covariance {words}, of {count} images, shrunk by {share:.1%} towards its diagonal "
            "in the cosine transform"
        )
    else:
        estimator = f"mean power {words} in the cosine transform, of {count} images"
    variances = variances.clamp_min(0)
    variances = variances.where(variances > LEAST_SHARE * variances.max(), 0.0)
    if not variances.any():
        raise ValueError("all images of a class are equal, must differ: there is nothing to leak")
    return ImagePrior(
        shape, variances, means, classes, labels is not None, estimator, channels, rotation
    )


def fit_to_some(
    images: Float[Tensor, "n *shape"], labels: Int[Tensor, " n"] | None, seed: int
) -> ImagePrior | None:
    """Fit the prior to as many images as memory has room for.

    Args:
        images: (n, ...).
        labels: (n,); None: all images are of one class.
        seed: Chooses the images, where they are too many.

    Returns:
        The prior; None where images are too few, or all alike.
    """
    if len(places := choose_fitted(len(images), images[0].numel(), seed)) < len(images):
        images = images[places.to(images.device)]
        labels = None if labels is None else labels[places.to(labels.device)]
    try:
        return fit_image_prior(images, labels)
    except ValueError:
        return None


def choose_fitted(count: int, pixels: int, seed: int) -> Int[Tensor, " n"]:
    """Choose as many images as memory has room for.

    Args:
        count: How many images there are.
        pixels: Values of an image.
        seed: Chooses the images, where they are too many.

    Returns:
        Places of all images, or of those drawn in random order.
    """
    room = max(1, MAX_VALUES // pixels)
    if count <= room:
        return torch.arange(count)
    return torch.randperm(count, generator=make_generator(seed, "image-prior"))[:room]


def read_pixels(images: ArrayLike) -> Float[Tensor, "N *shape"]:
    """Return images as a tensor; ValueError where they are no finite floating numbers."""
    stack = to_tensor(images, "images")
    if stack.dim() < 2 or not len(stack) or not stack.is_floating_point():
        raise ValueError(
            f"images are of shape {tuple(stack.shape)} and {stack.dtype}, must be (n, ...) of "
            "floating numbers, one row each: divide bytes by 255"
        )
    if not stack.isfinite().all():
        raise ValueError("images hold NaN or infinity, must be finite")
    return stack


def plane_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return channels, height and width of an image; a vector is one row."""
    if len(shape) == 1:
        return 1, 1, shape[0]
    return prod(shape[:-2]), shape[-2], shape[-1]


def transform_cosine(
    images: Float[Tensor, "N *shape"], shape: tuple[int, ...], channels: Float[Tensor, "c c"]
) -> Float[Tensor, "N d"]:
    """Decorrelate the channels, and apply the orthonormal cosine transform; none to vectors."""
    planes = images.reshape(-1, *plane_shape(shape))
    mixed = (channels.T.to(planes) @ planes.flatten(2)).view(planes.shape).numpy()
    if len(shape) > 1:
        mixed = dctn(mixed, axes=(-2, -1), norm="ortho")
    return torch.from_numpy(np.ascontiguousarray(mixed)).flatten(1)


def shrink_covariance(
    deviations: Float[Tensor, "n d"], freedom: int
) -> tuple[Float[Tensor, "d d"], float]:
    """Shrink a covariance towards its diagonal by the share that chance has in the other entries.

    The share is sum_ij Var(s_ij) / sum_ij s_ij^2 over i != j, in [0, 1].
    """
    count = len(deviations)
    products = deviations.T @ deviations
    squares = deviations.square()
    spread = squares.T @ squares - products.square() / count
    covariance = products / freedom
    off_diagonal = ~torch.eye(len(products), dtype=torch.bool)
    noise = float(spread[off_diagonal].sum()) * count / freedom**3
    signal = float(covariance[off_diagonal].square().sum())
    share = min(1.0, noise / signal) if signal > 0 else 1.0
    return torch.where(off_diagonal, covariance * (1 - share), covariance), share
