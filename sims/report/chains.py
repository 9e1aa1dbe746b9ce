"""Pictures of a chain: where its functionals went, and what speaks against its convergence."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedcel.posterior import DIAGNOSIS_INTERVAL, MAX_R_HAT, Trace, diagnose
from fedcel.settings import MIN_ESS, MIN_SAMPLED_ROUNDS
from sims.report.figures import FAINT, INK, WIDTH, choose_look

SHOWN = 3  # probes


def draw_chain_path(trace: Trace) -> Figure | None:
    """Draw the held-out log-likelihood and three probes' logits by round, each in its own units."""
    if len(trace.rows) < 2:
        return None
    values = torch.stack(trace.rows)[:, : SHOWN + 1]
    centred = (values - values.mean(0)) / values.std(0).clamp_min(1e-12)
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    panes = figure.subplots(values.shape[1], 1, sharex=True)
    names = ["log-lik.", *(f"probe {n}" for n in range(1, SHOWN + 1))]
    for pane, column, name in zip(panes, centred.T, names, strict=False):
        pane.plot(trace.rounds, column, color=choose_look(0).colour, linewidth=0.9)
        _plain(pane, name)
    panes[-1].set_xlabel("round", color=INK, fontsize=11)
    return figure


def draw_convergence(trace: Trace) -> Figure | None:
    """Draw R-hat and the effective sample size over the rounds, with what is asked of them."""
    rows = torch.stack(trace.rows) if trace.rows else torch.empty(0, 1)
    ends = [
        n
        for n in range(DIAGNOSIS_INTERVAL, len(rows) + 1, DIAGNOSIS_INTERVAL)
        if n >= MIN_SAMPLED_ROUNDS
    ]
    told = [(trace.rounds[n - 1], found) for n in ends if (found := diagnose(rows[:n]))]
    if not told:
        return None
    figure = Figure(figsize=(WIDTH, 4.2), layout="constrained")
    panes = figure.subplots(2, 1, sharex=True)
    rounds = [number for number, _ in told]
    for pane, name, values, asked, style in (
        (panes[0], "split R-hat", [found.r_hat for _, found in told], MAX_R_HAT, choose_look(0)),
        (panes[1], "bulk ESS", [found.ess for _, found in told], MIN_ESS, choose_look(1)),
    ):
        pane.plot(rounds, values, color=style.colour, marker=style.marker, markersize=4)
        pane.axhline(asked, color=FAINT, linestyle=":", linewidth=1.2)
        _plain(pane, name)
    panes[1].set_xlabel("round", color=INK, fontsize=11)
    return figure


def _plain(pane: Axes, name: str) -> None:
    pane.spines[["top", "right"]].set_visible(False)
    pane.spines[["left", "bottom"]].set_color(FAINT)
    pane.tick_params(colors=INK, labelsize=9, color=FAINT)
    pane.set_ylabel(name, color=INK, fontsize=9.5)
