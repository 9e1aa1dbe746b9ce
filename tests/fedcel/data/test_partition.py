"""Partitions: nobody is left out, nothing is lost, the same seed deals the same."""

import math
import warnings

import numpy as np
import pytest
import torch
from datasets import Dataset
from flwr_datasets import partitioner
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedcel.data import ClientImages, Images, Partition
from fedcel.data.partition import ClientSlices
from fedcel.errors import DataError
from tests.fedcel.seeded import seeded

Y = torch.arange(1003) % 10
KINDS = ("iid", "dirichlet", "shards")


def kind(name: str, **more: object) -> Partition:
    options = {key: more[key] for key in more if name in Partition.list_keys()[key]}
    return Partition.model_validate({"partition": name, **options})


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 12),
    st.integers(12, 200),
    st.integers(0, 2**63 - 1),
)
def test_each_image_has_one_holder(name: str, clients: int, images: int, seed: int) -> None:
    """Every position occurs once, and no client is empty."""
    assume(name != "dirichlet" or images >= 20 * clients)  # with one image a class, some get none
    parts = kind(name, alpha=100.0).deal(Y[:images], clients, seed)
    assert len(parts) == clients and all(len(part) > 0 for part in parts)
    assert sorted(torch.cat([*parts]).tolist()) == list(range(images))
    assert all(part.dtype == torch.int64 for part in parts)


@pytest.mark.parametrize("name", KINDS)
def test_the_seed_decides(name: str) -> None:
    """Same seed, same holders; another seed, others."""
    one, same, other = (kind(name).deal(Y, 8, seed) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(("images", "clients"), [(403, 8), (50, 12), (90, 8)])
@pytest.mark.parametrize("name", KINDS)
def test_deals_are_those_of_flower(name: str, images: int, clients: int) -> None:
    """Position by position, and the order within a client: what was dealt before is dealt again."""
    y, seed = torch.randint(0, 5, (images,), generator=seeded(1)), 4
    rng = np.random.default_rng(seed)
    order = rng.permutation(images)
    inner = int(rng.integers(2**63))
    size = math.ceil(images / (clients * 2))
    if math.ceil(images / size) < clients:
        size = images // clients
    theirs = {
        "iid": partitioner.IidPartitioner(clients),
        "dirichlet": partitioner.DirichletPartitioner(
            clients, "label", 9.0, min_partition_size=1, self_balancing=False, seed=inner
        ),
        "shards": partitioner.ShardPartitioner(
            clients, "label", shard_size=size, keep_incomplete_shard=True, seed=inner
        ),
    }[name]
    theirs.dataset = Dataset.from_dict({"position": order, "label": y.numpy()[order]})
    ours = kind(name, alpha=9.0).deal(y, clients, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a redraw, and pyarrow's on how `datasets` sorts
        for client, part in enumerate(ours):
            assert part.tolist() == theirs.load_partition(client)["position"][:]


def test_a_share_is_found_by_its_client() -> None:
    """From either end, in slices; one that is not there is no share."""
    parts = kind("iid").deal(Y, 8, 0)
    assert torch.equal(parts[-1], parts[7])
    assert [len(part) for part in parts[6:]] == [len(parts[6]), len(parts[7])]
    with pytest.raises(IndexError, match="client 8 of 8"):
        parts[8]


def test_iid_is_even_and_shuffled() -> None:
    """Sizes differ by one at most; sorted labels come out mixed."""
    parts = kind("iid").deal(Y.sort().values, 8, 0)
    assert {len(part) for part in parts} == {125, 126}
    assert all(len(Y.sort().values[part].unique()) == 10 for part in parts)


def test_alpha_sets_how_many_classes_a_client_has() -> None:
    """A large alpha deals each class evenly, a small one to few."""
    even, few = (kind("dirichlet", alpha=a).deal(Y, 4, 1) for a in (1e6, 0.05))
    assert all(abs(int((Y[part] == 3).sum()) - 25) <= 2 for part in even)
    assert max((Y[part] == 3).sum().item() for part in few) > 60


def test_shares_are_dirichlet() -> None:
    """No balancing of sizes: the variance of one is (1/k)(1-1/k)/(k alpha + 1)."""
    y = torch.arange(400) % 2
    shares = torch.tensor(
        [
            [(y[part] == 1).sum().item() / 200 for part in kind("dirichlet").deal(y, 4, s)]
            for s in range(50)
        ]
    )
    want = 0.25 * 0.75 / 3
    assert abs(shares.var().item() - want) < 0.25 * want


def test_shards_hold_few_classes() -> None:
    """A shard no larger than a class spans two of them at most."""
    parts = kind("shards").deal(Y, 10, 0)
    assert all(len(Y[part].unique()) <= 4 for part in parts)
    assert max(len(part) for part in parts) <= 2 * math.ceil(1003 / 20)


def test_one_image_each() -> None:
    """As many clients as images is allowed where the kind can deal so."""
    for name in ("iid", "shards"):
        assert [len(p) for p in kind(name).deal(Y[:9], 9, 0)] == [1] * 9
        uneven = kind(name).deal(Y[:9], 8, 0)
        assert sorted(len(part) for part in uneven) == [1] * 7 + [2]


def test_too_many_clients_are_refused() -> None:
    """The numbers and the way out are named; a Dirichlet that cannot fill everyone gives up."""
    for clients in (0, 11):
        with pytest.raises(DataError, match=rf"clients is {clients}, must be in 1\.\.10"):
            kind("iid").deal(Y[:10], clients, 0)
    with pytest.raises(DataError, match=r"data\.alpha 0\.01 left one of 100 clients"):
        kind("dirichlet", alpha=0.01).deal(Y, 100, 0)


@pytest.mark.parametrize("name", KINDS)
def test_silent(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """No progress bar, no log line."""
    kind(name).deal(Y, 8, 0)
    assert capfd.readouterr() == ("", "")


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(-3, 9), min_size=1, max_size=60), st.data())
def test_natural_keeps_holders_whole(names: list[int], data: st.DataObject) -> None:
    """Every position once, each holder in one client, clients differ by one holder at most."""
    holders, count = torch.tensor(names), len(set(names))
    clients, seed = data.draw(st.integers(1, count)), data.draw(st.integers(0, 2**63 - 1))
    y = torch.zeros(len(names), dtype=torch.int64)
    parts = kind("natural").deal(y, clients, seed, holders=holders)
    assert sorted(torch.cat([*parts]).tolist()) == list(range(len(names)))
    own = [set(holders[part].tolist()) for part in parts]
    assert sum(map(len, own)) == count
    assert max(map(len, own)) - min(map(len, own)) <= 1


def test_natural_needs_holders() -> None:
    """As many as clients; the seed says who stands for whom."""
    with pytest.raises(DataError, match="the source names no holders; give CLASS/HOLDER/IMAGE"):
        kind("natural").deal(Y, 4, 0)
    with pytest.raises(
        DataError, match=r"clients is 11.*must be in 1\.\.10, the number of holders"
    ):
        kind("natural").deal(Y, 11, 0, holders=Y)
    one, same, other = (kind("natural").deal(Y, 5, seed, holders=Y) for seed in (3, 3, 4))
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_clients_images_are_taken_when_they_are_read() -> None:
    """A run of the source's images takes no memory; others are copied."""
    source = Images(torch.rand(6, 1, 2, 2), torch.arange(6))
    clients = ClientImages(
        source, ClientSlices(torch.tensor([2, 3, 4, 5, 0]), torch.tensor([3, 2]))
    )
    assert [part.y.tolist() for part in clients] == [[2, 3, 4], [5, 0]]
    assert clients[0].x.data_ptr() == source.x[2].data_ptr()
    assert torch.equal(clients[1].x, source.x[[5, 0]])
    assert clients.take(torch.tensor([4, 0])).y.tolist() == [0, 2]
    with pytest.raises(IndexError, match="client 2 of 2"):
        clients[2]
