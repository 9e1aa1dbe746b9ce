"""Compose report.html and figures/ and write each whole; the summary for a terminal."""

import re
import textwrap
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from markupsafe import Markup

from fedcel.files import write_whole
from sims.progress import show_steps
from sims.report import chart, figures, tables
from sims.report.book import Book, read_book
from sims.report.reconstruction_strips import (
    Strip,
    encode_png,
    limit_strips,
    list_guesses,
    list_leak_strips,
    make_grid,
    make_strips,
)
from sims.report.summary import Summary
from sims.report.table import format_columns
from sims.report.templates import render_template
from sims.report.verdict import Verdict, find_verdict

FIGURE_LABELS = {
    "bits": "Accuracy against bits beyond the label",
    "mse": "Accuracy against the worst attack's reconstruction error",
    "accuracy": "Validation accuracy by round",
    "spread": "Within-class spread by round, log scale",
    "reliability": "Accuracy against confidence",
    "r-hat": "Split R-hat by round",
    "ess": "Effective sample size by round",
    "learning": "Error of trained attacks on held-out images: one that still falls at the end "
    "would rebuild better with more budget",
}
MAX_CURVES = 12
"""Lines over the rounds that are still told apart; of more variants the two featured are drawn."""
PAGE_STEPS = 5
"""Figures that take as long as the images and the page, about."""
LONGEST_LABEL = 30
"""Letters of a name that a terminal has room for."""


def write_report(folder: Path) -> Path:
    """Draw a bench or run folder: figures/*, then report.html, whose path is returned.

    Raises:
        RunError: A file is missing or damaged; nothing is written then.
    """
    with show_steps("drawing the report") as show_step:
        show_step(0, 0, "reading the numbers")
        book = read_book(folder)
        verdict = find_verdict(book.summaries)
        pictures = make_charts(verdict)
        steps, svgs = len(pictures) + PAGE_STEPS, dict[str, str]()
        for done, (name, picture) in enumerate(pictures.items()):
            show_step(done, steps, f"figure {done + 1} of {len(pictures)}")
            svgs[name] = chart.write_chart(picture, folder / "figures", name)
        show_step(len(pictures), steps, "images and page")
        strips = make_strips(book.summaries)
        html = render_page(book, verdict, svgs, strips)
        if strips:
            write_whole(folder / "figures" / "reconstructions.png", encode_png(make_grid(strips)))
        page = folder / "report.html"
        write_whole(page, html)
    return page


def format_summary(folder: Path) -> str:
    """Return the summary of a bench or run folder as plain text, at most 100 columns wide.

    Raises:
        RunError: Files are missing or damaged.
    """
    summaries = read_book(folder).summaries
    verdict = find_verdict(summaries)
    heads = ("variant", "worst attack")
    table = tables.tabulate_variants("Summary", heads, tables.FIRST, summaries)
    blocks = [
        verdict.describe_left_out(),
        format_columns(table, LONGEST_LABEL),
        verdict.sentence,
        verdict.describe_attack(),
        verdict.describe_seeds(),
        *verdict.list_cautions(),
    ]
    wrapped = (text if "\n" in text else textwrap.fill(text, 96) for text in blocks if text)
    return "\n\n".join([*wrapped, ""])


def make_charts(verdict: Verdict) -> dict[str, chart.Chart]:
    """Return every chart that the numbers allow, by file name."""
    summaries, featured = verdict.summaries, verdict.featured
    looks = figures.choose_looks(summaries)
    shown = summaries if len(summaries) <= MAX_CURVES else featured
    charts = {
        "bits": figures.make_bits_trade_off(summaries, looks),
        "mse": figures.make_mse_trade_off(summaries, looks),
        **{name: figures.make_curve(shown, looks, c) for name, c in figures.CURVES.items()},
        "learning": figures.make_learning_curve(shown, looks),
        "reliability": figures.make_reliability(featured, looks),
    }
    return {name: drawing for name, drawing in charts.items() if drawing.series}


def render_page(
    book: Book, verdict: Verdict, svgs: Mapping[str, str], strips: Sequence[Strip]
) -> str:
    """Return the page; every text from the files is escaped by the template."""
    summaries = book.summaries
    maps, maps_note = list_leak_strips(summaries)
    pictured = [s for s in summaries if s.results[0].linearised_bits is not None]
    obstacles = [
        f"{s.label}: not estimated, because {s.results[0].linearised_obstacle}."
        for s in summaries
        if s.results[0].linearised_obstacle
    ]
    sequences = {s.label: [result.linearised_sequences for result in s.results] for s in pictured}
    sampled = [(s.label, s.results[0].convergence) for s in verdict.featured]
    served = (rows[0].attack for rows in book.live)
    tabulate = partial(tables.tabulate_variants, anchored=False)
    noises = ("variant", "noise σ")

    def plots(*names: str) -> list[tuple[str, Markup]]:
        return [(FIGURE_LABELS[name], inline_svg(svgs[name])) for name in names if name in svgs]

    return render_template(
        "report/report.html.jinja",
        title=book.title,
        versions=", ".join(f"{k} {v}" for k, v in sorted(summaries[0].results[0].versions.items())),
        verdict=verdict,
        showcase={summary.label: list_guesses(summary) for summary in verdict.featured},
        first=tables.tabulate_variants("Accuracy and leak", ["variant"], tables.FIRST, summaries),
        plots=plots,
        measures=tables.tabulate_variants(
            "Variants", ("variant", "worst attack"), tables.MAIN, summaries
        ),
        details=tabulate("Behind the leak", noises, tables.DETAILS, summaries),
        maps=limit_strips(maps),
        maps_note=maps_note,
        picture=tabulate("How much of the picture", noises, tables.PICTURE, pictured),
        sequences=tables.tabulate_sequences(sequences),
        obstacles=obstacles,
        device=tabulate("Cost on the device", ["variant"], tables.DEVICE, summaries),
        strips=limit_strips(strips),
        predictors=tables.tabulate_predictors(summaries),
        convergence="; ".join(f"{label}: {text}" for label, text in sampled if text),
        private=tables.tabulate_private(summaries),
        live=tables.tabulate_live(book.live),
        attacks=tables.tabulate_attacks(summaries),
        skipped=list_skipped(summaries),
        settings=tables.tabulate_settings(summaries),
        limits=list(verdict.list_limits(book.failed, served)),
    )


def list_skipped(summaries: Sequence[Summary]) -> list[str]:
    """Return one line for each attack that has nothing to work on, why, and for which variants."""
    lines: dict[str, dict[str, None]] = {}
    for summary in summaries:
        for attack in (attack for run in summary.runs for attack in run.attacks):
            if attack.skipped is not None:
                where = f" on {attack.observation}" if attack.observation else ""
                line = f"{attack.attack}{where}: {attack.skipped}"
                lines.setdefault(line, {})[summary.label] = None
    return [
        line if len(labels) == len(summaries) else f"{line} ({', '.join(labels)})"
        for line, labels in lines.items()
    ]


def inline_svg(svg: str) -> Markup:
    """Return an SVG file as an element: no prologue, ink in the page's own colour."""
    body = svg[svg.index("<svg") :]
    for colour, name in ((chart.INK, "--ink"), (chart.FAINT, "--faint")):
        body = body.replace(colour, f"var({name})")
    body = re.sub(r'<svg ([^>]*?)width="[^"]*"', r'<svg \1aria-hidden="true"', body, count=1)
    body = re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", body, count=1)
    return Markup(body)  # matplotlib escapes the labels it writes
