"""The first pictures of a source, shown to a check before the others are read."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from jaxtyping import Float
from torch import Tensor

FIRST_IMAGES = 2
"""Pictures that are decoded before the check: enough to tell an image from its batch."""
ImageCheck = Callable[[Tensor], None]
"""Takes images (2, C, H, W) in [0, 1], and raises what refuses them."""

_CHECK: ContextVar[ImageCheck | None] = ContextVar("check_of_first_images", default=None)


@contextmanager
def check_first_images(check: ImageCheck) -> Iterator[None]:
    """Have the first pictures that are decoded inside checked, before the others are.

    Args:
        check: Raises what refuses them. Grey ones may have colours once all are read.

    Yields:
        Nothing.
    """
    token = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(token)


def show_first_images(images: Float[Tensor, "N C H W"], count: int) -> None:
    """Show images to the check where as many are decoded as it takes.

    Args:
        images: Room for all pictures, of which the first are filled.
        count: How many are.
    """
    check = _CHECK.get()
    if check is not None and count == FIRST_IMAGES:
        check(images[:count])
