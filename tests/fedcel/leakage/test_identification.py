"""The closed form of picking one of several images."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcel.leakage.identification import identification, identify_by_label
from tests.fedcel.seeded import seeded


def drawn(scores: torch.Tensor, candidates: int, top: int, seed: int) -> torch.Tensor:
    """Return one simulated game a row: own image at column 0, random order among equals."""
    stream = seeded(seed)
    keys = torch.rand(scores.shape, generator=stream)
    keys[:, 0] = -1  # the right image is always among the candidates
    chosen = keys.argsort(1)[:, :candidates]
    ties = torch.rand(chosen.shape, generator=stream) * 1e-3
    order = (scores.gather(1, chosen) + ties).argsort(1, descending=True)
    return (chosen.gather(1, order)[:, :top] == 0).any(1).double()


@pytest.mark.parametrize(("candidates", "top"), [(1, 1), (2, 1), (4, 1), (4, 2), (9, 3), (30, 1)])
def test_against_simulated_draws(candidates: int, top: int) -> None:
    """Few distinct scores, so many ties; 40 000 games, within 4 standard errors."""
    row = torch.tensor([[2.0, 3, 2, 0, 2, 1, 3, 0, 1]])
    exact = identification(row, torch.tensor([0]), candidates, top).item()
    games = drawn(row.expand(40_000, -1), candidates, top, 5)
    error = 4 * max(exact * (1 - exact) / 40_000, 1e-12) ** 0.5
    assert abs(games.mean().item() - exact) <= error


@given(st.integers(1, 12), st.integers(2, 12), st.integers(0, 2**31))
def test_scores_that_know_nothing(images: int, candidates: int, seed: int) -> None:
    """All equal: one over the number of candidates there are."""
    own = torch.randint(images, (3,), generator=seeded(seed))
    chances = identification(torch.full((3, images), -torch.inf), own, candidates)
    torch.testing.assert_close(chances, torch.full((3,), 1 / min(images, candidates)).double())


def test_best_and_worst() -> None:
    """The best score is always found; the worst only among fewer rivals than `top`."""
    scores = torch.tensor([[0.9, 0.1, 0.2, 0.3]]).expand(2, 4)
    assert identification(scores, torch.tensor([0, 1]), 3).tolist() == [1.0, 0.0]
    assert identification(scores, torch.tensor([1, 1]), 3, top=3).tolist() == [1.0, 1.0]


def test_refuses_nonsense() -> None:
    """No candidates, no place, no number."""
    one = torch.zeros(1, 2), torch.tensor([0])
    with pytest.raises(ValueError, match="candidates is 0"):
        identification(*one, 0)
    with pytest.raises(ValueError, match="top is 0"):
        identification(*one, 2, top=0)
    with pytest.raises(ValueError, match="NaN"):
        identification(torch.tensor([[torch.nan, 0.0]]), one[1], 2)


@pytest.mark.parametrize(
    ("counts", "candidates", "chance"),
    [
        ([10], 5, 1 / 5),  # one class: nothing is told
        ([1, 1, 1, 1], 4, 1.0),  # the label is the image
        ([40] * 10, 400, 1 / 40),  # all images are candidates
        ([2, 2], 2, 2 / 3 + 1 / 3 / 2),  # the other candidate is of the same class in 1 of 3
    ],
)
def test_label_only_by_hand(counts: list[int], candidates: int, chance: float) -> None:
    """E[1/(1 + others of the class among the candidates)]."""
    labels = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts))
    assert identify_by_label(labels, candidates) == pytest.approx(chance)
