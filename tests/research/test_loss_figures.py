"""Pictures of the losses: the numbers behind them, and that they are drawn."""

import json
from itertools import count
from math import exp, log, log2
from pathlib import Path

import pytest
import torch

import loss_figures


def nets() -> loss_figures.Nets:
    """Return made-up nets for every case that is drawn, each with results of its own."""
    y, stream, number = torch.arange(100) % 10, torch.Generator().manual_seed(0), count(1)
    return {
        case: loss_figures.TrainedNet(
            torch.randn(100, 8, generator=stream) + 4 * torch.eye(10, 8)[y],
            y,
            {key: 0.001 * next(number) for key in loss_figures.RESULT_KEYS},
        )
        for case in loss_figures.drawn_cases()
    }


@pytest.mark.parametrize("make", [loss_figures.draw_classes, loss_figures.draw_choice])
def test_pictures_of_nets(make, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    """A picture, and the results of exactly the nets that it shows."""
    trained = nets()
    loss_figures.save_figure(tmp_path, "x", make(trained))
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    numbers = [v for v in json.loads((tmp_path / "x.json").read_text()).values() if type(v) is dict]
    cases = (
        loss_figures.list_cases().values()
        if make is loss_figures.draw_classes
        else [case for sigma in loss_figures.SIGMAS for case in loss_figures.sweep_cases(sigma)]
    )
    assert numbers == [trained[case].result for case in cases]


def test_attention_collapses_only_where_it_may() -> None:
    """Minimising ends at one member and spread 0; the floor .5 keeps half; ascending exceeds 1."""
    _, numbers = loss_figures.draw_attention()
    ends = {mode: numbers[mode] for mode in ("minimise", "floor", "detach", "ascend")}
    ratio = {mode: end["weighted-over-plain"] for mode, end in ends.items()}  # type: ignore[index]
    assert ends["minimise"]["members-that-count"] == pytest.approx(1, abs=0.01)  # type: ignore[index]
    assert ratio["minimise"] < 0.01
    assert 0.5 <= ratio["floor"] < 1
    assert ratio["detach"] == pytest.approx(1, abs=0.05)
    assert ratio["ascend"] > 1.05


def test_pairwise_bound() -> None:
    """0 at no spread, log n at a wide one; two codes by hand."""
    assert loss_figures.pairwise_bits(16, 0.0) == pytest.approx(0, abs=1e-12)
    assert loss_figures.pairwise_bits(16, 100.0) == pytest.approx(4)
    z = torch.randn(2, 64, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    near = exp(-0.01 * float((z[0] - z[1]).square().sum()) / 2)
    assert loss_figures.pairwise_bits(2, 0.01) == pytest.approx(log2(2) - log(1 + near) / log(2))


def test_penalties_are_drawn(tmp_path: Path) -> None:
    """The threshold is the library's."""
    loss_figures.save_figure(tmp_path, "p", loss_figures.draw_penalties())
    assert json.loads((tmp_path / "p.json").read_text())["tau"] == pytest.approx(0.125 * 0.16 * 64)
