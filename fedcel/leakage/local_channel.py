"""An encoder and its Gaussian noise as a linear channel around given images."""

from collections.abc import Callable
from functools import cached_property
from math import sqrt
from threading import Lock

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from fedcel.errors import NetError, RefusedImagesError, SizeError
from fedcel.leakage.gaussian_noise import Noise, read_noise
from fedcel.leakage.image_prior import ImagePrior
from fedcel.leakage.linear_layers import LinearLayers
from fedcel.nets import (
    Encoder,
    as_module,
    call_encoder,
    copy_module,
    place_images,
    switch_to_evaluation,
)

MAX_VALUES = 2**25
"""Values of one image's Jacobian up to which it is computed."""
MAX_PASSES = 1024
"""Passes through an encoder of small images that computing its Jacobian may take."""
MAX_PASSES_LARGE = 128
"""The same of large images, where an estimate takes about as many whatever the features."""
SMALL_IMAGE = 4096
"""Values of an image that is small."""
COPIED_VALUES = 2**17
"""Values of copies of images from which rows of Jacobians are computed at once."""
STEP = 1e-2
"""Length of a step of finite differences, in units of a pixel: large beside float32's rounding."""
MAX_FLOAT64 = 1024
"""Values of an image up to which an encoder is computed in float64."""
ROOT_TWO = sqrt(2)
FORWARD = Lock()
"""Lets one thread at a time call an encoder, which may keep what it computes in its layers."""


class LocalChannel:
    """The linear channel A = S^(-1/2) df/dx of an encoder around each of a batch of images.

    The Fisher information of a message about image x is I(x) = A^T A. If the noise depends on the
    image, A has a second half, sqrt(2) d log s/dx, so that I(x) = sum_i grad f_i grad f_i^T / v_i
    + 1/2 grad v_i grad v_i^T / v_i^2 with v = s^2.

    Args:
        encoder: As `ready_encoder` gives it.
        images: (B, ...), each encoded by itself, in the encoder's floating type.
        noise: Standard deviation of the noise, above 0; see `measure_linearised`.

    Raises:
        ValueError: The noise is not above 0, or of a shape that is not allowed.
        NetError: Features or their gradient are not finite.
    """

    def __init__(
        self, encoder: Encoder, images: Float[Tensor, "B *shape"], *, noise: Noise
    ) -> None:
        self._encoder, self._noise, self._is_twice_differentiable = encoder, noise, True
        self.images = images.detach().clone().requires_grad_()
        with FORWARD, LinearLayers():
            self.features, self.deviations = self._send(self.images)
        self._sent = self._whiten(self.features, self.deviations)
        self.width = self._sent.shape[1]

    def _send(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and the standard deviations of their noise, (B, D) each."""
        features = call_encoder(self._encoder, images)
        if not features.isfinite().all():
            raise NetError("the encoder gives NaN or infinity; check the images and the encoder")
        return features, read_deviations(self._noise, features)

    def _whiten(self, features: Tensor, deviations: Tensor) -> Float[Tensor, "B F"]:
        """Return features, and noise that depends on the image, in units of this noise."""
        parts = [features / self.deviations.detach()]
        if callable(self._noise):
            parts.append(ROOT_TWO * deviations.log())
        return torch.cat(parts, 1)

    def pull(self, outputs: Float[Tensor, "B F"]) -> Float[Tensor, "B *shape"]:
        """Compute A^T v, a backward pass."""
        return self._differentiate(self._sent, self.images, outputs.to(self._sent))

    def push(self, inputs: Float[Tensor, "B *shape"]) -> Float[Tensor, "B F"]:
        """Compute A u: a backward pass through a backward pass.

        Central differences where the gradient of a layer, such as Hardsigmoid, has none itself.
        """
        inputs = inputs.to(self.images)
        if self._is_twice_differentiable:
            try:
                start, pulled = self._transposed
                return self._differentiate(pulled, start, inputs)
            except RuntimeError as error:  # PyTorch has no second derivative of some layers
                if "is not implemented" not in str(error):
                    raise
                self._is_twice_differentiable = False
        return self._push_by_differences(inputs)

    def jacobians(self, prior: ImagePrior) -> Float[Tensor, "B F d"]:
        """Compute A Q in the prior's directions, by rows where features are fewer than pixels."""
        count, values = len(self.images), prior.variances.numel()
        if self.width <= values:
            pixels = self._pull_units().flatten(0, 1)
            return prior.to_coefficients(pixels).double().view(count, self.width, values)
        units = torch.eye(values, dtype=torch.float64)
        columns = [
            self.push(prior.from_coefficients(unit[None]).expand(count, *prior.shape))
            for unit in units
        ]
        return torch.stack([column.detach().cpu().double() for column in columns], 2)

    def _pull_units(self) -> Float[Tensor, "B F *shape"]:
        """Compute the rows of A, several at once from copies of the images."""
        count, width = len(self.images), self.width
        copies = min(width, max(1, COPIED_VALUES // self.images.numel()))
        channel = self
        if copies > 1:
            images = self.images.detach().repeat_interleave(copies, 0)
            channel = LocalChannel(self._encoder, images, noise=self._noise)
        units = torch.eye(width, dtype=self.images.dtype)
        rows = [
            channel.pull(part.repeat(count, 1)).cpu().view(count, copies, *self.images.shape[1:])
            for part in torch.split(pad(units, (0, 0, 0, -width % copies)), copies)
        ]
        return torch.cat(rows, 1)[:, :width]

    def solve(
        self,
        observed: Float[Tensor, "B D"],
        offsets: Float[Tensor, "B *shape"],
        prior: ImagePrior,
    ) -> Float[Tensor, "B d"]:
        """Compute the posterior mean of images given a message of each.

        m + C A^T (I + A C A^T)^-1 (S^(-1/2) (message - f(x)) + A (x - m)), with A at x and
        `offsets` x - m. What is returned is added to m, in the prior's directions, in float64.

        References:
            Kay, Fundamentals of Statistical Signal Processing: Estimation Theory, 1993, theorem
            10.3.
        """
        root = prior.variances.sqrt()
        gap = (observed.to(self.features) - self.features.detach()) / self.deviations.detach()
        residuals = pad(gap, (0, self.width - gap.shape[1]))  # 0 in that of the noise
        jacobians = self.jacobians(prior)
        outputs = residuals.cpu().double()[:, :, None]
        outputs = outputs + jacobians @ prior.to_coefficients(offsets)[:, :, None]
        scaled = jacobians * root
        factor = factor_gram(scaled)
        if scaled.shape[1] <= scaled.shape[2]:
            solutions = scaled.mT @ torch.cholesky_solve(outputs, factor)
        else:
            solutions = torch.cholesky_solve(scaled.mT @ outputs, factor)
        return solutions[:, :, 0] * root

    @torch.no_grad()
    def _push_by_differences(self, inputs: Float[Tensor, "B *shape"]) -> Float[Tensor, "B F"]:
        """Compute A u by central differences."""
        length = inputs.flatten(1).norm(dim=1).clamp_min(torch.finfo(inputs.dtype).tiny)
        scale = (STEP / length).view(-1, *[1] * (inputs.dim() - 1))
        with FORWARD:
            ahead, behind = (
                self._whiten(*self._send(self.images + sign * scale * inputs)) for sign in (1, -1)
            )
        slope: Tensor = (ahead - behind) / (2 * scale.flatten(1))
        return slope

    @cached_property
    def _transposed(self) -> tuple[Tensor, Tensor]:
        """A^T v as a function of v, at v = 0."""
        start = torch.zeros_like(self._sent).requires_grad_()
        (pulled,) = torch.autograd.grad(self._sent, self.images, start, create_graph=True)
        return start, pulled

    def _differentiate(self, output: Tensor, inputs: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient of a weighted sum; NetError where it is not finite."""
        (gradient,) = torch.autograd.grad(output, inputs, weights, retain_graph=True)
        if not gradient.sum().isfinite() and not gradient.isfinite().all():
            raise NetError(
                "the encoder's gradient holds NaN or infinity, must be finite: check layers such "
                "as sqrt or norm at 0"
            )
        return gradient


def is_computable(width: int, values: int) -> bool:
    """Whether the Jacobian of `width` outputs by image values takes little time and memory."""
    passes = MAX_PASSES if values <= SMALL_IMAGE else MAX_PASSES_LARGE
    return min(width, values) <= passes and width * values <= MAX_VALUES


def check_jacobian_size(width: int, values: int) -> None:
    """Refuse messages and images whose Jacobian takes too much time and memory.

    Args:
        width: Values of a message.
        values: Values of an image.

    Raises:
        SizeError: There are too many.
    """
    if not is_computable(width, values):
        raise SizeError(
            f"messages have {width} values and images {values}, too many for a Jacobian of each; "
            "cut at a layer of fewer values, or take another attack"
        )


def factor_gram(scaled: Float[Tensor, "B F d"]) -> Float[Tensor, "B s s"]:
    """Return the Cholesky factor of I + M M^T, or of I + M^T M if d < F."""
    gram = scaled @ scaled.mT if scaled.shape[1] <= scaled.shape[2] else scaled.mT @ scaled
    factor: Tensor = torch.linalg.cholesky(gram + torch.eye(gram.shape[-1], dtype=gram.dtype))
    return factor


def read_deviations(noise: Noise, features: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
    """Return the standard deviation of each feature's noise, with a gradient of a function's."""
    if callable(noise):
        sigma = noise(features.float())
        if not isinstance(sigma, Tensor) or sigma.shape != features.shape:
            raise ValueError(
                f"noise gives {tuple(getattr(sigma, 'shape', ()))} for features "
                f"{tuple(features.shape)}, must be a tensor of the same shape"
            )
        if features.requires_grad and not sigma.requires_grad:
            others = noise(features.detach().float().cos())
            if (sigma != others).any():
                raise ValueError(
                    "noise depends on the features and has no gradient; compute it from the "
                    "features with PyTorch, outside torch.no_grad"
                )
        sigma = sigma.to(features)
    else:
        sigma = read_noise(noise, 0.0, features.detach())
    if not (sigma > 0).all() or not sigma.isfinite().all():
        raise ValueError(
            f"noise is {float(sigma.detach().min()):g} at least, must be finite and above 0: "
            "without noise a message tells all that the features tell, and its bits have no end"
        )
    return sigma.expand_as(features)


def ready_encoder(
    encoder: Encoder, images: Float[Tensor, "N *shape"]
) -> tuple[Callable[[Tensor], object], torch.dtype]:
    """Prepare an encoder for derivatives: a copy in evaluation mode, in float64 of small images.

    Args:
        encoder: A PyTorch module, a method of one, or any function.
        images: One or more that it takes.

    Returns:
        The copy, or the function itself, and the floating type that images must have.

    Raises:
        RefusedImagesError: It does not take the images.
        NetError: Its features have no gradient.
    """
    module = as_module(encoder)
    is_small = images[0].numel() <= MAX_FLOAT64 and images.device.type != "mps"
    own_type = images.dtype if module is None else place_images(images[:1], module).dtype
    types = [*([torch.float64] if is_small else []), torch.float32, own_type]
    for place, dtype in enumerate(types):
        candidate: Callable[[Tensor], object] = encoder
        example = images[:1].to(dtype)
        try:
            if module is not None:
                copy = copy_module(module).to(dtype)
                for parameter in copy.parameters():  # one by one: TorchScript refuses them all
                    parameter.requires_grad_(False)
                candidate, example = switch_to_evaluation(copy), place_images(example, copy)
            features = call_encoder(candidate, example.clone().requires_grad_())
            break
        except RefusedImagesError:  # a program whose type is part of it
            if place == len(types) - 1:
                raise
    if not features.requires_grad:
        raise NetError(
            "the encoder gives features without a gradient, so the channel cannot be linearised; "
            "give a PyTorch module or a .pt2 file"
        )
    return candidate, dtype
