"""Features of clients, gathered by class."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.errors import DataError, DivergedError
from fedcel.losses.cel.cluster import gather_classes
from tests.fedcel.losses.cel.readers import read_clients


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 60))
def test_members(labels: list[int], piece: int) -> None:
    """Classes are in order, examples of each in that of the client; cuts change nothing."""
    y = torch.tensor(labels)
    z = torch.arange(float(len(y)))[:, None]
    other = (-1 - z, 3 - y)
    gathered, numbers, counts = gather_classes(read_clients((z, y), other, size=piece), 4, 2)
    assert counts.tolist() == [*y.bincount(minlength=4).tolist(), *(3 - y).bincount(minlength=4)]
    assert torch.equal(numbers, torch.arange(8).repeat_interleave(counts))
    expected = [part[labels == c] for part, labels in ((z, y), other) for c in range(4)]
    assert torch.equal(gathered, torch.cat(expected))


def test_refusals() -> None:
    """No examples, labels that are no class, features that are no numbers."""
    z, y = torch.zeros(4, 2), torch.arange(4)
    with pytest.raises(DataError, match="a client has 0 examples"):
        gather_classes(read_clients((z, y), (z[:0], y[:0])), 4, 2)
    for reader in (read_clients((z[:0], y[:0])), lambda: iter(())):
        with pytest.raises(DataError, match="0 examples"):
            gather_classes(reader, 4, 1)
    for wrong in (y + 1, y - 1):
        with pytest.raises(DataError, match="must be in 0..3"):
            gather_classes(read_clients((z, wrong)), 4, 1)
    for value in (torch.nan, torch.inf, -torch.inf):
        z[2, 1] = value
        with pytest.raises(DivergedError, match=r"class 2: .* 1 of 4 .*lower local.rate"):
            gather_classes(read_clients((z, y)), 4, 1)
