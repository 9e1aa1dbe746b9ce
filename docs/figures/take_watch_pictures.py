"""Take the pictures of the watched run: python docs/figures/take_watch_pictures.py URL ROUND.

URL is what `fedcel watch RUN` printed, ROUND the one from which on they are taken. Needs
playwright, Pillow and a Chromium on the path.
"""

import shutil
import sys
from io import BytesIO
from pathlib import Path

import PIL.Image
from playwright.sync_api import sync_playwright

FOLDER = Path(__file__).parent
SHOTS = {"watch-wide": (1280, 1060), "watch-narrow": (400, 860)}
"""Width and height."""
COLOURS = 128


def main(url: str, number: str) -> None:
    """Wait for the round and take each picture."""
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        pages = {}
        for name, (width, height) in SHOTS.items():
            pages[name] = browser.new_page(viewport={"width": width, "height": height})
            pages[name].goto(url)
        for name, page in pages.items():
            while page.evaluate("state.round ?? 0") < int(number):
                page.wait_for_timeout(200)
            shot = PIL.Image.open(BytesIO(page.screenshot()))
            shot.convert("RGB").quantize(COLOURS, dither=PIL.Image.Dither.NONE).save(
                FOLDER / f"{name}.png", optimize=True
            )
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
