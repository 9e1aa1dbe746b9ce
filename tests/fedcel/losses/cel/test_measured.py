"""What a loss tells of a batch in which no class has two members: nothing, not that it is 0."""

import pytest
import torch

from fedcel.losses.cel import CEL
from tests.fedcel.losses.single import options, single, split_features

KINDS = sorted(CEL.kinds.keys() - {"none", ":"})


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_pair_no_spread_is_told(kind: str) -> None:
    """A mean over clients would take a 0 for a measurement; with a pair it is there."""
    loss = single(options(kind=kind), 6, 4, 0.3)
    own = torch.arange(12) % 6
    z = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    state = loss.refresh(None, split_features(z, own), torch.Generator().manual_seed(1))
    lone = loss.loss(state, z[:6], own[:6]).metrics
    assert not {"spread", "plain-spread", "attention-share", "information"} & lone.keys()
    assert loss.loss(state, z[:7], own[:7]).metrics["spread"] > 0
