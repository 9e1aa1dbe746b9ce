"""A server of PostgreSQL of the tests' own, on a unix socket in a temporary folder."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

UNPRIVILEGED = 65534
"""Who runs the server where the tests run as root, whom it refuses."""
START_SECONDS = 60
LACKING = "PostgreSQL is not installed (no initdb and postgres); its ledger is not tested"


def find_memory() -> str | None:
    """Return a folder in memory with room for files of tests, None where there is none."""
    place = Path("/dev/shm")
    if os.access(place, os.W_OK) and shutil.disk_usage(place).free > 2**30:
        return str(place)
    return None


def find_programs() -> Path | None:
    """Return the folder of the server's programs, None where it is not installed."""
    places = [Path(found).resolve().parent] if (found := shutil.which("postgres")) else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "initdb").is_file()), None)


@dataclass
class PostgresServer:
    """A server that can be killed and started again."""

    programs: Path
    folder: Path
    process: "subprocess.Popen[bytes] | None" = None
    numbers: Iterator[int] = field(default_factory=count)
    emptied: str | None = None
    words: Sequence[str] = ()
    """In front of its programs' commands: they run on another host."""
    address: str = ""
    """That it listens at; none: only at its socket."""

    def url(self, database: str, address: str | Path = "") -> str:
        return f"postgresql://fedcel@/{database}?host={address or self.folder}"

    def make_database(self) -> str:
        import psycopg

        name = f"ledger{next(self.numbers)}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def empty_database(self) -> str:
        """Return the address of a database that has no ledger any more: sooner than a new one."""
        import psycopg

        if self.emptied is None:
            self.emptied = self.make_database()
        with psycopg.connect(self.emptied, autocommit=True) as connection:
            connection.execute("SET client_min_messages = warning")
            connection.execute("DROP SCHEMA IF EXISTS fedcel_ledger CASCADE")
        return self.emptied

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        import psycopg

        words = ["-D", self.folder / "data", "-k", self.folder]
        words += ["-c", f"listen_addresses={self.address}"]
        limit = time.monotonic() + START_SECONDS
        while True:
            if self.process is None or self.process.poll() is not None:  # a killed one's memory
                self.process = self.run(self.programs / "postgres", *words)
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                assert time.monotonic() < limit, (self.folder / "log").read_text()
                time.sleep(0.05)
            else:
                return

    def kill(self) -> None:
        """End all its processes at once, with SIGKILL; a worker is in no group of the server's."""
        assert self.process
        server = self.process.pid
        children = Path(f"/proc/{server}/task/{server}/children")
        workers = [int(text) for text in children.read_text().split()] if children.exists() else []
        for process in (server, *workers):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.process.wait()

    def run(self, *command: object) -> "subprocess.Popen[bytes]":
        """Start a program of the server as somebody whom it accepts, in a group of its own."""
        is_root = os.geteuid() == 0
        words = [*self.words]
        if is_root and words:  # who enters another host has to be root
            words += ["setpriv", f"--reuid={UNPRIVILEGED}", f"--regid={UNPRIVILEGED}"]
            words += ["--clear-groups"]
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*words, *map(str, command)],
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
                **({"user": UNPRIVILEGED, "group": UNPRIVILEGED} if is_root and not words else {}),
            )


@contextmanager
def serve_postgres(
    place: str | None = None, words: Sequence[str] = (), address: str = ""
) -> Iterator[PostgresServer]:
    """Yield a server that runs; skip the test where it, or its driver, is not installed.

    `place`: where its temporary folder is made, None: where the system has them. `words` and
    `address` are the server's.
    """
    pytest.importorskip("psycopg", reason="the driver of PostgreSQL is not installed")
    programs = find_programs()
    if programs is None:
        pytest.skip(LACKING)
    with TemporaryDirectory(prefix="fedcel-", dir=place, ignore_cleanup_errors=True) as folder:
        server = PostgresServer(programs, Path(folder), words=words, address=address)
        if os.geteuid() == 0:
            os.chown(folder, UNPRIVILEGED, UNPRIVILEGED)
        words = ["-D", server.folder / "data", "-U", "fedcel", "-A", "trust", "-E", "UTF8"]
        made = server.run(programs / "initdb", *words, "--no-locale", "--no-sync")
        assert made.wait() == 0, (server.folder / "log").read_text()
        if address:
            with (server.folder / "data" / "pg_hba.conf").open("a") as rules:
                rules.write(f"host all all {address}/24 trust\n")
        server.start()
        try:
            yield server
        finally:
            server.kill()
