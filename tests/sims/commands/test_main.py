"""The command line, as a user meets it: exit codes, one clear message, no traceback."""

import errno
import importlib
import json
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from fedcel.errors import RunError
from fedcel.settings import Settings, flatten_settings, parse_run_config
from sims.bench import scenario
from sims.commands.main import GROUPS, main
from sims.results.attack_results import read_attack_rows
from tests.run_config import PYPROJECT, list_defaults

ROOT = Path(__file__).parents[3]
QUICK = ["--engine", "local", "--set", "rounds=5", "--set", "local.steps=3"]
QUICK += ["--set", "cel.warm-up=1"]
QUICK += ["--set", "attack.seeds=1", "--set", "attack.budget=0.05"]


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what is said when the input is wrong, in at most three lines."""
    assert main(arguments) == 2
    message = capsys.readouterr().err
    assert len(message.splitlines()) <= 3
    assert "Traceback" not in message
    return message


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("cel.wieght=1", "did you mean 'cel.weight'"),
        ("rounds=many", "rounds is 'many'"),
        ("net.features=0", "must be 1 or more"),
        ("data.source=cifra", "nearest: 'cifar'"),
        ("clients=900", "client"),
        ("data.test=3000", "3000"),
        ("net.name=vgg", "net.name is 'vgg'"),
        ("net.name=cnn5:build", "no module 'cnn5'"),
        ("rounds", "not of the form KEY=VALUE, such as --set rounds=60"),
        (" =1", "not of the form KEY=VALUE"),
        ("seed=abc", "seed is 'abc'"),
        ("seed=1.5", "seed is 1.5"),
        ("attack.names=decodr", "did you mean 'decoder'"),
    ],
)
def test_wrong_settings(
    setting: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What, its value, what is allowed."""
    out = ["--out", str(tmp_path / "run"), "--engine", "local"]
    assert words in refused(["simulate", "digits", *out, "--set", setting], capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["tune", "digits", "--trials", "0"], "is not in the range x>=1"),
        (["bench", "digits", "--jobs", "-1"], "is not in the range x>=1"),
        (["tune", "digits", "--engine", "ray"], "--engine"),
        (["simulate", "digits", "--resume"], "--resume needs --out"),
        (["simulat", "digits"], "Did you mean 'simulate'?"),
        (["settings", "sel"], "no group of settings 'sel'; there are "),
    ],
)
def test_wrong_words(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The word and the remedy, once."""
    assert refused(words, capsys).count(reason) == 1


@pytest.mark.filterwarnings("always:engine")
@pytest.mark.parametrize("name", ["loop", "batched", "processes"])
def test_an_engine_s_former_name_is_read_with_a_warning(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the command line, by --set, by both and in a file of settings: once."""
    engines = []

    def note_engine(settings: Settings, *_: object, **__: object) -> None:
        engines.append(settings.engine)
        raise RunError("nothing is trained")

    monkeypatch.setattr("sims.engines.simulate.simulate", note_engine)
    (tmp_path / "older.toml").write_text(f'[settings]\nengine = "{name}"\n')
    for words in (
        ["digits", "--engine", name],
        ["digits", "--set", f"engine={name}"],
        ["digits", "--set", f"engine={name}", "--engine", name],
        [str(tmp_path / "older.toml")],
    ):
        assert main(["simulate", *words, "--out", str(tmp_path / "run")]) == 2
        assert capsys.readouterr().err.count(f"warning: engine '{name}' is now engine 'loc") == 1
    assert engines == ["local"] * 4
    assert main(["simulate", "--help"]) == 0
    assert "[ray|local|auto]" in capsys.readouterr().out


@pytest.mark.filterwarnings("default:local.augment and chain.scope")
def test_a_warning_is_printed_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings are read several times in a run."""
    words = ["local.augment=affine", "chain.scope=full", "data.test=120", "clients=2"]
    more = [word for value in words for word in ("--set", value)]
    assert main(["simulate", "digits", "--out", str(tmp_path / "run"), *QUICK, *more]) == 0
    assert capsys.readouterr().err.count("warning: local.augment and chain.scope 'full'") == 1


@pytest.mark.parametrize("command", ["simulate", "bench", "tune"])
def test_a_file_is_no_folder(
    command: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither as the folder nor above it: said in a line, before anything is trained."""
    for module in ("sims.engines.simulate", "sims.tuning.search"):
        engine = importlib.import_module(module).local
        monkeypatch.setattr(engine, "train_locally", lambda *_, **__: pytest.fail("it was trained"))
    (tmp_path / "file").write_text("mine")
    places = {tmp_path / "file" / "below", tmp_path if command == "tune" else tmp_path / "file"}
    for place in places:
        message = refused([command, "digits", "--out", str(place)], capsys)
        assert len(message.splitlines()) == 1 and str(tmp_path) in message
        assert command == "tune" or f"but {tmp_path / 'file'} is a file; name a folder" in message
    assert (tmp_path / "file").read_text() == "mine"


def test_simulate_attack_report_in_turn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Every file of a run is there; a second simulate into it is refused."""
    run = tmp_path / "run"
    assert main(["simulate", "digits", "--variant", "cluster", "--out", str(run), *QUICK]) == 0
    assert f"run: {run}\n" in capsys.readouterr().err
    assert main(["attack", str(run), "--set", "attack.seeds=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    attacks = [line.split()[:2] for line in lines if line.startswith("kernel-ridge ")]
    assert attacks == [["kernel-ridge", "smashed-data"]] * 2
    assert main(["report", str(run)]) == 0
    names = {path.name for path in run.iterdir()}
    assert names >= {
        "settings.toml",
        "events.jsonl",
        "result.json",
        "model.safetensors",
        "chain",
        "state",
        "attacks",
        "report.html",
        "figures",
    }
    rows = read_attack_rows(run)
    assert {row.attack for row in rows} == {
        "optimal",
        "decoder",
        "kernel-ridge",
    }
    assert {row.seed for row in rows} == {0, 1}
    capsys.readouterr()
    assert "not empty" in refused(["simulate", "digits", "--out", str(run)], capsys)
    assert "only attack.* can change" in refused(["attack", str(run), "--set", "seed=1"], capsys)
    assert "is a single run" in refused(["table", str(run)], capsys)
    assert "has no bench.json; give a folder" in refused(["table", str(run / "no")], capsys)
    message = refused(["table", str(run), "--out", str(run)], capsys)
    assert "is a folder; --out names the file to write" in message  # told before the work
    new = tmp_path / "new" / "page.md"
    assert "is a single run" in refused(["table", str(run), "--out", str(new)], capsys)
    assert not new.parent.exists()
    (tmp_path / "bench" / "runs").mkdir(parents=True)
    assert "is a bench, not a run" in refused(["attack", str(tmp_path / "bench")], capsys)


def test_settings_toml_repeats_the_run(tmp_path: Path) -> None:
    """The run's own settings file is a scenario; the model comes out the same."""
    one, two = tmp_path / "one", tmp_path / "two"
    assert main(["simulate", "digits", "--out", str(one), *QUICK]) == 0
    assert main(["simulate", str(one / "settings.toml"), "--out", str(two)]) == 0
    assert (one / "model.safetensors").read_bytes() == (two / "model.safetensors").read_bytes()


def test_jobs_are_refused_on_an_engine_that_is_parallel_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before a cell is trained."""
    jobs = ["--engine", "ray", "--jobs", "2", "--out", str(tmp_path / "c")]
    assert "engine 'ray' is parallel itself" in refused(["bench", "digits", *jobs], capsys)


def test_settings_lists_every_key_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    """As text and as JSON, of all groups or one; types as a user knows them, no repr of Python."""
    assert main(["settings", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["key"] for row in rows} >= {"seed", "cel.warm-up", "privacy.clip-kind"}
    assert main(["settings", "cel"]) == 0
    shown = capsys.readouterr().out
    assert "Takes: number > 0, or none." in shown and "net.features" not in shown
    assert main(["settings"]) == 0
    shown = capsys.readouterr().out
    assert "cel.warm-up" in shown
    text_of = dict(re.findall(r"^(\S+) = .*\n((?:    .*\n)+)", shown, re.MULTILINE))
    assert "Only of: dirichlet." in text_of["data.alpha"]
    assert not any("Only of" in text_of[key] for key in ("data.labels", "cel.weight", "seed"))
    for repr_of_python in ("Literal", "Annotated", "Union", "None", "True", "Field", "<class"):
        assert repr_of_python not in shown


def test_flower_run_config_has_every_setting_with_its_default() -> None:
    """`flwr run` refuses keys that pyproject.toml does not list."""
    config = tomllib.loads(PYPROJECT.read_text())["tool"]["flwr"]["app"]["config"]
    assert parse_run_config(flatten_settings(config), 8) == Settings()
    assert config == list_defaults(), "run `python -m tests.run_config`"


def test_a_command_reads_no_packaged_scenario_at_its_start() -> None:
    """Only its help lists them."""
    code = (
        "import tomllib; tomllib.loads = lambda text: 1 / 0\n"
        "from sims.commands.main import main; raise SystemExit(main(['--version']))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)


def test_version_and_scenarios_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    """The version of the distribution; every packaged scenario in the help of what takes one."""
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedcel {version('fedcel')}\n"
    assert main(["bench", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in scenario.list_packaged())


@pytest.mark.parametrize(
    "command", [*(name for commands in GROUPS.values() for name in commands), "ledger keys"]
)
def test_help_shows_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of commands to copy."""
    words = command.split()
    assert main([*words, "--help"]) == 0
    assert f"fedcel {command}" in capsys.readouterr().out.split("Examples")[1]


@pytest.mark.parametrize("command", ["simulate", "audit"])
def test_a_place_that_takes_nothing_is_refused_before_the_work(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A full disk, a name of other bytes than UTF-8: told at once, in a line."""
    words = {
        "simulate": ["simulate", "digits", *QUICK],
        "audit": ["audit", "nowhere:at_all", "--data", "digits", "--noise", "1"],
    }[command]
    name = os.fsdecode(b"caf\xe9")
    assert "must be of characters that UTF-8 has" in refused(
        [*words, "--out", str(tmp_path / name)], capsys
    )

    def fill(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("sims.commands.options.TemporaryFile", fill)
    message = refused([*words, "--out", str(tmp_path / "new" / "run")], capsys)
    assert f"but {tmp_path} cannot be written into (No space left on device)" in message
    assert not list(tmp_path.iterdir())
