"""Layers whose backward pass is quick to differentiate: convolutions, batch normalisation."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

CONVOLUTIONS = {
    functional.conv1d: 1,
    functional.conv2d: 2,
    functional.conv3d: 3,
    torch.ops.aten.conv1d.default: 1,
    torch.ops.aten.conv2d.default: 2,
    torch.ops.aten.conv3d.default: 3,
}
"""Spatial dimensions of each convolution; the last ones are those of exported programs."""

IMAGE_BATCH = 4
"""Dimensions of a batch of images."""
FEW = 8
"""Outputs of a convolution for each input, from which one product and a sum are the faster way."""

CONVOLUTION_NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
BATCH_NORM_NAMES = (
    *("input", "running_mean", "running_var", "weight", "bias"),
    *("training", "momentum", "eps"),
)
"""Arguments of PyTorch's functions, in their order."""


class LinearLayers(TorchFunctionMode):
    """Context in which layers with frozen parameters are computed for products with a Jacobian.

    A product with the Jacobian is a backward pass through the backward pass. PyTorch's second
    derivative of a convolution also computes the one of its weight, group by group, which nobody
    asks for: a depthwise convolution takes up to 20 times as long as forwards. Here it takes one
    convolution, and the normalisation behind it is part of that. Values and gradients are those of
    PyTorch up to rounding.
    """

    def __init__(self) -> None:
        super().__init__()
        self._last: tuple[Tensor, Tensor, FrozenConvolution] | None = None
        """Output, input and layer of the last convolution."""
        self._versions: tuple[int, ...] = ()
        """Of that output and input, which grow when a layer writes into them."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace convolutions, and batch normalisation with stored statistics."""
        kwargs = kwargs or {}
        if func in CONVOLUTIONS:
            options = dict(zip(CONVOLUTION_NAMES, args, strict=False)) | dict(kwargs)
            if is_frozen(options, CONVOLUTIONS[func]):
                layer = read_convolution(options, CONVOLUTIONS[func])
                outputs: Tensor = Convolution.apply(options["input"], layer)
                self._last = (outputs, options["input"], layer)
                self._versions = count_writes(self._last[:2])
                return outputs
        if func is functional.batch_norm:
            options = dict(zip(BATCH_NORM_NAMES, args, strict=False)) | dict(kwargs)
            if options.get("running_mean") is not None and not options.get("training"):
                return self._normalise_batch(options)
        return func(*args, **kwargs)

    def _normalise_batch(self, options: Mapping[str, Any]) -> Tensor:
        """Compute batch normalisation with stored statistics: the convolution before it, scaled."""
        images: Tensor = options["input"]
        scale, shift = read_normalisation(options)
        if self._last is not None and self._last[0] is images:
            _, inputs, layer = self._last
            if count_writes((images, inputs)) == self._versions:  # no layer in between, in place
                result: Tensor = Convolution.apply(inputs, layer.rescale(scale, shift))
                return result
        shape = (1, -1, *[1] * (images.dim() - 2))
        return torch.addcmul(shift.view(shape), images, scale.view(shape))


@dataclass(frozen=True)
class FrozenConvolution:
    """Parameters and options of a convolution, the latter one number a dimension."""

    weight: Tensor
    bias: Tensor | None
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int

    def apply(self, inputs: Tensor) -> Tensor:
        """Compute the convolution of a batch."""
        sides = self.weight.shape[2:]
        result: Tensor = torch.ops.aten.convolution(
            inputs, self.weight, self.bias, *self._places, False, [0] * len(sides), self.groups
        )
        return result

    def rescale(self, scale: Tensor, shift: Tensor) -> "FrozenConvolution":
        """Return the convolution whose outputs are scaled and shifted, by channel."""
        weight = self.weight * scale.view(-1, *[1] * (self.weight.dim() - 1))
        bias = shift if self.bias is None else shift + scale * self.bias
        return replace(self, weight=weight, bias=bias)

    def apply_transpose(self, gradient: Tensor, shape: torch.Size) -> Tensor:
        """Compute the gradient of the input, of this shape, given that of the output."""
        if self._transpose is not None:
            return self._transpose.apply(gradient)
        if len(shape) == IMAGE_BATCH and self.groups == 1 and shape[1] * FEW <= gradient.shape[1]:
            patches = functional.conv2d(gradient, self._patch_weight)
            places = tuple(map(tuple, (self.dilation, self.padding, self.stride)))
            return functional.fold(patches.flatten(2), shape[2:], self.weight.shape[2:], *places)
        unpadded = self._size_without_rest(gradient.shape)
        output_padding = [size - least for size, least in zip(shape[2:], unpadded, strict=True)]
        result: Tensor = torch.ops.aten.convolution(
            gradient, self.weight, None, *self._places, True, output_padding, self.groups
        )
        return result

    def _size_without_rest(self, shape: torch.Size) -> list[int]:
        """Return the least size of an input whose output has this shape."""
        options = zip(shape[2:], self.weight.shape[2:], *self._places, strict=True)
        return [
            (size - 1) * stride - 2 * padding + dilation * (side - 1) + 1
            for size, side, stride, padding, dilation in options
        ]

    @property
    def _places(self) -> tuple[Sequence[int], ...]:
        return self.stride, self.padding, self.dilation

    @cached_property
    def _patch_weight(self) -> Tensor:
        """The weight of a pointwise convolution that gives each output's part of a patch."""
        return self.weight.flatten(1).T.contiguous()[:, :, None, None]

    @cached_property
    def _transpose(self) -> "FrozenConvolution | None":
        """The transpose as a convolution, which is the faster way; None where it has a stride."""
        sides = self.weight.shape[2:]
        padding = [
            dilation * (side - 1) - padding
            for side, padding, dilation in zip(sides, self.padding, self.dilation, strict=True)
        ]
        if any(stride > 1 for stride in self.stride) or min(padding) < 0:
            return None
        dimensions = tuple(range(2, self.weight.dim()))
        groups = self.weight.view(self.groups, -1, *self.weight.shape[1:]).transpose(1, 2)
        weight = groups.flatten(0, 1).flip(dimensions).contiguous()
        return FrozenConvolution(weight, None, self.stride, padding, self.dilation, self.groups)


def count_writes(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """Count the operations that wrote into each tensor, as PyTorch does."""
    return tuple(tensor._version for tensor in tensors)


def is_frozen(options: Mapping[str, Any], dimensions: int) -> bool:
    """Whether a convolution of a batch has frozen parameters, and padding in numbers."""
    parameters = (options["weight"], options.get("bias"))
    is_trained = any(part is not None and part.requires_grad for part in parameters)
    is_batch = options["input"].dim() == dimensions + 2
    return is_batch and not is_trained and not isinstance(options.get("padding"), str)


def read_convolution(options: Mapping[str, Any], dimensions: int) -> FrozenConvolution:
    """Read a convolution from the arguments that PyTorch's has."""

    def spell_out(name: str, default: int) -> list[int]:
        value = options.get(name, default)
        values = [value] if isinstance(value, int) else list(value)
        return values * dimensions if len(values) == 1 else values

    return FrozenConvolution(
        weight=options["weight"],
        bias=options.get("bias"),
        stride=spell_out("stride", 1),
        padding=spell_out("padding", 0),
        dilation=spell_out("dilation", 1),
        groups=options.get("groups", 1),
    )


class Convolution(torch.autograd.Function):
    """Convolution with a frozen weight."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, layer: FrozenConvolution) -> Tensor:
        """Compute the convolution."""
        ctx.layer, ctx.shape = layer, inputs.shape
        return layer.apply(inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Compute the gradient of the input."""
        return TransposedConvolution.apply(gradient, ctx.layer, ctx.shape), None


class TransposedConvolution(torch.autograd.Function):
    """Transpose of a convolution with a frozen weight."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, layer: FrozenConvolution, shape: torch.Size) -> Tensor:
        """Compute the gradient of the convolution's input, of this shape."""
        ctx.layer = layer
        return layer.apply_transpose(gradient, shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Compute the convolution of a gradient."""
        return Convolution.apply(gradient, replace(ctx.layer, bias=None)), None, None


@torch.no_grad()
def read_normalisation(options: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    """Read the scale and shift of each channel from the arguments of batch normalisation."""
    scale = (options["running_var"] + options.get("eps", 1e-5)).rsqrt()
    if (weight := options.get("weight")) is not None:
        scale = scale * weight
    shift = -options["running_mean"] * scale
    if (bias := options.get("bias")) is not None:
        shift = shift + bias
    return scale, shift
