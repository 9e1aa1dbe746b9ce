"""Pages of audits and of compared cuts in a real browser."""

from pathlib import Path

import pytest

from sims.commands.main import main
from tests.sims.browsing import NEEDS_CHROMIUM, Visit, open_browser

HIDDEN_CELLS = """() => [...document.querySelectorAll(".box:has(> table)")]
  .filter((box) => box.scrollWidth > box.clientWidth + 1)
  .map((box) => box.getAttribute("aria-label"))"""
"""Names of tables that are wider than the page."""
MODELS = (
    "tests.sims.auditing.test_audit:build_classifier",
    "tests.sims.auditing.test_cuts:build_net",
)


@NEEDS_CHROMIUM
@pytest.mark.parametrize("command", ["audit", "cuts"])
def test_pages_are_legible(command: str, tmp_path: Path) -> None:
    """On a phone, and on a desk, where no number is out of sight; in the dark, too."""
    words = {
        "audit": [MODELS[0], "--at", "0", "--target-bits", "6", "--attacks", "kernel-ridge"],
        "cuts": [MODELS[1], "--max-bits", "40", "--attack", "none"],
    }[command]
    options = ["--data", "digits", "--images", "40", "--out", str(tmp_path)]
    assert main([command, *words, *options]) in (0, 1)
    with open_browser() as browser:
        for width, scheme in ((1280, "light"), (390, "dark")):
            visit = Visit(browser, (tmp_path / "report.html").as_uri(), width, scheme)
            visit.expect_legible(width)
            if width == 1280:
                assert visit.page.evaluate(HIDDEN_CELLS) == []
            visit.close()
