"""Take the pictures of the playground: python docs/figures/take_play_pictures.py URL.

URL is what `fedcel play BENCH --variant none --variant cluster` printed. Needs playwright, Pillow
and a Chromium on the path.
"""

import shutil
import sys
from io import BytesIO
from pathlib import Path

import PIL.Image
from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent
SHOTS = {"play-wide": (1280, 1085, True), "play-narrow": (400, 760, False)}
"""Width, height, and whether the page is taken from its top or from its sliders."""
COLOURS = 256


def main(url: str) -> None:
    """Ask once and take each picture."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for name, (width, height, is_top) in SHOTS.items():
            page = browser.new_page(viewport={"width": width, "height": height})
            page.goto(url)
            page.click("#refill")
            page.wait_for_selector("#columns[aria-busy=false]")
            page.click("#ask")
            page.wait_for_selector(".column:first-child .private:not(.stale)")
            if not is_top:
                page.locator(".tools").scroll_into_view_if_needed()
                page.mouse.wheel(0, 260)
                page.wait_for_timeout(300)
            shot = PIL.Image.open(BytesIO(page.screenshot()))
            shot.convert("RGB").quantize(COLOURS, dither=PIL.Image.Dither.NONE).save(
                FOLDER / f"{name}.png", optimize=True
            )
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
