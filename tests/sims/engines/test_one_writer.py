"""Two processes do not write into one folder: the second command ends at once, with status 2."""

import json
from pathlib import Path

import pytest

from fedcel.runs import hold_folder, run_folder
from fedcel.settings import dump_settings, flatten_settings, parse_settings
from sims.commands.main import main
from tests.sims.small import QUICK

SETTINGS = [f"--set={key}={value}" for key, value in QUICK.items()]


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "digits", "--out", "{}", "--resume", *SETTINGS],
        ["bench", "digits", "--out", "{}", "--set=bench.seeds=0", *SETTINGS],
    ],
    ids=["simulate", "bench"],
)
def test_a_folder_in_use_is_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """Exit 2 and one line with the process; nothing in the folder changes."""
    out = tmp_path / "run"
    if words[0] == "simulate":
        raw = flatten_settings(dump_settings(parse_settings(QUICK)))
        scenario = tmp_path / "s.toml"
        scenario.write_text(
            'title = "s"\n[settings]\n'
            + "\n".join(f"{key} = {json.dumps(value)}" for key, value in raw.items())
        )
        words = ["simulate", str(scenario), "--out", "{}", "--resume"]
        run_folder.create_run(out, parse_settings(QUICK))
    with hold_folder(out):
        before = {path: path.read_bytes() for path in out.rglob("*")}
        assert main([word.format(out) for word in words]) == 2
        assert {path: path.read_bytes() for path in out.rglob("*")} == before
    error = capsys.readouterr().err
    assert f"{out} is in use by process " in error and "Traceback" not in error


def is_descendant(process: int, ancestor: int) -> bool:
    """Say whether a process is another, or was begun by it: a command trains in a child of its."""
    status = Path(f"/proc/{process}/status").read_text()
    parent = int(status.split("PPid:")[1].split()[0])
    return process == ancestor or (parent > 1 and is_descendant(parent, ancestor))
