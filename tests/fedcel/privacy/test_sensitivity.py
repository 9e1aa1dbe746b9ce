"""The sensitivity of a clip is its largest distance, and a stated one is no smaller."""

import pytest
import torch

from fedcel.errors import SettingsError
from fedcel.privacy import clip_rows, clip_sensitivity, noise_sensitivity


@pytest.mark.parametrize(
    ("kind", "l1", "l2"),
    [("clamp", 16.0, 8 * 2**0.5), ("l1", 8.0, 8.0), ("probabilities", 2.0, 2**0.5)],
)
def test_the_sensitivity_is_attained(kind: str, l1: float, l2: float) -> None:
    """2cC, 2c and 2 in L1; 2c sqrt(C), 2c and sqrt(2) in L2: c = 4, two or three classes."""
    assert clip_sensitivity(kind, 4.0, 2) == l1
    assert clip_sensitivity(kind, 4.0, 2, 2) == l2
    row, other_row = torch.eye(2) if kind != "l1" else torch.tensor([[1.0, 0, 0], [-1.0, 0, 0]])
    a, b = clip_rows(1e3 * torch.stack([row, other_row]), kind, 4.0)
    assert abs(float((a - b).abs().sum()) - l1) < 1e-2
    assert abs(float((a - b).norm()) - l2) < 1e-2


@pytest.mark.parametrize("norm", [1, 2])
def test_a_stated_sensitivity_is_taken_where_the_clip_enforces_it(norm: int) -> None:
    """More is more noise; less is refused."""
    enforced = clip_sensitivity("clamp", 4.0, 3, norm)
    assert noise_sensitivity("clamp", 4.0, 3, norm) == enforced
    assert noise_sensitivity("clamp", 4.0, 3, norm, stated=2 * enforced) == 2 * enforced
    with pytest.raises(SettingsError, match=f"must be at least .* apart .L{norm}."):
        noise_sensitivity("clamp", 4.0, 3, norm, stated=0.9 * enforced)
