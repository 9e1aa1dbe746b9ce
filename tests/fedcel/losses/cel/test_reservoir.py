"""A uniform sample of each class, read in pieces."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from fedcel.errors import DataError, DivergedError
from fedcel.losses.cel.cluster import sample_reservoir
from tests.fedcel.losses.cel.readers import read_clients


def fresh(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@settings(deadline=None, max_examples=50)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.integers(1, 9),
    st.integers(1, 60),
)
def test_members(seed: int, labels: list[int], size: int, piece: int) -> None:
    """Counts are exact, min(n_c, size) different members are kept, cuts change nothing."""
    y = torch.tensor(labels)
    z = torch.arange(float(len(y)))[:, None]
    reservoir = sample_reservoir(read_clients((z, y), size=piece), 4, size, [fresh(seed)])
    assert torch.equal(reservoir.counts, y.bincount(minlength=4))
    assert torch.equal(reservoir.y.bincount(minlength=4), reservoir.counts.clamp_max(size))
    assert torch.equal(y[reservoir.z[:, 0].long()], reservoir.y)
    assert len(reservoir.z.unique()) == len(reservoir.z)
    assert torch.equal(
        reservoir.z, sample_reservoir(read_clients((z, y), size=60), 4, size, [fresh(seed)]).z
    )


@pytest.mark.parametrize("piece", [3, 12])
def test_every_subset_is_equally_likely(piece: int) -> None:
    """Chi-squared over the 15 pairs of 6 examples, another class in between."""
    z, y = torch.arange(12.0)[:, None], torch.arange(12) % 2
    stream, tally = fresh(1), Counter[tuple[float, ...]]()
    for _ in range(600):
        reservoir = sample_reservoir(read_clients((z, y), size=piece), 2, 2, [stream])
        tally[tuple(sorted(reservoir.z[reservoir.y == 0, 0].tolist()))] += 1
    assert len(tally) == 15
    assert sum((n - 40) ** 2 / 40 for n in tally.values()) < chi2.ppf(0.999, 14)


def test_refusals() -> None:
    """No examples, labels that are no class, features that are no numbers."""
    z, y = torch.zeros(4, 2), torch.arange(4)
    with pytest.raises(DataError, match="a client has 0 examples"):
        sample_reservoir(read_clients((z, y), (z[:0], y[:0])), 4, 2, [fresh(), fresh(1)])
    with pytest.raises(DataError, match="0 examples"):
        sample_reservoir(read_clients((z[:0], y[:0])), 4, 2, [fresh()])
    for wrong in (y + 1, y - 1):
        with pytest.raises(DataError, match="must be in 0..3"):
            sample_reservoir(read_clients((z, wrong)), 4, 2, [fresh()])
    for value in (torch.nan, torch.inf, -torch.inf):
        z[2, 1] = value
        with pytest.raises(DivergedError, match=r"class 2: .* 1 of 4 .*lower local.rate"):
            sample_reservoir(read_clients((z, y)), 4, 2, [fresh()])
