"""Fitting images to the asked-for size and greyness."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.data.images import fit_images
from fedcel.errors import DataError
from tests.fedcel.seeded import seeded


def test_untouched_by_default() -> None:
    """The tensor itself comes back."""
    x = torch.rand(2, 3, 4, 5)
    assert fit_images(x, size=0, grey=False, where="here") is x


def test_luminance_by_hand() -> None:
    """Red, green, blue, white; what is grey stays."""
    colours = torch.cat([torch.eye(3), torch.ones(1, 3)]).view(4, 3, 1, 1)
    grey = fit_images(colours, size=0, grey=True, where="here")
    assert grey.flatten().tolist() == pytest.approx([0.299, 0.587, 0.114, 1.0])
    assert torch.equal(fit_images(grey, size=0, grey=True, where="here"), grey)
    with pytest.raises(DataError, match="here: images have 2 channels and data.grey is true"):
        fit_images(colours[:, :2], size=0, grey=True, where="here")


def test_half_the_size_by_hand() -> None:
    """Antialiased: the triangle of width 2, 1/8 3/8 3/8 1/8 inside, renormalised at the border."""
    ramp = torch.tensor([0.0, 0.2, 0.4, 1.0]).expand(1, 1, 4, 4)
    left, right = fit_images(ramp, size=2, grey=False, where="here")[0, 0, 0].tolist()
    assert left == pytest.approx((3 * 0.0 + 3 * 0.2 + 0.4) / 7)
    assert right == pytest.approx((0.2 + 3 * 0.4 + 3 * 1.0) / 7)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9), st.booleans(), st.integers(0, 99))
def test_stays_in_the_range(rows: int, columns: int, size: int, grey: bool, seed: int) -> None:
    """Whatever the sides: a square, in [0, 1], white stays white."""
    x = torch.rand(2, 3, rows, columns, generator=seeded(seed)).round()
    x[0] = 1
    fitted = fit_images(x, size=size, grey=grey, where="here")
    assert fitted.shape == (2, 1 if grey else 3, size, size)
    assert fitted.min() >= 0 and fitted.max() <= 1
    torch.testing.assert_close(fitted[0], torch.ones_like(fitted[0]))
