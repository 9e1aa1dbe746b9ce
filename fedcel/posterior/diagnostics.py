"""What speaks against the convergence of one chain, on functionals and never on weights.

Split R-hat and bulk effective sample size: Vehtari et al., Bayesian Analysis 2021, sections 3.1 and
3.2, by arviz-stats; the chain's two halves stand for two chains. Geweke's comparison of the first
tenth with the last half: Bayesian Statistics 4, 1992, each mean's variance by an AR(1) fit.
"""

import math
from typing import NamedTuple

import numpy as np
import scipy
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from fedcel.extras import import_optional
from fedcel.settings import MIN_ESS, MIN_SAMPLED_ROUNDS

CLOSE = 1.05  # R-hat
DEVIATIONS = 3.0  # of Geweke's z, for one functional
NO_EVIDENCE = "no evidence against convergence"


class Diagnosis(NamedTuple):
    """The worst over the functionals of a chain of `draws` models."""

    draws: int
    r_hat: float
    ess: float
    geweke: float  # |z|, corrected for the number of functionals: a single one's equivalent

    @property
    def autocorrelation(self) -> float:
        """Return the integrated autocorrelation time in rounds, of the slowest functional."""
        return max(1.0, self.draws / self.ess)

    @property
    def passes(self) -> bool:
        """Say whether nothing speaks against convergence."""
        return self.r_hat < CLOSE and self.ess >= MIN_ESS and self.geweke < DEVIATIONS

    def __str__(self) -> str:
        """Return the verdict in plain words, with its numbers."""
        said = f"R-hat {self.r_hat:.3f}, ESS {self.ess:.0f} of {self.draws}, z {self.geweke:.1f}"
        if self.passes:
            return f"{NO_EVIDENCE}: {said}"
        wanted = f"wanted below {CLOSE}, at least {MIN_ESS:.0f}, below {DEVIATIONS:.0f}"
        return f"round limit reached without convergence shown: {said}; {wanted}"


def diagnose(trace: Float[Tensor, "R F"]) -> Diagnosis | None:
    """Return the worst diagnostics of F functionals over R rounds; None below 20 rounds.

    None, too, where one of them is not defined, as of a functional that moved in one half only, and
    where none of them moves: a chain that stands still shows nothing. One that never moves beside
    others that do is left out.
    """
    # Imported here: a second, for SciPy's distributions.
    array_stats = import_optional("arviz_stats.base").array_stats

    values = trace.double().numpy()
    values = values[len(values) % 2 :]  # two equal halves
    if len(values) < MIN_SAMPLED_ROUNDS:
        return None
    moving = values[:, np.ptp(values, axis=0) > 0]
    if moving.shape[1] == 0:
        return None
    halves = np.stack(np.split(moving, 2))
    r_hat = array_stats.rhat(halves, chain_axis=0, draw_axis=1)
    ess = array_stats.ess(halves, chain_axis=0, draw_axis=1)
    z = float(np.abs(geweke(moving)).max())
    worst = float(r_hat.max()), float(ess.min()), sidak_z(z, moving.shape[1])
    return Diagnosis(len(values), *worst) if np.isfinite(worst).all() else None


def geweke(values: Float[ndarray, "R F"]) -> Float[ndarray, " F"]:
    """Return z of each functional: difference of means of the first tenth and the last half."""
    parts = values[: max(4, len(values) // 10)], values[len(values) // 2 :]
    means = [part.mean(0) for part in parts]
    errors = [part.var(0, ddof=1) / effective_sample_size(part) for part in parts]
    spread = np.sqrt(np.maximum(sum(errors), np.finfo(float).tiny))
    found: ndarray = (means[0] - means[1]) / spread
    return found


def effective_sample_size(part: Float[ndarray, "R F"]) -> Float[ndarray, " F"]:
    """Return the effective sample size of each functional's mean, in [1, R].

    R (1 - r)/(1 + r), r the first-order autocorrelation: a tenth of a chain is too short for more.
    """
    centred = part - part.mean(0)
    power = np.maximum((centred**2).mean(0), np.finfo(float).tiny)
    lag = np.clip((centred[1:] * centred[:-1]).mean(0) / power, 0.0, 0.999)
    found: ndarray = np.clip(len(part) * (1 - lag) / (1 + lag), 1.0, len(part))
    return found


def sidak_z(z: float, tests: int) -> float:
    """Return the |z| of one test as improbable as the largest of `tests`; Sidak, JASA 1967."""
    chance = float(2 * scipy.stats.norm.sf(z))
    if not 0 < chance < 1:  # beyond what a double can tell apart, or no deviation at all
        return z
    return float(scipy.stats.norm.isf(-math.expm1(tests * math.log1p(-chance)) / 2))
