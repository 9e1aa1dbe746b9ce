"""The control variate of last round's gradients: no drift, and the exact heat of its delay."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor

from fedcel.federation import RoundInputs, client_update
from tests.fedcel.posterior.truth import (
    Federation,
    installed,
    looped,
    misses,
    powers,
    quadratics,
    settings,
    unequal,
    whitened,
    whole,
)

COUNTS = [10, 20, 30, 40]
RATE, STEPS, BURN = 0.1, 20, 6


def federation(control: str, rounds: int) -> Federation:
    """Return four clients whose 20 local steps drift apart."""
    s = settings(rounds, STEPS, RATE, len(COUNTS), **{"local.control": control})
    return unequal(COUNTS, 3000, s, seed=7)


def joint(clients: Federation) -> Tensor:
    """Return the exact stationary covariance of the model w with last round's gradients.

    They are known functions of the model u that last round began with: a client's shift is
    (H - H_k)(u - mean) less its gradient at the mean. So with S_k = eta sum_j A_k^j the pair moves
    as w <- sum p_k (A_k^tau w - S_k (H - H_k) u) + noise, u <- w, around the posterior's mean.
    """
    parts, examples = quadratics(clients), sum(COUNTS)
    mean_hessian = sum(part.share * part.hessian for part in parts)
    drift, noise = torch.zeros(4, 4).double(), torch.zeros(4, 4).double()
    drift[2:, :2] = torch.eye(2)
    for part in parts:
        last, total, squares = powers(part.hessian, RATE, STEPS)
        drift[:2, :2] += part.share * last
        drift[:2, 2:] -= part.share * total @ (mean_hessian - part.hessian)
        noise[:2, :2] += part.share * 2 * RATE / examples * squares
    assert torch.linalg.eigvals(drift).abs().max() < 1
    return torch.from_numpy(solve_discrete_lyapunov(drift.numpy(), noise.numpy()))[:2, :2]


def missed(clients: Federation, folder: Path, patch: pytest.MonkeyPatch) -> tuple[float, float]:
    """Return by how much the loop's chains miss the posterior's mean and the exact covariance."""
    installed(clients, patch)
    mean, covariance = whole(quadratics(clients), sum(COUNTS))[0], joint(clients)
    models = [state.model.view(-1, 2) for state in looped(clients, folder)]
    return misses(whitened(model, mean, covariance) for model in models[BURN:])


def test_last_rounds_gradients_remove_the_drift(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 steps at unequal clients: mean within .03 sd, covariance within 2 % of the exact one."""
    mean, covariance = missed(federation("stale", 24), tmp_path, monkeypatch)
    assert mean < 0.03
    assert covariance < 0.02


def test_without_them_the_mean_is_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same clients uncontrolled: more than .3 sd."""
    assert missed(federation("none", 10), tmp_path, monkeypatch)[0] > 0.3


def forgetful(control_variate: Callable[..., Any]) -> Callable[..., Any]:
    """Return one that compares last round's mean with this round's own gradient."""

    def wrong(control: str, gradient: Any, inputs: RoundInputs, state: Any) -> Any:
        shift = control_variate(control, gradient, inputs, state)
        return None if shift is None else inputs.gradient - gradient

    return wrong


def test_gradients_of_two_rounds_must_not_be_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Own gradient of this round, mean of the last one: the right mean at many times the heat."""
    right = client_update.compute_control_variate
    monkeypatch.setattr(client_update, "compute_control_variate", forgetful(right))
    assert missed(federation("stale", 14), tmp_path, monkeypatch)[1] > 1
