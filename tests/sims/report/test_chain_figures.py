"""The chain's pictures: drawn from what was kept, left out where there is nothing."""

from pathlib import Path

import torch

from fedcel.posterior.diagnostics import Trace
from sims.report import chain_figures


def trace(path: Path, rows: int) -> Trace:
    """Return a trace of independent draws from round 41 on."""
    chain, stream = Trace(path / "trace.safetensors"), torch.Generator().manual_seed(0)
    for number in range(rows):
        chain.add(41 + number, torch.randn(6, generator=stream))
    return chain


def test_the_path_is_the_functionals_over_their_rounds(tmp_path: Path) -> None:
    """Four panes, in standard deviations, at the rounds they were sampled in."""
    figure = chain_figures.draw_chain_path(trace(tmp_path, 30))
    assert figure is not None
    lines = [axes.lines[0] for axes in figure.axes]
    assert len(lines) == 4
    assert list(lines[0].get_xdata()) == list(range(41, 71))
    assert abs(torch.as_tensor(lines[0].get_ydata()).std().item() - 1) < 1e-5


def test_the_verdict_begins_where_there_is_enough(tmp_path: Path) -> None:
    """Every tenth round from the twentieth on; nothing before."""
    figure = chain_figures.draw_convergence(trace(tmp_path, 45))
    assert figure is not None
    assert list(figure.axes[0].lines[0].get_xdata()) == [60, 70, 80]
    assert chain_figures.draw_convergence(trace(tmp_path / "short", 15)) is None
    assert chain_figures.draw_chain_path(trace(tmp_path, 0)) is None
