"""Attackers of the playground learn while the page is open; decoders are kept with the run."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from fedcel.runs import Run
from sims.play import attackers
from sims.play.attackers import DECODER, RIDGE, Attackers, Background, find_key
from sims.play.noise_levels import NoiseLevel
from tests.clients.serving import made_run
from tests.sims.play.conftest import shorten_decoders

LEVEL = NoiseLevel(1.0, 1)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Return a run in a folder of its own, with few images and short training."""
    shorten_decoders(monkeypatch)
    monkeypatch.setattr("sims.play.noise_levels.FACTORS", (1.0,))
    monkeypatch.setattr("sims.play.noise_levels.MESSAGE_COUNTS", (1,))
    return made_run(1, **{"data.test": 40, "data.auxiliary": 24})._replace(folder=tmp_path)


def rebuild(run: Run) -> torch.Tensor:
    """Return the decoder's image of a message of zeros and its level."""
    background = Background()
    learned = Attackers(run.flat.net, run, background)
    learned.wait()
    background.close()
    decoder = learned.find(LEVEL)[DECODER]
    assert not isinstance(decoder, str)
    return decoder(torch.zeros(1, run.flat.net.features + 1))


@pytest.mark.parametrize("most_inputs", [4096, 4], ids=["whole", "projected"])
def test_a_decoder_is_trained_once(
    most_inputs: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second start loads it, to the bit; a damaged file is trained anew, another encoder too."""
    monkeypatch.setattr("fedcel.attacks.decoder.MAX_INPUTS", most_inputs)
    calls = []
    train = attackers.train_inverter

    def count(attacker: Any) -> Any:
        calls.append(attacker)
        return train(attacker)

    monkeypatch.setattr(attackers, "train_inverter", count)
    first = rebuild(run)
    assert torch.equal(rebuild(run), first) and len(calls) == 1
    (path,) = (run.folder / "play").iterdir()
    path.write_bytes(b"damaged")
    assert torch.equal(rebuild(run), first) and len(calls) == 2
    other = run._replace(samples=[run.samples[0] + 1])
    assert (
        find_key(run.flat.net, other) not in path.name and find_key(run.flat.net, run) in path.name
    )


def test_it_says_what_is_still_coming(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """No question waits for training; a failure is told."""
    is_free = threading.Event()

    def wait(attacker: Any) -> Any:
        attacker.progress("epoch 1/2, MSE 1")
        is_free.wait(60)
        raise MemoryError("too large")

    monkeypatch.setattr(attackers, "train_inverter", wait)
    background = Background()
    learned = Attackers(run.flat.net, run, background)
    assert isinstance(learned.find(LEVEL)[DECODER], str)
    is_free.set()
    with pytest.raises(MemoryError):
        learned.wait()
    assert "failed: " in str(learned.find(LEVEL)[DECODER])
    assert callable(learned.find(LEVEL)[RIDGE])
    background.close()


def test_the_end_stops_a_training(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its next layer, and nothing is kept; networks of others still compute."""
    has_begun = threading.Event()

    def train(attacker: Any) -> Any:
        has_begun.set()
        while True:
            torch.nn.Identity()(torch.zeros(1))

    monkeypatch.setattr(attackers, "train_inverter", train)
    background = Background()
    Attackers(run.flat.net, run, background)
    assert has_begun.wait(60)
    background.close()
    assert not (run.folder / "play").exists()
    assert torch.nn.Identity()(torch.ones(1)) == 1
