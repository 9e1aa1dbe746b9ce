"""Compose report.html and figures/ and write each whole; the summary for a terminal."""

import re
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup
from matplotlib.figure import Figure

from fedcel.files import write_whole
from sims.progress import show_steps
from sims.report import chart_files, figures, larger_budgets, tables, verdict
from sims.report.book import Book, read_book, read_live
from sims.report.reconstruction_strips import Strip, encode_png, make_grid, make_strips
from sims.report.showcase import make_showcase
from sims.report.summary import Summary, summarise_book
from sims.report.table import Table, format_columns, tabulate
from sims.report.templates import render_template
from sims.results.records import LiveRow, RoundEvent

CURVES: dict[str, tuple[Callable[[RoundEvent], float | None], str, bool]] = {
    "accuracy": (lambda event: event.accuracy, "validation accuracy", False),
    "spread": (lambda event: event.within_class_spread, "within-class spread (log)", True),
    "weight": (lambda event: event.cel_weight, "weight λγ of the loss", False),
}
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


class Part(NamedTuple):
    """A part of the page below its head; what is empty is left out."""

    title: str
    note: str = ""
    plots: Sequence[tuple[str, Markup]] = ()
    """Captions and figures."""
    tables: Sequence[Table] = ()
    strips: Sequence[Strip] = ()
    lines: Sequence[str] = ()
    is_open: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to show but the note."""
        return not (self.plots or self.strips or self.lines or any(t.rows for t in self.tables))


class Report:
    """A bench or run, summarised and compared."""

    def __init__(self, folder: Path) -> None:
        """Read a bench or run folder; RunError where a file is missing or damaged."""
        self.book: Book = read_book(folder)
        self.summaries = summarise_book(self.book)
        self.compared = summarise_book(self.book, common=True)
        self.verdict = verdict.find_verdict(self.summaries)
        self.live: list[list[LiveRow]] = read_live(folder)
        pair = {"undefended": self.verdict.base, "defended": self.verdict.best}
        featured = {place: summary for place, summary in pair.items() if summary is not None}
        self.featured = featured or {"first": self.summaries[0]}
        sampled = [s.runs[0] for s in self.featured.values() if s.runs[0].trace]
        self.sampled = next((r for r in reversed(sampled) if r.trace and r.trace.rows), None)
        """A featured run that sampled anything, the defended one first."""


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
        report = Report(folder)
        pictures = draw_figures(report)
        steps, svgs = len(pictures) + PAGE_STEPS, dict[str, str]()
        for done, (name, figure) in enumerate(pictures.items()):
            show_step(done, steps, f"figure {done + 1} of {len(pictures)}")
            svgs[name] = figures.render_figure(figure, name, "svg").decode()
        show_step(len(pictures), steps, "images and page")
        strips = make_strips(report.summaries)
        html = render_page(report, svgs, strips)
        for name, svg in svgs.items():
            write_whole(folder / "figures" / f"{name}.svg", svg)
        if strips:
            write_whole(folder / "figures" / "reconstructions.png", encode_png(make_grid(strips)))
        page = folder / "report.html"
        write_whole(page, html)
        for done, (name, figure) in enumerate(pictures.items() if charts else ()):
            show_step(done, len(pictures), f"chart {done + 1} of {len(pictures)}")
            chart_files.write_chart(figure, charts or folder, name)
    return page


def format_summary(folder: Path) -> str:
    """Return the summary of a bench or run folder as plain text, at most 100 columns wide.

    Raises:
        RunError: Files are missing or damaged.
    """
    summaries = summarise_book(read_book(folder))
    conclusion = verdict.find_verdict(summaries)
    paragraphs = (
        conclusion.sentence,
        verdict.describe_single_image_updates(conclusion),
        verdict.describe_attack(conclusion),
        verdict.describe_seeds(summaries),
        verdict.describe_broken(summaries),
    )
    blocks = [
        textwrap.fill(verdict.describe_left_out(conclusion.runs), 96),
        format_columns(tables.tabulate_anchored("Summary", tables.TERMINAL, summaries)),
        *(textwrap.fill(paragraph, 96) for paragraph in paragraphs),
    ]
    return "\n\n".join([*filter(None, blocks), ""])


def draw_figures(report: Report) -> dict[str, Figure]:
    """Return every figure that the numbers allow, by file name.

    Curves of errors join strengths, so they are of attacks that every cell met: a stronger attack
    at one alone would bend them.
    """
    summaries, featured = report.summaries, report.featured
    looks = figures.choose_looks(summaries)
    figure_of_name: dict[str, Figure | None] = {
        "bits": figures.draw_bits_trade_off(summaries),
        "mse": figures.draw_mse_trade_off(report.compared),
        "identification": figures.draw_identification_trade_off(report.compared),
        "private": figures.draw_private(list(featured.values()), looks),
        "live": figures.draw_live(report.live),
    }
    curves = summaries if len(summaries) <= MAX_CURVES else list(featured.values())
    for name, (value, label, log) in CURVES.items():
        figure_of_name[name] = figures.draw_curve(curves, looks, value, label=label, log=log)
    for place, summary in featured.items():
        result = summary.results[0]
        figure_of_name[f"reliability-{place}"] = figures.draw_reliability(
            result.reliability, looks[summary.variant], tables.name_predictor([result])
        )
    trace = report.sampled and report.sampled.trace
    if trace and (convergence := figures.draw_convergence(trace)):
        # Without enough rounds to judge it by, a chain's path is a picture of nothing.
        figure_of_name |= {"chain": figures.draw_chain_path(trace), "convergence": convergence}
    return {name: figure for name, figure in figure_of_name.items() if figure is not None}


def render_page(report: Report, svgs: Mapping[str, str], strips: Sequence[Strip]) -> str:
    """Return the page; every text from the files is escaped by the template."""
    summaries, conclusion = report.summaries, report.verdict
    return render_template(
        "report/report.html.jinja",
        title=report.book.title,
        left_out=verdict.describe_left_out(conclusion.runs),
        sentence=conclusion.sentence,
        alarms=verdict.find_alarms(summaries),
        update_sentence=verdict.describe_single_image_updates(conclusion),
        showcase=make_showcase(report.featured),
        candidates=conclusion.shown.row.candidates or "the",
        first=tables.tabulate_anchored("Accuracy and leak", tables.FIRST, summaries),
        seeds=verdict.describe_seeds(summaries),
        cautions=list(verdict.list_cautions(conclusion)),
        parts=[part for part in list_parts(report, svgs, strips) if not part.is_empty],
        versions=", ".join(f"{k} {v}" for k, v in sorted(summaries[0].results[0].versions.items())),
    )


def list_parts(report: Report, svgs: Mapping[str, str], strips: Sequence[Strip]) -> Iterator[Part]:
    """Yield the parts of the page below its head."""
    summaries, conclusion = report.summaries, report.verdict

    def plots(*names: str) -> list[tuple[str, Markup]]:
        return [(FIGURE_LABELS[n], inline_svg(svgs[n])) for n in names if n in svgs]

    yield Part(
        "All measures", tables=[tables.tabulate_anchored("Variants", tables.MAIN, summaries)]
    )
    yield Part(
        "Behind each leak",
        "Bits and certificate are of the test images. “Unseen” bounds what an image of the same "
        "population tells on average, whoever attacks, with 95 % confidence: by Bernstein's "
        "inequality, which assumes only that features are bounded, and by Student's t, an "
        "approximation that assumes that no rare image tells far more.",
        tables=[tabulate("Behind the leak", tables.DETAILS, summaries)],
    )
    yield Part(
        "Cost on the device",
        "A device runs the encoder alone and sends these bytes for each image. FLOPs are those of "
        "its matrix products and convolutions: a multiplication and an addition are two. A "
        "training step is timed against one without the loss.",
        tables=[tabulate("Cost on the device", tables.DEVICE, summaries)],
    )
    yield Part(
        "Accuracy against leakage",
        "Compare at equal accuracy. Thin lines join the strengths of one variant. The worst "
        "trained attack is the one with the lowest MSE. Dashed and dotted lines are reached "
        "without an attack.",
        plots=plots("bits", "mse", "identification"),
    )
    note = "Test images that no attacker saw. Below them, the best image of each attack."
    yield Part(
        "What an attacker reconstructs",
        f"{note} {verdict.describe_attack(conclusion)}",
        strips=strips,
        lines=() if strips else ["There are no reconstructions: no attack that makes images ran."],
    )
    yield Part(
        "Training",
        "On the validation set. The band, where there is one, is the range over training seeds.",
        plots=plots(*CURVES),
    )
    yield Part(
        "How far the confidence can be trusted",
        "On the dotted line, confidence equals accuracy. Filled markers: the average over the "
        "posterior's samples, or the last model where none were kept. Open markers: the point "
        "model. Below, how many answers had that confidence.",
        plots=[
            (summary.label, inline_svg(svgs[name]))
            for place, summary in report.featured.items()
            if (name := f"reliability-{place}") in svgs
        ],
        tables=[tables.tabulate_predictors(summaries)],
    )
    convergence = report.sampled and report.sampled.result.convergence
    yield Part(
        "Whether the chain has converged",
        "Judged on held-out log-likelihood and the logits of validation images. Dotted lines: "
        "limits of convergence." + (f" In the run shown: {convergence}." if convergence else ""),
        plots=plots("chain", "convergence"),
    )
    yield Part(
        "Private answers",
        "Answers of the service within a privacy budget. Dotted: accuracy without privacy. No "
        "mechanism of that epsilon exceeds the ceiling, with balanced classes.",
        plots=plots("private"),
        tables=[tables.tabulate_private(summaries)],
    )
    yield Part(
        "Attacked through the service",
        "A client asked the live service about targets and about the attacker's own images, within "
        "one budget. The attacker saw the answers alone. A repeated question gives the same answer "
        "and costs nothing.",
        plots=plots("live"),
        tables=[tables.tabulate_live(report.live)],
    )
    sweeps = larger_budgets.find_sweeps(report.book.rows)
    labels = {(s.variant, s.row.strength): s.label for s in summaries}
    yield Part(
        "Attacked with larger budgets",
        "Some attacks were run again, with a multiple of their usual effort. "
        + larger_budgets.describe_sweeps(sweeps),
        tables=[larger_budgets.make_sweeps_table(sweeps, labels)],
    )
    attacks = tables.tabulate_attacks(summaries)
    yield Part(
        "Attacks, one by one",
        tables=[attacks],
        lines=() if attacks.rows else ["No attack was run. `fedcel attack` runs them."],
    )
    yield Part("Not measured, so nothing is claimed about these", lines=list_skipped(summaries))
    settings = tables.tabulate_settings(summaries)
    yield Part("Settings in which the variants differ", tables=[tables.select_differing(settings)])
    yield Part("All settings", tables=[settings])
    served = (rows[0].attack for rows in report.live)
    yield Part(
        "What this shows and what it does not",
        lines=list(verdict.list_limits(conclusion, report.book.failed, served)),
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
    for colour, name in ((figures.INK, "--ink"), (figures.FAINT, "--faint")):
        body = body.replace(colour, f"var({name})")
    body = re.sub(r'<svg ([^>]*?)width="[^"]*"', r'<svg \1aria-hidden="true"', body, count=1)
    body = re.sub(r'(<svg [^>]*?)height="[^"]*"', r"\1", body, count=1)
    return Markup(body)  # matplotlib escapes the labels it writes
