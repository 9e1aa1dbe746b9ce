"""Independence of PyTorch's global state: what a caller switched off is on again inside."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def usual_torch_state() -> Iterator[None]:
    """Compute with gradients, outside inference mode, with float32 as the default type.

    A decorator, too: `@usual_torch_state()`. The caller's state is back afterwards.

    Yields:
        Nothing.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        torch.set_default_dtype(default)
