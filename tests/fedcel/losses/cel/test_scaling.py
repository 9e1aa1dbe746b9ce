"""What a change of units does to each loss: spreads go with its square, informations stay."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcel.losses import ClientLoss
from fedcel.losses.cel.cluster import Cluster
from fedcel.losses.cel.hybrid import Hybrid
from fedcel.losses.cel.mutual_information import MutualInformation
from fedcel.losses.cel.plain import Plain
from tests.fedcel.losses.cel.gates import MODES, gated
from tests.fedcel.losses.single import single, split_features

SIGMA = 0.7
scales = st.floats(0.5, 20.0)


def value(mine: ClientLoss, z: Tensor, y: Tensor) -> Tensor:
    """Return the loss of features, its state learned from them."""
    state = mine.refresh(None, split_features(z, y), torch.Generator().manual_seed(1))
    return mine.loss(state, z, y, measure=False).loss.detach()


def drawn(seed: int) -> tuple[Tensor, Tensor]:
    """Return 24 features of 3 classes."""
    stream = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(24, 4, generator=stream).double(), torch.arange(24) % 3


SPREADS = {
    "plain": single(Plain(penalty="linear"), 3),
    **{f"gated, {mode}": gated(mode) for mode in MODES},
    **{
        f"cluster, {clustering}": single(
            Cluster(penalty="linear", clusters=2, clustering=clustering)
        )
        for clustering in ("k-means", "diagonal", "full")
    },
    "hybrid": single(Hybrid(penalty="linear", clusters=2)),
}


@pytest.mark.parametrize("name", SPREADS)
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32 - 1), scales)
def test_spreads_grow_with_the_square_of_the_unit(name: str, seed: int, scale: float) -> None:
    """The attention sees features less their mean over their deviation, which have no unit."""
    z, y = drawn(seed)
    one, two = value(SPREADS[name], z, y), value(SPREADS[name], scale * z, y)
    torch.testing.assert_close(two, scale**2 * one, rtol=1e-3, atol=0)


@pytest.mark.parametrize("bound", ["upper", "lower", "channel"])
@settings(deadline=None, max_examples=15)
@given(st.integers(0, 2**32 - 1), scales)
def test_what_is_measured_against_the_noise_has_no_unit(
    bound: str, seed: int, scale: float
) -> None:
    """Features and noise in another unit: the same nats."""
    z, y = drawn(seed)

    def measured(unit: float) -> Tensor:
        if bound == "channel":
            loss = single(Plain(), sigma=unit * SIGMA)
            return value(loss, unit * z, y)
        kind = "upper" if bound == "upper" else "lower"
        return value(
            single(MutualInformation(share="batch-share", bound=kind), 3, sigma=unit * SIGMA),
            unit * z,
            y,
        )

    torch.testing.assert_close(measured(scale), measured(1.0), rtol=1e-9, atol=1e-12)
