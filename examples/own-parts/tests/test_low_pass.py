"""The filter removes high frequencies and nothing else."""

import math

import pytest
import torch
from own_parts.low_pass import LowPass

from fedcel.testing import check_net


@pytest.mark.parametrize("share", [75, 62, 50])
def test_net(share: int) -> None:
    """The nets hold the contract of nets."""
    check_net(f"own_parts.low_pass:low_pass_{share}", width=64)  # it learns noise from little


@pytest.mark.parametrize("frequency", range(8))
def test_a_wave_passes_or_vanishes(frequency: int) -> None:
    """Of cosines along a row of 8, in an image of 6 rows, the lowest 4 stay as they are."""
    places = math.pi * (torch.arange(8) + 0.5) / 8
    wave = torch.cos(frequency * places).expand(2, 3, 6, 8)
    passed = LowPass((3, 6, 8), 0.5)(wave)
    torch.testing.assert_close(passed, wave if frequency < 4 else torch.zeros_like(wave))
    turned = LowPass((3, 8, 6), 0.5)(wave.mT)
    torch.testing.assert_close(turned, passed.mT)
