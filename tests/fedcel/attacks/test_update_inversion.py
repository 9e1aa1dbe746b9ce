"""Gradient inversion: what it is tuned on; the search itself is tested on real uploads."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedcel.attacks.update_inversion import TUNING_IMAGES, count_tuning_images
from fedcel.errors import SettingsError


@given(st.integers(1, 40), st.integers(1, 300))
def test_tuned_on_whole_batches(batch: int, own: int) -> None:
    """At least one, no part of another, and no more images than there are or are asked for."""
    if batch > own:
        with pytest.raises(
            SettingsError, match=f"batch is {batch}, must be at most {own}, .*lower"
        ):
            count_tuning_images(batch, own)
        return
    count = count_tuning_images(batch, own)
    assert count % batch == 0
    assert batch <= count <= min(own, max(batch, TUNING_IMAGES))
