"""A strategy's result of a round: a model of the run's shapes."""

from collections.abc import Sequence

import numpy as np
import torch
from flwr.app import ArrayRecord

from fedcel.errors import RoundError
from fedcel.nets import to_vector


def read_model(name: str, model: object, shapes: Sequence[tuple[int, ...]]) -> torch.Tensor:
    """Return the model that the method `name` made as a vector (P,) in single precision.

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
    with np.errstate(over="ignore"):  # some strategies average in double precision
        vector = to_vector([array.astype(np.float32) for array in arrays])
    if not vector.isfinite().all():
        raise RoundError(
            f"{name} returned a model that is not finite; lower local.rate, or mend how it "
            "combines the updates"
        )
    return vector


def _join(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, shape)) or "()" for shape in shapes)
