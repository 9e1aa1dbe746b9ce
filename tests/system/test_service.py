"""The service as a process of its own: TLS, a ledger on disk, an orderly end."""

import os
import signal
import socket
import ssl
import time
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from clients import ImageOwner, SplitClient
from fedcel.errors import ServiceError
from fedcel.runs import run_folder
from sims.commands import ledger as operator
from tests.clients.serving import wait_until
from tests.system.services import Process, new_key, serving
from tests.system.slow_connections import HALF_HANDSHAKE


class Certified(NamedTuple):
    """Files of an authority and of a certificate that it signed for this machine."""

    authority: Path
    certificate: Path
    private_key: Path


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


def ended(service: Process) -> int:
    """Ask a service to end; return its exit status."""
    service.process.send_signal(signal.SIGTERM)
    return service.process.wait(30)


def test_a_private_answer_over_tls(tmp_path: Path, folder: Path, certified: Certified) -> None:
    """From the command line to an answer; trust comes from the authority's file alone."""
    ledger = tmp_path / "ledger.db"
    key = new_key(ledger, 9)
    x, y = run_folder.read_run(folder).splits.test
    owner = ImageOwner(x[:60], y[:60], state=tmp_path / "device")
    secure = ("--certificate", certified.certificate, "--private-key", certified.private_key)
    with serving(folder, ledger, *secure) as service:
        assert service.url.startswith("https://127.0.0.1:")
        with SplitClient(service.url, key, owner, verify=certified.authority) as client:
            found, again = client.ask(x[0]), client.ask(x[0])
            assert found.remaining_epsilon == again.remaining_epsilon == 5 and not again.is_fresh
            client.ask(x[1])
            with pytest.raises(ServiceError, match="budget is spent"):
                client.ask(x[2])
        with SplitClient(service.url, key, owner, verify=certified.authority) as client:
            after = client.ask(x[0])  # the device's state makes it the same message
            assert after.values.tolist() == found.values.tolist() and not after.is_fresh
        with pytest.raises(ServiceError, match="not trusted"):
            SplitClient(service.url, key, owner)
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.load_verify_locations(certified.authority)
        assert httpx.get(f"{service.url}/healthz", verify=old).status_code == 200
        address = "127.0.0.1", httpx.URL(service.url).port or 0
        with (
            socket.create_connection(address) as half_shaken,
            old.wrap_socket(socket.create_connection(address), server_hostname="localhost"),
        ):
            half_shaken.sendall(HALF_HANDSHAKE)
            start = time.monotonic()
            assert ended(service) == 0
            assert time.monotonic() - start < 15  # silent ones are not waited for
    assert key[-43:] not in service.log.read_text() and '"drained"' in service.log.read_text()
    assert "all balances and links are right" in operator.verify_ledger(ledger)
    assert "phone" in operator.list_accounts(ledger)


def find_worker(service: Process) -> int:
    pid = service.process.pid
    (worker,) = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(worker)


@pytest.mark.long  # two starts; tests/clients/service/test_worker.py kills the process, too
def test_a_service_ends_with_the_process_that_answers(tmp_path: Path, folder: Path) -> None:
    """With status 1 and the reason; killed itself, it leaves no process behind."""
    ledger = tmp_path / "ledger.db"
    with serving(folder, ledger) as service:
        wait_until(lambda: is_ready(service))
        os.kill(find_worker(service), signal.SIGKILL)
        assert service.process.wait(30) == 1
        assert '"answering ended"' in service.log.read_text()
        assert "ended by itself" in service.log.read_text()
    with serving(folder, ledger) as service:
        wait_until(lambda: is_ready(service))
        worker = find_worker(service)
        service.process.kill()
        wait_until(lambda: not is_running(worker))


def is_ready(service: Process) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{service.url}/readyz").status_code == 200
    return False


def is_running(pid: int) -> bool:
    """Say whether there is such a process, which has not ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
