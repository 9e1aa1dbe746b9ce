"""Evidence against the convergence of one chain, on functionals and never on weights.

Split R-hat and bulk effective sample size: Vehtari et al., Bayesian Analysis 2021, sections 3.1 and
3.2, by arviz-stats; the chain's two halves stand for two chains. Geweke's comparison of the first
tenth with the last half: Bayesian Statistics 4, 1992, each mean's variance by an AR(1) fit.
"""

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from fedcel.errors import RunError
from fedcel.extras import import_optional
from fedcel.files import read_tensors, write_tensors
from fedcel.posterior.chain import MIN_ESS, MIN_SAMPLED_ROUNDS

MAX_R_HAT = 1.05
"""R-hat of one functional above which a chain has not converged."""
MAX_GEWEKE_Z = 3.0
"""Geweke's |z| of one functional above which a chain has not converged."""
NO_EVIDENCE = "no evidence against convergence"
DIAGNOSIS_INTERVAL = 10
"""Sampled rounds from one diagnosis of a running chain to the next."""


class Diagnosis(NamedTuple):
    """The worst over the functionals of a chain of `draws` models."""

    draws: int
    r_hat: float
    ess: float
    geweke: float
    """|z|, corrected for the number of functionals: a single one's equivalent."""

    @property
    def autocorrelation(self) -> float:
        """Return the integrated autocorrelation time in rounds, of the slowest functional."""
        return max(1.0, self.draws / self.ess)

    @property
    def passes(self) -> bool:
        """Whether nothing speaks against convergence."""
        return self.r_hat < MAX_R_HAT and self.ess >= MIN_ESS and self.geweke < MAX_GEWEKE_Z

    def __str__(self) -> str:
        """Return the verdict in plain words, with its numbers."""
        numbers = f"R-hat {self.r_hat:.3f}, ESS {self.ess:.0f} of {self.draws}, z {self.geweke:.1f}"
        if self.passes:
            return f"{NO_EVIDENCE}: {numbers}"
        limits = f"wanted below {MAX_R_HAT}, at least {MIN_ESS:.0f}, below {MAX_GEWEKE_Z:.0f}"
        return f"round limit reached without convergence shown: {numbers}; {limits}"


class Trace:
    """The functionals of every sampled round, by which a chain is judged, and their file.

    They are the held-out log-likelihood and the probes' logits.

    Args:
        path: The file; it need not exist.
        last: Rounds after this one are left out; None: no round is.

    Raises:
        RunError: The file is damaged.
    """

    def __init__(self, path: str | Path, last: int | None = None) -> None:
        self.path = path = Path(path)
        self.rows: list[Float[Tensor, " F"]] = []
        self.rounds: list[int] = []
        self.latest: Diagnosis | None = None
        if not path.exists():
            return
        tensors = read_tensors(path)[0]
        if tensors.keys() != {"rounds", "functionals"}:
            raise RunError(f"{path} holds {sorted(tensors)}; it is damaged, start the run anew")
        for number, row in zip(tensors["rounds"].tolist(), tensors["functionals"], strict=True):
            if last is None or number <= last:
                self.rounds.append(int(number))
                self.rows.append(row)
        judged = len(self.rows) // DIAGNOSIS_INTERVAL * DIAGNOSIS_INTERVAL
        self.latest = diagnose(torch.stack(self.rows[:judged])) if judged else None

    def write(self) -> None:
        """Write the file anew, with every round."""
        functionals, rounds = torch.stack(self.rows), torch.tensor(self.rounds)
        write_tensors(self.path, {"functionals": functionals, "rounds": rounds})

    def add(self, number: int, functionals: Float[Tensor, " F"]) -> Diagnosis | None:
        """Add the functionals (F,) of a round's model, and judge the chain every tenth time.

        None where no diagnosis is due, or the chain is too short.
        """
        self.rows.append(functionals)
        self.rounds.append(number)
        if len(self.rows) % DIAGNOSIS_INTERVAL:
            return None
        self.latest = diagnose(torch.stack(self.rows))
        return self.latest

    @property
    def autocorrelation(self) -> int | None:
        """Return the rounds after which models are nearly independent; None: not yet known."""
        return math.ceil(self.latest.autocorrelation) if self.latest else None


def diagnose(functionals: Float[Tensor, "R F"]) -> Diagnosis | None:
    """Compute the worst diagnostics of F functionals over R rounds.

    Args:
        functionals: One row a sampled round. One that never moves beside others that do is left
            out.

    Returns:
        None below 20 rounds. None, too, where a diagnostic is not defined, as of a functional that
        moved in one half only, and where nothing moves: a chain that stands still shows nothing.
    """
    values = functionals.double().numpy()
    values = values[len(values) % 2 :]  # two equal halves
    if len(values) < MIN_SAMPLED_ROUNDS:
        return None
    moving = values[:, np.ptp(values, axis=0) > 0]
    if moving.shape[1] == 0:
        return None
    # Imported here: a second, for SciPy's distributions.
    array_stats = import_optional("arviz_stats.base").array_stats
    halves = np.stack(np.split(moving, 2))
    r_hat = array_stats.rhat(halves, chain_axis=0, draw_axis=1)
    ess = array_stats.ess(halves, chain_axis=0, draw_axis=1)
    z = float(np.abs(geweke(moving)).max())
    worst = float(r_hat.max()), float(ess.min()), sidak_z(z, moving.shape[1])
    return Diagnosis(len(values), *worst) if np.isfinite(worst).all() else None


def geweke(values: Float[ndarray, "R F"]) -> Float[ndarray, " F"]:
    """Compute z of each functional: difference of means of the first tenth and the last half."""
    parts = values[: max(4, len(values) // 10)], values[len(values) // 2 :]
    means = [part.mean(0) for part in parts]
    errors = [part.var(0, ddof=1) / effective_sample_size(part) for part in parts]
    deviation = np.sqrt(np.maximum(sum(errors), np.finfo(float).tiny))
    z: ndarray = (means[0] - means[1]) / deviation
    return z


def effective_sample_size(part: Float[ndarray, "R F"]) -> Float[ndarray, " F"]:
    """Compute the effective sample size of each functional's mean, in [1, R].

    R (1 - r)/(1 + r), r the first-order autocorrelation: a tenth of a chain is too short for more.
    """
    centred = part - part.mean(0)
    power = np.maximum((centred**2).mean(0), np.finfo(float).tiny)
    lag = np.clip((centred[1:] * centred[:-1]).mean(0) / power, 0.0, 0.999)
    size: ndarray = np.clip(len(part) * (1 - lag) / (1 + lag), 1.0, len(part))
    return size


def sidak_z(z: float, tests: int) -> float:
    """Compute the |z| of one test as improbable as the largest of `tests`; Sidak, JASA 1967."""
    chance = float(2 * scipy.stats.norm.sf(z))
    if not 0 < chance < 1:  # beyond what a double can tell apart, or no deviation at all
        return z
    return float(scipy.stats.norm.isf(-math.expm1(tests * math.log1p(-chance)) / 2))
