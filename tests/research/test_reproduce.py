"""Published tables made again: end to end, interrupted, compared; and the list of them."""

import json
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from compare_rows import compare_rows
from fedcel.errors import FailedError, SettingsError
from published_tables import (
    DATA,
    TABLES,
    PublishedTable,
    find_tables,
    format_command_table,
)
from reproduce import app, fill_commands, make_tables
from sims.bench import list_cells, list_packaged, read_scenario
from sims.commands.main import main

RESULTS = Path(__file__).parents[2] / "docs" / "results"
TINY = """
[settings]
clients = 2
rounds = 2
local = { steps = 2 }
cel = { warm-up = 0 }
attack = { names = "optimal", seeds = 1 }
data = { test = 120 }
[bench]
seeds = "0,1"
"""


def make_tiny(folder: Path) -> PublishedTable:
    """Return a table of one variant with two seeds, and attacks on each of its runs."""
    (folder / "tiny.toml").write_text(TINY)
    (folder / "kept").mkdir()
    (folder / "kept" / "tiny.json").write_text("[]")
    bench = f"fedcel bench {folder}/tiny.toml --jobs 1 --out BENCH"
    attack = "fedcel attack RUN --set attack.names=kernel-ridge --set attack.targets=20"
    return PublishedTable(
        name="tiny",
        section="leakage",
        number="tiny",
        commands=(bench, attack),
        rows=("tiny.json",),
        source="bench",
    )


@pytest.mark.long  # five commands, each of which loads all there is
def test_a_table_is_made_once_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Interrupted after the bench it goes on with the attacks; an altered row is outside."""
    table, out = make_tiny(tmp_path), tmp_path / "out"
    run, lines = subprocess.run, []

    def run_first(words: list[str], **options: bool) -> object:
        lines.append(words[words.index("sims") + 1])
        if len(lines) == 3:
            return SimpleNamespace(returncode=130)
        return run(words, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(subprocess, "run", run_first)
    with pytest.raises(KeyboardInterrupt):
        make_tables([table], out, jobs=1, data={}, published=tmp_path / "kept")
    assert lines == ["bench", "attack", "attack"]
    lines.clear()
    capsys.readouterr()
    (first,) = make_tables([table], out, jobs=1, data={}, published=tmp_path / "kept")
    assert lines == ["attack"]
    assert "tables: 1, complete: 0;" in capsys.readouterr().err
    assert (first.rows_published, first.rows_again) == (0, 2)

    rows = json.loads((out / "rows" / "tiny.json").read_text())
    (tmp_path / "kept" / "tiny.json").write_text(json.dumps(rows))
    lines.clear()
    capsys.readouterr()
    (same,) = make_tables([table], out, jobs=1, data={}, published=tmp_path / "kept")
    assert lines == []
    assert "complete: 1; about 0 minutes" in capsys.readouterr().err
    assert same.count("inside") == same.count_equal() == len(same.numbers) > 20
    assert f"of {len(same.numbers)} numbers {len(same.numbers)} inside" in str(same)
    for row in rows:
        row["accuracy"] += 0.9
    (tmp_path / "kept" / "tiny.json").write_text(json.dumps(rows))
    (altered,) = make_tables([table], out, jobs=1, data={}, published=tmp_path / "kept")
    assert altered.count_equal() == len(altered.numbers) - 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(
        f"of {len(altered.numbers)} numbers {len(altered.numbers) - 1} inside; others in tiny.json"
    )
    assert [n.key for n in altered.numbers if n.verdict == "outside"] == ["accuracy"]
    (kept,) = json.loads((out / "tiny" / "comparison.json").read_text())
    assert sum(number["verdict"] == "outside" for number in kept["numbers"]) == 1


def test_a_table_that_fails_does_not_stop_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second is made and compared with each of its files; the error names the first."""
    first = make_tiny(tmp_path)
    words = ("fedcel bench digits --out BENCH",)
    files = ("a.json", "b.json")
    second = first.model_copy(update={"name": "second", "commands": words, "rows": files})
    for file, value in zip(files, (0.5, 0.7), strict=True):
        (tmp_path / "kept" / file).write_text(json.dumps([{"variant": "a", "seed": 0, "x": value}]))

    def run(words: list[str], **_: bool) -> object:
        if "second" not in words[-1]:
            return SimpleNamespace(returncode=1)
        Path(words[-1]).mkdir(parents=True)
        Path(words[-1], "bench.json").write_text('[{"variant": "a", "seed": 0, "x": 0.5}]')
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    out = tmp_path / "out"
    with pytest.raises(FailedError, match=r"1 of 2 tables failed: tiny \(.*ended with status 1"):
        make_tables([first, second], out, jobs=1, data={}, published=tmp_path / "kept")
    kept = json.loads((out / "second" / "comparison.json").read_text())
    assert [(one["file"], one["numbers"][0]["verdict"]) for one in kept] == [
        ("a.json", "inside"),
        ("b.json", "outside"),
    ]
    assert "tables: 2; of 2 numbers 1 inside; others in b.json" in capsys.readouterr().err

    (out / "second" / "bench.json").unlink()
    with pytest.raises(FailedError, match=r"second \(.*bench\.json is missing"):
        make_tables([second], out, jobs=1, data={}, published=tmp_path / "kept")


def test_ctrl_c_in_a_command_ends_the_call(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the status of an interruption; scripts start by their own paths."""
    started = []

    def run(words: list[str], **_: object) -> object:
        started.append(words[1:])
        return SimpleNamespace(returncode=130)

    monkeypatch.setattr(subprocess, "run", run)
    assert main(["temperature", "--out", str(tmp_path)], app) == 130
    assert "complete: 0; about 5 minutes" in capsys.readouterr().err
    assert main(["membership", "--out", str(tmp_path)], app) == 130
    (package, script) = started
    assert package[:5] == ["-P", "-m", "sims", "bench", "temperature"]
    assert script[:2] == [str(RESULTS.parent / "research/scripts/membership.py"), "membership"]


def test_means_are_held_to_the_interval_of_the_kept_ones() -> None:
    """Three seeds: 0.5 to 0.7 has t = 4.30, so half a width of 0.248; one seed: 2 percent."""
    kept = [
        {"variant": "a", "seed": s, "x": x, "s": {"y": 1.0}} for s, x in enumerate((0.5, 0.6, 0.7))
    ]
    inside = compare_rows("f", kept, [{"variant": "a", "seed": 0, "x": 0.84, "s": {"y": 1.0}}])
    assert {n.key: n.verdict for n in inside.numbers} == {"x": "inside", "s.y": "inside"}
    outside = compare_rows("f", kept, [{"variant": "a", "seed": 0, "x": 0.86, "s": {"y": 1.1}}])
    assert outside.count("outside") == 2
    assert "x is 0.86, published 0.6 ± 0.248" in str(outside)
    lacking = compare_rows("f", kept, [{"variant": "b", "seed": 0, "x": 0.6}])
    assert lacking.count("missing") == 2
    for again, verdict in ((1.019, "inside"), (1.021, "outside")):
        (number,) = compare_rows("f", [{"x": 1.0}], [{"x": again}]).numbers
        assert number.verdict == verdict


@pytest.mark.filterwarnings("ignore:local.augment and chain.scope")
@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_every_table_has_its_rows_and_its_scenario(table: PublishedTable, tmp_path: Path) -> None:
    """The scenario parses, with as many cells as a bench has; each file of rows is there."""
    for file in table.rows:
        assert json.loads((RESULTS / file).read_text())
    if table.source is None:
        return
    assert table.minutes
    places = {name: str(tmp_path) for name in DATA}
    once = table.model_copy(update={"commands": table.commands[:1]})
    ((program, command, name, *words),) = fill_commands(once, tmp_path, jobs=2, data=places)
    assert words[-2:] == ["--out", str(tmp_path)]
    scripts = ("uncertainty", "membership", "leakage_measures")
    assert (program, command) in [
        ("fedcel", "bench"),
        *(("python", f"docs/research/scripts/{script}.py") for script in scripts),
    ]
    assert name in list_packaged()
    assert list_cells(read_scenario(name), {})


def test_every_file_of_rows_has_a_table() -> None:
    """No number is published without a command."""
    named = [file for table in TABLES.values() for file in table.rows]
    assert sorted(named) == sorted(set(named))
    assert set(named) == {path.name for path in RESULTS.glob("*.json")}


def test_programs_that_rows_name_are_in_their_tables() -> None:
    """A row's module is one of its table's commands; `make bench` runs those of its recipe."""
    recipe = (RESULTS.parents[1] / "Makefile").read_text()
    programs = re.compile(r"python (-m tests\.[a-z_.]+|docs/research/scripts/\w+\.py)")
    for table in TABLES.values():
        text = "\n".join([*table.commands, recipe if "make bench" in table.commands else ""])
        for file in table.rows:
            named = {*programs.findall((RESULTS / file).read_text())}
            assert named <= {*programs.findall(text)}, f"{table.name} does not name {named}"


def test_each_table_has_commands_and_one_file_where_they_make_it() -> None:
    """And its links lead from docs/research to pages that are there."""
    for table in TABLES.values():
        assert table.commands
        assert table.source is None or len(table.rows) == 1
        for link in re.findall(r"\]\(([^)#]+)", table.number):
            assert (RESULTS.parent / "research" / link).exists(), f"{table.name} links to {link}"


def test_tables_by_hand_are_listed_with_their_commands() -> None:
    """They are refused by name, and left out where no name is given."""
    with pytest.raises(SettingsError, match=r"by hand: python docs/research/scripts/robustness.py"):
        find_tables(["robust"])
    with pytest.raises(SettingsError, match="did you mean 'temperature'"):
        find_tables(["temperatur"])
    assert all(table.source for table in find_tables([]))
    page = "\n".join(format_command_table("posteriors"))
    assert "| by hand | `python docs/research/scripts/robustness.py` | 5 | `robust.json` |" in page
    assert "| `temperature` | `fedcel bench temperature --jobs 2 --out BENCH` | 5 |" in page


def test_data_is_asked_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """By the name of the data set, whose place exists."""
    (table,) = find_tables(["fashion-long"])
    (words,) = fill_commands(table, tmp_path, jobs=3, data={"FASHION": "/images"})
    assert words[3:] == ["--jobs", "3", "--set", "data.path=/images", "--out", str(tmp_path)]
    common = ["--out", str(tmp_path), "fashion-long"]
    assert main(common, app) == 2
    assert "'fashion-long' needs FASHION; give its place by --data" in capsys.readouterr().err
    for place in ("FASHION=/none", "fashion=/tmp"):
        assert main([*common, "--data", place], app) == 2
        assert f"--data {place}: must be" in capsys.readouterr().err
