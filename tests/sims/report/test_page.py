"""The page: self-contained, escaped, and with the numbers of the input."""

import json
import re
import shutil
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedcel.errors import RunError
from sims.report import format_summary, write_report
from sims.report.book import read_book
from sims.report.page import render_page
from sims.report.reconstruction_strips import make_strips
from sims.report.verdict import find_verdict
from tests.sims.attack_files import save_rows

Make = Callable[..., Path]
CHARTS = ("bits", "mse", "accuracy", "spread", "reliability")
NEEDS_A_FILE = {"src", "href", "srcset", "data", "action", "poster", "xlink:href"}


class Page(HTMLParser):
    """Collect tags, addresses and the cells of the tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.rows: list[list[str]] = []
        self.cell = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in NEEDS_A_FILE]
        self.cell = tag in ("td", "th") or (self.cell and tag == "small")
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        self.cell = self.cell and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.cell:
            self.rows[-1][-1] += data


def text_of(folder: Path) -> str:
    """Return the page without figures, which take long."""
    book = read_book(folder)
    strips = make_strips(book.summaries)
    return render_page(book, find_verdict(book.summaries), {}, strips)


def page_of(folder: Path) -> Page:
    path = write_report(folder)
    assert path == folder / "report.html"
    return Page(path.read_text())


@pytest.fixture(scope="module")
def page(drawn: Path) -> Page:
    return Page((drawn / "report.html").read_text())


def test_self_contained(drawn: Path, page: Page) -> None:
    """Nothing is loaded from anywhere: data URLs and places in the page only."""
    assert page.addresses
    assert all(a.startswith(("data:", "#")) for a in page.addresses)
    assert not {"script", "link", "iframe", "object", "embed"} & set(page.tags)
    assert not re.search(r"@import|url\((?!#)", (drawn / "report.html").read_text())
    assert page.tags.count("img") == 12 * (2 + 3 * 2) + 5 * 2 * 5
    assert "svg" in page.tags


def test_main_table_holds_the_numbers(page: Page) -> None:
    """Accuracy, bits, identification, certificate, decoder and worst attack as written."""
    first, rows = ({row[0]: row for row in part} for part in (page.rows[:6], page.rows[6:12]))
    assert [" ".join(cell.split()) for cell in first["cluster"][1:]] == [
        *("94.8", "0.54", "22.0", "0.0425")
    ]
    assert first["label only (class means)"][1:] == ["–", "0.00", "10.0", "0.0434"]
    assert rows["cluster"][1:9] == [
        "decoder",
        "94.8",
        "0.171",
        "0.012",
        "0.54",
        "22.0",
        "4.54",
        "0.79",
    ]
    assert rows["cluster"][9:] == ["0.0425", "15.0", "0.600", "20.0"]
    assert rows["label only (class means)"][5:10] == ["0.00", "10.0", "–", "–", "0.0434"]
    assert rows["nothing (mean image)"][9] == "0.0737"


def test_cost_on_the_device(make_bench: Make) -> None:
    """Parameters, the encoder's, FLOPs, bytes and step time; a dash where an old run lacks them."""
    folder = make_bench()
    path = folder / "runs" / "1-0" / "result.json"
    old = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in old.items() if k[:5] not in ("param", "flops")}))
    rows = Page(text_of(folder)).rows
    assert ["none", "17.2", "16.6", "0.033", "256", "1.21"] in rows
    assert ["cluster", "–", "16.6", "–", "256", "1.21"] in rows


def test_every_attack_and_epsilon(drawn: Path, page: Page) -> None:
    """All attack rows, the reason of the skipped one, and each epsilon of each variant."""
    assert sum(row[2:3] == ["decoder"] for row in page.rows) == 9
    assert sum(row[1:5] == ["4.0", "82.0", "99.0", "84.0"] for row in page.rows) == 3
    text = (drawn / "report.html").read_text()
    assert text.count("<li>shadow on smashed: needs the architecture</li>") == 1
    assert "Not run" not in text
    assert "3 × not finite" in text
    assert "in 3 of 120 rounds" in text


def test_settings_that_differ_come_first(page: Page) -> None:
    """Before all others."""
    (head,) = (i for i, row in enumerate(page.rows) if row[0] == "setting")
    assert page.rows[head + 1] == ["cel.weight", "0.0", "0.3", "0.3"]
    assert all(len({*row[1:]}) == 1 for row in page.rows[head + 2 :]) and page.rows[head + 2 :]


def test_hostile_names_are_text(make_bench: Make) -> None:
    """A variant's name and a reason cannot become markup, in HTML or SVG."""
    name = "<script>alert(1)</script>$\"'--><img src=x>"
    folder = make_bench({"none": (0.95, 4.0, 0.9, 0.03), name: (0.95, 0.5, 0.2, 0.04)})
    events = folder / "runs" / "1-0" / "events.jsonl"
    events.write_text(events.read_text().replace("not finite", "<script>bad</script>"))
    page = page_of(folder)
    assert "script" not in page.tags
    assert "x" not in page.addresses
    assert any(row and row[0] == name for row in page.rows)


def test_figures_are_written(drawn: Path) -> None:
    """Every chart is a file of its own, for pages and for papers; twice is the same page."""
    first = (drawn / "report.html").read_bytes()
    names = {path.name for path in (drawn / "figures").iterdir()}
    assert names == {
        "reconstructions.png",
        *(f"{name}.{form}" for name in CHARTS for form in ("svg", "pdf")),
    }
    assert write_report(drawn).read_bytes() == first


def test_single_run(make_bench: Make) -> None:
    """A run folder has the same page with one variant."""
    folder = make_bench() / "runs" / "1-0"
    text = text_of(folder)
    page = Page(text)
    assert page.rows[1][:2] == ["1-0", "94.8"]
    assert page.tags.count("img") == 12 * 4 + 5 * 5
    assert text.count('style="--images: 12"') == 4


def test_run_nobody_attacked(make_bench: Make) -> None:
    """Without attacks the page says so and stands."""
    folder = make_bench() / "runs" / "1-0"
    shutil.rmtree(folder / "attacks")
    text = text_of(folder)
    assert Page(text).tags.count("img") == 4 * 5
    assert "No attack was run." in text


def test_rounds_without_clients_stand_above_everything(make_bench: Make) -> None:
    """In the page before the headline, on the terminal in the first line."""
    folder = make_bench() / "runs" / "1-0"
    path = folder / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    left_out = {"rejected": [{"client": 3, "reason": "late"}], "clients": 4}
    events = [event | {"rejected": []} for event in events[:-1]] + [events[-1] | left_out]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    html = text_of(folder)
    words = (
        "Clients were left out in 1 of 40 rounds (1 × late): 99.5% of the clients' weight was kept"
    )
    assert html.index(words[:40]) < html.index('<p class="say">')
    assert format_summary(folder).startswith(words)
    path.write_text("".join(json.dumps(event) + "\n" for event in events[:-1]))
    assert "Clients were left out" not in format_summary(folder)


def test_contradictions_are_an_alarm(drawn: Path, make_bench: Make) -> None:
    """At the top, naming the run; beyond five they are folded, none is left out."""
    assert 'role="alert"' not in (drawn / "report.html").read_text()
    folder = make_bench(seeds=2)
    common = {"observation": "smashed", "attack": "optimal", "candidates": 100}
    best = common | {"identification-optimal": 0.5, "identification-half-width": 0.01}
    best |= {"information-bits": 6.0, "identification-candidates": 100}
    rows = [best, best | {"attack": "decoder", "identification-1": 0.9, "targets": 100}]
    rows[1] = {key: value for key, value in rows[1].items() if key != "identification-optimal"}
    for run in (folder / "runs").iterdir():
        save_rows(run / "attacks" / "all.json", rows)
    text = text_of(folder)
    assert text.index('role="alert"') < text.index("All measures")
    assert text.count("decoder picks the right image in 0.900 of cases") == 6
    assert "<p>gated, training seed 0: On smashed" in text
    assert "<summary>1 more</summary>" in text


def test_damage_writes_nothing(make_bench: Make) -> None:
    """A damaged file leaves the folder as it was."""
    folder = make_bench()
    (folder / "runs" / "2-0" / "result.json").write_text("{")
    with pytest.raises(RunError, match=r"result\.json is damaged"):
        write_report(folder)
    assert not (folder / "report.html").exists()
    assert not (folder / "figures").exists()


def test_little_is_known(make_bench: Make) -> None:
    """A result with nothing but what is required has a page, and dashes for the rest."""
    folder = make_bench() / "runs" / "0-0"
    (folder / "attacks" / "all.json").unlink()
    keys = ("bits-beyond-label", "information-bits", "identification-optimal", "certificate-bits")
    least = {"accuracy": 0.5, "candidates": 9} | dict.fromkeys(keys)  # null: not measured
    (folder / "result.json").write_text(json.dumps(least))
    page = page_of(folder)
    assert page.rows[1][1:] == ["50.0", *["–"] * 3]
    assert "were not measured" in (folder / "report.html").read_text()


def test_a_missing_estimate_has_its_reason(make_bench: Make) -> None:
    """Where the picture could not be estimated, the page says why."""
    folder = make_bench()
    path = folder / "runs" / "0-0" / "result.json"
    reason = {"linearised-obstacle": "features are dropped at random"}
    path.write_text(json.dumps(json.loads(path.read_text()) | reason))
    assert "not estimated, because features are dropped at random.</li>" in text_of(folder)


def test_terminal_table(make_bench: Make) -> None:
    """One line a variant, aligned, at most 100 columns, with the headline below."""
    lines = format_summary(make_bench(seeds=3)).splitlines()
    cells = " ".join(next(line for line in lines if line.startswith("cluster")).split())
    assert cells == "cluster decoder 94.8 ± 0.0 0.56 ± 0.05 22.0 ± 0.0 0.0425 ± 0.0000"
    anchors = [line.split() for line in lines if "(class means)" in line or "(mean image)" in line]
    assert [cells[-5:] for cells in anchors] == [
        ["–", "–", "0.00", "10.0", "0.0434"],
        ["–", "–", "0.00", "1.0", "0.0737"],
    ]
    assert max(map(len, lines)) <= 100
    assert any(line.startswith("With cluster, the best possible attacker") for line in lines)


def test_photographs_of_real_size(make_bench: Make) -> None:
    """Three variants, two attacks, 224 px in colours: below 10 MB; classes by their names."""
    folder = make_bench()
    images = np.random.default_rng(0).random((12, 3, 224, 224), dtype=np.float32)
    for run in (folder / "runs").iterdir():
        names = ("targets", "class-mean", "decoder", "logit-inversion")
        save_file(dict.fromkeys(names, images), run / "attacks" / "all.safetensors")
        guesses = load_file(run / "guesses.safetensors")
        shown = np.stack([images[:8], images[1:9], images[2:10]], 1)
        save_file(guesses | {"targets": images[:8], "guesses": shown}, run / "guesses.safetensors")
    text = text_of(folder)
    assert Page(text).tags.count("img") == 12 * 8 + 50 and len(text) < 10_000_000
    assert 'alt="originals 2: deer"' in text and "<small>deer</small>" in text
