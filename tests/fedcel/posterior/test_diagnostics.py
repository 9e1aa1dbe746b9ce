"""What is said of chains whose convergence is known."""

import math
from pathlib import Path

import pytest
import torch
from scipy.stats import norm
from torch import Tensor

from fedcel.posterior.diagnostics import (
    NO_EVIDENCE,
    Trace,
    diagnose,
    effective_sample_size,
    sidak_z,
)


def autoregressive(rounds: int, lag: float, seed: int = 0) -> Tensor:
    """Return three stationary AR(1) chains, unit variance."""
    stream = torch.Generator().manual_seed(seed)
    rows = [torch.randn(3, generator=stream)]
    for _ in range(rounds - 1):
        kick = torch.randn(3, generator=stream)
        rows.append(lag * rows[-1] + (1 - lag**2) ** 0.5 * kick)
    return torch.stack(rows)


def test_independent_draws_pass() -> None:
    """All their draws count, within the estimate's own spread."""
    diagnosis = diagnose(autoregressive(400, 0.0))
    assert diagnosis is not None
    assert diagnosis.passes
    assert 250 < diagnosis.ess < 600
    assert str(diagnosis).startswith(NO_EVIDENCE)


def test_the_autocorrelation_time_is_the_processes() -> None:
    """(1 + r)/(1 - r) = 9 at r .8; the slowest of three functionals is a little above."""
    diagnosis = diagnose(autoregressive(6000, 0.8))
    assert diagnosis is not None
    assert diagnosis.autocorrelation == pytest.approx(9, rel=0.25)
    draws = effective_sample_size(autoregressive(6000, 0.8).numpy())
    assert (draws * 9 / 6000).mean() == pytest.approx(1, rel=0.1)


def test_a_trend_is_seen_by_all_three() -> None:
    """A chain that still moves: R-hat, few effective draws, the first tenth is elsewhere."""
    drift = torch.linspace(0, 6, 300)[:, None]
    diagnosis = diagnose(autoregressive(300, 0.0) + drift)
    assert diagnosis is not None
    assert diagnosis.r_hat > 1.3
    assert diagnosis.ess < 30
    assert diagnosis.geweke > 5
    assert not diagnosis.passes
    assert "without convergence shown" in str(diagnosis)


def test_two_few_rounds_say_nothing_and_a_constant_is_no_evidence() -> None:
    """None below 20 rounds or where nothing moves; what stands still beside others is left out."""
    assert diagnose(torch.randn(19, 2)) is None
    assert diagnose(torch.ones(120, 2)) is None
    moves = autoregressive(300, 0.0)[:, :1]
    assert diagnose(torch.cat([moves, torch.ones(300, 1)], 1)) == diagnose(moves)


def test_the_largest_of_many_is_corrected() -> None:
    """One test stays itself; 3 deviations among 17 are as likely as 2 in one."""
    assert sidak_z(3.0, 1) == pytest.approx(3.0)
    chance = 1 - (1 - 2 * norm.sf(3.0)) ** 17
    assert 2 * norm.sf(sidak_z(3.0, 17)) == pytest.approx(chance)
    assert sidak_z(50.0, 17) == 50.0  # its chance is below what a double holds
    assert sidak_z(0.0, 17) == 0.0


def test_a_chain_that_jumps_between_far_modes_is_told_in_numbers() -> None:
    """Thirty deviations apart: a finite, large z."""
    jump = torch.cat([torch.zeros(30, 3), torch.full((30, 3), 30.0)])
    diagnosis = diagnose(autoregressive(60, 0.0) + jump)
    assert diagnosis is not None
    assert 10 < diagnosis.geweke < float("inf")


def test_a_trace_is_read_back_as_far_as_asked(tmp_path: Path) -> None:
    """With the diagnosis of its last tenth row, as if it had not been interrupted."""
    path, rows = tmp_path / "trace.safetensors", autoregressive(47, 0.5)
    trace = Trace(path)
    diagnoses = [trace.add(100 + number, row) for number, row in enumerate(rows)]
    assert [number for number, diagnosis in enumerate(diagnoses) if diagnosis] == [19, 29, 39]
    trace.write()
    again = Trace(path, 135)
    assert again.rounds == list(range(100, 136))
    assert again.latest is not None
    assert again.latest == diagnoses[29]
    assert again.autocorrelation == math.ceil(again.latest.draws / again.latest.ess)
    assert Trace(path, 110).autocorrelation is None
    assert Trace(tmp_path / "none").rows == []
