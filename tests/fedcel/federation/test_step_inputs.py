"""Examples that statistics are computed from: a draw of each class, encoded alone."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcel.data import Images
from fedcel.federation import ClientUpdate
from fedcel.federation.step_inputs import FeatureReading, draw_examples
from fedcel.losses import WeightedTerm
from fedcel.losses.cel import Cluster
from tests.fedcel.federation.test_local_steps import data, flat_net, play
from tests.fedcel.losses.single import single, to_term


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 9), st.integers(0, 99))
def test_so_many_of_each_class(labels: list[int], count: int, seed: int) -> None:
    """Each class has its `count`, or all of its own; no position twice, in their order."""
    y = torch.tensor(labels, dtype=torch.long)
    rows = draw_examples(y, count, torch.Generator().manual_seed(seed))
    assert torch.equal(rows, rows.unique())
    assert y[rows].bincount(minlength=4).tolist() == [min(count, labels.count(c)) for c in range(4)]


def test_every_example_is_drawn_as_often() -> None:
    """Two of five, 1 000 times: each 400 times, within five standard deviations (15.5)."""
    stream = torch.Generator().manual_seed(0)
    y = torch.zeros(5, dtype=torch.long)
    rows = torch.cat([draw_examples(y, 2, stream) for _ in range(1000)])
    assert (rows.bincount() - 400).abs().max() < 78


def test_only_these_are_encoded() -> None:
    """The features of the positions that the client's generator draws, whatever else it has."""
    nets, images = flat_net(), Images(*data(30))
    (whole,) = FeatureReading(nets, [images]).read()
    (some,) = FeatureReading(nets, [images]).read(2, [torch.Generator().manual_seed(4)])
    rows = draw_examples(images.y, 2, torch.Generator().manual_seed(4))
    torch.testing.assert_close(some.z, whole.z[rows])
    assert torch.equal(some.y, images.y[rows]) and len(some.client) == 6


def test_statistics_of_some_examples() -> None:
    """More than there are: the same bits as of all. Fewer: clusters of so many."""

    def train(examples: int) -> ClientUpdate:
        cluster = to_term(single(Cluster(clusters=2, examples=examples), 3, 6, 0.1))
        term = WeightedTerm("cel", cluster, 0.7)
        return play(terms=[term], images=Images(*data(30)))

    every, many, few = train(0), train(10), train(3)
    assert torch.equal(every.delta, many.delta) and not torch.equal(every.delta, few.delta)
    assert many.state["cel.counts"].tolist() == [10] * 3
    assert few.state["cel.counts"].tolist() == [3] * 3
