"""Random streams; results do not depend on what a caller switched off in PyTorch."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Barrier

import numpy as np
import pytest
import torch

from fedcel.torch_state import (
    make_generator,
    map_on_threads,
    stream_seed,
    use_full_precision,
    usual_torch_state,
)


@contextmanager
def float64_default() -> Iterator[None]:
    """Make float64 the default type."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def other_device() -> Iterator[None]:
    """Make a device without memory the default."""
    with torch.device("meta"):
        yield


@contextmanager
def mixed_precision() -> Iterator[None]:
    """Compute products in bfloat16, and make NumPy's warnings errors."""
    with torch.autocast("cpu", torch.bfloat16), np.errstate(all="raise"):
        yield


STATES: list[Callable[[], AbstractContextManager[object]]] = [
    torch.no_grad,
    torch.inference_mode,
    float64_default,
    other_device,
    mixed_precision,
]
"""What a caller may have switched before calling a library."""


def describe_state() -> tuple[object, ...]:
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_autocast_enabled("cpu"),
        np.geterr(),
    )


USUAL = (True, False, torch.float32, torch.device("cpu"), False, np.geterr())


@pytest.mark.parametrize("state", STATES)
def test_the_usual_state_inside_and_the_callers_own_after(
    state: Callable[[], AbstractContextManager[object]],
) -> None:
    """As a context and as a decorator, after an error too."""
    with state():
        own = describe_state()
        assert own != USUAL
        with usual_torch_state():
            assert describe_state() == USUAL
        assert usual_torch_state()(describe_state)() == USUAL
        with pytest.raises(KeyError), usual_torch_state():
            raise KeyError
        assert describe_state() == own


def test_the_repeatable_mode_lasts_until_the_last_thread_left() -> None:
    """Two threads that overlap: on for both, whoever ends first, and off after them."""

    def describe_mode() -> tuple[str, bool]:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.deterministic

    torch.set_float32_matmul_precision("high")
    try:
        first, second = use_full_precision(), use_full_precision()
        with first:
            second.__enter__()
            assert describe_mode() == ("highest", True)
        assert describe_mode() == ("highest", True)
        second.__exit__(None, None, None)
        assert describe_mode() == ("high", False)
    finally:
        torch.set_float32_matmul_precision("highest")


def test_map_on_threads() -> None:
    """In order, each call with one thread of its own; PyTorch's number is back afterwards."""
    before = torch.get_num_threads()
    meeting = Barrier(2, timeout=30)  # calls that do not run at once never pass it

    def call(number: int, other: int) -> tuple[int, int, int]:
        meeting.wait()
        return number, other, torch.get_num_threads()

    def fail(number: int) -> int:
        return 1 // number

    try:
        torch.set_num_threads(2)
        assert list(map_on_threads(call, range(4), range(4, 8))) == [
            (number, number + 4, 1) for number in range(4)
        ]
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError):
            list(map_on_threads(fail, (1, 0, 1)))
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        assert list(map_on_threads(abs, (-1, 2))) == [1, 2]
    finally:
        torch.set_num_threads(before)


def test_every_part_of_the_name_counts() -> None:
    """Different purpose, round, client or seed: another stream; the same: the same."""
    names = [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1)]
    assert len({stream_seed(*name) for name in names}) == len(names)
    draws = [torch.rand(4, generator=make_generator(0, "a", 3, 2)) for _ in range(2)]
    assert torch.equal(*draws)


def test_global_state_is_left_alone() -> None:
    """The default generator gives the same number with a stream drawn in between."""
    torch.manual_seed(9)
    first = torch.rand(1)
    torch.manual_seed(9)
    torch.rand(5, generator=make_generator(0, "a"))
    assert torch.equal(first, torch.rand(1))
