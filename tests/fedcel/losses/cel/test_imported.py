"""Losses of a user's own by import strings, states in a run, features in pieces."""

from functools import partial

import pytest
import torch

from fedcel.errors import PluginError
from fedcel.losses import Batch, ClientLoss
from fedcel.losses.cel import CEL, Penalty, Term, channel_penalty, class_members
from fedcel.losses.protocol import State
from fedcel.settings import parse_settings
from tests.fedcel.losses.single import options, single, split_features
from tests.fedcel.train_one import update_one


def mine(cel: CEL, penalty: Penalty, features: int, classes: int) -> object:
    """Return a loss of one's own."""
    return Charged(penalty)


class Charged(ClientLoss):
    """What a penalty charges for the features as spreads."""

    def __init__(self, penalty: Penalty) -> None:
        self.penalty = penalty

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Return the mean charge of the squared features' sums."""
        classes = class_members(batch.y, 10, batch.z).one_hot
        return Term(self.penalty(classes.T @ batch.z.square().sum(1)).mean(), {})


def nothing(cel: CEL, penalty: object, features: int, classes: int) -> object:
    return features


def test_own_kinds() -> None:
    """An import string is built, and refused when it makes no loss."""
    built = single(options(kind=f"{__name__}:mine"), 10, 64, 0.0001)
    z, y = torch.randn(6, 64, generator=torch.Generator().manual_seed(1)), torch.arange(6) % 3
    penalty = partial(channel_penalty, features=64, sigma=0.0001)
    assert torch.equal(
        built.loss({}, z, y).loss, Charged(penalty).loss({}, Batch.of_features(z, y)).loss
    )
    with pytest.raises(PluginError, match="64, which lacks"):
        single(options(kind=f"{__name__}:nothing"), 10, 64, 0.3)
    with pytest.raises(PluginError, match="cannot be called"):
        single(options(kind=f"{__name__}:__doc__"), 10, 64, 0.3)


@pytest.mark.parametrize("kind", ["gated", "hybrid"])
def test_no_attention_before_the_loss_acts(kind: str) -> None:
    """Up to the end of warm-up a client stores nothing; then theta and Adam's moments appear."""
    cel = {"kind": kind, "warm-up": 2}
    settings = parse_settings({"cel": cel, "local": {"steps": 2}, "rounds": 20})
    state: State | None = None
    has_theta = []
    for number in range(1, 5):
        update = update_one(settings, 0, 0.1, number=number, total=997, state=state)
        state = update.state
        has_theta.append(any(name.endswith("theta") for name in state))
    assert has_theta[:2] == [False, False]
    assert has_theta[-1]


def test_pieces_are_all_features() -> None:
    """Pieces of any size give the features back, each time anew."""
    z, y = torch.arange(5.0)[:, None], torch.arange(5)
    batches = split_features(z, y, 2)
    for _ in range(2):
        assert torch.equal(torch.cat([part for part, _ in batches()]), z)
