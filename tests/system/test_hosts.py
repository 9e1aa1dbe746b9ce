"""Faults between hosts: cut networks, machines without power, two machines with one key.

Each host is a network namespace; the tests are skipped where these are refused.
`docs/how-to/faults.md` has a row for each.
"""

import os
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from fedcel.files import read_json
from fedcel.privacy.ledger import MICRO, Ledger, parse_ledger_address
from sims.engines.ray_grid import takes_connections
from tests.clients.serving import Running, running
from tests.fedcel.privacy.ledger.postgres import serve_postgres
from tests.system.federation import (
    BIN,
    HOST,
    LIMIT,
    ROOT,
    SCRIPTS,
    SITES,
    Federation,
    fill_disk,
    find_port,
    list_rejected,
    mount_small_disk,
    open_federation,
    read_events,
    wait_until,
)
from tests.system.hosts import SERVER, Hosts, open_hosts
from tests.system.links import Links

PORT = 6379
CUT_SECONDS = 100
ROUNDS = 3
DISK_MEGABYTES = 48
CLOCK_SECONDS = 120
BUSY_SECONDS = 5
"""That a busy machine may add to a wait."""
EPSILON, EPSILON_OF_ANSWER = 40, 4
FIND_CHARGE = """
SELECT count(*) FROM pg_locks JOIN pg_class ON pg_class.oid = relation
WHERE relname = 'ledger' AND mode = 'RowShareLock' AND granted
"""
"""Transactions that hold a ledger's lock."""
GATED = {
    "clients": 6,
    "rounds": 8,
    "local.steps": 20,
    "cel.kind": "gated",
    "cel.momentum": 0.9,
    "cel.warm-up": 1,
    "cel.ramp": 0.2,
}
"""A loss whose clients keep a state."""


def test_a_host_that_is_cut_off_takes_no_connections(tmp_path: Path) -> None:
    """By which the grid on Ray finds silent machines; its link comes back."""
    listen = (
        "import socket, time; s = socket.create_server(('', 7)); print('up', flush=True); "
        "time.sleep(600)"
    )
    with open_hosts(1, tmp_path) as hosts:
        server = hosts.start(0, "log", sys.executable, "-c", listen)
        wait_until(lambda: "up" in hosts.log(0, "log"), lambda: str(server.poll()))
        assert takes_connections(port_of(hosts))
        hosts.cut(0)
        assert not takes_connections(port_of(hosts))
        hosts.join(0)
        assert takes_connections(port_of(hosts))


def port_of(hosts: Hosts) -> dict[str, object]:
    """Describe port 7 of host 0 as a machine of Ray's."""
    return {"NodeManagerAddress": hosts.address(0), "NodeManagerPort": 7}


@pytest.mark.long
def test_a_ray_host_that_has_no_run_folder_loses_its_power(tmp_path: Path) -> None:
    """States travel; the machine that is lost is noticed, its clients are trained elsewhere."""
    runs = tmp_path / "runs"
    runs.mkdir()
    environment = {"PYTHONPATH": ROOT, "RAY_USAGE_STATS_ENABLED": 0, "OMP_NUM_THREADS": 1}

    def start_ray(host: int, *words: object, hidden: Path | None = None) -> None:
        command = (BIN / "ray", "start", "--block", f"--node-ip-address={hosts.address(host)}")
        end = ("--num-cpus=2", *words)
        hosts.start(host, "ray", *command, *end, environment=environment, hidden=hidden)
        wait_until(lambda: "Ray runtime started" in hosts.log(host, "ray"), lambda: "no Ray")

    with TemporaryDirectory(dir="/tmp") as short, open_hosts(2, tmp_path) as hosts:
        address = f"{hosts.address(0)}:{PORT}"
        head = ("--head", f"--port={PORT}", "--include-dashboard=false", f"--temp-dir={short}")
        start_ray(0, *head)
        start_ray(1, f"--address={address}", hidden=runs)
        changes = [word for key, value in GATED.items() for word in ("--set", f"{key}={value}")]
        command = ("simulate", "digits", "--engine", "ray", "--out", runs / "run", *changes)
        extra = environment | {"RAY_ADDRESS": address}
        user = hosts.start(0, "user", sys.executable, "-m", "sims", *command, environment=extra)

        def wait_for_rounds(count: int) -> None:
            wait_until(
                lambda: len(read_events(runs / "run")) >= count or user.poll() is not None,
                lambda: hosts.log(0, "user"),
            )
            assert user.poll() is None, hosts.log(0, "user")

        wait_for_rounds(3)
        hosts.lose_power(1)
        begin = time.monotonic()
        wait_for_rounds(5)
        print(f"two rounds {time.monotonic() - begin:.0f} s after the power was lost")
        assert user.wait(LIMIT) == 0, hosts.log(0, "user")
        assert f"{hosts.address(1)} of the Ray cluster is silent. Waiting" in hosts.log(0, "user")
    events = read_events(runs / "run")
    assert [list_rejected(event) for event in events] == [{}] * len(events)
    local = ("--engine", "local", "--out", tmp_path / "local", "--set", "local.at-once=1")
    words = [sys.executable, "-m", "sims", "simulate", "digits", *map(str, local), *changes]
    subprocess.run(words, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    models = [folder / "model.safetensors" for folder in (runs / "run", tmp_path / "local")]
    assert models[0].read_bytes() == models[1].read_bytes()


def ask(up: Running, number: int) -> httpx.Response:
    """Ask a service; the same number is the same query. Print what it says, and when."""
    begin = time.monotonic()
    content = np.full(8, number, "<f4").tobytes()
    answer = up.ask(content, 60, idempotency_key=f"request-{number:08}")
    print(f"query {number}: {answer.status_code} after {time.monotonic() - begin:.1f} s")
    return answer


@pytest.mark.long
def test_a_service_whose_database_is_cut_off_is_not_ready_and_charges_nothing(
    tmp_path: Path,
) -> None:
    """`/readyz` and a query say so in time; both work again once the network does."""
    with (
        open_hosts(1, tmp_path) as hosts,
        serve_postgres(words=hosts.words(0), address=hosts.address(0)) as server,
    ):
        local = server.make_database()
        ledger = local.replace(str(server.folder), hosts.address(0))
        with running(tmp_path, epsilon=10, ledger=ledger) as up:

            def is_ready() -> bool:
                return httpx.get(f"{up.url}/readyz", timeout=60).status_code == 200

            assert ask(up, 0).status_code == 200 and is_ready()
            hosts.cut(0)
            begin = time.monotonic()
            wait_until(lambda: not is_ready(), lambda: "always ready")
            late = time.monotonic() - begin
            print(f"not ready {late:.1f} s after the cut")
            assert late < 5 + BUSY_SECONDS
            assert ask(up, 1).status_code == 503
            hosts.join(0)
            begin = time.monotonic()
            wait_until(is_ready, lambda: "never ready")
            print(f"ready {time.monotonic() - begin:.1f} s after the network was mended")
            assert ask(up, 1).status_code == ask(up, 0).status_code == 200
        with Ledger.open(parse_ledger_address(local)) as opened:
            assert opened.balance("phone").spent == 8 * MICRO and opened.verify() == []


@pytest.mark.long
def test_of_two_services_one_is_cut_off_from_the_database_and_no_answer_is_charged_twice(
    tmp_path: Path,
) -> None:
    """The cut is made twice: while a charge has the lock, and after it, before the service knows.

    The other service answers all the time; a query that got a 503 is charged at most once.
    """
    psycopg = pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")
    links = Links()
    with (
        open_hosts(1, tmp_path, links) as hosts,
        serve_postgres(words=hosts.words(0), address=hosts.address(0)) as server,
    ):
        local = server.make_database()
        distant = local.replace(str(server.folder), hosts.address(0))
        folders = [tmp_path / name for name in ("cut", "near")]
        for folder in folders:
            folder.mkdir()
        with (
            running(folders[0], epsilon=EPSILON / 2, ledger=distant) as cut,
            running(folders[1], epsilon=EPSILON / 2, ledger=local) as near,
            Ledger.open(parse_ledger_address(local)) as ledger,
            psycopg.connect(local, autocommit=True) as database,
        ):

            def has_lock() -> bool:
                """Whether the distant service is in the middle of a charge."""
                row = database.execute(FIND_CHARGE).fetchone()
                return row is not None and row[0] > 0

            def count_charges() -> int:
                return ledger.balance("phone").spent // (EPSILON_OF_ANSWER * MICRO)

            assert ask(cut, 0).status_code == ask(near, 1).status_code == 200
            for number, is_time, kept in ((2, has_lock, 0), (3, lambda: count_charges() > 3, 1)):
                before, links.delay = count_charges(), 0.6
                with ThreadPoolExecutor(1) as pool:
                    pending = pool.submit(ask, cut, number)
                    wait_until(is_time, lambda: "no charge")
                    hosts.cut(0)
                    assert ask(near, 10 + number).status_code == 200
                    assert pending.result().status_code == 503
                assert count_charges() == before + 1 + kept
                hosts.join(0)
                links.delay = 0
                while ask(cut, 10 + number).status_code != 200:
                    time.sleep(0.1)
            answers = {number: ask(cut, number).json()["values"] for number in (2, 3, 12, 13)}
            assert answers == {number: ask(near, number).json()["values"] for number in answers}
            assert count_charges() == 6
            answered = 6
            while ask((cut, near)[answered % 2], 20 + answered).status_code == 200:
                answered += 1
            assert answered == count_charges() == EPSILON // EPSILON_OF_ANSWER
            assert ledger.verify() == []


class Site(NamedTuple):
    """A federation of hosts: 0 has the SuperLink, k + 1 has node k, the last is spare."""

    hosts: Hosts
    links: Links
    federation: Federation
    nodes: list["subprocess.Popen[bytes]"]
    disk: Path
    """Small disk of the SuperLink's host, with its database."""

    def follow(self, run: Path, rounds: int, **settings: object) -> "subprocess.Popen[bytes]":
        """Start a run; return once it has a round."""
        user = self.federation.start_run("user", run, rounds, **settings)
        self.wait_for_round(run, user, 1)
        return user

    def wait_for_round(self, run: Path, user: "subprocess.Popen[bytes]", number: int) -> None:
        log = self.federation.log
        wait_until(
            lambda: len(read_events(run)) >= number or user.poll() is not None, lambda: log("user")
        )
        assert len(read_events(run)) >= number, log("user")

    def wait_until_online(self, count: int) -> None:
        wait_until(
            lambda: self.federation.count_online() == count, lambda: self.federation.log("nodes")
        )

    def start_ended_nodes(self) -> None:
        """Start nodes that have ended until each is let in, as a service manager does."""

        def are_let_in() -> bool:
            for k, node in enumerate(self.nodes):
                if node.poll() is not None:
                    self.nodes[k] = self.federation.start_node(k)
            logs = [self.federation.log(f"site-{k}") for k in range(SITES)]
            return all("SuperNode ID" in log for log in logs)

        wait_until(are_let_in, lambda: self.federation.log("site-0"))

    def end_run(self, run: Path, user: "subprocess.Popen[bytes]") -> None:
        """Wait for a run's end; it is that of an undisturbed run, to the bit."""
        federation = self.federation
        assert user.wait(LIMIT) == 0 and federation.last_status() == "finished:completed"
        rejected = [list_rejected(event) for event in read_events(run)]
        assert rejected == [{}] * ROUNDS, federation.log("user")
        models = [folder / "model.safetensors" for folder in (run, federation.folder / "calm")]
        assert models[0].read_bytes() == models[1].read_bytes()
        seconds = [f"{event['seconds']:.0f}" for event in read_events(run)]
        print(f"{run.name}: rounds of {', '.join(seconds)} s")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A SuperLink and three nodes, each on a host, for all faults one after the other.

    Operators' commands run on the SuperLink's host, as on the page. There is an undisturbed run.
    """
    folder, links = tmp_path_factory.mktemp("hosts"), Links()
    with (
        open_hosts(SITES + 2, folder, links, clocks=True) as hosts,
        mount_small_disk(folder / "disk", f"size={DISK_MEGABYTES}m") as disk,
    ):

        def find_words(name: str) -> list[str]:
            """Return where a process runs."""
            number = name.removeprefix("site-")
            return hosts.words(int(number) + 1 if number.isdigit() else 0)

        with open_federation(folder, HOST, find_words, SERVER) as federation:
            nodes = [federation.start_node(k) for k in range(SITES)]
            place = Site(hosts, links, federation, nodes, disk)
            place.wait_until_online(SITES)
            place.end_run(folder / "calm", federation.start_run("user", folder / "calm", ROUNDS))
            yield place


@pytest.mark.long
def test_a_superlink_that_is_cut_off_goes_on_by_itself(site: Site) -> None:
    """Its round waits for the nodes."""
    run = site.federation.folder / "cut"
    user = site.follow(run, ROUNDS)
    time.sleep(2)  # the nodes have the model of the next round
    site.hosts.cut(0)
    time.sleep(CUT_SECONDS)
    site.hosts.join(0)
    begin = time.monotonic()
    site.end_run(run, user)
    print(f"two rounds {time.monotonic() - begin:.0f} s after the network was mended")


@pytest.mark.long
def test_links_that_delay_and_lose_change_no_bit(site: Site) -> None:
    """50 ms each way and one frame of a hundred, on each link: a message passes two."""
    run, before = site.federation.folder / "lossy", site.links.lost
    with site.links.change(delay=0.05, loss=0.01):
        site.end_run(run, site.federation.start_run("user", run, ROUNDS))
    print(f"{site.links.lost - before} frames were lost")
    assert site.links.lost > before


@pytest.mark.long
def test_links_of_256_kbit_a_second_change_no_bit(site: Site) -> None:
    """All nodes fetch the app over the SuperLink's one link, then the model in each round."""
    run = site.federation.folder / "slow"
    with site.links.change(rate=32_000):
        site.end_run(run, site.federation.start_run("user", run, ROUNDS))


@pytest.mark.long
def test_a_node_and_the_superlink_change_their_addresses(site: Site) -> None:
    """Nodes know the SuperLink by its name."""
    run = site.federation.folder / "moved"
    user = site.follow(run, ROUNDS)
    before = [site.hosts.address(host) for host in (0, 1)]
    site.hosts.move(1)
    site.wait_for_round(run, user, 2)
    site.hosts.move(0)
    assert [site.hosts.address(host) for host in (0, 1)] != before
    site.end_run(run, user)


@pytest.mark.long
def test_two_hosts_lose_their_power_and_the_others_connections_are_half_open(site: Site) -> None:
    """The SuperLink's and a node's; the run is resumed before that node is let in again."""
    federation, run = site.federation, site.federation.folder / "power"
    user = site.follow(run, ROUNDS)
    time.sleep(2)
    for host in (0, 1):
        site.hosts.lose_power(host)
    user.wait(LIMIT)  # it ran on the SuperLink's host
    for host in (0, 1):
        site.hosts.start_again(host)
    federation.start_link()
    begin = time.monotonic()
    user = federation.start_run("user", run, ROUNDS, resume="true")
    site.start_ended_nodes()
    print(f"all nodes are let in {time.monotonic() - begin:.0f} s after the power came back")
    site.end_run(run, user)


@pytest.mark.long
def test_clocks_are_two_minutes_apart(site: Site) -> None:
    """A node that is ahead ends, one that is behind trains; a jump of the server's ends the run."""
    hosts, federation, run = site.hosts, site.federation, site.federation.folder / "clocks"
    try:
        hosts.shift_clock(1, CLOCK_SECONDS)
        assert site.nodes[0].wait(LIMIT) == 1
        assert re.search(r"its clock is 1[12]\d s ahead of the server's", federation.log("site-0"))
        hosts.shift_clock(1, 0)
        site.start_ended_nodes()
        hosts.shift_clock(2, -CLOCK_SECONDS)
        user = site.follow(run, ROUNDS)
        hosts.shift_clock(0, CLOCK_SECONDS)
        begin = time.monotonic()
        wait_until(lambda: federation.last_status() == "finished:failed", lambda: "still running")
        assert "No heartbeat received from the task" in federation.log("list")
        print(
            f"the run has failed {time.monotonic() - begin:.0f} s after the server's clock was set"
        )
        user.wait(LIMIT)
        hosts.shift_clock(0, 0)
        site.end_run(run, federation.start_run("user", run, ROUNDS, resume="true"))
    finally:
        for host in range(SITES + 1):
            hosts.shift_clock(host, 0)


@pytest.mark.long
def test_the_disk_of_the_superlinks_host_is_full(site: Site) -> None:
    """With its database and the run; nodes and the run end, and go on once there is room."""
    federation, run = site.federation, site.disk / "run"
    user = site.follow(run, ROUNDS)
    with closing(sqlite3.connect(site.disk / "link.db")) as database:
        # What an earlier run left room in would take the next writes, disk full or not.
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with fill_disk(site.disk):
        assert [node.wait(LIMIT) for node in site.nodes] == [1] * SITES
    site.start_ended_nodes()
    user.wait(LIMIT)
    assert federation.last_status() == "finished:failed"
    site.end_run(run, federation.start_run("user", run, ROUNDS, resume="true"))


@pytest.mark.long
def test_of_two_machines_with_one_key_one_is_kept(site: Site) -> None:
    """The node's host is cut off, another takes its place, the network is mended: both answer."""
    hosts, federation, folder = site.hosts, site.federation, site.federation.folder
    run, own = folder / "twins", folder / "site-0"
    user = site.follow(run, 8, **{"strategy.least-share": 0.3})
    hosts.cut(1)
    site.wait_until_online(SITES - 1)
    name = f"site-{SITES}"
    link = (f"{federation.name}:{federation.port}", folder / "pki" / "ca.crt", own / "node.key")
    words = (SCRIPTS / "supernode.sh", *link, 0, own / "own.npz", folder / name / "state", HOST)
    twins: list[subprocess.Popen[bytes]] = []

    def is_online() -> bool:
        if not twins or twins[-1].poll() is not None:  # the first counts as alive for a minute
            twins.append(federation.start(name, "sh", *words, find_port()))
        return "SuperNode ID" in federation.log(name)

    wait_until(is_online, lambda: federation.log(name))
    site.wait_for_round(run, user, len(read_events(run)) + 2)
    hosts.join(1)
    assert user.wait(LIMIT) == 0 and federation.last_status() == "finished:completed"
    result: Any = read_json(run / "result.json")
    (current, replaced) = result["shared-keys"]["0"]
    assert f"two nodes have its key: {current} is kept, {replaced}" in federation.log("user")
    assert f"this node is {current}" in federation.log(name)
    assert f"this node is {replaced}" in federation.log("site-0")
