"""Processes that use a ledger, are killed, race: run by test_ledger_processes.py.

`forked(main)` writes what came of each part to outcomes.json. Processes are forked, so that none of
them spends its time on imports.
"""

import json
import os
import random
import resource
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import count
from pathlib import Path
from threading import Barrier

from fedcel.errors import LedgerError
from fedcel.privacy.ledger import Charge, Ledger, Receipt
from fedcel.privacy.ledger.ledger import read_sums
from tests.fedcel.privacy.ledger.charges import pay

KILLS = int(os.environ.get("FEDCEL_KILLS", "10"))
PROCESSES, RACERS = 4, 16
DEADLINE = 300
"""Seconds after which a process that hangs is ended."""


def charge(request: str) -> Charge:
    return Charge(request, "ann", "v1", 1, 0.0, sha256(request.encode()).digest())


def forked(work: Callable[[], None]) -> int:
    """Return the id of a process that does the work and ends."""
    child = os.fork()
    if child == 0:
        signal.alarm(DEADLINE)
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def answer_for_ever(path: Path | str, answers: Path, name: str) -> None:
    """Charge, then tell requests and answers, three at a time, a line each."""
    file = os.open(answers, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with Ledger.open(path) as ledger:
        for k in count():
            group = [f"{name}-{k}-{part}" for part in range(3)]
            drawn = [f"{request} {os.getpid()}\n".encode() for request in group]
            replies = ledger.charge([charge(request) for request in group], drawn)
            told = [reply.answer for reply in replies if isinstance(reply, Receipt)]
            os.write(file, b"".join(told))


def crash(folder: Path, address: str = "") -> object:
    """Kill two processes at work, many times; return what was told, spent, and found wrong.

    What was told since the last kill is asked again: another answer, or a charge, is wrong.
    """
    path, answers = address or folder / "ledger.db", folder / "answers"
    with Ledger.open(path) as ledger:
        ledger.grant("ann", 10**12)
    rows, delays, count_told = [], random.Random(0), 0
    for k in range(KILLS):
        children = [
            forked(lambda name=f"{k}-{n}": answer_for_ever(path, answers, name)) for n in range(2)
        ]
        time.sleep(delays.uniform(0.005, 0.1))
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        told = read_told(answers)
        with Ledger.open(path) as ledger:
            spent = ledger.balance("ann").spent
            problems = [*find_changed(ledger, told[count_told:]), *ledger.verify()]
            sums = read_sums(ledger.db)
            rows.append((len(told), spent, sums.answers, problems))
        count_told = len(told)
    return rows


def read_told(answers: Path) -> list[bytes]:
    return answers.read_bytes().splitlines(keepends=True) if answers.exists() else []


def find_changed(ledger: Ledger, told: Sequence[bytes]) -> list[str]:
    """Return the answers that are not told again, for free, when they are asked for again."""
    charges = [charge(line.split()[0].decode()) for line in told]
    replies = ledger.charge(charges, [b"another answer"] * len(charges))
    return [
        f"told {line!r}, then {reply}"
        for line, reply in zip(told, replies, strict=True)
        if not (isinstance(reply, Receipt) and (reply.answer, reply.is_fresh) == (line, False))
    ]


def race(folder: Path) -> object:
    """Let 8 processes make one ledger and ask for its last micro-epsilon; return what they got."""
    path = folder / "ledger.db"
    go = time.time() + 0.2

    def ask(name: str) -> None:
        time.sleep(max(0.0, go - time.time()))
        with Ledger.open(path) as ledger:
            if name == "0":
                ledger.grant("ann", 1)
            while ledger.balance("ann").granted == 0:
                time.sleep(0.001)
            (reply,) = pay(ledger, [charge(name)])
        (folder / name).write_text(type(reply).__name__)

    for child in [forked(lambda name=str(k): ask(name)) for k in range(8)]:
        os.waitpid(child, 0)
    with Ledger.open(path) as ledger:
        return [sorted((folder / str(k)).read_text() for k in range(8)), ledger.verify()]


def race_for_the_rest(address: str, folder: Path, budget: int) -> object:
    """Let 64 racers in 4 processes ask for what is left; return how many each reply got."""
    with Ledger.open(address) as ledger:
        ledger.grant("ann", budget)

    def ask_all(process: int) -> None:
        start = Barrier(RACERS)

        def ask(racer: int) -> str:
            with Ledger.open(address) as ledger:
                start.wait(DEADLINE)
                (reply,) = pay(ledger, [charge(f"{process}-{racer}")])
            return type(reply).__name__

        with ThreadPoolExecutor(RACERS) as pool:
            (folder / str(process)).write_text("\n".join(pool.map(ask, range(RACERS))))

    for child in [forked(lambda number=k: ask_all(number)) for k in range(PROCESSES)]:
        os.waitpid(child, 0)
    replies = [text for k in range(PROCESSES) for text in (folder / str(k)).read_text().split()]
    with Ledger.open(address) as ledger:
        spent, problems = ledger.balance("ann").spent, ledger.verify()
    return [replies.count("Receipt"), replies.count("Refusal"), spent, problems]


def small(folder: Path) -> object:
    """Fill the disk, as far as this process may write; return the reason, and what was booked."""
    path = folder / "ledger.db"
    with Ledger.open(path) as ledger:
        ledger.grant("ann", 10**9)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, limit[1]))
        booked, reason = 0, ""
        while not reason:
            try:
                replies = pay(ledger, [charge(f"{booked}-{k}") for k in range(64)])
                booked += len(replies)
            except LedgerError as error:
                reason = str(error)
        probes = [describe_probe(ledger)]
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        probes.append(describe_probe(ledger))
        pay(ledger, [charge("later")])
    with Ledger.open(path) as ledger:
        return [reason, booked, ledger.balance("ann").spent, ledger.verify(), probes]


def describe_probe(ledger: Ledger) -> str:
    """Return why nothing could be charged now."""
    try:
        ledger.probe()
    except LedgerError as error:
        return str(error)
    return ""


def read_only(folder: Path) -> object:
    """Return why a ledger without the right to write is refused."""
    with Ledger.open(folder / "ledger.db") as ledger:
        ledger.grant("ann", 1)
    (folder / "ledger.db").chmod(0o444)
    folder.chmod(0o555)
    (folder.parent / "outcomes.json").chmod(0o666)
    if os.geteuid() == 0:
        os.setuid(65534)  # the superuser may write whatever the mode
    try:
        Ledger.open(folder / "ledger.db")
    except LedgerError as error:
        return str(error)
    return "opened"


PARTS = {"crash": crash, "race": race, "small": small, "read-only": read_only}


def main(folder: Path) -> None:
    """Run all parts, each in a folder of its own; the last one gives its rights away."""
    outcomes = {}
    for name, part in PARTS.items():
        part_folder = folder / name
        part_folder.mkdir()
        outcomes[name] = part(part_folder)
        (folder / "outcomes.json").write_text(json.dumps(outcomes))
