"""The ring of samples on disk."""

from pathlib import Path

import torch

from fedcel.posterior.chain import Chain
from fedcel.posterior.schedule import ChainSettings
from fedcel.run_parts import build_schedule
from fedcel.settings import parse_settings


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


def test_samples_are_due_an_interval_apart() -> None:
    """Every fourth round of the chain, the first included; else the autocorrelation time apart."""
    chain, sampled = ChainSettings(thin=4), list[int]()
    for number in range(11, 21):
        if chain.is_sample_due(number, sampled, None):
            sampled.append(number)
    assert sampled == [11, 15, 19]
    adaptive = ChainSettings(thin=0)
    assert not adaptive.is_sample_due(45, [41], None)
    assert not adaptive.is_sample_due(45, [41], 5)
    assert adaptive.is_sample_due(46, [41], 5)


def test_only_noisy_rounds_after_burn_in_give_samples() -> None:
    """Half of 20 rounds is burn-in; at temperature 0 nothing is sampled."""
    raw = {"rounds": 20, "chain.burn-in": 0.5}
    schedule = build_schedule(parse_settings(raw))
    assert [number for number in range(1, 21) if schedule.gives_sample(number)] == [*range(11, 21)]
    assert not build_schedule(parse_settings(raw | {"temperature": 0.0})).gives_sample(15)
