"""Missing and damaged files are named, with the remedy; whole ones are read as written."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from fedcel.errors import RunError
from sims.report.book import read_book, read_finished
from sims.results.columns import MSE
from tests.sims.report.conftest import attack_of

Make = Callable[..., Path]
ATTACKED = (
    '{"settings": {}, "revision": 1, "finished": "2026-01-01T00:00:00Z", '
    '"rows": [{"attack": "decoder", "mse": 0.1}]}'
)


def test_bench_is_read(make_bench: Make) -> None:
    """Rows, runs, settings, events, attacks and images are there."""
    book = read_book(make_bench())
    assert (book.title, len(book.summaries)) == ("Digits: what leaks", 3)
    (run,) = book.summaries[0].runs
    assert run.settings.chain.burn_in == 0.8
    assert run.result.private["4.0"].top1_kept == 0.84
    assert len(run.events) == 40
    assert run.events[6].rejected[0].reason == "not finite"
    assert len(run.attacks) == 10
    assert run.images["decoder"].shape == (12, 1, 8, 8)


def test_run_is_a_bench_of_one_row(make_bench: Make) -> None:
    """The worst attack of a run is the one with the lowest mean MSE over its seeds."""
    book = read_book(make_bench() / "runs" / "0-0")
    ((row,),) = (summary.rows for summary in book.summaries)
    assert row.worst
    assert (row.worst.attack, row.title) == ("decoder", "0-0")
    assert row.worst.mse == pytest.approx(0.0312 + 0.0002)  # seeds 0, 1, 2 add 0, 2e-4, 4e-4
    assert row.worst.identification_1 == pytest.approx(0.21)


def test_damaged_rows_are_named(make_bench: Make) -> None:
    folder = make_bench()
    row = json.loads((folder / "bench.json").read_text())[0]
    for rows, words in (
        ([{**row, "attacks": [{"mse": 1}]}], "0.attacks.0.attack: Field required"),
        ([row, {**row, "mse": "low", "accuracy": "low"}], "1.accuracy: .*'low'"),
        ([{**row, "run": None}], "0.run: "),
    ):
        (folder / "bench.json").write_text(json.dumps(rows))
        with pytest.raises(RunError, match=rf"bench\.json is damaged: {words}"):
            read_book(folder)
    (folder / "bench.json").write_text("[{")
    with pytest.raises(RunError, match=r"bench\.json is damaged: the file: Invalid JSON"):
        read_book(folder)


def test_the_page_is_held_to_the_attack_that_tables_are(make_bench: Make) -> None:
    """Ten easy targets do not stand against 400."""
    folder = make_bench()
    rows = json.loads((folder / "bench.json").read_text())
    for row in rows:
        few = attack_of(0.01, "rmle", targets=10)
        row |= {"identification-candidates": 100, "attacks": [attack_of(0.05, targets=400), few]}
    (folder / "bench.json").write_text(json.dumps(rows))
    book = read_book(folder)
    assert [(s.worst_attacks, s.measure(MSE).mean) for s in book.summaries] == [
        (["decoder"], 0.05)
    ] * 3


def test_an_attack_that_failed_is_named_where_the_worst_is(make_bench: Make) -> None:
    """It might have been the worst."""
    folder = make_bench()
    rows = json.loads((folder / "bench.json").read_text())
    rows[0]["failed-attacks"] = ["rmle"]
    (folder / "bench.json").write_text(json.dumps(rows))
    first, *others = read_book(folder).summaries
    assert first.name_worst() == f"{first.worst_attacks[0]} / rmle failed"
    assert not any("failed" in summary.name_worst() for summary in others)


def test_no_folder(tmp_path: Path) -> None:
    """A folder without results says what to give."""
    (tmp_path / "result.json").write_text("{}")
    with pytest.raises(RunError, match=r"result.json is a file; give the folder"):
        read_book(tmp_path / "result.json")
    (tmp_path / "result.json").unlink()
    with pytest.raises(RunError, match=r"neither bench\.json nor result\.json"):
        read_book(tmp_path)


def test_unfinished_run(tmp_path: Path) -> None:
    """A run without a result says how to go on."""
    (tmp_path / "settings.toml").write_text("format = 1\n")
    with pytest.raises(RunError, match="--resume"):
        read_book(tmp_path)


@pytest.mark.parametrize(
    "name", ["settings.toml", "events.jsonl", "result.json", "guesses.safetensors"]
)
def test_missing_file(make_bench: Make, name: str) -> None:
    folder = make_bench()
    (folder / "runs" / "1-0" / name).unlink()
    with pytest.raises(RunError, match=rf"1-0/{name} is missing"):
        read_book(folder)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("settings.toml", "seed = ", "settings.toml is not TOML"),
        ("settings.toml", "format = 1\nseed = 'x'\n", "settings.toml is damaged: seed is 'x'"),
        ("settings.toml", "format = 1\nsede = 1\n", "settings.toml .* did you mean 'seed'"),
        ("events.jsonl", '{"round": 1}\n{"rou', "line 2 is no round"),
        ("events.jsonl", '{"accuracy": 0.5}\n', "line 1 is no round"),
        ("result.json", '{"accuracy": "high"}', "result.json .* accuracy: .*'high'"),
        ("result.json", '{"accuracy": NaN}', "result.json .* accuracy: .*finite"),
        ("result.json", "[]", "result.json is damaged: the file: .*object"),
        ("result.json", "{", "result.json is damaged"),
        ("attacks/all.json", ATTACKED.replace("attack", "a"), "rows.0.attack: Field required"),
        ("attacks/all.json", '{"rows": []}', "all.json is damaged: settings: Field required"),
        ("attacks/all.safetensors", "no tensors", "all.safetensors is damaged"),
    ],
)
def test_damaged_file(make_bench: Make, name: str, text: str, message: str) -> None:
    folder = make_bench()
    (folder / "runs" / "1-0" / name).write_text(text)
    with pytest.raises(RunError, match=message):
        read_book(folder)


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ({"decoder": (2, 1, 8, 8)}, "'targets' among them"),
        ({"targets": (2, 1, 8, 8), "decoder": (3, 1, 8, 8)}, "must all be one"),
        ({"targets": (8, 8)}, "must all be one"),
    ],
)
def test_images_of_other_shapes(
    make_bench: Make, images: dict[str, tuple[int, ...]], message: str
) -> None:
    """Images that cannot stand beside each other are refused."""
    run = make_bench() / "runs" / "0-0"
    tensors = {name: np.zeros(shape, np.float32) for name, shape in images.items()}
    save_file(tensors, run / "attacks" / "all.safetensors")
    with pytest.raises(RunError, match=message):
        read_finished(run)


@pytest.mark.parametrize("value", [float("nan"), 2.0, -0.5])
def test_images_out_of_range(make_bench: Make, value: float) -> None:
    """Nothing is clamped in silence."""
    run = make_bench() / "runs" / "0-0"
    bad = np.full((2, 1, 8, 8), value, np.float32)
    save_file({"targets": bad}, run / "attacks" / "all.safetensors")
    with pytest.raises(RunError, match=r"values in \[0, 1\]"):
        read_finished(run)
