"""A folder of pictures as they come, with no other key than its path."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedcel.files import read_json
from sims.commands.main import main

QUICK = ["--engine", "local", "--set", "rounds=5", "--set", "local.steps=3"]
QUICK += ["--set", "cel.warm-up=1", "--set", "clients=2"]
DONE = (
    "images: 33 of 3 classes from 9x7 to 120x80 pixels, resized to 32x32",
    "images: 22 grey taken as colour; 11 with transparency laid on white",
    "images: 19 to train on, 3 for validation, 5 of the attacker, 6 test images",
)


def write_pictures(root: Path) -> None:
    """Write eleven pictures of each of three classes: grey, in colours, and half clear."""
    stream = np.random.default_rng(0)
    for name in ("ant", "bee", "cat"):
        (root / name).mkdir(parents=True)
        for number in range(11):
            pixels = stream.integers(0, 256, (7, 9, 3), dtype=np.uint8)
            picture = Image.fromarray(pixels)
            if name == "ant":
                picture.resize((120, 80) if number else (9, 7)).save(root / name / f"{number}.jpg")
            elif name == "bee":
                picture.convert("L").save(root / name / f"{number}.png")
            else:
                picture = picture.convert("LA")
                picture.putalpha(128)
                picture.save(root / name / f"{number}.png")


def test_a_folder_needs_no_other_key(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What was done to the pictures is said at the start, and stands in the result and its page."""
    write_pictures(tmp_path / "pictures")
    path = ["--set", f"data.path={tmp_path / 'pictures'}"]
    run = tmp_path / "run"
    assert main(["simulate", "folder", *path, "--out", str(run), *QUICK]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("images:")]
    assert tuple(lines) == DONE
    notes = [line.removeprefix("images: ") for line in DONE]
    result = read_json(run / "result.json")
    assert isinstance(result, dict) and result["data-notes"] == notes
    assert result["class-names"] == ["ant", "bee", "cat"]
    assert f"Changes made to the images first: {'; '.join(notes)}." in (
        run / "report.html"
    ).read_text().replace("&#39;", "'")


@pytest.mark.long
def test_a_bench_says_it_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Not for each of its cells; nothing is said where nothing was done."""
    write_pictures(tmp_path / "pictures")
    path = ["--set", f"data.path={tmp_path / 'pictures'}", "--set", "attack.names=optimal"]
    assert main(["bench", "folder", *path, "--out", str(tmp_path / "b"), *QUICK]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("images:")]
    assert tuple(lines) == DONE
    assert main(["simulate", "digits", "--out", str(tmp_path / "d"), *QUICK]) == 0
    assert "images:" not in capsys.readouterr().err
    assert "data-notes" not in (tmp_path / "d" / "result.json").read_text()


def test_what_is_no_picture_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """With exit code 2, before there is a run."""
    write_pictures(tmp_path / "pictures")
    (tmp_path / "pictures" / "ant" / "readme.txt").write_text("ants")
    path = ["--set", f"data.path={tmp_path / 'pictures'}"]
    assert main(["simulate", "folder", *path, "--out", str(tmp_path / "run"), *QUICK]) == 2
    assert "1 of 34 pictures cannot be used: " in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
