"""A ledger's file with one byte of it changed: each use of it is right, or a LedgerError.

`python -m tests.fedcel.privacy.ledger.flipped_bytes [FLIPS] [SEED]` prints how many flips came to
which end; test_flipped_bytes.py does the same with fewer.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from fedcel.errors import LedgerError
from fedcel.privacy.ledger import MICRO, Charge, Ledger
from tests.fedcel.privacy.ledger.charges import pay

CLIENTS = ("ann", "bob", "zoë")
REQUESTS = 30


def charge(number: int) -> Charge:
    digest = sha256(str(number).encode()).digest()
    client = CLIENTS[number % 3]
    return Charge(f"{client}:{number}", client, f"v{number % 2}", 1000 + number, 1e-6, digest)


def make_ledger(path: Path) -> bytes:
    """Write a ledger of three clients and two model versions; return its file."""
    with Ledger.open(path) as ledger:
        for client in CLIENTS:
            ledger.grant(client, MICRO)
        ledger.limit("v1", MICRO)
        for start in range(0, REQUESTS, 6):
            pay(ledger, [charge(number) for number in range(start, start + 6)])
    return path.read_bytes()


USES: dict[str, Callable[[Ledger], object]] = {
    "list": lambda ledger: ledger.clients(),
    "balance": lambda ledger: [ledger.balance(name) for name in (*CLIENTS, "eve")],
    "prices": lambda ledger: [ledger.prices(name) for name in CLIENTS],
    "rows": lambda ledger: ledger.rows(),
    "repeat": lambda ledger: pay(ledger, [charge(number) for number in range(REQUESTS)]),
    "replay": lambda ledger: pay(
        ledger, [charge(number)._replace(message=bytes(32)) for number in range(REQUESTS)]
    ),
    "admit": lambda ledger: [ledger.admit(name, 5) for name in CLIENTS],
    "charge": lambda ledger: pay(ledger, [charge(REQUESTS + number) for number in range(6)]),
    "rest": lambda ledger: [ledger.balance(name) for name in CLIENTS],
}
"""Everything that is done with a ledger; what each gives is known from the sound one."""


def use_ledger(path: Path) -> dict[str, object]:
    """Return what each use gives; "refused" is a LedgerError."""
    results: dict[str, object] = {}
    try:
        with Ledger.open(path) as ledger:
            for name, use in USES.items():
                try:
                    results[name] = use(ledger)
                except LedgerError:
                    results[name] = "refused"
    except LedgerError:
        return dict.fromkeys(USES, "refused")
    return results


def verify(path: Path) -> str:
    """Return how `verify` ends on a file before anything is written to it."""
    try:
        with Ledger.open(path) as ledger:
            return "told" if ledger.verify() else "sound"
    except LedgerError:
        return "refused"


def flip_bytes(folder: Path, flips: int, seed: int) -> Counter[str]:
    """Flip a byte of the file, many times; return the ends. Whatever is no LedgerError is raised.

    AssertionError where a use gives anything but what the sound ledger gives, or an error.
    """
    path = folder / "ledger.db"
    raw = make_ledger(path)
    sound = use_ledger(path)
    assert "refused" not in sound.values()
    draws, ends = random.Random(seed), Counter[str]()
    for _ in range(flips):
        place, mask = draws.randrange(len(raw)), draws.randrange(1, 256)
        changed = bytearray(raw)
        changed[place] ^= mask
        path.write_bytes(changed)
        verdict = verify(path)
        path.write_bytes(changed)
        results = use_ledger(path)
        wrong = [name for name in USES if results[name] not in ("refused", sound[name])]
        # What was refused before a charge may be lacking after it.
        if results["charge"] == "refused":
            wrong = [name for name in wrong if name != "rest"]
        assert wrong == [], (place, mask, wrong, [results[name] for name in wrong])
        refused = sum(result == "refused" for result in results.values())
        part = "nothing" if not refused else "all" if refused == len(USES) else "a part"
        ends[f"verify: {verdict}; refused: {part}"] += 1
    return ends


if __name__ == "__main__":
    with TemporaryDirectory() as place:
        count = int(sys.argv[1]) if len(sys.argv) > 1 else 1200
        for end, times in flip_bytes(
            Path(place), count, int(sys.argv[2]) if len(sys.argv) > 2 else 0
        ).most_common():
            print(f"{times:6d} {end}")
