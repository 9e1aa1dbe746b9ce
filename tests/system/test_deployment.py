"""Flower's deployment in real processes: TLS, node keys, own data, a node and the server killed."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sims.results.attack_results import read_attack_rows
from sims.watch import describe_run
from tests.system.federation import (
    IMAGES,
    LIMIT,
    ROOT,
    SITES,
    Federation,
    list_rejected,
    open_federation,
    read_events,
    signal_processes,
    wait_until,
)

ROUNDS = 7  # enough for a node to be missed and to come back before the server is killed


def kill_and_restart_node(
    federation: Federation, run: Path, node: "subprocess.Popen[bytes]"
) -> None:
    """Kill the last node; once a round was without it, start it until it takes part again."""
    os.killpg(node.pid, signal.SIGKILL)
    last = SITES - 1
    wait_until(
        lambda: set(list_rejected(read_events(run)[-1])) == {last}, lambda: federation.log("user")
    )
    assert "Node Unavailable" in list_rejected(read_events(run)[-1])[last]
    again = federation.start_node(last)

    def is_back() -> bool:
        nonlocal again
        if again.poll() is not None:  # while its dead predecessor counts as alive
            again = federation.start_node(last)
        return list_rejected(read_events(run)[-1]) == {}

    wait_until(is_back, lambda: federation.log("user") + federation.log(f"site-{last}"))


def check_own_images(run: Path, site: Path) -> None:
    """See that the nodes trained on what they hold, and kept their state.

    eta kappa of the fixed prior of width 1 is eta/N: N is what the nodes hold, not the server.
    """
    first = read_events(run)[0]
    assert round(float(str(first["rate"])) / float(str(first["pull"]))) == SITES * IMAGES
    assert json.loads((run / "result.json").read_text())["between-client-spread"] is None
    assert list((site / "state").glob("run-*/*.safetensors"))


@pytest.mark.long
def test_three_sites_train_while_a_node_and_the_server_die_and_come_back(tmp_path: Path) -> None:
    """The run that the broken server lost goes on, is attacked and reported."""
    run = tmp_path / "run"
    with open_federation(tmp_path) as federation:
        assert "replies of at most 100 MB are taken" in federation.log("link")
        assert federation.post("/v1/fleet/push-object", bytes(17_000_000)) == 413
        nodes = [federation.start_node(k) for k in range(SITES)]
        user = federation.start_run("user", run, ROUNDS)
        wait_until(
            lambda: read_events(run) or user.poll() is not None, lambda: federation.log("user")
        )
        assert read_events(run), federation.log("user") + federation.log("site-0")
        assert describe_run(run)["phase"] == "training"  # as `fedcel watch` shows it
        kill_and_restart_node(federation, run, nodes[-1])
        signal_processes(f"FLWR_HOME={tmp_path}/link", signal.SIGKILL)
        broken = read_events(run)
        assert len(broken) < ROUNDS and not (run / "result.json").exists()
        federation.start_link()
        again = federation.start_run("again", run, ROUNDS, resume="true")
        assert again.wait(LIMIT) == 0 and (run / "result.json").exists(), federation.log("again")
        assert federation.last_status() == "finished:completed"
    rounds = read_events(run)
    assert rounds[: len(broken)] == broken
    assert [event["round"] for event in rounds] == [*range(1, ROUNDS + 1)]
    assert list_rejected(rounds[0]) == list_rejected(rounds[-1]) == {}
    assert {SITES - 1} in [set(list_rejected(event)) for event in rounds]
    check_own_images(run, tmp_path / "site-0")
    watched = describe_run(run)
    assert (watched["phase"], watched["round"]) == ("finished", ROUNDS) and watched["left-out"]
    for command in (["attack", str(run), "--set", "attack.names=optimal"], ["report", str(run)]):
        subprocess.run([sys.executable, "-m", "sims", *command], cwd=ROOT, check=True)
    rows = read_attack_rows(run)
    assert {row.attack for row in rows} == {"optimal"}
    assert "</html>" in (run / "report.html").read_text()
