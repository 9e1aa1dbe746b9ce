"""Several service processes on one ledger in PostgreSQL: what they answer, and while one is killed.

`python -m tests.bench.scale_out [SECONDS] [ray]` serves one run by 1, 2 and 4 processes over
loopback, each on a port of its own with `label-only` answers; the ledger is a server of PostgreSQL
over a unix socket. There is no balancer: one generator of load a port. It prints rows:

- `scale-out`: answers of all processes under `wrk`, 64 connections in all;
- `ledger-writers`: what a charge costs where so many processes write at once,
  in groups of 16, without a service;
- `ray-serve` (with `ray`): the same by two processes, and by two replicas of Ray Serve behind its
  proxy, in turns;
- `killed`: one of the processes ends by SIGKILL every few seconds and starts again. Here the load
  is drawn in Python, which notes the id of each answer: in the end each is looked up in the ledger.

Services, load and server share the machine's cores.
"""

import asyncio
import json
import multiprocessing
import os
import random
import re
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from importlib import import_module
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import httpx
import torch

from clients.service import ServedModel
from clients.service.access import add_key
from clients.service.service import Limits
from fedcel.privacy.ledger import MICRO, Charge, Ledger, parse_ledger_address
from sims.commands.listening import Endpoint
from sims.commands.web_server import run_service
from tests.bench.load import asked, head_of
from tests.bench.service import GROUP, WRK
from tests.fedcel.privacy.ledger.postgres import serve_postgres
from tests.system.services import stored

PROCESSES, CONNECTIONS = (1, 2, 4), 64
KILL_SECONDS = 2.0
"""Between two kills, on average."""
GRANTED = 9 * 10**8
START_SECONDS = 60.0
RAY_REPLICAS, RAY_TURNS = 2, 3
EXAMPLE = Path(__file__).parents[2] / "examples" / "deployment"
Row = dict[str, str | int | float]


class Site(NamedTuple):
    """What all processes of a service share."""

    run: Path
    ledger: str
    keys: Path
    key: str
    model: ServedModel


class Served(NamedTuple):
    """A process of the service, and its port."""

    process: BaseProcess
    port: int


def main() -> None:
    """Measure; print a row a line, as JSON."""
    torch.set_num_threads(1)
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 5.0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir=Path.cwd())))
        server = stack.enter_context(serve_postgres(None))
        for count in PROCESSES:
            site = make_site(folder / f"of-{count}", server.make_database())
            with serve_all(site, count) as services:
                ports = [service.port for service in services]
                print_row(measure_load(site, ports, seconds))
        for turn in range(RAY_TURNS if "ray" in sys.argv[2:] else 0):
            site = make_site(folder / f"ports-{turn}", server.make_database())
            with serve_all(site, RAY_REPLICAS) as services:
                row = measure_load(site, [service.port for service in services], seconds)
            print_row({**row, "kind": "ray-serve", "what": "two processes, each at its own port"})
            site = make_site(folder / f"ray-{turn}", server.make_database())
            with serve_on_ray(site) as port:
                row = measure_load(site, [port], seconds)
            print_row({**row, "kind": "ray-serve", "what": "two replicas behind Ray Serve's proxy"})
        for count in PROCESSES:
            print_row(measure_writers(server.make_database(), count, seconds))
        for count in PROCESSES[1:]:
            site = make_site(folder / f"killed-{count}", server.make_database())
            print_row(measure_killed(site, count, 5 * seconds))


def print_row(row: Row) -> None:
    """Print a row of the results."""
    print(json.dumps(row), flush=True)


def make_site(folder: Path, ledger: str) -> Site:
    """Write a run, a key and a budget."""
    folder.mkdir()
    changes = {"net.features": 64, "net.width": 128, "privacy.mechanism": "label-only"}
    model = stored(folder / "run", samples=16, **changes)
    key = add_key(folder / "keys.json", "phone", None, time.time())
    with Ledger.open(parse_ledger_address(ledger)) as opened:
        opened.grant("phone", GRANTED * MICRO)
    return Site(folder / "run", ledger, folder / "keys.json", key, model)


def serve_process(run: Path, ledger: str, keys: Path, port: int) -> None:
    """Serve in this process, as `fedcel serve` does, its log beside the run."""
    with keys.with_name(f"log-{port}.jsonl").open("a") as log:
        os.dup2(log.fileno(), sys.stdout.fileno())
        os.dup2(log.fileno(), sys.stderr.fileno())
    run_service(
        run,
        parse_ledger_address(ledger),
        Endpoint("127.0.0.1", port, None, None, False),
        Limits(rate=1e6),
        keys=keys,
        allow_chance=True,
    )


def start(site: Site, port: int) -> BaseProcess:
    """Start a process of the service on a port."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sims.commands.web_server", "fedcel.privacy.ledger"])
    arguments = (site.run, site.ledger, site.keys, port)
    process = context.Process(target=serve_process, args=arguments)
    process.start()
    return process


def wait_until_up(port: int) -> None:
    """Wait until a process takes questions; TimeoutError after a minute."""
    limit = time.monotonic() + START_SECONDS
    while True:
        with suppress(httpx.TransportError):
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=20).status_code == 200:
                return
        if time.monotonic() > limit:
            raise TimeoutError(f"port {port} takes no question after {START_SECONDS:g} s")
        time.sleep(0.02)


def choose_ports(count: int) -> list[int]:
    """Return free ports below those that the system gives to who connects.

    Who tries again to reach a port of theirs while nobody listens there may come to be connected
    with itself.
    """
    ports: list[int] = []
    for port in random.sample(range(18_000, 30_000), 1_000):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            ports.append(port)
        if len(ports) == count:
            break
    return ports


@contextmanager
def serve_all(site: Site, count: int) -> Iterator[list[Served]]:
    """Serve by so many processes; end all in the end, also those put in place of others."""
    ports = choose_ports(count)
    services = [Served(start(site, port), port) for port in ports]
    try:
        for port in ports:
            wait_until_up(port)
        yield services
    finally:
        for service in services:
            service.process.kill()
            service.process.join()


@contextmanager
def serve_on_ray(site: Site) -> Iterator[int]:
    """Serve by replicas of examples/deployment/ray_serve.py at the port; end Ray in the end."""
    import ray
    from ray import serve

    sys.path.insert(0, str(EXAMPLE))
    program = import_module("ray_serve")
    [port] = choose_ports(1)
    ray.init(
        include_dashboard=False, log_to_driver=False, runtime_env={"working_dir": str(EXAMPLE)}
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        options = program.Options(
            run=site.run,
            ledger=site.ledger,
            keys=site.keys,
            replicas=RAY_REPLICAS,
            rate=1e6,
            allow_chance=True,
        )
        serve.run(program.build(options))
        yield port
    finally:
        serve.shutdown()  # type: ignore[no-untyped-call]
        ray.shutdown()


def measure_load(site: Site, ports: list[int], seconds: float) -> Row:
    """Ask at all ports at once, by a `wrk` each; RuntimeError where not all was answered."""
    if WRK is None:
        raise RuntimeError("wrk is not installed; name it in the environment's WRK")
    script = Path(__file__).with_name("load.lua")
    connections = CONNECTIONS // len(ports)
    options = ["-t1", f"-c{connections}", f"-d{seconds:g}s", "--latency", "-s", str(script)]
    arguments = [site.key, site.model.version, str(site.model.net.features)]
    asking = []
    for number, port in enumerate(ports):
        url = f"http://127.0.0.1:{port}/v1/query"
        command = [WRK, *options, url, "--", *arguments, str(number)]
        asking.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    results = []
    for process in asking:
        text = process.communicate()[0]
        results.append(json.loads(re.findall(r"^RESULT (.*)", text, re.MULTILINE)[0]))
    if any(result["refused"] or result["broken"] for result in results):
        raise RuntimeError(f"{results}: not all were answered")
    answers = sum(result["answers"] for result in results)
    with Ledger.open(parse_ledger_address(site.ledger)) as ledger:
        charged = sum(row.entry.kind == "charge" for row in ledger.rows())
    if not answers <= charged <= answers + CONNECTIONS:  # those under way in the end
        raise RuntimeError(f"{answers} answers, but {charged} charges")
    return {
        "kind": "scale-out",
        "processes": len(ports),
        "connections": CONNECTIONS,
        "answers-per-second": round(sum(r["answers"] / r["seconds"] for r in results)),
        "median-ms": round(1e3 * statistics.mean(r["median"] for r in results), 1),
        "p99-ms": round(1e3 * max(r["p99"] for r in results), 1),
        "answers": answers,
        "charges": charged,
    }


def write_groups(
    address: str, name: str, until: float, times: "multiprocessing.Queue[object]"
) -> None:
    """Charge groups until a moment of the clock; put the seconds of each."""
    took: list[float] = []
    with Ledger.open(parse_ledger_address(address)) as ledger:
        while (begun := time.time()) < until:
            requests = [f"{name}-{len(took)}-{k}" for k in range(GROUP)]
            digests = [sha256(request.encode()).digest() for request in requests]
            ledger.charge(
                [Charge(r, "ann", "v1", 1, 0.0, d) for r, d in zip(requests, digests, strict=True)],
                [b"an answer of some hundred bytes" * 4] * GROUP,
            )
            took.append(time.time() - begun)
    times.put(took)


def measure_writers(address: str, count: int, seconds: float) -> Row:
    """Let processes write to one ledger at once, without a service."""
    with Ledger.open(parse_ledger_address(address)) as ledger:
        ledger.grant("ann", 10**12)
    context = multiprocessing.get_context("forkserver")
    times = context.Queue()
    until = time.time() + 2 + seconds
    writers = [
        context.Process(target=write_groups, args=(address, f"writer-{k}", until, times))
        for k in range(count)
    ]
    for writer in writers:
        writer.start()
    took = [times.get(timeout=seconds + START_SECONDS) for _ in writers]
    for writer in writers:
        writer.join()
    groups = [seconds for part in took for seconds in part]
    busiest = max(sum(part) for part in took)
    return {
        "kind": "ledger-writers",
        "processes": count,
        "group": GROUP,
        "median-ms": round(1e3 * statistics.median(groups), 2),
        "ms-an-answer": round(1e3 * busiest / (GROUP * len(groups)), 3),
        "charges-per-second": round(GROUP * len(groups) / busiest),
    }


class Told(NamedTuple):
    """What a connection was told."""

    answered: list[str]
    """Ids of questions that were answered."""
    lost: list[str]
    """Ids of questions whose connection broke before the answer."""


async def ask_for_ever(port: int, head: str, features: int, until: float) -> Told:
    """Ask on one connection, and on another one where it breaks."""
    told = Told([], [])
    while time.monotonic() < until:
        name = ""
        try:
            streams = await asyncio.open_connection("127.0.0.1", port)
            while time.monotonic() < until:
                name = os.urandom(16).hex()
                message = struct.pack(f"<{features}f", *os.urandom(features))
                await asyncio.wait_for(asked(streams, head, name, message), 30)
                told.answered.append(name)
                name = ""
            streams[1].close()
        except (OSError, EOFError):
            if name:
                told.lost.append(name)
            await asyncio.sleep(0.05)
    return told


async def ask_while_killed(
    site: Site, services: list[Served], seconds: float
) -> tuple[list[Told], int]:
    """Ask all processes, and kill one of them again and again; return also how often."""
    delays, kills, features = random.Random(0), 0, site.model.net.features
    until = time.monotonic() + seconds
    asking = []
    for service in services:
        head = head_of(("127.0.0.1", service.port), site.key, site.model.version, features)
        for _ in range(CONNECTIONS // len(services)):
            asking.append(asyncio.create_task(ask_for_ever(service.port, head, features, until)))
    while time.monotonic() < until - 2 * KILL_SECONDS:
        await asyncio.sleep(delays.uniform(0.5, 1.5) * KILL_SECONDS)
        k = delays.randrange(len(services))
        services[k].process.kill()
        services[k].process.join()
        kills += 1
        services[k] = Served(start(site, services[k].port), services[k].port)
        await asyncio.to_thread(wait_until_up, services[k].port)
    return list(await asyncio.gather(*asking)), kills


def measure_killed(site: Site, count: int, seconds: float) -> Row:
    """Kill and restart; RuntimeError where an answer is not in the ledger exactly once."""
    with serve_all(site, count) as services:
        begun = time.monotonic()
        told, kills = asyncio.run(ask_while_killed(site, services, seconds))
        lasted = time.monotonic() - begun
    answered = [name for part in told for name in part.answered]
    lost = {name for part in told for name in part.lost}
    with Ledger.open(parse_ledger_address(site.ledger)) as ledger:
        problems = ledger.verify()
        charged = [row.entry for row in ledger.rows() if row.entry.kind == "charge"]
        spent = ledger.balance("phone").spent
    check_books(answered, lost, [entry.request for entry in charged], problems)
    if spent != sum(entry.micro for entry in charged):
        raise RuntimeError(f"spent are {spent}, the log says another sum")
    return {
        "kind": "killed",
        "processes": count,
        "seconds": round(lasted, 1),
        "kills": kills,
        "answers": len(answered),
        "answers-per-second": round(len(answered) / lasted),
        "charges": len(charged),
        "charged-without-answer": len(charged) - len(answered),
        "questions-lost": len(lost),
        "problems": len(problems),
    }


def check_books(
    answered: list[str], lost: set[str], charged: list[str], problems: list[str]
) -> None:
    """Compare what was told with what is in the ledger; RuntimeError where they differ."""
    counts = Counter(request.partition(":")[2] for request in charged)
    unpaid = [name for name in answered if counts[name] != 1]
    strange = counts.keys() - set(answered) - lost
    if unpaid or strange or problems or max(counts.values(), default=0) > 1:
        raise RuntimeError(
            f"{len(unpaid)} answers are not charged exactly once, {len(strange)} charges are for "
            f"no question, the ledger says {problems}"
        )


if __name__ == "__main__":
    main()
