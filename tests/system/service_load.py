"""Clients that ask a service of `tests.system.services` without a pause, and what they paid."""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np

from fedcel.privacy.ledger import MICRO, Ledger


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
def loaded(urls: list[str], key: str, threads: int = 3) -> Iterator[list[str]]:
    """Ask several services at once; the list is whole when the context ends."""
    until, answered = threading.Event(), []
    card = httpx.get(f"{urls[0]}/v1/model", headers={"authorization": f"Bearer {key}"})
    version = card.json()["model"]

    def ask(url: str) -> None:
        answered.extend(load(url, key, version, until))

    asking = [threading.Thread(target=ask, args=(url,)) for url in urls * threads]
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
