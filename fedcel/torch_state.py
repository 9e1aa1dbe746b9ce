"""Independence of PyTorch's global state: what a caller switched off is on again inside."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


@contextmanager
def usual_torch_state() -> Iterator[None]:
    """Compute with gradients, outside inference mode, by default in float32 on the processor.

    A decorator, too: `@usual_torch_state()`. The caller's state is back afterwards.

    Yields:
        Nothing.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            if torch.get_default_device().type != "cpu":  # a mode that slows every operation down
                stack.enter_context(torch.device("cpu"))
            yield
    finally:
        torch.set_default_dtype(default)
