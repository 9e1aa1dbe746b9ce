"""What an operator takes from examples/deployment, piece by piece: keys, door, units, container."""

import asyncio
import importlib.util
import os
import re
import resource
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from flwr.proto.fleet_pb2 import ActivateNodeResponse, PushMessagesRequest
from flwr.proto.message_pb2 import Message, Metadata, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.protobuf.client import ProtobufRequestContext
from starlette.requests import Request
from starlette.responses import Response

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "deployment"
UNITS = sorted((FOLDER / "systemd").glob("*.service"))


def certificates(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, str(FOLDER / "certificates.py"), *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True)


def greet(folder: Path, name: str, trusted: Path) -> int:
    """Serve with the server's certificate in a folder; return its serial as a client sees it."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(folder / "server.crt", folder / "server.key")
    trusting = ssl.create_default_context(cafile=str(trusted))
    first, second, third, fourth = (ssl.MemoryBIO() for _ in range(4))
    client = trusting.wrap_bio(first, second, server_hostname=name)
    server = serving.wrap_bio(third, fourth, server_side=True)
    for _ in range(4):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
            third.write(second.read())
            first.write(fourth.read())
    return int(str((client.getpeercert() or {})["serialNumber"]), 16)


def test_a_renewed_certificate_is_trusted_by_who_has_the_old_authority(tmp_path: Path) -> None:
    """For the same names, or others; the old pair is kept, the authority is not touched."""
    pki, node = tmp_path / "pki", tmp_path / "ca.crt"
    assert certificates("server", pki, "server.example", "127.0.0.1").returncode == 0
    shutil.copy(pki / "ca.crt", node)
    old = {path.name: path.read_bytes() for path in pki.iterdir()}
    serials = [greet(pki, name, node) for name in ("server.example", "127.0.0.1")]
    assert certificates("renew", pki).returncode == 0
    serials += [greet(pki, name, node) for name in ("server.example", "127.0.0.1")]
    assert len(set(serials)) == 2
    now = {path.name: path.read_bytes() for path in pki.iterdir()}
    assert now["server.crt.old"] == old["server.crt"] and now["server.key.old"] == old["server.key"]
    assert now["ca.crt"] == old["ca.crt"] and now["ca.key"] == old["ca.key"]
    assert (pki / "server.key").stat().st_mode & 0o077 == 0
    assert certificates("renew", pki, "other.example").returncode == 0
    assert greet(pki, "other.example", node) not in serials
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        greet(pki, "server.example", node)


def test_a_certificate_is_for_the_loopback_address_too(tmp_path: Path) -> None:
    """The SuperLink's own processes reach it there; without it a run starts and stands still."""
    pki = tmp_path / "pki"
    assert certificates("server", pki, "server.example").returncode == 0
    greet(pki, "127.0.0.1", pki / "ca.crt")
    assert certificates("renew", pki, "other.example").returncode == 0
    greet(pki, "127.0.0.1", pki / "ca.crt")


def test_a_superlink_whose_own_processes_could_not_reach_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, door: ModuleType
) -> None:
    """By the address that it listens at, all addresses being the loopback's."""
    assert certificates("server", tmp_path / "pki", "server.example").returncode == 0
    words = ["superlink.py", "--port", "9092", "--ssl-certfile", f"{tmp_path}/pki/server.crt"]
    monkeypatch.setattr(sys, "argv", [*words, "--host", "0.0.0.0"])
    door.check_certificate()
    monkeypatch.setattr(sys, "argv", [*words, "--host", "10.0.0.1"])
    with pytest.raises(SystemExit, match=r"server.crt is not for 10\.0\.0\.1"):
        door.check_certificate()


def test_a_certificate_is_renewed_by_its_own_authority_alone(tmp_path: Path) -> None:
    """Without ca.key, or with another's, nothing changes."""
    for name in ("pki", "other"):
        assert certificates("server", tmp_path / name, "server.example").returncode == 0
    served = (tmp_path / "pki" / "server.crt").read_bytes()
    shutil.copy(tmp_path / "other" / "ca.key", tmp_path / "pki")
    done = certificates("renew", tmp_path / "pki")
    assert (done.returncode, "is not the key of ca.crt" in done.stderr) == (2, True)
    (tmp_path / "pki" / "ca.key").unlink()
    done = certificates("renew", tmp_path / "pki")
    assert (done.returncode, "ca.key" in done.stderr) == (2, True)
    assert (tmp_path / "pki" / "server.crt").read_bytes() == served


def test_a_renewal_that_fails_leaves_the_pair_in_use(tmp_path: Path) -> None:
    """The disk is full (no file may grow); a renewal after that goes on as if nothing were."""
    pki = tmp_path / "pki"
    assert certificates("server", pki, "server.example").returncode == 0
    old = {path.name: path.read_bytes() for path in pki.iterdir()}
    words = (sys.executable, FOLDER / "certificates.py", "renew", pki)
    full = subprocess.run(
        ["bash", "-c", 'ulimit -f 0; exec "$@"', "-", *map(str, words)], capture_output=True
    )
    assert full.returncode != 0
    assert {name: (pki / name).read_bytes() for name in old} == old
    assert certificates("renew", pki).returncode == 0
    greet(pki, "server.example", pki / "ca.crt")
    assert (pki / "server.key.old").read_bytes() == old["server.key"]


@pytest.mark.parametrize("form", ["{} {}", "{}={}"])
def test_a_program_knows_its_servers_address(
    form: str, monkeypatch: pytest.MonkeyPatch, door: ModuleType
) -> None:
    """Of options in both forms; without a port it says what to give."""
    words = ["x.py", *form.format("--host", "10.0.0.1").split()]
    monkeypatch.setattr(sys, "argv", [*words, *form.format("--port", "9192").split()])
    assert door.health.read_url("https") == "https://10.0.0.1:9192/health"
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="give --port PORT"):
        door.health.read_url("https")


def load_program(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    spec = importlib.util.spec_from_file_location(f"{name}_program", FOLDER / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def door(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The program that starts the SuperLink, as a module."""
    return load_program("superlink", monkeypatch)


def push_through(
    door: ModuleType, requests: list[tuple[str, bytes]], status: Callable[[str], int]
) -> tuple[list[int], int]:
    """Send requests through a door of 10 kB; return the answers, and the bytes that came in."""
    received = [0]

    async def link(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        received[0] += len(await request.body())
        await Response(status_code=status(request.headers.get("who", "")))(scope, receive, send)

    async def push() -> list[int]:
        transport = httpx.ASGITransport(app=door.ReplyDoor(link, 10_000))
        async with httpx.AsyncClient(transport=transport, base_url="http://link") as client:
            return [
                (
                    await client.post(path, content=body, headers={"who": path.partition("#")[2]})
                ).status_code
                for path, body in requests
            ]

    return asyncio.run(push()), received[0]


def head(node: int, answered: str) -> tuple[str, bytes]:
    """Return the request with which a node begins its reply to a message."""
    message = Message(metadata=Metadata(reply_to_message_id=answered))
    request = PushMessagesRequest(node=Node(node_id=node), messages_list=[message])
    return "/v1/fleet/push-messages", request.SerializeToString()


def piece(node: int, size: int) -> tuple[str, bytes]:
    """Return the request that brings a piece of a reply."""
    request = PushObjectRequest(node=Node(node_id=node), object_content=bytes(size))
    return "/v1/fleet/push-object", request.SerializeToString()


def test_the_door_adds_up_the_pieces_of_a_reply(door: ModuleType) -> None:
    """Each reply of each node for itself, also of one that takes turns between two replies."""
    answers, received = push_through(
        door,
        [
            head(1, "a"), piece(1, 6000), head(2, "b"), piece(2, 6000), piece(1, 6000),
            head(1, "c"), piece(1, 6000), head(1, "a"), piece(1, 6000), piece(2, 3000),
        ],
        lambda _: 200,
    )  # fmt: skip
    assert answers == [200, 200, 200, 200, 413, 200, 200, 200, 413, 200]
    assert 21_000 < received < 21_500


def test_the_door_counts_nothing_that_flower_refuses(door: ModuleType) -> None:
    """Who is not the node cannot use up what it may send."""
    requests = [head(1, "a"), *[piece(1, 6000)] * 4]
    statuses = iter([200, 401, 401, 200, 200])
    answers, _ = push_through(door, requests, lambda _: next(statuses))
    assert answers == [200, 401, 401, 200, 413]


def test_the_door_takes_as_many_connections_as_the_system_gives_it(door: ModuleType) -> None:
    """Not the 1024 that many systems allow a process which does not ask."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, before[1]))
        door.allow_files()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert hard == before[1] and 500 < soft <= 65_536
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_door_takes_no_large_request_and_passes_on_what_it_cannot_read(
    door: ModuleType,
) -> None:
    """Of whatever kind; bytes that are no message are Flower's to refuse."""
    large = bytes(door.MOST_OF_A_REQUEST + 1)
    paths = ["/v1/fleet/push-object", "/v1/control/start-run", "/health"]
    answers, received = push_through(door, [(path, large) for path in paths], lambda _: 200)
    assert (answers, received) == ([413] * 3, 0)
    broken = [("/v1/fleet/push-object", b"\xff"), ("/v1/fleet/push-messages", b"\xff")]
    assert push_through(door, broken, lambda _: 415) == ([415] * 2, 2)


class BrokenLink(BaseHTTPRequestHandler):
    """A SuperLink that takes a node in, then has an internal error, as with a locked database."""

    def do_POST(self) -> None:
        """Answer a request of the Fleet API."""
        self.rfile.read(int(self.headers["content-length"]))
        is_greeting = self.path.endswith(("/register-node", "/activate-node"))
        answer = ActivateNodeResponse(node_id=5).SerializeToString() if is_greeting else b""
        self.send_response(200 if is_greeting else 500)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def run_node(folder: Path, port: int) -> tuple[int, str]:
    """Start a node of a SuperLink on a port; return its exit status and what it said."""
    command = [sys.executable, str(FOLDER / "supernode.py"), "--insecure"]
    command += ["--superlink", f"127.0.0.1:{port}", "--port", str(free_port())]
    environment = {**os.environ, "FLWR_HOME": str(folder)}
    environment["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (folder / "log").open("wb") as log:
        node = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        status = node.wait(60)
    finally:
        node.kill()
    return status, (folder / "log").read_text()


def test_a_node_that_can_no_longer_work_ends(tmp_path: Path) -> None:
    """Flower's own SuperNode stays, as a process that is offline for good."""
    with serve(BrokenLink) as port:
        status, said = run_node(tmp_path, port)
    assert status == 1 and "can no longer work and ends" in said


@pytest.mark.parametrize(
    ("server_ahead", "reason"),
    [
        (7200, "its clock is 7[12].. s behind the server's; set it"),
        (-10, "its clock is 1. s ahead of the server's; set it"),
        (200, "the server knows its key no longer; register it again"),
        (None, "the server knows its key no longer; register it again"),
    ],
)
def test_a_refusal_is_explained_by_the_clock_or_by_the_key(
    monkeypatch: pytest.MonkeyPatch, server_ahead: int | None, reason: str
) -> None:
    """By the date of the server's answer, if it has one."""
    node = load_program("supernode", monkeypatch)
    date = "" if server_ahead is None else formatdate(time.time() + server_ahead, usegmt=True)
    assert re.match(reason, node.explain_refusal(date))


def test_a_node_sends_what_it_sends_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has a timeout of its own; the server gets the same bytes, and their number first."""
    node = load_program("supernode", monkeypatch)
    content, received = os.urandom(100_000), list[bytes]()

    def answer(request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.SyncByteStream)
        received.extend(request.stream)
        assert request.headers["content-length"] == str(len(content))
        return httpx.Response(200)

    client = httpx.Client(transport=httpx.MockTransport(answer))

    def send(context: ProtobufRequestContext) -> httpx.Response:
        return client.send(context.request)

    request = client.build_request("POST", "http://link/v1/fleet/push-object", content=content)
    context = ProtobufRequestContext("push", PushObjectRequest(), request)
    assert node.PieceSender().intercept(context, send).status_code == 200
    assert len(received) > 1 and b"".join(received) == content


def start_node(folder: Path, state: Path, *more: str, **environment: str) -> list[str]:
    """Return Flower's home and the node's configuration of what supernode.sh starts."""
    python = folder / "python"
    python.write_text('#!/bin/sh\necho "$FLWR_HOME"\nfor last; do :; done\necho "$last"\n')
    python.chmod(0o755)
    words = ["sh", str(FOLDER / "supernode.sh"), "link:9092", "ca", "key", "0", "own.npz"]
    clean = {key: value for key, value in os.environ.items() if key != "FLWR_HOME"}
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*words, str(state), *more], env=clean | path | environment, capture_output=True, text=True
    )
    return done.stdout.splitlines()


def test_further_keys_of_a_node_come_from_the_environment(tmp_path: Path) -> None:
    """A limit that is given as an argument is refused, not left out."""
    _, config = start_node(tmp_path, tmp_path, FEDCEL_NODE_CONFIG="leak-limit=1.0")
    assert config == f'partition-id=0 data-path="own.npz" state-path="{tmp_path}" leak-limit=1.0'
    _, config = start_node(tmp_path, tmp_path)
    assert config == f'partition-id=0 data-path="own.npz" state-path="{tmp_path}"'
    assert start_node(tmp_path, tmp_path, "127.0.0.1", "9094", "leak-limit=1.0") == []


def test_nodes_of_one_user_install_bundles_in_folders_of_their_own(tmp_path: Path) -> None:
    """Flower takes a folder that is there for installed, also while another process fills it."""
    homes = {start_node(tmp_path, tmp_path / name)[0] for name in ("a", "b")}
    assert homes == {f"{tmp_path}/a-flower", f"{tmp_path}/b-flower"}
    assert start_node(tmp_path, tmp_path / "a", FLWR_HOME="/home/of/all")[0] == "/home/of/all"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Healthy(BrokenLink):
    """A server whose health has an address."""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 503)
        self.end_headers()


@pytest.fixture
def healthy_server() -> Iterator[str]:
    with serve(Healthy) as port:
        yield f"http://127.0.0.1:{port}"


def test_the_health_check_asks_what_it_is_told_to_ask(healthy_server: str) -> None:
    """A server that answers 200 is healthy; one that does not, or is not there, is not."""
    assert [check(f"{healthy_server}/{name}") for name in ("health", "other")] == [0, 1]
    assert (check(f"http://127.0.0.1:{free_port()}/health"), check("nonsense"), check()) == (
        1,
        1,
        0,
    )


def test_systemd_is_told_that_a_server_is_well_as_long_as_it_is(
    healthy_server: str, tmp_path: Path
) -> None:
    """Once ready, again and again alive; nothing of one that does not answer."""
    script = (
        "import sys, time, health; health.SECONDS = 1; health.watch(sys.argv[1]); time.sleep(4)"
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(20)
        environment = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}
        environment["PYTHONPATH"] = str(FOLDER)
        for path in ("other", "health"):  # had the first said something, it would be read first
            words = [sys.executable, "-c", script, f"{healthy_server}/{path}"]
            subprocess.run(words, env=environment, check=True)
            if path == "other":
                manager.setblocking(False)
                with pytest.raises(BlockingIOError):
                    manager.recv(100)
                manager.settimeout(20)
        assert [manager.recv(100) for _ in range(2)] == [b"READY=1\nWATCHDOG=1"] * 2


def test_a_server_ends_well_while_it_is_being_asked() -> None:
    """A question on its way, inside OpenSSL, does not outlive the interpreter."""
    script = (
        "import time, health; health.SECONDS = 0.001; "
        "health.watch('https://127.0.0.1:9/health'); time.sleep(0.1)"
    )
    environment = {**os.environ, "NOTIFY_SOCKET": "/nobody", "PYTHONPATH": str(FOLDER)}
    for _ in range(20):
        subprocess.run([sys.executable, "-c", script], env=environment, check=True)


def check(*words: str) -> int:
    """Run health.py."""
    environment = {key: value for key, value in os.environ.items() if key != "FEDCEL_HEALTH"}
    return subprocess.run(
        [sys.executable, str(FOLDER / "health.py"), *words], env=environment
    ).returncode


def named_files(text: str) -> set[str]:
    return set(re.findall(r"/opt/fedcel/((?!\.venv)[\w./-]+\.(?:sh|py|conf))", text))


@pytest.mark.parametrize("path", [*UNITS, ROOT / "Dockerfile"], ids=lambda path: path.name)
def test_what_units_and_container_start_is_there(path: Path) -> None:
    """Scripts by their place, with the right to be run where they are run as they are."""
    files = named_files(path.read_text())
    assert files
    for name in files:
        assert (ROOT / name).is_file(), name
        if name.endswith(".sh"):
            assert os.access(ROOT / name, os.X_OK), name
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", path.read_text(), re.MULTILINE)
    for name in " ".join(copied).split():
        assert (ROOT / name).exists(), name


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_restart_what_failed_and_are_what_systemd_reads(path: Path, tmp_path: Path) -> None:
    """A limit of memory, no rights; `systemd-analyze verify` where there is one."""
    text = path.read_text()
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "CapabilityBoundingSet="):
        assert f"\n{line}\n" in text
    assert re.search(r"^Restart=(always|on-failure)$", text, re.MULTILINE)
    assert re.search(r"^MemoryMax=", text, re.MULTILINE)
    (command,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    if "superlink.sh" in command or "supernode.sh" in command:
        script = (FOLDER / Path(command.split()[0]).name).read_text()
        (at_least,) = re.findall(r"\$# -lt (\d)", script)
        assert len(command.split()) - 1 >= int(at_least)
    if not shutil.which("systemd-analyze"):
        pytest.skip("no systemd-analyze")
    there = text.replace("/opt/fedcel/.venv/bin", str(Path(sys.executable).parent))
    there = there.replace("/opt/fedcel", str(ROOT))
    (tmp_path / path.name).write_text(there)
    words = ["systemd-analyze", "verify", str(tmp_path / path.name)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
