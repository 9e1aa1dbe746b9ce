"""PyTorch's random streams and global state: seeds, usual modes inside, precision, threads."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import Any, TypeVar

import numpy as np
import torch

from fedcel.errors import ContractError

Made = TypeVar("Made")
Result = TypeVar("Result")


def stream_seed(seed: int, purpose: str, round_number: int = 0, client: int = 0) -> int:
    """Return 63 bits that differ for every (seed, purpose, round, client).

    torch's CPU generator keeps the low 32 of them: enough to keep streams apart, no secret.
    """
    name = f"{seed}/{purpose}/{round_number}/{client}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") >> 1


def make_generator(
    seed: int, purpose: str, round_number: int = 0, client: int = 0
) -> torch.Generator:
    """Return a fresh CPU generator for one purpose; no global state is touched."""
    return torch.Generator().manual_seed(stream_seed(seed, purpose, round_number, client))


def make_twice(make: Callable[[], Made]) -> tuple[Made, Made]:
    """Call `make` before and after torch's global stream has moved, and return both results.

    ContractError where they draw from that stream, which no part may use.
    """
    before = torch.random.get_rng_state()
    try:
        first = make()
        if not torch.equal(torch.random.get_rng_state(), before):
            raise ContractError(
                "it must draw from the generator that it is given, not from torch's global stream"
            )
        torch.rand(3)
        return first, make()
    finally:
        torch.random.set_rng_state(before)


def map_on_threads(function: Callable[..., Result], *arguments: Iterable[Any]) -> Iterator[Result]:
    """Apply a function as `map` does, to several items at once, each on one of PyTorch's threads.

    A net computes single images in half the time that it takes with all threads in each layer.

    Args:
        function: Independent of the order of calls: it draws from no generator that calls share.
        arguments: Its arguments, an iterable each.

    Yields:
        Results in the order of the items, the same whatever the number of threads.
    """
    threads = torch.get_num_threads()
    if threads == 1:
        yield from map(function, *arguments)
        return
    pool = ThreadPoolExecutor(threads, initializer=partial(torch.set_num_threads, 1))
    try:
        yield from pool.map(function, *arguments)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one of PyTorch's threads; the caller's number is back afterwards."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def usual_torch_state() -> Iterator[None]:
    """Compute with gradients, outside inference mode, by default in float32 on the processor.

    Without mixed precision, and with NumPy's usual warnings instead of errors. A decorator, too:
    `@usual_torch_state()`. The caller's state is back afterwards.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(np.errstate(all="warn", under="ignore"))
            for device_type in filter(torch.is_autocast_enabled, ("cpu", "cuda")):
                stack.enter_context(torch.autocast(device_type, enabled=False))
            if torch.get_default_device().type != "cpu":  # a mode that slows every operation down
                stack.enter_context(torch.device("cpu"))
            yield
    finally:
        torch.set_default_dtype(default)


def compute_in(precision: torch.dtype, device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which convolutions and products have a precision.

    Args:
        precision: float32, which changes nothing, or bfloat16.
        device: The device that computes.

    Returns:
        The context, which can be entered again.
    """
    if precision is torch.float32:  # autocast refuses some devices, switched off as well
        return nullcontext()
    return torch.autocast(device.type, precision)


@contextmanager
def use_full_precision() -> Iterator[None]:
    """Multiply and convolve on a GPU in float32, in an order that repeats itself.

    PyTorch has one such mode a process: it is on while any thread asks for it, and the caller's is
    back after the last. Gradients are on, whatever the caller switched off; see
    `usual_torch_state`.
    """
    _FULL_PRECISION.enter()
    try:
        with usual_torch_state():
            yield
    finally:
        _FULL_PRECISION.leave()


class _FullPrecision:
    """The process's mode of multiplication, held by any number of threads."""

    def __init__(self) -> None:
        self._lock, self._holders = Lock(), 0
        self._before = ExitStack()

    def enter(self) -> None:
        """Switch the mode on, where no other thread did."""
        with self._lock:
            if not self._holders:
                before = torch.get_float32_matmul_precision()
                self._before.callback(torch.set_float32_matmul_precision, before)
                torch.set_float32_matmul_precision("highest")
                self._before.enter_context(
                    torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
                )
            self._holders += 1

    def leave(self) -> None:
        """Bring the caller's mode back, where no other thread needs it."""
        with self._lock:
            self._holders -= 1
            if not self._holders:
                self._before.close()


_FULL_PRECISION = _FullPrecision()
