"""An environment in which Ray cannot begin is refused at once, in words."""

import os
import socket
import time
from pathlib import Path

import pytest

from sims.commands.main import main
from sims.engines.ray import check_ray_environment

SIMULATE = ["simulate", "digits", "--engine", "ray", "--out"]


@pytest.mark.parametrize("is_listening", [False, True])
def test_a_dead_cluster_is_told_in_seconds(
    is_listening: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Ray itself tries for nine minutes; something else may listen there, and say nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        if is_listening:
            listener.listen()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        monkeypatch.setenv("RAY_ADDRESS", address)
        begin = time.monotonic()
        assert main([*SIMULATE, str(tmp_path / "run")]) == 2
    assert time.monotonic() - begin < 30
    error = capsys.readouterr().err
    assert f"RAY_ADDRESS is '{address}', where no Ray cluster answers within 5 s" in error
    assert "env -u RAY_ADDRESS" in error
    assert not (tmp_path / "run").exists()


def test_a_folder_too_long_for_sockets_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the variable that is shorter; a cluster that is there has a folder of its own."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    longest = 107 - 61 - len(str(os.getpid()))
    monkeypatch.setenv("TMPDIR", "/tmp/" + (longest - 4) * "t")
    assert main([*SIMULATE, str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert (
        f"{longest + 1} bytes long: at most {longest} leave" in error
        and "RAY_TMPDIR=/tmp in front" in error
    )
    assert not (tmp_path / "run").exists()
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    check_ray_environment()
