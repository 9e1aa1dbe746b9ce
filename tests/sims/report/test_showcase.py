"""The pictures at the top show what was kept, and say which guesses are right."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from sims.report.book import read_book
from sims.report.showcase import Panel, make_showcase
from sims.report.summary import summarise_book

Make = Callable[..., Path]


def show(folder: Path) -> list[Panel]:
    """Return the panels of all variants of a bench."""
    return make_showcase({s.variant: s for s in summarise_book(read_book(folder))})


def test_each_panel_has_originals_reconstructions_and_three_guesses(make_bench: Make) -> None:
    """Five messages; the first guess is the right one here, the others are not."""
    panels = show(make_bench())
    assert [panel.title for panel in panels] == ["none", "cluster", "gated"]
    names = ["sent", "rebuilt (decoder)", "first guess", "second guess", "third guess"]
    for panel in panels:
        assert [row.name for row in panel.rows] == names
        assert {len(row.pictures) for row in panel.rows} == {5}
        first, second = panel.rows[2].pictures, panel.rows[3].pictures
        assert all(picture.is_right for picture in first)
        assert not any(picture.is_right for picture in second)
        assert first[0].note.startswith("60")
        assert first[0].source == panel.rows[0].pictures[0].source
        assert "first guess, right" in first[0].description


def test_reconstructions_of_other_images_are_left_out(make_bench: Make) -> None:
    """They would stand below originals that are not theirs."""
    folder = make_bench()
    for run in (folder / "runs").iterdir():
        path = run / "guesses.safetensors"
        kept = load_file(path)
        save_file(kept | {"targets": np.ascontiguousarray(kept["targets"][::-1])}, path)
    names = [row.name for row in show(folder)[0].rows]
    assert names == ["sent", "first guess", "second guess", "third guess"]


def test_runs_without_guesses_show_reconstructions(make_bench: Make) -> None:
    """Those of earlier versions, and a run that nobody attacked shows nothing."""
    folder = make_bench()
    for run in (folder / "runs").iterdir():
        (run / "guesses.safetensors").unlink()
    assert [row.name for row in show(folder)[0].rows] == ["sent", "rebuilt (decoder)"]
