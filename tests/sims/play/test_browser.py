"""The playground in a real browser: drawn on, its sliders moved, its numbers read, by keyboard."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.sims.browsing import NEEDS_CHROMIUM, Visit
from tests.sims.play.conftest import Served
from tests.sims.play.test_web import picture

api = pytest.importorskip("playwright.sync_api", reason="no browser is driven without playwright")
pytestmark = NEEDS_CHROMIUM


class PlayVisit(Visit):
    """The playground's page."""

    def __init__(self, browser: Any, served: Served, *look: Any) -> None:
        self.served = served
        served.client.post("/api/budget")
        super().__init__(browser, str(served.client.base_url), *look)
        self.wait()

    def wait(self) -> None:
        """Wait until all numbers are those of what was asked last."""
        self.page.wait_for_selector("#columns[aria-busy=false]")

    def read(self, name: str, column: int = 0) -> str:
        return str(self.page.locator(".column").nth(column).locator(f".{name}").inner_text())

    def bits(self, column: int = 0) -> float:
        return float(self.read("beyond", column))

    def press(self, *keys: str) -> None:
        """Press keys, one after the other, and wait for the numbers."""
        for key in keys:
            self.page.keyboard.press(key)
        self.wait()

    def focused(self) -> str:
        """Return the id of what a key would act on."""
        return str(self.page.evaluate("document.activeElement.id"))

    def tab_to(self, name: str) -> None:
        """Press Tab until a control has the focus, and see that the eye is shown where it is."""
        for _ in range(60):
            self.page.keyboard.press("Tab")
            if self.focused() == name:
                break
        assert self.focused() == name
        style = (
            "getComputedStyle(document.activeElement.closest('.button') ?? document.activeElement)"
        )
        assert self.page.evaluate(f"{style}.outlineStyle") == "solid"

    def last_question(self) -> Any:
        questions = [r.post_data for r in self.requests if r.url.endswith("/api/look")]
        return json.loads(questions[-1])

    def spoken(self) -> str:
        """Return what a screen reader is told, once it is told."""
        status = self.page.locator("#status")
        api.expect(status).not_to_be_empty()
        return str(status.inner_text())


@pytest.fixture
def visit(browser: Any, served: Served) -> Iterator[PlayVisit]:
    """The page as it opens; at the end nothing was complained of, and nobody else was asked."""
    visit = PlayVisit(browser, served)
    yield visit
    visit.close()


def test_a_drawn_digit_is_looked_at(visit: PlayVisit) -> None:
    """A vertical stroke: the numbers that stand there are the server's, of the pixels drawn."""
    visit.page.click("#clear")
    visit.wait()
    box = visit.page.locator("#pad").bounding_box()
    across, down = box["x"] + box["width"] / 2, box["y"] + box["height"] * 0.15
    visit.page.mouse.move(across, down)
    visit.page.mouse.down()
    visit.page.mouse.move(across, down + 0.7 * box["height"], steps=8)
    visit.page.mouse.up()
    visit.wait()
    assert visit.page.locator("#image-name").inner_text().startswith("Your own image, taken for")
    question = visit.last_question()
    ink = [row[4] for row in question["pixels"][0]]
    assert min(ink[2:7]) > 0.5 and max(row[0] for row in question["pixels"][0]) == 0
    reply = visit.served.look(**question)
    for place, column in enumerate(reply["columns"]):
        assert visit.bits(place) == pytest.approx(column["bits"]["beyond-label"], abs=0.006)
        assert visit.read("label", place) == str(column["answer"]["label"])
        numbers = re.findall(r"\d[\d.]*(?:e-\d+)?", visit.read("fisher", place))
        expected = [column["picture"][name] for name in ("dfil", "fsinfo", "bound")]
        assert [float(number) for number in numbers[:3]] == pytest.approx(
            expected, rel=0.005, abs=0.006
        )
    visit.page.select_option("#label", "1")
    visit.wait()
    assert visit.last_question()["label"] == 1
    assert "of class 1" in visit.page.locator("#image-name").inner_text()


def test_every_slider_moves_its_numbers(visit: PlayVisit) -> None:
    """Noise takes bits away, messages bring them back, epsilon is what an answer costs."""
    first = [visit.bits(0), visit.bits(1)]
    assert first[0] > first[1]
    visit.page.fill("#factor", "12")
    visit.wait()
    assert visit.read("sigma") == "σ 0.8" and visit.bits() < first[0] - 1
    noisy = visit.bits()
    visit.page.fill("#messages", "6")
    visit.wait()
    assert visit.page.locator("#messages-value").inner_text() == "64" and visit.bits() > noisy + 1
    assert visit.last_question() == {"factor": 8, "messages": 64, "seed": 0, "test": 0}
    visit.page.fill("#epsilon", "5")
    assert visit.page.locator("#epsilon-value").inner_text() == "8"
    left = []
    for _ in range(2):
        visit.page.click("#ask")
        visit.page.wait_for_selector(".column:first-child .private:not(.stale)")
        left.append(visit.read("budget-note"))
        visit.page.click("#redraw")
        visit.wait()
    assert ["92" in left[0], "84" in left[1]] == [True, True]
    visit.page.click("#refill")
    api.expect(visit.page.locator(".budget-note").first).to_contain_text("100")


def test_all_of_it_works_by_keyboard(visit: PlayVisit) -> None:
    """From the top of the page with Tab: draw, pick, move each slider, ask."""
    visit.tab_to("pad")
    visit.press("ArrowDown", " ", "ArrowRight", " ", "ArrowLeft", "Delete")
    pixels = visit.last_question()["pixels"][0]
    assert pixels[5][5] > 0.5 and pixels[5][4] < 0.5
    visit.tab_to("clear")
    visit.press("Enter")
    assert not any(map(any, visit.last_question()["pixels"][0]))
    visit.tab_to("upload")
    visit.tab_to("label")  # of one's own image, which is blank
    visit.press("Tab", " ", "ArrowRight")
    assert visit.last_question()["test"] < 12
    visit.tab_to("number")
    visit.press("Control+A", "7", "Enter")
    assert visit.last_question()["test"] == 7
    visit.tab_to("another")
    visit.press("Enter")
    assert "test" in visit.last_question()
    visit.tab_to("factor")
    visit.press("ArrowRight", "ArrowRight")
    assert visit.last_question()["factor"] == 2
    visit.tab_to("messages")
    visit.press("ArrowRight", "ArrowRight")
    assert visit.last_question()["messages"] == 4
    visit.tab_to("redraw")
    visit.press(" ")
    assert visit.last_question()["seed"] == 1
    visit.tab_to("epsilon")
    visit.press("ArrowLeft")
    visit.tab_to("ask")
    visit.press("Enter")
    visit.page.wait_for_selector(".column:first-child .private:not(.stale)")
    assert "98" in visit.read("budget-note")


def test_a_picture_is_enlarged_and_closed(visit: PlayVisit) -> None:
    """By Enter, by a click, of a guess too; Escape and a click close it, the focus comes back."""
    zoom = visit.page.locator("#zoom")
    picture = visit.page.locator(".column .original").first
    picture.press("Enter")
    assert zoom.is_visible() and zoom.locator("p").inner_text() == "the image"
    assert zoom.locator("canvas").bounding_box()["width"] > 400
    visit.page.keyboard.press("Escape")
    assert not zoom.is_visible()
    assert visit.page.evaluate("document.activeElement.className") == "original"
    visit.page.locator(".guesses canvas").first.click()
    assert zoom.is_visible() and zoom.locator("p").inner_text().startswith("guess 1: ")
    zoom.click()
    assert not zoom.is_visible()


def test_a_screen_reader_is_told(visit: PlayVisit) -> None:
    """Each control has a name, each picture a description; what changed is said, in words.

    A picture that is not there yet is hidden.
    """
    unnamed = visit.page.locator(
        "xpath=//*[self::canvas or @role='img'][not(@aria-label) and not(@aria-labelledby) and "
        "not(@aria-hidden) and not(@hidden)]"
    )
    assert [node.evaluate("node => node.outerHTML") for node in unnamed.all()] == []
    tree = visit.page.locator("main").aria_snapshot()
    names = re.findall(r"- (?:button|slider|spinbutton|combobox|application)(.*)", tree)
    assert len(names) > 8 and all(name.startswith(' "') for name in names), tree
    said = visit.spoken()
    assert f"none: {visit.read('beyond')} bits beyond the label" in said and "cluster: " in said
    assert visit.page.locator("#factor").get_attribute("aria-valuetext") == "as trained"


def test_a_picture_is_uploaded_or_refused_in_words(visit: PlayVisit) -> None:
    """The refusal stands on the page and is an alert; the next image takes it away."""
    file = {"name": "grey.png", "mimeType": "image/png", "buffer": picture("L", (8, 8))}
    visit.page.set_input_files("#upload", file)
    api.expect(visit.page.locator("#image-name")).to_contain_text("Your own")
    visit.page.set_input_files("#upload", file | {"buffer": b"no picture"})
    visit.page.wait_for_selector("#problem:not([hidden])")
    assert "cannot be used" in visit.page.get_by_role("alert").inner_text()
    assert [text for text in visit.complaints if "422" not in text] == []
    visit.complaints.clear()  # the browser writes down that it was refused
    visit.page.click("#another")
    visit.page.wait_for_selector("#problem[hidden]", state="attached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 400, 1280])
def test_all_text_is_seen(browser: Any, served: Served, scheme: str, width: int) -> None:
    """Enough contrast, by day and by night; and nothing beside a narrow page."""
    visit = PlayVisit(browser, served, width, scheme)
    visit.page.click("summary")
    visit.page.click("#ask")
    visit.page.wait_for_selector(".column:first-child .private:not(.stale)")
    visit.expect_legible(width)
    visit.context.close()
