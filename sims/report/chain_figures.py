"""Pictures of a chain: where its functionals went, and what speaks against its convergence."""

import torch
from matplotlib.figure import Figure

from fedcel.posterior import DIAGNOSIS_INTERVAL, MAX_R_HAT, Trace, diagnose
from fedcel.settings import MIN_ESS, MIN_SAMPLED_ROUNDS
from sims.report.figures import FAINT, choose_look, make_panels

PROBES = 3  # of which the logits are drawn


def draw_chain_path(trace: Trace) -> Figure | None:
    """Draw the held-out log-likelihood and three probes' logits by round, each in its own units."""
    if len(trace.rows) < 2:
        return None
    values = torch.stack(trace.rows)[:, : PROBES + 1]
    standardised = (values - values.mean(0)) / values.std(0).clamp_min(1e-12)
    figure, panels = make_panels(values.shape[1], 1.05, share_scale=False)
    names = ["log-lik.", *(f"probe {number}" for number in range(1, PROBES + 1))]
    for axes, column, name in zip(panels, standardised.T, names, strict=False):
        axes.plot(trace.rounds, column, color=choose_look(0).colour, linewidth=0.9)
        axes.set_ylabel(name)
    panels[-1].set_xlabel("round")
    return figure


def draw_convergence(trace: Trace) -> Figure | None:
    """Draw R-hat and the effective sample size over the rounds, with what is asked of them."""
    rows = torch.stack(trace.rows) if trace.rows else torch.empty(0, 1)
    counts = [
        n
        for n in range(DIAGNOSIS_INTERVAL, len(rows) + 1, DIAGNOSIS_INTERVAL)
        if n >= MIN_SAMPLED_ROUNDS
    ]
    verdicts = {trace.rounds[n - 1]: verdict for n in counts if (verdict := diagnose(rows[:n]))}
    if not verdicts:
        return None
    figure, panels = make_panels(2, 2.1, share_scale=False)
    r_hats = [verdict.r_hat for verdict in verdicts.values()]
    sizes = [verdict.ess for verdict in verdicts.values()]
    curves = (("split R-hat", r_hats, MAX_R_HAT), ("bulk ESS", sizes, MIN_ESS))
    for number, (axes, (name, values, limit)) in enumerate(zip(panels, curves, strict=True)):
        look = choose_look(number)
        axes.plot(list(verdicts), values, color=look.colour, marker=look.marker, markersize=4)
        axes.axhline(limit, color=FAINT, linestyle=":", linewidth=1.2)
        axes.set_ylabel(name)
    panels[-1].set_xlabel("round")
    return figure
