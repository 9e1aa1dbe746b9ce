"""Tensors: of the arrays that users give, checked in the same words; by name, as states."""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor

from fedcel.errors import DataError, SettingsError, StackingError, describe_unforeseen
from fedcel.plugins import require

ArrayLike = Tensor | NDArray[np.generic] | Sequence[object]
"""A tensor, an array, or a list of numbers."""
Array = TypeVar("Array", Tensor, np.ndarray)
"""A tensor or a NumPy array; one call has one kind of them."""
State = dict[str, Tensor]
"""Named tensors that a part keeps between steps, or a client between rounds; never uploaded."""


def to_tensor(values: object, name: str) -> Shaped[Tensor, "..."]:
    """Make a tensor of a user's numbers, without a gradient; a tensor keeps its device.

    ValueError where there are none; it calls them `name`. An array may share its memory.
    """
    if isinstance(values, Tensor):
        return (values.clone() if values.is_inference() else values).detach()
    try:
        array = np.asarray(values, order="C")
        if array.dtype.kind in "US":
            raise TypeError(describe_words(array))
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
        if not array.flags.writeable:  # PyTorch warns of memory that it might write
            array = array.copy()
        return torch.from_numpy(array)
    except Exception as error:  # of any class that can be made an array
        raise ValueError(
            f"{name} are {type(values).__name__}, must be a tensor or an array of numbers "
            f"({describe_unforeseen(error)})"
        ) from error


def match_kind(values: Tensor, like: Array) -> Array:
    """Return a tensor's values as the kind of array that `like` is."""
    return values if isinstance(like, Tensor) else values.numpy()


def describe_words(words: NDArray[np.generic]) -> str:
    """Describe text given instead of numbers, and the remedy where it is numbers in quotes."""
    try:
        words.astype(float)
    except ValueError:
        if words.ndim:
            return "text is no number"
    return f"the text {words.tolist()!r:.40}: leave the quotes out, or convert it with float"


def to_labels(values: object, count: int, name: str = "labels") -> Int[Tensor, " N"]:
    """Make labels (count,), int64, of what a user gave, on their device.

    ValueError where their number or shape is another, or they are no whole numbers from 0.
    """
    try:
        labels = to_tensor(values, name)
    except ValueError as error:
        remedy = "numpy.unique(..., return_inverse=True)[1] makes numbers"
        raise ValueError(f"{error}; of words or objects {remedy}") from error
    if tuple(labels.shape) != (count,):
        raise ValueError(
            f"{name} are of shape {tuple(labels.shape)}, must be ({count},): one for each image"
        )
    if labels.dtype.is_floating_point or labels.dtype.is_complex or labels.dtype == torch.bool:
        library = "torch" if isinstance(values, Tensor) else "numpy"
        raise ValueError(
            f"{name} are of type {labels.dtype}, must be whole numbers from 0; "
            f"{library}.unique(..., return_inverse=True)[1] makes one of each value"
        )
    numbers = labels.long()  # PyTorch has no least number of unsigned ones
    if count and (low := int(numbers.min())) < 0:
        wrong = low + 2**64 if labels.dtype == torch.uint64 else low
        raise ValueError(f"{name} hold {wrong}, must be whole numbers from 0 and below 2^63")
    return numbers


def check_labels(
    y: Int[Tensor, "*k B"],
    classes: int,
    name: str = "labels",
    remedy: str = "; number the classes without a gap from 0, or raise their number",
) -> None:
    """Raise DataError where a label is not in 0..C-1; a negative one would count from the end."""
    if y.numel():
        low, high = (int(label) for label in y.aminmax())
        if low < 0 or high >= classes:
            raise DataError(f"{name} are in {low}..{high}, must be in 0..{classes - 1}{remedy}")


def number_labels(*parts: Int[Tensor, " _"]) -> list[Int[Tensor, " _"]]:
    """Number labels from 0 in their order, alike in all parts, so that tables of them are small."""
    numbers = torch.unique(torch.cat(parts), return_inverse=True)[1]
    return list(numbers.split([len(part) for part in parts]))


def count_alike(labels: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    """Return for each of labels of any size how many are equal to it, itself among them."""
    _, number, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sizes: Tensor = counts[number]
    return sizes


def rank_in_class(y: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Count the examples of the same class, from 0, before each."""
    order = y.argsort(stable=True)
    counts = y.bincount()
    first = counts.cumsum(0) - counts
    return torch.empty_like(y).scatter(0, order, torch.arange(len(y)) - first[y[order]])


def check_features(features: Shaped[Tensor, "..."], name: str = "features") -> None:
    """Refuse features that are no table (N, D) of finite numbers: ValueError names `name`."""
    if features.dim() != 2 or 0 in features.shape:
        raise ValueError(
            f"{name} are of shape {tuple(features.shape)}, must be (N, D): one vector for each "
            "image, at least one"
        )
    is_finite = features.isfinite().all(1)
    if not is_finite.all():
        row = int((~is_finite).nonzero()[0, 0])
        raise ValueError(
            f"{name} of {int((~is_finite).sum())} of {len(features)} images hold NaN or infinity, "
            f"first in row {row}; must be finite: check the images and the encoder"
        )


def digest_pixels(image: Shaped[Tensor, "*shape"]) -> bytes:
    """Compute a digest of an image's bytes.

    Args:
        image: The image, of any shape.

    Returns:
        128 bits.
    """
    values = image.detach().cpu().contiguous().view(torch.uint8).numpy()  # which has no bfloat16
    return blake2b(values.data, digest_size=16).digest()


def to_floats(x: Shaped[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Turn unsigned bytes into float32 in [0, 1].

    Args:
        x: Images of any shape, bytes or floats.

    Returns:
        The images; floats as they are.
    """
    return x.float().div_(255) if x.dtype == torch.uint8 else x


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put a part's tensors under names that begin with `prefix`."""
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def select_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Select the tensors whose names begin with `prefix`, under their names without it."""
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def require_state(state: object, method: str) -> State:
    """Refuse as a state what `method` returned and is no dictionary of tensors: ContractError."""
    line = f"`{method}` must return the state, a dictionary of tensors by name"
    require(isinstance(state, dict), f"{line}; it returned {type(state).__name__}")
    assert isinstance(state, dict)
    for name, value in state.items():
        require(isinstance(name, str), f"{line}; one of its names is {name!r}")
        require(isinstance(value, Tensor), f"{line}; {name!r} is {type(value).__name__}")
    return state


def stack_states(states: Sequence[State]) -> State:
    """Join the states of several clients, a client a row; what learns is a leaf.

    Raises StackingError unless they are of the same names and shapes.
    """
    shapes = [{name: tensor.shape for name, tensor in state.items()} for state in states]
    if any(shape != shapes[0] for shape in shapes):
        raise StackingError("the clients' states are of different shapes")
    return {
        name: torch.stack([state[name].detach() for state in states]).requires_grad_(
            tensor.requires_grad
        )
        for name, tensor in states[0].items()
    }


def check_state_names(state: State, names: Iterable[str], part: str) -> None:
    """Raise SettingsError unless a client's state has all these tensors: else it is another's."""
    if missing := sorted(set(names) - state.keys()):
        raise SettingsError(
            f"a client's state holds {sorted(state)}, must hold {missing} for {part}: the loss or "
            "defence changed; start from an empty state"
        )


def select_row(state: State, row: int) -> State:
    """Return one client's state of several, with memory of its own; what learns is a leaf."""
    return {
        name: tensor.detach()[row].clone().requires_grad_(tensor.requires_grad)
        for name, tensor in state.items()
    }
