"""A real browser for pages, and what their text must be like."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

PROGRAMS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
CHROMIUM = next((path for name in PROGRAMS if (path := shutil.which(name))), None)
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None, reason=f"no browser is installed: none of {', '.join(PROGRAMS)}"
)
FAINT_TEXT = """() => {
  const channels = (text) => text.match(/[\\d.]+/g).map(Number);
  const light = (text) => channels(text).slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (node) => {
    const colour = getComputedStyle(node).backgroundColor;
    return (channels(colour)[3] ?? 1) === 0 ? behind(node.parentElement) : colour;
  };
  return [...document.querySelectorAll("main *")]
    .filter((node) => node.checkVisibility() && !node.closest(".unseen, option"))
    .filter((node) => [...node.childNodes].some((c) => c.nodeType === 3 && c.data.trim()))
    .map((node) => [node, [getComputedStyle(node).color, behind(node)].map(light).sort()])
    .map(([node, [dark, bright]]) => [node, (bright + 0.05) / (dark + 0.05)])
    .filter(([node, ratio]) => ratio < (node.className === "mark" ? 3 : 4.5))
    .map(([node, ratio]) => [node.textContent, ratio]);
}"""
"""Texts of less contrast than WCAG 2.2 asks for at level AA: 4.5, of signs 3 (1.4.3, 1.4.11)."""


@contextmanager
def open_browser() -> Iterator[Any]:
    """Yield a Chromium without a window; as root it has no sandbox.

    It runs an event loop of its own, so that a whole session would leave none to other tests.
    """
    from playwright.sync_api import sync_playwright

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield chromium
        chromium.close()


class Visit:
    """A page, what it complained of, and what it asked for."""

    def __init__(self, browser: Any, url: str, width: int = 1280, scheme: str = "light") -> None:
        viewport = {"width": width, "height": 900}
        self.url = url
        self.context = browser.new_context(viewport=viewport, color_scheme=scheme)
        self.page = self.context.new_page()
        self.complaints = list[str]()
        self.requests = list[Any]()
        self.page.on("console", lambda line: self.complaints.append(f"{line.type}: {line.text}"))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.goto(url)

    def text(self, selector: str) -> str:
        return str(self.page.locator(selector).inner_text())

    def expect_legible(self, width: int) -> None:
        """See that all text has enough contrast, and that nothing is beside a narrow page."""
        assert self.page.evaluate(FAINT_TEXT) == []
        assert self.page.evaluate("document.documentElement.scrollWidth") == width

    def close(self) -> None:
        """See that nothing was complained of, and that nobody else was asked."""
        assert self.complaints == []
        hosts = {urlsplit(r.url).netloc for r in self.requests if not r.url.startswith("data:")}
        assert hosts == {urlsplit(self.url).netloc}
        self.context.close()
