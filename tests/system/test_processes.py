"""Real processes: Ctrl-C on Ray, and the app under Flower's own command."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def test_ctrl_c_on_ray_ends_the_process_and_keeps_complete_rounds(tmp_path: Path) -> None:
    """Eight virtual clients, SIGINT after three rounds: exit 130 within a minute, state whole."""
    run = tmp_path / "run"
    command = [sys.executable, "-m", "sims", "simulate", "digits", "--engine", "ray"]
    command += ["--set", "rounds=5000", "--out", str(run)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    events = run / "events.jsonl"
    limit = time.monotonic() + 240
    while not (events.exists() and len(events.read_text().splitlines()) >= 3):
        assert process.poll() is None, "the run ended by itself"
        assert time.monotonic() < limit, "no three rounds within four minutes"
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "Traceback" not in said
    assert json.loads(events.read_text().splitlines()[-1])["clients"] == 8
    assert (run / "state" / "server.safetensors").exists()


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
        stop_superlink(tmp_path)
    result = json.loads((out / "result.json").read_text())
    assert result["samples"] == 1
    assert len((out / "events.jsonl").read_text().splitlines()) == 3


def stop_superlink(home: Path) -> None:
    """End the detached server that `flwr run` left behind, found by its own home folder."""
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"FLWR_HOME={home}/".encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGTERM)
        except (OSError, ProcessLookupError):
            continue
