"""The service as a process of its own: TLS, a ledger on disk, SIGKILL, SIGTERM."""

import multiprocessing
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import httpx
import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from clients import OwnImages, SplitClient
from clients.service.model import Served, served
from fedcel import runs
from fedcel.errors import ServiceError
from fedcel.files import write_tensors
from fedcel.privacy.ledger import MICRO, Ledger
from sims import ledger as operator
from tests.clients.serving import child, made_run

ROOT = Path(__file__).parents[2]
KILLS = int(os.environ.get("FEDCEL_KILLS", "10"))


class Certified(NamedTuple):
    """Files of an authority and of a certificate that it signed for this machine."""

    authority: Path
    certificate: Path
    private_key: Path


class Process(NamedTuple):
    """A service that runs."""

    process: "subprocess.Popen[str]"
    url: str
    log: Path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on disk, without training."""
    path = tmp_path_factory.mktemp("runs") / "run"
    stored(path, **{"net.noise": 2.0})
    return path


def stored(path: Path, samples: int = 3, **changes: object) -> Served:
    """Write a run to disk, without training; return what it serves."""
    made = made_run(samples, **changes)
    runs.create(path, made.settings)
    write_tensors(path / "model.safetensors", {"model": made.model})
    for number, sample in enumerate(made.samples):
        runs.chain(path, made.settings).keep(number, sample)
    return served(runs.read(path))


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    """An authority of our own, and what it signed."""
    place = tmp_path_factory.mktemp("tls")
    own, root = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test authority")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    names = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    )
    identifier = x509.SubjectKeyIdentifier.from_public_key(root.public_key())
    by = x509.AuthorityKeyIdentifier.from_issuer_public_key(root.public_key())
    begun = datetime.now(UTC) - timedelta(hours=1)

    def signed(
        name: x509.Name, key: ec.EllipticCurvePrivateKey, *more: tuple[object, bool]
    ) -> bytes:
        builder = x509.CertificateBuilder(issuer, name, key.public_key())
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(begun).not_valid_after(begun + timedelta(days=2))
        for extension, critical in more:
            builder = builder.add_extension(extension, critical)  # type: ignore[arg-type]
        return builder.sign(root, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    usage = x509.KeyUsage(*[False] * 5, True, True, False, False)
    ca = (x509.BasicConstraints(True, 0), True), (usage, True), (identifier, False)
    found = Certified(place / "ca.pem", place / "cert.pem", place / "key.pem")
    found.authority.write_bytes(signed(issuer, root, *ca))
    found.certificate.write_bytes(signed(subject, own, (names, False), (by, False)))
    found.private_key.write_bytes(
        own.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return found


def new_key(ledger: Path, epsilon: float = 1e6) -> str:
    """Make the client `phone` and its key, as `fedcel ledger keys` does."""
    said = operator.new_key(ledger, "phone", None, epsilon)
    return re.findall(r"key: (\S+)", said)[0]


@contextmanager
def serving(run: Path, ledger: Path, *more: object) -> Iterator[Process]:
    """Start a service on a free port; kill it in the end if it still runs."""
    command = [sys.executable, "-m", "sims", "serve", run, "--ledger", ledger, "--port", "0"]
    log = ledger.with_name(f"log-{time.monotonic_ns()}.jsonl")
    with log.open("w") as errors:
        process = subprocess.Popen(
            [*map(str, command), *map(str, more), "--rate-limit", "1e6"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
    try:
        assert process.stdout
        said = process.stdout.readline()
        assert said.startswith("serving "), log.read_text()
        yield Process(process, said.split()[-1], log)
    finally:
        process.kill()
        process.communicate()


def ended(service: Process) -> int:
    """Ask a service to end; return its exit status."""
    service.process.send_signal(signal.SIGTERM)
    return service.process.wait(30)


def test_a_private_answer_over_tls(tmp_path: Path, folder: Path, certified: Certified) -> None:
    """From the command line to an answer; trust comes from the authority's file alone."""
    ledger = tmp_path / "ledger.db"
    key = new_key(ledger, 9)
    x, y = runs.read(folder).splits.test
    own = OwnImages(x[:60], y[:60], state=tmp_path / "device")
    secure = ("--certificate", certified.certificate, "--private-key", certified.private_key)
    with serving(folder, ledger, *secure) as service:
        assert service.url.startswith("https://127.0.0.1:")
        with SplitClient(service.url, key, own, verify=certified.authority) as client:
            found, again = client.ask(x[0]), client.ask(x[0])
            assert found.left == again.left == 5 and not again.fresh
            client.ask(x[1])
            with pytest.raises(ServiceError, match="budget is spent"):
                client.ask(x[2])
        with SplitClient(service.url, key, own, verify=certified.authority) as client:
            after = client.ask(x[0])  # the device's state makes it the same message
            assert after.values.tolist() == found.values.tolist() and not after.fresh
        with pytest.raises(ServiceError, match="not trusted"):
            SplitClient(service.url, key, own)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(certified.authority)
        assert httpx.get(f"{service.url}/healthz", verify=old).status_code == 200
        assert ended(service) == 0
    assert key[-43:] not in service.log.read_text() and '"drained"' in service.log.read_text()
    assert "all balances and links are right" in operator.verified(ledger)
    assert "phone" in operator.listed(ledger)


@pytest.fixture(scope="module")
def fork() -> ForkServerContext:
    """Starts processes that have all modules already, seconds sooner than an interpreter does."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.clients.serving"])
    return context


class Forked(NamedTuple):
    """A service in a process of its own that began with all modules loaded."""

    process: BaseProcess
    url: str


@contextmanager
def forked(fork: ForkServerContext, run: Path, ledger: Path) -> Iterator[Forked]:
    """Start a service on a free port; kill it in the end if it still runs."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    log = ledger.with_name(f"log-{port}.jsonl")
    process = fork.Process(target=child, args=(run, ledger, port, log), daemon=True)
    process.start()
    try:
        url, limit = f"http://127.0.0.1:{port}", time.monotonic() + 60
        while not up(url):
            assert process.is_alive() and time.monotonic() < limit, log.read_text()
            time.sleep(0.05)
        yield Forked(process, url)
    finally:
        process.kill()
        process.join()


def up(url: str) -> bool:
    """Say whether a service answers."""
    try:
        return httpx.get(f"{url}/readyz", timeout=20).status_code == 200
    except httpx.TransportError:
        return False


def load(url: str, key: str, version: str, until: threading.Event) -> list[str]:
    """Ask one question after the other; return the ids of those that were answered."""
    stream, answered = np.random.default_rng(random.randrange(2**32)), []
    headers = {
        "authorization": f"Bearer {key}",
        "content-type": "application/octet-stream",
        "model-version": version,
    }
    with httpx.Client(base_url=url, headers=headers, timeout=20) as http:
        while not until.is_set():
            name = f"request-{stream.integers(2**62)}"
            message = stream.random(8, dtype=np.float32).tobytes()
            try:
                reply = http.post("/v1/query", content=message, headers={"idempotency-key": name})
            except httpx.TransportError:
                continue
            if reply.status_code == 200 and reply.json()["fresh"]:
                answered.append(f"phone:{name}")
    return answered


@contextmanager
def loaded(services: list[Forked], key: str, threads: int = 3) -> Iterator[list[str]]:
    """Ask several services at once; the list is whole when the context ends."""
    until, answered = threading.Event(), []
    card = httpx.get(f"{services[0].url}/v1/model", headers={"authorization": f"Bearer {key}"})
    version = card.json()["model"]

    def ask(url: str) -> None:
        answered.extend(load(url, key, version, until))

    asking = [threading.Thread(target=ask, args=(service.url,)) for service in services * threads]
    for thread in asking:
        thread.start()
    try:
        yield answered
    finally:
        until.set()
        for thread in asking:
            thread.join(30)


def paid(ledger: Path) -> set[str]:
    """Return the charged request ids of a ledger that is in order."""
    with Ledger.open(ledger) as found:
        assert found.verify() == []
        charged = [row.entry.request for row in found.rows() if row.entry.kind == "charge"]
        assert found.balance("phone").spent == 4 * MICRO * len(charged)
    return set(charged)


def test_no_answer_without_a_charge_though_it_is_killed(
    tmp_path: Path, folder: Path, fork: ForkServerContext
) -> None:
    """SIGKILL again and again under load; every answer that came out is in the ledger."""
    ledger, answered = tmp_path / "ledger.db", []
    key, chance = new_key(ledger), random.Random(0)
    for _ in range(KILLS):
        with forked(fork, folder, ledger) as service, loaded([service], key) as found:
            time.sleep(0.3 + chance.random())
            service.process.kill()
        answered += found
    assert len(answered) > KILLS and len(set(answered)) == len(answered)
    assert set(answered) <= paid(ledger)


def test_two_processes_share_a_ledger_and_a_drain_loses_nothing(
    tmp_path: Path, folder: Path, fork: ForkServerContext
) -> None:
    """100 epsilon make 25 answers between both, each charged; SIGTERM under load exits with 0."""
    ledger = tmp_path / "ledger.db"
    key = new_key(ledger, 100)
    with forked(fork, folder, ledger) as one, forked(fork, folder, ledger) as two:
        with loaded([one, two], key, threads=2) as answered:
            limit = time.monotonic() + 60
            with Ledger.open(ledger) as found:
                while found.balance("phone").left and time.monotonic() < limit:
                    time.sleep(0.1)
        assert len(answered) == 25 and set(answered) == paid(ledger)
        operator.top_up(ledger, "phone", 1e6)
        with loaded([one, two], key) as more:
            time.sleep(1)
            for service in (one, two):
                service.process.terminate()
                service.process.join(30)
                assert service.process.exitcode == 0
    assert more and set(answered) | set(more) == paid(ledger)
