"""Files of the project that run between a message and its reply.

`python -m tests.bench.message_files` prints them: of a Flower train message (`cluster` on digits, a
node's second round, in which all that a process keeps is there), and of a private query, from the
HTTP request to the noisy answer.
"""

import asyncio
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import httpx
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from torch import Tensor

from clients.flower.client_app import app
from clients.service.access import add_key, key_table_path
from clients.service.app import ServiceApp
from clients.service.service import Limits, Service
from fedcel.federation import record_names
from fedcel.flower_messages import allow_messages
from fedcel.nets import to_arrays
from fedcel.privacy import Mechanism
from fedcel.privacy.ledger import MICRO, Ledger
from fedcel.run_parts import build_workspace_net
from fedcel.settings import parse_run_config
from tests.clients.serving import ThreadWorker, made_run, make_offer

RUN_CONFIG = {"clients": 4, "cel.kind": "cluster", "cel.warm-up": 0, "local.steps": 3, "rounds": 10}
ROOT = Path(__file__).parents[2]
PACKAGES = ("fedcel", "clients", "strategies", "sims")


def record_files(round_number: int = 2) -> Counter[str]:
    """Answer the train messages of the first rounds, and record the last.

    Args:
        round_number: The round that is recorded.

    Returns:
        Calls within each file, by its path below the root.
    """
    net = build_workspace_net(parse_run_config(RUN_CONFIG))
    arrays = ArrayRecord(to_arrays(net.vector, net.shapes))
    context = Context(1, 101, {"partition-id": 1}, RecordDict(), {**RUN_CONFIG})
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (name := find_file(frame)):
            calls[name] += 1

    for number in range(1, round_number + 1):
        config = {
            record_names.ROUND: number,
            record_names.WEIGHT: 0.25,
            record_names.TOTAL: 997,
            record_names.STATE_ROUND: number - 1,
        }
        records = {record_names.ARRAYS: arrays, record_names.CONFIG: ConfigRecord(config)}
        with allow_messages():
            message = Message(RecordDict(dict(records)), dst_node_id=101, message_type="train")
        calls.clear()
        sys.setprofile(count)
        try:
            with allow_messages():
                app(message, context)
        finally:
            sys.setprofile(None)
    return calls


class LastStep:
    """A mechanism that calls back as soon as there is a noisy answer."""

    def __init__(self, mechanism: Mechanism, on_answer: Callable[[], None]) -> None:
        self._mechanism = mechanism
        self.on_answer = on_answer

    def __getattr__(self, name: str) -> object:
        """Return what the mechanism has."""
        return getattr(self._mechanism, name)

    def answer(self, logits: Tensor) -> Tensor:
        """Answer, and call back."""
        noisy = self._mechanism.answer(logits)
        self.on_answer()
        return noisy


def record_query_files() -> Counter[str]:
    """Answer private queries, and record the third from the HTTP request to its noisy answer.

    Returns:
        Calls within each file, by its path below the root.
    """
    calls: Counter[str] = Counter()
    is_counting = False

    def count(frame: FrameType, event: str, _: object) -> None:
        if is_counting and event == "call" and (name := find_file(frame)):
            calls[name] += 1

    def stop() -> None:
        nonlocal is_counting
        is_counting = False

    async def ask(folder: Path) -> None:
        nonlocal is_counting
        ledger_path = folder / "ledger.db"
        key = add_key(key_table_path(ledger_path), "phone", None, time.time())
        with Ledger.open(ledger_path) as ledger:
            ledger.grant("phone", 100 * MICRO)
        offer = make_offer(made_run())
        mechanism = LastStep(offer.mechanism, stop)
        service = Service(
            offer._replace(mechanism=mechanism), ledger_path, Limits(), worker=ThreadWorker()
        )
        headers = {
            "authorization": f"Bearer {key}",
            "content-type": "application/octet-stream",
            "model-version": offer.model.version,
        }
        await service.start()
        transport = httpx.ASGITransport(ServiceApp(service))
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            for number in range(3):
                is_counting = number == 2
                message = np.full(8, number / 10, "<f4").tobytes()
                ids = {"idempotency-key": f"request-{number}"}
                reply = await client.post("/v1/query", content=message, headers=headers | ids)
                assert reply.status_code == 200, reply.text
        await service.end()

    threading.setprofile(count)  # the worker's thread starts with the service
    sys.setprofile(count)
    try:
        with TemporaryDirectory() as folder:
            asyncio.run(ask(Path(folder)))
    finally:
        threading.setprofile(None)
        sys.setprofile(None)
    return calls


def find_file(frame: FrameType) -> str | None:
    """Return a frame's file below the root; None where it is none of the product's."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(ROOT):
        return None
    name = path.relative_to(ROOT)
    is_product = name.parts[0] in PACKAGES and name.parts[1] != "testing"
    return name.as_posix() if is_product else None


if __name__ == "__main__":
    for message, files in (("train", record_files()), ("query", record_query_files())):
        for name, calls in sorted(files.items()):
            print(f"{calls:6} {name}")
        print(len(files), f"files of a {message} message")
