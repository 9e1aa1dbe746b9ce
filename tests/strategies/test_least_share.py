"""A round in which too many clients were left out ends the run, whichever strategy it has."""

import json
from pathlib import Path
from typing import Any

import pytest

from fedcel.errors import RoundError
from fedcel.runs.run_folder import has_begun
from fedcel.settings import Settings, parse_settings
from sims.engines.simulated_grid import InMemoryGrid
from tests.strategies.federation import Events, fail_at, train_nodes
from tests.strategies.stock_matrix import FEDAVG

SMALL: dict[str, Any] = {
    "engine": "local",
    "clients": 4,
    "rounds": 3,
    "local.steps": 2,
    "net.width": 16,
    "net.features": 8,
    "temperature": 0.0,
    "data.test": 100,
}


def train(folder: Path, settings: Settings, bad: set[int]) -> Events:
    """Train, or go on with what is there; some nodes fail in round 2. Return the rounds."""
    resume = folder.exists()
    assert not resume or has_begun(settings, folder)
    grid = InMemoryGrid(fail_at(settings, bad, 2), settings.clients)
    return train_nodes(folder, settings, grid, resume=resume, measure=True)[1]


@pytest.mark.parametrize("change", [{}, FEDAVG], ids=["ours", "stock"])
def test_a_round_of_a_few_clients_ends_the_run_with_share_reasons_and_remedy(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    """Three of four fail: the round is not written; a lower share is a decision of the operator."""
    folder = tmp_path / "run"
    settings = parse_settings(SMALL | change)
    with pytest.raises(RoundError, match=r"round 2 kept .*%.*least-share is 0.5; left out:") as e:
        train(folder, settings, {1, 2, 3})
    assert str(e.value).count("RuntimeError") == 3 and "no images" in str(e.value)
    assert "Mend that, or lower strategy.least-share" in str(e.value)
    assert len((folder / "events.jsonl").read_text().splitlines()) == 1
    assert not (folder / "result.json").exists()
    lower = parse_settings(SMALL | change | {"strategy.least-share": 0.1})
    if change:  # a stock strategy keeps nothing that a run could go on with
        folder = tmp_path / "again"
    shares = [event.get("kept-share", 1.0) for event in train(folder, lower, {1, 2, 3})]
    assert shares[0] == shares[2] == 1 and 0.1 <= shares[1] < 0.5
    if change:
        assert shares[1] == 0.25  # by number: a strategy of Flower's weighs after it was asked
    result = json.loads((folder / "result.json").read_text())
    assert result["incomplete-rounds"] == 1
    assert result["least-kept-share"] == shares[1]
    assert result["mean-kept-share"] == pytest.approx((2 + shares[1]) / 3)


def test_a_resumed_run_takes_the_lost_for_left_out(tmp_path: Path) -> None:
    """Nodes that nobody has any more lower the share, too, until the operator allows it."""
    folder = tmp_path / "run"
    settings = parse_settings(SMALL | {"strategy.timeout": 0.5})
    with pytest.raises(RoundError):
        train(folder, settings, {0, 1, 2, 3})
    grid = InMemoryGrid(fail_at(settings, set()), settings.clients)
    for node in (2, 3, 4):
        del grid.contexts[node]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("strategies.node_registry.WAIT_SECONDS", 0.0)
        with pytest.raises(RoundError, match="client 0: no node holds it any more"):
            train_nodes(folder, settings, grid, resume=True)
