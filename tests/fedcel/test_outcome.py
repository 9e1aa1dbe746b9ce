"""What a label alone gives away, in closed form."""

import pytest
import torch

from fedcel.outcome import label_only


@pytest.mark.parametrize(
    ("counts", "candidates", "chance"),
    [
        ([10], 5, 1 / 5),  # one class: nothing is told
        ([1, 1, 1, 1], 4, 1.0),  # the label is the image
        ([40] * 10, 400, 1 / 40),  # all images are candidates
        ([2, 2], 2, 2 / 3 + 1 / 3 / 2),  # the other candidate is of the same class in 1 of 3
        ([3, 0], 3, 1 / 3),  # an absent class
    ],
)
def test_label_only_by_hand(counts: list[int], candidates: int, chance: float) -> None:
    """E[1/(1 + others of the class among the candidates)]."""
    assert label_only(torch.tensor(counts).double(), candidates) == pytest.approx(chance)
