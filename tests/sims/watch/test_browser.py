"""The watched page in a real browser: by keyboard, in any light."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from clients.service_messages import LOOPBACK_HOSTS
from sims.watch import create_app
from tests.sims.browsing import NEEDS_CHROMIUM, Visit
from tests.sims.served_page import serve_app
from tests.sims.watch.conftest import REASONS, copy_run, write_into

api = pytest.importorskip("playwright.sync_api", reason="no browser is driven without playwright")
pytestmark = NEEDS_CHROMIUM


@pytest.fixture
def watched(trained: Path, tmp_path: Path) -> Iterator[str]:
    """A run that goes on: five of six rounds, clients left out, a chain that is judged."""
    folder = copy_run(trained, tmp_path / "run", rounds=5, judged=True)
    with write_into(folder), serve_app(create_app(folder, LOOPBACK_HOSTS)) as client:
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
    with serve_app(create_app(folder, LOOPBACK_HOSTS)) as client:
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
