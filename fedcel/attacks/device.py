"""Where attacks compute: on a GPU where PyTorch finds one, else on the processor.

Random numbers are drawn on the processor in either case, and products are rounded to float32, never
to TF32: results are the same up to the order of sums.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

CPU = torch.device("cpu")


def fastest() -> torch.device:
    """Return the GPU that PyTorch would use (CUDA_VISIBLE_DEVICES hides one), or the processor."""
    return torch.device("cuda") if torch.cuda.is_available() else CPU


@contextmanager
def full_precision() -> Iterator[None]:
    """Convolve on a GPU in float32, in an order that repeats itself."""
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        yield
