"""The watched page in a real browser: beside a run that goes on, by keyboard, in any light."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.service_messages import LOOPBACK_HOSTS
from sims.watch import Following, create_app
from tests.sims.browsing import NEEDS_CHROMIUM, Visit
from tests.sims.served_page import serve_app
from tests.sims.watch.conftest import REASONS, copy_run, write_into

api = pytest.importorskip("playwright.sync_api", reason="no browser is driven without playwright")
pytestmark = NEEDS_CHROMIUM
PROGRAM = """
import sys, time
from pathlib import Path
from fedcel.runs import ServerRun
from sims.commands.main import main
from sims.report import page
page.draw_figures = lambda *_, **__: {}
signs = Path(sys.argv.pop(1))
play = ServerRun.play_round
def play_when_seen(self, *arguments):
    sign, limit = signs / str(self.state.round), time.monotonic() + 90
    while self.state.round in (2, 4) and not sign.exists() and time.monotonic() < limit:
        time.sleep(0.05)
    play(self, *arguments)
ServerRun.play_round = play_when_seen
raise SystemExit(main(sys.argv[1:]))
"""
"""The command, which waits after rounds 2 and 4 until they are seen; figures are left out."""
QUICK = {
    "engine": "local",
    "rounds": 8,
    "clients": 3,
    "local.steps": 3,
    "chain.thin": 1,
    "data.test": 80,
    "data.validation": 60,
}


@pytest.mark.long
def test_a_run_is_followed_from_its_first_round_to_its_report(browser: Any, tmp_path: Path) -> None:
    """The real command: rounds appear while it trains, and at the end where the report is."""
    folder = tmp_path / "run"
    assignments = [part for key, value in QUICK.items() for part in ("--set", f"{key}={value}")]
    command = ["simulate", "digits", "--live", "--out", str(folder), *assignments]
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    greeting = process.stderr.readline()
    match = re.fullmatch(r"watch: (http://127\.0\.0\.1:\d+)\n", greeting)
    assert match, greeting
    visit = Visit(browser, match[1])
    title = visit.page.locator("#title")
    for number in (2, 4):
        api.expect(title).to_have_text(f"Training, round {number} of 8", timeout=90_000)
        assert visit.text("#bits-note") == f"validation images, round {number}"
        (tmp_path / str(number)).touch()
    api.expect(visit.page.locator("#end-title")).to_have_text("The run is over", timeout=90_000)
    api.expect(visit.page.locator("#report-path")).to_have_text(str(folder / "report.html"))
    api.expect(visit.page.locator("#time")).to_contain_text(f"fedcel watch {folder}")
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert visit.text("#accuracy") == f"{100 * events[-1]['accuracy']:.1f} %"
    assert visit.text("#bits") == f"{events[-1]['bits-beyond-label']:.2f}"
    result = json.loads((folder / "result.json").read_text())
    assert f"{result['bits-beyond-label']:.2f} bits" in visit.text("#end-scores")
    output, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints
    assert f"report: {folder / 'report.html'}" in output
    visit.close()


@pytest.fixture
def watched(trained: Path, tmp_path: Path) -> Iterator[str]:
    """A run that goes on: five of six rounds, clients left out, a chain that is judged."""
    folder = copy_run(trained, tmp_path / "run", rounds=5, judged=True)
    with write_into(folder), serve_app(create_app(Following(folder), LOOPBACK_HOSTS)) as client:
        yield str(client.base_url)


def test_curves_are_read_by_keyboard_and_by_a_screen_reader(browser: Any, watched: str) -> None:
    """Tab finds the slider, arrows move it, each picture says its numbers."""
    visit = Visit(browser, watched)
    page = visit.page
    for _ in range(5):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "round":
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    assert visit.text("#round-value") == "3 of 6"
    assert visit.text("#plot-kept .value") == "25.0 %"
    assert visit.text("#plot-bits .value").endswith(", round 2")
    assert "Clients' weight kept, % 25.0 %" in str(page.get_attribute("#round", "aria-valuetext"))
    page.wait_for_timeout(1500)  # what is read stays, whatever comes
    assert visit.text("#round-value") == "3 of 6"
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert visit.text("#round-value") == "5 of 6"
    names = page.evaluate(
        "[...document.querySelectorAll('figure:not([hidden]) svg')].map(s => s.ariaLabel)"
    )
    assert len(names) == 6 and all(re.search(r": .+ in round \d, .+ in round \d", n) for n in names)
    assert page.get_attribute("#progress", "aria-valuetext") == "5 of 6 rounds"
    assert "Training, round 5 of 6. Accuracy" in visit.text("#status")
    rows = page.locator("#left tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [[REASONS[k], "1", str(k), "3"] for k in (0, 1)]
    visit.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1280])
def test_all_text_is_seen(browser: Any, watched: str, scheme: str, width: int) -> None:
    """Enough contrast, by day and by night; and nothing beside a narrow page."""
    visit = Visit(browser, watched, width, scheme)
    for summary in visit.page.locator("summary").all():
        summary.click()
    visit.expect_legible(width)
    visit.close()


def test_a_bench_leads_to_its_runs(browser: Any, trained: Path, tmp_path: Path) -> None:
    """From the cell to its curves and back, and to the report."""
    folder = tmp_path / "bench"
    copy_run(trained, folder / "runs" / "none-0")
    (folder / "runs" / "none-0" / "report.html").write_text("<title>Report</title>")
    (folder / "scenario.toml").write_text('title = "One"')
    with serve_app(create_app(Following(folder), LOOPBACK_HOSTS)) as client:
        visit = Visit(browser, str(client.base_url))
        assert visit.text("#title") == "One: 0 of 1 cells done"
        assert visit.text("#end-title") == "The bench was stopped before its end"
        visit.page.click("#cells a")
        api.expect(visit.page.locator("#title")).to_have_text("Finished")
        assert visit.page.locator("figure:not([hidden])").count() == 4
        visit.page.click("#report")
        assert visit.page.title() == "Report"
        visit.page.go_back()
        visit.page.click("text=All cells")
        api.expect(visit.page.locator("#title")).to_have_text("One: 0 of 1 cells done")
        visit.close()
