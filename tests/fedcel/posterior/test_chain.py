"""The ring of samples on disk."""

from pathlib import Path

import torch

from fedcel.posterior.chain import Chain


def test_keeps_the_newest_and_reads_them_in_order(tmp_path: Path) -> None:
    """Capacity 3 of 5: the two oldest go."""
    chain = Chain(tmp_path, 3)
    for number in (2, 4, 6, 8, 110):
        chain.write_sample(number, torch.full((2,), float(number)))
    assert chain.list_rounds() == [6, 8, 110]
    assert [sample[0].item() for sample in chain.read_samples()] == [6, 8, 110]


def test_forgets_what_a_resumed_run_writes_again(tmp_path: Path) -> None:
    """Samples after the last complete round are dropped."""
    chain = Chain(tmp_path, 3)
    for number in (1, 2, 3):
        chain.write_sample(number, torch.zeros(1))
    chain.delete_after(2)
    assert chain.list_rounds() == [1, 2]


def test_an_empty_chain_reads_as_none(tmp_path: Path) -> None:
    """No folder yet: no samples."""
    assert Chain(tmp_path / "chain", 3).read_samples() == []
