"""The deployment page as it is typed: its own blocks, in its order, by two users of one machine."""

import os
import re
import signal
import subprocess
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from fedcel.settings import parse_settings
from tests.system.federation import BIN, LIMIT, ROOT, copy_app, find_port, signal_processes

PAGE = ROOT / "docs" / "how-to" / "deploy-a-federation.md"
CONNECTIONS = '[superlink]\ndefault = "mine"\n\n[superlink.mine]\naddress = ":local:"\n'
"""What the operator has in Flower's configuration already."""
SCP = """#!/bin/sh
set -eu
case "$2" in
    server.example:*) cp "$1" "$MACHINES/server/${2#*:}" ;;
    nodes.example:*) cp "$1" "$MACHINES/nodes/${2#*:}" ;;
    *) exit 1 ;;
esac
"""
"""Copies between the homes of the two users in the place of two machines."""


class Block(NamedTuple):
    """A step of the page."""

    number: int
    machine: str
    script: str


def read_blocks() -> list[Block]:
    steps = PAGE.read_text().split("## From empty machines to a report")[1].split("\n## ")[0]
    parts = re.split(r"^\*\*(\d+)\. (\w+)", steps, flags=re.MULTILINE)[1:]
    blocks = []
    for number, machine, text in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        (script,) = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
        blocks.append(Block(int(number), machine.lower(), script))
    return blocks


def test_the_page_has_its_steps_in_order() -> None:
    """Each names its machine; what one step makes is what the next one takes."""
    blocks = read_blocks()
    assert [block.number for block in blocks] == [*range(1, 10)]
    assert {block.machine for block in blocks} == {"both", "server", "nodes"}
    assert "deployment,simulation,service" in blocks[0].script


def test_the_trial_goes_on_without_the_larger_node() -> None:
    """By the images that the page gives them, and the least share of the settings."""
    pattern = r"trial_images.py (\d+) (\d+) ~/node"
    parts = re.findall(pattern, "".join(block.script for block in read_blocks()))
    sizes = [int(last) - int(first) for first, last in parts]
    least_share = parse_settings({}).strategy.least_share
    assert len(sizes) == 2 and min(sizes) / sum(sizes) >= least_share


@pytest.mark.long
def test_the_page_is_typed_from_certificates_to_the_report(tmp_path: Path) -> None:
    """All blocks but the installation; other ports, the server's name is this machine's."""
    port = find_port()
    changes = {
        "~/superlink.db": f"~/superlink.db 127.0.0.1 {port}",
        "server.example:9092": f"127.0.0.1:{port}",
        "127.0.0.1:9092": f"127.0.0.1:{port}",
        "127.0.0.1 9094": f"127.0.0.1 {find_port()}",
        "127.0.0.1 9095": f"127.0.0.1 {find_port()}",
    }
    copy_app(tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "scp").write_text(SCP)
    (programs / "scp").chmod(0o755)
    configuration = tmp_path / "server" / ".flwr" / "config.toml"
    configuration.parent.mkdir(parents=True)
    configuration.write_text(CONNECTIONS)
    (tmp_path / "nodes").mkdir()
    logs = {}
    try:
        for block in read_blocks()[1:]:
            logs[block.number] = type_block(block, tmp_path, changes)
            if block.number == 5:
                logs[5] += type_block(block, tmp_path, changes)
    finally:
        signal_processes(f"MACHINES={tmp_path}", signal.SIGKILL)
    assert "finished:completed" in logs[8] and "the run is complete" in logs[8]
    assert (tmp_path / "server" / "run" / "report.html").exists()
    connections = tomllib.loads(configuration.read_text())["superlink"]
    assert connections["default"] == "mine" and connections["mine"] == {"address": ":local:"}
    assert connections["here"]["root-certificates"] == f"{tmp_path}/server/pki/ca.crt"


def type_block(block: Block, folder: Path, changes: dict[str, str]) -> str:
    """Type a block on its machine; return what it said."""
    script = block.script
    for words, instead in changes.items():
        script = script.replace(words, instead)
    environment = {key: value for key, value in os.environ.items() if key != "FLWR_HOME"} | {
        "HOME": str(folder / block.machine),
        "MACHINES": str(folder),
        "PATH": f"{folder}/programs:{BIN}:{os.environ['PATH']}",
    }
    path = folder / f"log-{block.number}"
    with path.open("wb") as log:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder / "app",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=LIMIT,
        )
    text = path.read_text(errors="replace")
    assert done.returncode == 0, f"step {block.number}: {text}"
    return text
