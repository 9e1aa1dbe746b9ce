"""Images that the losses' statistics are computed of: at most some of each class."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from scipy.stats import chi2

from fedcel.data import Images
from fedcel.federation import local_steps
from fedcel.federation.local_steps import ClientRound, FeatureReading, choose_rows
from fedcel.losses import Batch, ClientLoss, WeightedTerm
from fedcel.losses.protocol import FeatureBatches, State, Term
from fedcel.nets import Mlp, build_net
from fedcel.nets.flat_net import FlatNet
from fedcel.posterior import LocalSettings, RoundPlan
from fedcel.torch_state import make_generator
from tests.fedcel.losses.single import to_term
from tests.fedcel.train_one import train_one

LABELS = torch.tensor([0, 1, 0, 1, 0, 1, 0, 0, 2])
X = torch.rand(9, 1, 4, 4, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def few_images(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three images of a class."""
    monkeypatch.setattr(local_steps, "STATISTICS_IMAGES", 3)


def client(labels: torch.Tensor, seed: int = 0) -> ClientRound:
    """Return a client's round."""
    streams = partial(make_generator, seed)
    return ClientRound(Images(X[: len(labels)], labels), streams, 0.0)


def make_nets(count: int) -> FlatNet:
    """Return copies of a small net."""
    net = build_net(Mlp(features=6, width=9, noise=0.1), (1, 4, 4), 3, make_generator(0, "net"))
    return FlatNet(net, count)


def test_a_class_that_has_more_is_drawn_from() -> None:
    """Three of it in their order, every three as likely as any; all images of the others."""
    tally = torch.zeros(5, 5)
    for seed in range(400):
        rows = choose_rows(client(LABELS, seed))
        assert LABELS[rows].bincount().tolist() == [3, 3, 1]
        assert torch.equal(rows, rows.sort().values)
        places = torch.isin(torch.tensor([0, 2, 4, 6, 7]), rows).nonzero()[:, 0]
        tally[places[0], places[1]] += 1 / 2
        tally[places[0], places[2]] += 1 / 2
        tally[places[1], places[2]] += 1 / 2
    pairs = tally[torch.triu(torch.ones(5, 5), 1) > 0]  # each is in 3 of the 10 draws
    assert float((pairs - 60).square().sum() / 60) < chi2.ppf(0.999, 9)
    few = torch.tensor([0, 1, 0, 1, 2])
    assert torch.equal(choose_rows(client(few)), torch.arange(5))
    assert not len(choose_rows(client(few[:0])))


@pytest.mark.parametrize("clients", [1, 2])
@pytest.mark.parametrize("piece", [2, 100])
def test_the_images_chosen_are_read(
    clients: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Features and labels of theirs, in their order, twice the same."""
    monkeypatch.setattr(local_steps, "IMAGES_AT_ONCE", piece)
    nets = make_nets(clients)
    nets.load(make_nets(1).vector)
    rounds = [client(LABELS, 1), client(LABELS[:4], 2)][:clients]
    rows = [choose_rows(part) for part in rounds]
    reading = FeatureReading(nets, [part.images for part in rounds], rows)
    for _ in range(2):
        z, y, owner = (torch.cat(parts) for parts in zip(*reading.read(), strict=True))
        for k, chosen in enumerate(rows):
            assert torch.equal(y[owner == k], LABELS[chosen])
            expected = make_nets(1).net.encoder(X[chosen]).detach()
            torch.testing.assert_close(z[owner == k], expected)


@dataclass(frozen=True)
class Reading(ClientLoss):
    """A loss that keeps the labels that its statistics are computed of."""

    seen: list[torch.Tensor]

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        self.seen.append(torch.cat([y for _, y in batches()]))
        return {}

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        """Return 0."""
        return Term(0 * batch.z.sum(), {})


def test_a_round_reads_them() -> None:
    """So does a loss of one's own."""
    loss, flat = Reading([]), make_nets(1)
    train_one(
        flat,
        flat.vector.clone(),
        Images(X, LABELS),
        plan=RoundPlan(0.3, 0.0, 0.0, 0.0, False, 0.0),
        local=LocalSettings(steps=2, batch_size=5),
        streams=partial(make_generator, 3),
        terms=[WeightedTerm("cel", to_term(loss), 0.7)],
    )
    assert [labels.bincount().tolist() for labels in loss.seen] == [[3, 3, 1]]
