"""Compose report.html and figures/ and write each whole."""

import base64
import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from fedcel.files import write_whole
from fedcel.posterior import Trace
from sims.report import (
    alarms,
    attacked,
    budgets,
    chains,
    figures,
    limits,
    live,
    pictures,
    tables,
    words,
)
from sims.report.read import Book, FinishedRun, read_book
from sims.report.summary import Summary, summarise_book
from sims.report.text import format_interval, format_number
from sims.results import LiveRow, RoundEvent

TEMPLATE = "page.html.jinja"

CURVES: tuple[tuple[str, Callable[[RoundEvent], float | None], str, bool], ...] = (
    ("accuracy", lambda e: e.accuracy, "validation accuracy", False),
    ("spread", lambda e: e.within_class_spread, "within-class spread (log)", True),
    ("weight", lambda e: e.cel_weight, "weight λγ of the loss", False),
)
ALT = {
    "bits": "Accuracy against bits beyond the label",
    "mse": "Accuracy against the worst attack's reconstruction error",
    "identification": "Accuracy against how often the worst attack picks the right image",
    "accuracy": "Validation accuracy by round",
    "spread": "Within-class spread by round, log scale",
    "weight": "Weight of the conditional entropy loss by round",
    "live": "Right answers and rightly picked images by the price of an answer",
    "chain": "The chain by round: log-likelihood and logits, in standard deviations",
    "convergence": "R-hat and effective sample size by round",
}

MANY = 12
"""Lines over the rounds that are still told apart; of more variants the two featured are drawn."""


def write_report(folder: Path) -> Path:
    """Draw a bench or run folder: figures/*, then report.html, whose path is returned.

    Raises RunError when a file is missing or damaged; nothing is written then.
    """
    book = read_book(folder)
    summaries = summarise_book(book)
    chosen = words.find_verdict(summaries)
    answers = live.read_live(folder)
    plots = draw_figures(summaries, chosen, answers, summarise_book(book, common=True))
    rows = pictures.make_strips(summaries)
    html = render_page(book, summaries, chosen, plots, rows, answers)
    for name, text in plots.items():
        write_whole(folder / "figures" / f"{name}.svg", text)
    if rows:
        write_whole(
            folder / "figures" / "reconstructions.png",
            pictures.encode_png(pictures.make_grid(rows)),
        )
    path = folder / "report.html"
    write_whole(path, html)
    return path


def draw_figures(
    summaries: Sequence[Summary],
    chosen: words.Verdict,
    answers: Sequence[LiveRow] = (),
    compared: Sequence[Summary] | None = None,
) -> dict[str, str]:
    """Return every figure that the numbers allow, as SVG by file name.

    `compared`, if not the summaries, are those whose attacks every cell met: curves of errors join
    strengths, and a stronger attack at one alone would bend them.
    """
    even = summaries if compared is None else compared
    drawn: dict[str, Figure | None] = {
        "bits": figures.draw_bits_trade_off(summaries),
        "mse": attacked.draw_mse_trade_off(even),
        "identification": attacked.draw_identification_trade_off(even),
        "live": live.draw_live_figure(answers),
    }
    lines = (
        summaries if len(summaries) <= MANY else list(choose_featured(summaries, chosen).values())
    )
    drawn |= {n: figures.draw_curve(lines, value, text, log) for n, value, text, log in CURVES}
    for place, s in choose_featured(summaries, chosen).items():
        if s.runs:
            result = s.runs[0].result
            drawn[f"reliability-{place}"] = figures.draw_reliability(
                result.reliability, tables.name_predictor([result])
            )
    judged = find_sampled(summaries, chosen)
    if judged:
        drawn |= {
            "chain": chains.draw_chain_path(judged[1]),
            "convergence": chains.draw_convergence(judged[1]),
        }
    return {name: figures.render_svg(f, name) for name, f in drawn.items() if f is not None}


def find_sampled(
    summaries: Sequence[Summary], chosen: words.Verdict
) -> tuple[FinishedRun, Trace] | None:
    """Return a featured run that sampled anything, the defended one first, and its trace."""
    found = [run for s in choose_featured(summaries, chosen).values() for run in s.runs[:1]]
    told = [(run, run.trace) for run in reversed(found) if run.trace and run.trace.rows]
    return told[0] if told else None


def choose_featured(summaries: Sequence[Summary], chosen: words.Verdict) -> dict[str, Summary]:
    """Return the undefended and the best defended summary, or the first one."""
    pair = {"undefended": chosen.base, "defended": chosen.best}
    found = {place: s for place, s in pair.items() if s is not None}
    return found or {"first": summaries[0]}


def render_page(
    book: Book,
    summaries: Sequence[Summary],
    chosen: words.Verdict,
    plots: dict[str, str],
    rows: Sequence[pictures.Strip],
    answers: Sequence[LiveRow] = (),
) -> str:
    """Return the page; every text from the files is escaped by the template."""
    source = resources.files("sims.report").joinpath(TEMPLATE).read_text(encoding="utf-8")
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    shown = choose_featured(summaries, chosen)
    judged = find_sampled(summaries, chosen)
    return environment.from_string(source).render(
        book=book,
        verdict=chosen,
        attack_sentence=words.describe_attack(chosen),
        alarms=alarms.find_alarms(summaries),
        bars=_bars(list(shown.values())),
        seeds=limits.describe_seeds(summaries),
        cautions=words.list_cautions(summaries, chosen),
        limits=limits.list_limits(summaries, chosen, book.failed, (row.attack for row in answers)),
        tables=tables,
        summaries=summaries,
        trade=_figures(plots, ("bits", "mse", "identification")),
        curves=_figures(plots, [name for name, *_ in CURVES]),
        reliability=_reliability(plots, shown),
        chain=_figures(plots, ("chain", "convergence")),
        larger=_larger(book, summaries),
        live=live.make_live_table(answers),
        live_plots=_figures(plots, ("live",)),
        convergence=judged[0].result.convergence if judged else None,
        strips=_strips(rows),
        rejected=limits.count_rejections(run for s in summaries for run in s.runs),
        rounds=sum(len(run.events) for s in summaries for run in s.runs),
    )


def _bars(shown: Sequence[Summary]) -> list[dict[str, object]]:
    return [
        {
            "label": s.label,
            "length": length,
            "bits": format_interval(s.bits, 2),
            "cap": format_number(s.cap, 1),
        }
        for s in shown
        if (length := tables.bar_length(s.bits, s.cap)) is not None
    ]


def _larger(book: Book, summaries: Sequence[Summary]) -> dict[str, object] | None:
    """Return the table of larger budgets and what it says; None where none was tried."""
    found = budgets.find_sweeps(book.rows)
    labels = {(s.variant, s.strength): s.label for s in summaries}
    table = budgets.make_sweeps_table(found, labels)
    return {"table": table, "sentence": budgets.describe_sweeps(found)} if found else None


def _reliability(plots: dict[str, str], shown: dict[str, Summary]) -> list[dict[str, object]]:
    names = {place: f"reliability-{place}" for place in shown}
    return [
        {"label": s.label, "svg": inline_svg(plots[names[place]])}
        for place, s in shown.items()
        if names[place] in plots
    ]


def _strips(rows: Sequence[pictures.Strip]) -> list[dict[str, object]]:
    return [
        {"group": r.group, "name": r.name, "count": len(r.images), "data": encode_strip(r)}
        for r in rows
    ]


def _figures(plots: dict[str, str], names: Sequence[str]) -> list[dict[str, object]]:
    return [{"label": ALT[n], "svg": inline_svg(plots[n])} for n in names if n in plots]


def inline_svg(text: str) -> Markup:
    """Return an SVG file as an element: no prologue, ink in the page's own colour."""
    body = text[text.index("<svg") :]
    for colour, name in ((figures.INK, "--ink"), (figures.FAINT, "--faint")):
        body = body.replace(colour, f"var({name})")
    body = re.sub(r'<svg ([^>]*?)width="[^"]*"', r'<svg \1aria-hidden="true"', body, count=1)
    body = re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", body, count=1)
    return Markup(body)  # matplotlib escapes the labels it writes


def encode_strip(strip: pictures.Strip) -> str:
    """Return the strip as a PNG in a data URL."""
    image = pictures.encode_png(pictures.tile_images(strip.images))
    return f"data:image/png;base64,{base64.b64encode(image).decode()}"
