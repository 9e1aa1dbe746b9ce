"""Real processes: Ctrl-C and resume on Ray, and the app under Flower's own command."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedcel.files import read_tensors
from tests.bench.endurance_ray import is_below
from tests.system.federation import signal_processes

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
RAY_ENDED = "Ray ended the training, as it does where its raylet, agent or head node ended"
ONE_BY_ONE = ["--set", "local.at-once=1"]
"""So that this process gives the bits of Ray's."""


def command(run: Path, engine: str) -> list[str]:
    words = [sys.executable, "-m", "sims", "simulate", "digits", "--variant", "cluster"]
    return [*words, "--set", "rounds=30", *ONE_BY_ONE, "--engine", engine, "--out", str(run)]


def tensors(run: Path) -> dict[str, dict[str, object]]:
    """Return the content of all that a run keeps in tensors: model, chain, states."""
    return {
        str(path.relative_to(run)): {name: t.tolist() for name, t in read_tensors(path)[0].items()}
        for path in run.rglob("*.safetensors")
    }


def start_on_ray(run: Path) -> subprocess.Popen[str]:
    """Start a training on Ray and wait for its first three rounds."""
    process = subprocess.Popen(command(run, "ray"), stderr=subprocess.PIPE, text=True, cwd=ROOT)
    events = run / "events.jsonl"
    limit = time.monotonic() + 240
    while not (events.exists() and len(events.read_text().splitlines()) >= 3):
        assert process.poll() is None, "the run ended by itself"
        assert time.monotonic() < limit, "no three rounds within four minutes"
        time.sleep(0.1)
    return process


@pytest.mark.long
def test_ctrl_c_on_ray_keeps_complete_rounds_and_a_resumed_run_ends_like_the_loop(
    tmp_path: Path,
) -> None:
    """Eight virtual clients, SIGINT after three rounds: exit 130, state whole, the same bits."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    process, events = start_on_ray(run), run / "events.jsonl"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "Traceback" not in said
    complete = events.read_text().splitlines()
    assert json.loads(complete[-1])["clients"] == 8
    assert len(complete) < 30 and not (run / "result.json").exists()
    subprocess.run([*command(run, "ray"), "--resume"], check=True, cwd=ROOT)
    subprocess.run(command(whole, "local"), check=True, cwd=ROOT)
    assert events.read_text().splitlines()[: len(complete)] == complete
    assert tensors(run) == tensors(whole)


def find_descendant(ancestor: int, words: str) -> int:
    """Return the process below this one whose command begins with these words."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            title = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        process = int(entry.name)
        if words in title[:200] and process != ancestor and is_below(process, ancestor):
            return process
    raise LookupError(f"no {words} below {ancestor}")


@pytest.mark.long
@pytest.mark.parametrize(
    ("victim", "reason"),
    [
        ("raylet/raylet", RAY_ENDED),
        ("ray::DashboardAgent", RAY_ENDED),
        ("-m sims simulate", "its process was killed (SIGKILL), for want of memory perhaps"),
    ],
)
def test_a_training_whose_ray_dies_says_so_and_goes_on_where_it_was(
    tmp_path: Path, victim: str, reason: str
) -> None:
    """Exit 1, one line of ours: what died, and the very command that ends with the same bits."""
    run, whole = tmp_path / "run", tmp_path / "whole"
    process = start_on_ray(run)
    os.kill(find_descendant(process.pid, victim), signal.SIGKILL)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 1
    (line,) = [line for line in said.splitlines() if line.startswith("fedcel: ")]
    assert line.startswith(f"fedcel: {reason}") and "(raylet)" not in said
    words = shlex.split(line.partition("complete rounds are saved, go on: fedcel ")[2])
    assert words[-1] == "--resume"
    if victim.startswith("raylet"):
        subprocess.run([sys.executable, "-m", "sims", *words], check=True, cwd=ROOT)
        subprocess.run(command(whole, "local"), check=True, cwd=ROOT)
        assert tensors(run) == tensors(whole)


@pytest.mark.long
def test_flwr_run_starts_the_same_app(tmp_path: Path) -> None:
    """`flwr run .` in simulation: our keys in --run-config, a finished run folder at the end."""
    out = tmp_path / "run"
    environment = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "FLWR_HOME": str(tmp_path / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    }
    config = f'out="{out}" clients=3 rounds=3 cel.kind="cluster" cel.warm-up=1 chain.burn-in=0.6'
    command = ["flwr", "run", ".", "--stream", "--run-config", config]
    command += ["--federation-config", "num-supernodes=3 client-resources-num-cpus=1"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240
        )
        # Exit status 0 is no proof: it is given for a crashed app too.
        assert (out / "result.json").exists(), done.stdout[-3000:] + done.stderr[-1000:]
    finally:
        signal_processes(f"FLWR_HOME={tmp_path}/", signal.SIGTERM)  # the detached server
    result = json.loads((out / "result.json").read_text())
    assert result["samples"] == 1
    assert len((out / "events.jsonl").read_text().splitlines()) == 3
