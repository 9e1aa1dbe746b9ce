"""Summaries without files, and what is written in figures."""

from matplotlib.figure import Figure
from matplotlib.text import Annotation

from sims.report.summary import Summary
from sims.results.intervals import Estimate


def notes(figure: Figure) -> dict[str, float]:
    """Return what is written beside which x."""
    found = [text for text in figure.axes[0].texts if isinstance(text, Annotation)]
    return {text.get_text(): float(text.xy[0]) for text in found}


def cell(name: str, accuracy: float, bits: float, identification: float = 0.5) -> Summary:
    """Return a summary of one seed."""
    return Summary(
        variant=name,
        label=name,
        undefended=name == "none",
        accuracy=Estimate(accuracy, n=1),
        bits=Estimate(bits, n=1),
        identification=Estimate(identification, n=1),
        cap=5.3,
        candidates=397,
        chance=0.12,
        choices=100,
        label_only=0.1,
        bits_of_seed={0: bits},
    )
