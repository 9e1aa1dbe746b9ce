"""A run without training, and a service of it in a thread, on a real socket and ledger."""

import asyncio
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import NamedTuple

import httpx
import torch
import uvicorn

from clients.service import ServedModel, load_served, worker
from clients.service.access import add_key, key_table_path
from clients.service.app import ServiceApp
from clients.service.model_offer import ModelOffer
from clients.service.service import Limits, Service
from clients.service.worker import AnswerWorker, ProcessWorker, Result
from fedcel.data import load_splits
from fedcel.privacy import Mechanism
from fedcel.privacy.ledger import MICRO, Ledger, LedgerAddress, parse_ledger_address
from fedcel.run_parts import init_net
from fedcel.runs import calibrate_answers
from fedcel.runs.run_folder import Run
from fedcel.settings import parse_settings
from sims.commands.listening import Endpoint
from sims.commands.main import main
from sims.commands.web_server import configure_server
from tests.fedcel.privacy.ledger.ledger_processes import forked

SMALL = {"clients": 4, "net.features": 8, "net.width": 16}


def made_run(samples: int = 3, **changes: object) -> Run:
    """Return a run whose samples share an encoder; all parameters are random."""
    settings = parse_settings({**SMALL, **changes})
    splits = load_splits(settings.data, settings.clients, settings.seed)
    flat = init_net(settings, splits)
    stream = torch.Generator().manual_seed(1)
    vectors = []
    for _ in range(samples):
        vector = flat.vector.clone()
        vector[flat.device_size :] = torch.randn(len(vector) - flat.device_size, generator=stream)
        vectors.append(vector)
    return Run(Path("run"), settings, splits, flat, vectors[-1].clone(), vectors)


def make_offer(
    run: Run, model: ServedModel | None = None, mechanism: Mechanism | None = None
) -> ModelOffer:
    model = model or load_served(run)
    mechanism = mechanism or run.settings.privacy.build(model.classes)
    return ModelOffer(model, mechanism, calibrate_answers(run, mechanism))


def wait_until(is_true: Callable[[], bool]) -> None:
    """Wait for 30 seconds at most."""
    end = time.monotonic() + 30
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.02)


class Running(NamedTuple):
    """A service that listens."""

    url: str
    key: str
    service: Service
    ledger: Path

    @property
    def model(self) -> ServedModel:
        return self.service.model

    def ask(self, content: bytes, seconds: float = 20, **headers: str) -> httpx.Response:
        """Ask in bytes; `headers` replace the right ones, an empty one removes it."""
        right = {
            "authorization": f"Bearer {self.key}",
            "content-type": "application/octet-stream",
            "idempotency-key": f"request-{time.monotonic_ns()}",
            "model-version": self.model.version,
        }
        sent = right | {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in sent.items() if value}
        return httpx.post(f"{self.url}/v1/query", content=content, headers=sent, timeout=seconds)


class ThreadWorker(ProcessWorker):
    """A worker in a thread of this process, which takes any object as a mechanism."""

    worker: AnswerWorker | None = None

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)

    async def open(
        self, ledger: LedgerAddress, offer: ModelOffer, on_end: Callable[[], None]
    ) -> None:
        self.worker = await run_in_thread(self._thread, AnswerWorker, ledger, offer)

    async def call(self, method: Callable[..., Result], *arguments: object) -> Result:
        return await run_in_thread(self._thread, method, self.worker, *arguments)

    async def close(self) -> None:
        if self.worker is not None:
            await self.call(AnswerWorker.ask_ledger, Ledger.close)
        await asyncio.to_thread(self._thread.shutdown)


async def run_in_thread(
    thread: ThreadPoolExecutor, work: Callable[..., Result], *arguments: object
) -> Result:
    """Return what work returns that runs in a thread; what would end the event loop is an error."""

    def run() -> Result:
        try:
            return work(*arguments)
        except Exception:
            raise
        except BaseException as error:  # such as SystemExit
            raise RuntimeError(f"the work ended with {type(error).__name__}") from None

    return await asyncio.get_running_loop().run_in_executor(thread, run)


def ledger_of(up: Running) -> Ledger:
    """Return a service's own connection to its ledger, at a worker in a thread."""
    assert isinstance(up.service.worker, ThreadWorker) and up.service.worker.worker
    return up.service.worker.worker.ledger


@contextmanager
def running(
    folder: Path,
    run: Run | None = None,
    epsilon: float = 1e6,
    limits: Limits | None = None,
    mechanism: Mechanism | None = None,
    *,
    ledger: str | None = None,
    model: ServedModel | None = None,
    worker: ProcessWorker | None = None,
) -> Iterator[Running]:
    """Serve a run to the client `phone`, which may spend `epsilon`.

    `ledger`: its address, None: a file in the folder. `model`: None: the run's, in torch.
    `worker`:
    None: in a thread, which takes any object as a mechanism.
    """
    run = run or made_run()
    path, keys = folder / "ledger.db", key_table_path(folder / "ledger.db")
    address = parse_ledger_address(ledger or path)
    key = add_key(keys, "phone", None, time.time())
    with Ledger.open(address) as opened:
        opened.grant("phone", int(epsilon * MICRO))
    service = Service(
        make_offer(run, model, mechanism),
        address,
        limits or Limits(rate=1e6),
        keys=keys,
        worker=worker or ThreadWorker(),
    )
    endpoint = Endpoint("127.0.0.1", 0, None, None, False)
    server = uvicorn.Server(configure_server(ServiceApp(service), endpoint))
    with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        port = listener.getsockname()[1]
        try:
            while not server.started and thread.is_alive():
                time.sleep(0.01)
            yield Running(f"http://127.0.0.1:{port}", key, service, path)
        finally:
            server.should_exit = True
            thread.join(20)
    assert not thread.is_alive(), "the service did not drain"


class ForkedProcess:
    """A forked process, as `subprocess.Popen` describes one."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.pid, self._status = forked(work), None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def poll(self) -> int | None:
        """Return its exit status; None while it runs."""
        if self._status is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = os.waitstatus_to_exitcode(status) if ended else None
        return self._status

    def wait(self, seconds: float = math.inf) -> int:
        limit = time.monotonic() + seconds
        while (status := self.poll()) is None:
            if time.monotonic() > limit:
                raise subprocess.TimeoutExpired("worker", seconds)
            time.sleep(0.005)
        return status


def fork_worker(connection: socket.socket) -> ForkedProcess:
    """Start a worker's process as `start_process` does, with all modules loaded already."""

    def answer() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, worker.OWN_SIGNALS)
        kept = connection.fileno()
        os.closerange(3, kept)  # the other end of the connection among them
        os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
        sys.argv[1:] = [str(kept)]
        worker.main()

    return ForkedProcess(answer)


def fork_service(
    words: Sequence[object], log: Path, environment: Mapping[str, str]
) -> ForkedProcess:
    """Start `fedcel serve` with these words as it starts itself, all modules loaded already."""

    def serve() -> None:
        with log.open("a") as file:
            for stream in (sys.stdout, sys.stderr):
                os.dup2(file.fileno(), stream.fileno())
        os.environ.update(environment)
        worker.start_process = fork_worker  # type: ignore[assignment]
        os._exit(main(["serve", *map(str, words)]))

    return ForkedProcess(serve)
