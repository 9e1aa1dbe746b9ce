"""Strips of images: the right pixels in the right order."""

import base64
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
import torch
from safetensors.numpy import load_file, save_file

from fedcel.leakage import LeakMaps
from fedcel.settings import Settings
from sims.report.book import read_book
from sims.report.reconstruction_strips import (
    GAP,
    LOSSLESS,
    PAGE_PICTURES,
    Strip,
    draw_leak_strips,
    encode_picture,
    encode_png,
    limit_strips,
    list_guesses,
    make_grid,
    make_strips,
    tile_images,
)
from sims.report.summary import FinishedRun, Images, Summary
from sims.results.records import RunResult
from tests.sims.report.made import cell

Make = Callable[..., Path]
ROOT = Path(__file__).parents[3]


def summary(label: str, result: RunResult, images: dict[str, Images]) -> Summary:
    guesses = {"targets": torch.zeros(1, 1, 8, 8), "labels": torch.zeros(1)}
    run = FinishedRun(Settings(), (), result, (), images, guesses)
    return replace(cell(label, 0.9, 2.0), runs=(run,))


def images(value: float) -> Images:
    """Return two grey images, 8 x 8."""
    return np.full((2, 1, 8, 8), value, np.float32)


def test_tiles() -> None:
    """8 px become 32, transparent gaps around, 0.5 becomes 128."""
    found = tile_images(images(0.5))
    assert found.shape == (32 + 2 * GAP, 2 * 32 + 3 * GAP, 4)
    inside = found[GAP:-GAP, GAP:-GAP]
    assert (inside[:, :32] == [128, 128, 128, 255]).all()
    assert (inside[:, 32 : 32 + GAP] == 0).all()
    assert (inside[:, 32 + GAP :] == [128, 128, 128, 255]).all()
    assert (found[:GAP] == 0).all()


def test_colour_keeps_its_channels() -> None:
    """Red stays red; large images keep their size."""
    red = np.zeros((1, 3, 40, 40), np.float32)
    red[:, 0] = 1
    assert (tile_images(red) == [255, 0, 0, 255]).all()
    assert tile_images(red).shape == (40, 40, 4)


def test_originals_once(outcome: Callable[..., RunResult]) -> None:
    """Originals come first, and again only for a variant attacked on other images."""
    same = {"targets": images(0.1), "class-mean": images(0.2), "decoder": images(0.3)}
    other = {"targets": images(0.9), "decoder": images(0.3)}
    runs = {"a": same, "b": same, "c": other}
    found = make_strips([summary(label, outcome(), shown) for label, shown in runs.items()])
    assert [(s.group, s.name) for s in found] == [
        ("", "originals"),
        ("", "label only (mean of the class)"),
        ("a", "decoder"),
        ("b", "decoder"),
        ("c", "originals"),
        ("c", "decoder"),
    ]
    assert encode_png(make_grid(found)).startswith(b"\x89PNG")


def guess(folder: Path) -> list[list[Strip]]:
    """Return the pictures at the top of each variant of a bench."""
    return [list_guesses(summary) for summary in read_book(folder).summaries]


def test_originals_reconstructions_and_three_guesses(make_bench: Make) -> None:
    """Five messages; the first guess is the right one here, the others are not."""
    found = guess(make_bench())
    assert len(found) == 3
    names = ["sent", "rebuilt (decoder)", "first guess", "second guess", "third guess"]
    for strips in found:
        assert [(strip.name, len(strip.images)) for strip in strips] == [(n, 5) for n in names]
        classes = ["cat", "deer"] * 4
        assert strips[0].notes == classes[:5]
        assert [strip.notes for strip in strips[2:]] == [
            [f"{name} {share}\xa0%{mark}" for name in classes[rank : rank + 5]]
            for rank, (share, mark) in enumerate(((60, " ✓"), (30, ""), (10, "")))
        ]
        assert [picture[0] for picture in strips[2].pictures] == [
            picture[0] for picture in strips[0].pictures
        ]


def test_runs_without_names_of_classes(make_bench: Make) -> None:
    """No text below what was sent, shares alone below guesses."""
    folder = make_bench()
    result = folder / "runs" / "0-0" / "result.json"
    result.write_text(result.read_text().replace('"class-names"', '"unused"'))
    strips = guess(folder)[0]
    assert not any(strips[0].notes) and strips[2].notes == ["60\xa0% ✓"] * 5


def read_url(source: str) -> PIL.Image.Image:
    return PIL.Image.open(BytesIO(base64.b64decode(source.partition(",")[2])))


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("side", [8, 32, LOSSLESS])
def test_small_pictures_keep_every_pixel(channels: int, side: int) -> None:
    """At their own size: the page enlarges them."""
    image = np.random.default_rng(0).random((channels, side, side))
    shown = np.asarray(read_url(encode_picture(image)).convert("RGB"), int)
    expected = np.broadcast_to(255 * image, (3, side, side)).transpose(1, 2, 0)
    assert np.abs(shown - expected).max() <= 0.5


def test_large_pictures_are_nearly_the_same_and_short() -> None:
    """A smooth one at 224 px: mean squared error below .0005; one at 600 px is made smaller."""
    ramp = np.linspace(0, 1, 224)
    image = np.stack([np.outer(ramp, ramp), np.outer(ramp, 1 - ramp), np.outer(1 - ramp, ramp)])
    source = encode_picture(image)
    shown = np.asarray(read_url(source).convert("RGB")) / 255
    assert source.startswith("data:image/webp") and shown.shape == (224, 224, 3)
    assert np.square(shown.transpose(2, 0, 1) - image).mean() < 5e-4 and len(source) < 10_000
    assert read_url(encode_picture(np.zeros((3, 600, 300)))).size == (100, 200)


@pytest.mark.parametrize(("rows", "images"), [(5, 12), (100, 4), (1000, 2)])
def test_many_strips_show_fewer_images_each(rows: int, images: int) -> None:
    """Two at least; notes are those of the images."""
    strip = Strip("a", "decoder", np.zeros((12, 1, 8, 8)), ["cat"] * 12)
    strips = limit_strips([strip] * rows)
    assert len(strips) == rows and rows * images <= max(PAGE_PICTURES, 2 * rows)
    assert {(len(s.images), len(s.notes)) for s in strips} == {(images, images)}


def test_reconstructions_of_other_images_are_left_out(make_bench: Make) -> None:
    """They would stand below originals that are not theirs."""
    folder = make_bench()
    path = folder / "runs" / "0-0" / "guesses.safetensors"
    kept = load_file(path)
    save_file(kept | {"targets": np.ascontiguousarray(kept["targets"][::-1])}, path)
    other, *_ = guess(folder)
    assert [strip.name for strip in other] == ["sent", "first guess", "second guess", "third guess"]


def test_who_draws_waits_for_no_library_of_models() -> None:
    """Nor for the chain's diagnostics where there are too few rounds to judge: seconds each."""
    script = """if True:
        import sys
        import numpy
        import torch
        from fedcel.posterior import diagnose
        from sims.report.reconstruction_strips import tile_images
        tile_images(numpy.zeros((2, 1, 8, 8), numpy.float32))
        assert diagnose(torch.rand(10, 3)) is None
        print(sorted({"arviz_stats", "scipy.stats", "torchvision"} & sys.modules.keys()))
    """
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_colours_are_the_same_numbers_in_all_rows() -> None:
    """Equal numbers of two encoders have equal colours; a smaller one is darker."""
    information = torch.tensor([[10.0, 1.0], [0.1, 0.0]])[None, None]
    deviation = torch.tensor([[0.3, 0.1], [0.1, 0.0]])[None, None]
    prior = torch.full((1, 2, 2), 0.3)
    strips, note = draw_leak_strips(
        {
            "weak": LeakMaps(information / 10, deviation, prior, True),
            "strong": LeakMaps(information, deviation / 3, prior, True),
        }
    )
    assert [(strip.group, strip.name) for strip in strips] == [
        *[("weak", "exposed"), ("weak", "unknown")],
        *[("strong", "exposed"), ("strong", "unknown"), ("", "unknown without a message")],
    ]
    weak, weak_unknown, strong, strong_unknown, prior = (strip.images for strip in strips)
    assert weak.shape == (1, 3, 2, 2)
    assert (weak[..., 0, 0] == strong[..., 0, 1]).all()
    assert strong[..., 0, 0].sum() > strong[..., 0, 1].sum() > strong[..., 1, 0].sum()
    assert (weak_unknown[..., 0, 1] == strong_unknown[..., 0, 0]).all()
    assert (prior[..., 0, 0] == weak_unknown[..., 0, 0]).all()
    assert "from 0.01 to 10" in note
    assert "0 to 0.3" in note
