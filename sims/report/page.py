"""Compose report.html and figures/ and write each whole."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from fedcel.files import write_whole
from fedcel.posterior import Trace
from sims.progress import ShowStep, show_steps
from sims.report import (
    chart_files,
    figures,
    larger_budgets,
    limits,
    live_table,
    page_tables,
    reconstruction_strips,
)
from sims.report.book import Book, FinishedRun, read_book
from sims.report.contradictions import find_alarms
from sims.report.showcase import make_showcase
from sims.report.summary import Summary, summarise_book
from sims.report.templates import render_template
from sims.report.verdict import (
    Verdict,
    describe_attack,
    describe_in_one_sentence,
    describe_single_image_updates,
    find_verdict,
    list_cautions,
)
from sims.results import LiveRow, RoundEvent

CURVES: tuple[tuple[str, Callable[[RoundEvent], float | None], str, bool], ...] = (
    ("accuracy", lambda event: event.accuracy, "validation accuracy", False),
    ("spread", lambda event: event.within_class_spread, "within-class spread (log)", True),
    ("weight", lambda event: event.cel_weight, "weight λγ of the loss", False),
)
FIGURE_LABELS = {
    "bits": "Accuracy against bits beyond the label",
    "mse": "Accuracy against the worst attack's reconstruction error",
    "identification": "Accuracy against how often the worst attack picks the right image",
    "accuracy": "Validation accuracy by round",
    "spread": "Within-class spread by round, log scale",
    "weight": "Weight of the conditional entropy loss by round",
    "private": "Accuracy of private answers over epsilon",
    "live": "Right answers and rightly picked images by the price of an answer",
    "chain": "The chain by round: log-likelihood and logits, in standard deviations",
    "convergence": "R-hat and effective sample size by round",
}
MAX_CURVES = 12
"""Lines over the rounds that are still told apart; of more variants the two featured are drawn."""
PAGE_STEPS = 5
"""Figures that take as long as the images and the page, about."""


class Plot(NamedTuple):
    """A figure of the page, and what it shows."""

    label: str
    svg: Markup


def write_report(folder: Path, charts: Path | None = None) -> Path:
    """Draw a bench or run folder: figures/*, then report.html, whose path is returned.

    Args:
        folder: Of the run or bench.
        charts: A folder that gets every chart as SVG and PDF, and its points as CSV; None: none.

    Raises:
        RunError: A file is missing or damaged; nothing is written then.
    """
    with show_steps("drawing the report") as show_step:
        show_step(0, 0, "reading the numbers")
        book = read_book(folder)
        summaries = summarise_book(book)
        verdict = find_verdict(summaries)
        answers = live_table.read_live(folder)
        compared = summarise_book(book, common=True)
        pictures = draw_figures(summaries, verdict, answers, compared)
        plots = render_figures(pictures, show_step)
        strips = reconstruction_strips.make_strips(summaries)
        html = render_page(book, summaries, verdict, plots, strips=strips, answers=answers)
        for name, svg in plots.items():
            write_whole(folder / "figures" / f"{name}.svg", svg)
        if strips:
            grid = reconstruction_strips.encode_png(reconstruction_strips.make_grid(strips))
            write_whole(folder / "figures" / "reconstructions.png", grid)
        page = folder / "report.html"
        write_whole(page, html)
        if charts is not None:
            for done, (name, figure) in enumerate(pictures.items()):
                show_step(done, len(pictures), f"chart {done + 1} of {len(pictures)}")
                chart_files.write_chart(figure, charts, name)
    return page


def draw_figures(
    summaries: Sequence[Summary],
    verdict: Verdict,
    answers: Sequence[LiveRow],
    compared: Sequence[Summary],
) -> dict[str, Figure]:
    """Return every figure that the numbers allow, by file name.

    `compared` are those whose attacks every cell met: curves of errors join strengths, and a
    stronger attack at one alone would bend them.
    """
    featured = choose_featured(summaries, verdict)
    looks = figures.choose_looks(summaries)
    figures_drawn: dict[str, Figure | None] = {
        "bits": figures.draw_bits_trade_off(summaries),
        "mse": figures.draw_mse_trade_off(compared),
        "identification": figures.draw_identification_trade_off(compared),
        "private": figures.draw_private(list(featured.values()), looks),
        "live": live_table.draw_live_figure(answers),
    }
    curves = summaries if len(summaries) <= MAX_CURVES else list(featured.values())
    for name, value, label, log in CURVES:
        figures_drawn[name] = figures.draw_curve(curves, looks, value, label=label, log=log)
    for place, summary in featured.items():
        if summary.runs:
            result = summary.runs[0].result
            figures_drawn[f"reliability-{place}"] = figures.draw_reliability(
                result.reliability, looks[summary.variant], page_tables.name_predictor([result])
            )
    sampled = find_sampled(featured)
    if sampled and (convergence := figures.draw_convergence(sampled[1])):
        # Without enough rounds to judge it by, a chain's path is a picture of nothing.
        figures_drawn["chain"] = figures.draw_chain_path(sampled[1])
        figures_drawn["convergence"] = convergence
    return {name: figure for name, figure in figures_drawn.items() if figure is not None}


def render_figures(charts: Mapping[str, Figure], show_step: ShowStep) -> dict[str, str]:
    """Return figures as SVG, by file name."""
    svgs = {}
    for done, (name, figure) in enumerate(charts.items()):
        show_step(done, len(charts) + PAGE_STEPS, f"figure {done + 1} of {len(charts)}")
        svgs[name] = figures.render_svg(figure, name)
    show_step(len(charts), len(charts) + PAGE_STEPS, "images and page")
    return svgs


def find_sampled(featured: Mapping[str, Summary]) -> tuple[FinishedRun, Trace] | None:
    """Return a featured run that sampled anything, the defended one first, and its trace."""
    for summary in reversed(list(featured.values())):
        for run in summary.runs[:1]:
            if run.trace and run.trace.rows:
                return run, run.trace
    return None


def choose_featured(summaries: Sequence[Summary], verdict: Verdict) -> dict[str, Summary]:
    """Return the undefended and the best defended summary, or the first one."""
    pair = {"undefended": verdict.base, "defended": verdict.best}
    featured = {place: summary for place, summary in pair.items() if summary is not None}
    return featured or {"first": summaries[0]}


def render_page(
    book: Book,
    summaries: Sequence[Summary],
    verdict: Verdict,
    plots: Mapping[str, str],
    *,
    strips: Sequence[reconstruction_strips.Strip],
    answers: Sequence[LiveRow],
) -> str:
    """Return the page; every text from the files is escaped by the template."""
    featured = choose_featured(summaries, verdict)
    sampled = find_sampled(featured)
    sweeps = larger_budgets.find_sweeps(book.rows)
    labels = {(s.variant, s.strength): s.label for s in summaries}
    reliability = [
        Plot(summary.label, inline_svg(plots[name]))
        for place, summary in featured.items()
        if (name := f"reliability-{place}") in plots
    ]

    def select_plots(*names: str) -> list[Plot]:
        return [Plot(FIGURE_LABELS[n], inline_svg(plots[n])) for n in names if n in plots]

    return render_template(
        "report/page.html.jinja",
        book=book,
        verdict=verdict,
        sentence=describe_in_one_sentence(verdict),
        showcase=make_showcase(featured),
        update_sentence=describe_single_image_updates(verdict),
        attack_sentence=describe_attack(verdict),
        alarms=find_alarms(summaries),
        candidates=next((s.candidates for s in featured.values() if s.candidates), "the"),
        left_out=limits.describe_left_out(run for s in summaries for run in s.runs),
        seeds=limits.describe_seeds(summaries),
        cautions=list_cautions(summaries, verdict),
        limits=limits.list_limits(summaries, verdict, book.failed, (row.attack for row in answers)),
        tables=page_tables,
        summaries=summaries,
        trade=select_plots("bits", "mse", "identification"),
        curves=select_plots(*(name for name, *_ in CURVES)),
        reliability=reliability,
        chain=select_plots("chain", "convergence"),
        larger=larger_budgets.make_sweeps_table(sweeps, labels) if sweeps else None,
        larger_sentence=larger_budgets.describe_sweeps(sweeps),
        private_plots=select_plots("private"),
        live=live_table.make_live_table(answers),
        live_plots=select_plots("live"),
        convergence=sampled[0].result.convergence if sampled else None,
        strips=[(strip, reconstruction_strips.encode_strip(strip)) for strip in strips],
        rejected=limits.count_rejections(run for s in summaries for run in s.runs),
        rounds=sum(len(run.events) for s in summaries for run in s.runs),
    )


def inline_svg(svg: str) -> Markup:
    """Return an SVG file as an element: no prologue, ink in the page's own colour."""
    body = svg[svg.index("<svg") :]
    for colour, name in ((figures.INK, "--ink"), (figures.FAINT, "--faint")):
        body = body.replace(colour, f"var({name})")
    body = re.sub(r'<svg ([^>]*?)width="[^"]*"', r'<svg \1aria-hidden="true"', body, count=1)
    body = re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", body, count=1)
    return Markup(body)  # matplotlib escapes the labels it writes
