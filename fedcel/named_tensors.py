"""Tensors of several parts in one dictionary, told apart by the beginnings of their names."""

from collections.abc import Mapping

from torch import Tensor


def add_prefix(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Put a part's tensors under names that begin with `prefix`.

    Args:
        prefix: Before each name.
        tensors: The part's tensors by their own names.

    Returns:
        The same tensors.
    """
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def select_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Take one part's tensors, under their own names.

    Args:
        tensors: Those of all parts.
        prefix: With which the names of the part begin.

    Returns:
        The part's tensors.
    """
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
