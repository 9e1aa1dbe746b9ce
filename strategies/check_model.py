"""What makes a model has to make one of the run's shapes."""

from collections.abc import Sequence

import numpy as np
from flwr.app import ArrayRecord

from fedcel.errors import RoundError


def check_model(
    name: str, model: object, shapes: Sequence[tuple[int, ...]], *, are_finite: bool = True
) -> ArrayRecord:
    """Refuse what is no model of a run.

    Args:
        name: What made it, for messages.
        model: What it returned.
        shapes: The shapes of the model's arrays.
        are_finite: Whether its values have to be finite.

    Returns:
        The model.

    Raises:
        RoundError: It is no ArrayRecord of these shapes, or not finite.
    """
    if not isinstance(model, ArrayRecord):
        raise RoundError(f"{name} must return an ArrayRecord, returned {type(model).__name__}")
    arrays = model.to_numpy_ndarrays()
    returned = [tuple(array.shape) for array in arrays]
    if returned != [tuple(shape) for shape in shapes]:
        raise RoundError(
            f"{name} must return the {len(shapes)} arrays of the model, of shapes "
            f"{_join(shapes)}; it returned {len(returned)}, of shapes {_join(returned)}"
        )
    if are_finite and not all(np.isfinite(array).all() for array in arrays):
        raise RoundError(
            f"{name} returned a model that is not finite, of updates that are; "
            "mend how it combines them"
        )
    return model


def _join(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, shape)) or "()" for shape in shapes)
