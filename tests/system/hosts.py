"""Hosts of a test: network namespaces, each with an address, joined by a bridge."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.system.links import Links

BIN = Path(sys.executable).parent
NAMES = Path("/etc/netns")
"""Files of each network namespace, which replace those of /etc there."""
SERVER = "server.example"
"""Name of host 0."""
REFUSALS = ("not permitted", "Permission denied", "Unknown device type", "Read-only file system")
"""What `ip` says where namespaces or bridges are refused."""
CLOCK = Path(__file__).with_name("shifted_clock.c")


class Hosts:
    """Hosts 0, 1, ... at addresses .1, .2, ... of a network; each is a network namespace.

    This process is on their network, too. Each host knows host 0 as `SERVER`.

    Args:
        count: How many hosts.
        folder: Holds a home and the logs of each host.
        links: Relays the hosts' links; None: the kernel's own.
        clocks: Each host has a clock of its own, where there is a C compiler.
    """

    def __init__(
        self, count: int, folder: Path, links: Links | None = None, *, clocks: bool = False
    ) -> None:
        self.folder, self._bridge, self._links = folder, f"fcb{os.getpid()}", links
        self._names = [f"fc{os.getpid()}h{k}" for k in range(count)]
        self._numbers = [*range(1, count + 1)]
        self._started: list[subprocess.Popen[bytes]] = []
        self._clock = folder / "shifted_clock.so" if clocks and shutil.which("cc") else None

    def address(self, host: int) -> str:
        return find_address(self._numbers[host])

    def home(self, host: int) -> Path:
        home = self.folder / f"host-{host}"
        home.mkdir(exist_ok=True)
        return home

    def words(self, host: int) -> list[str]:
        """Return the words in front of a command that runs on a host."""
        words = ["ip", "netns", "exec", self._names[host]]
        if self._clock:
            words += ["env", f"LD_PRELOAD={self._clock}", f"CLOCK_SHIFT={self._clock_shift(host)}"]
        return words

    def build(self) -> None:
        """Make namespaces, links and the bridge; CalledProcessError where that is refused."""
        # Its own address: with a port's, it would get what reaches a port that is cut off.
        call("link", "add", self._bridge, "address", "02:fe:dc:ba:98:76", "type", "bridge")
        call("address", "add", f"{find_address(254)}/24", "dev", self._bridge)
        call("link", "set", self._bridge, "up")
        if self._clock:
            words = ("cc", "-shared", "-fPIC", "-o", str(self._clock), str(CLOCK))
            subprocess.run(words, check=True, capture_output=True)
        for k in range(len(self._names)):
            self._build_host(k)
            if self._clock:
                self._clock_shift(k).write_bytes(bytes(8))
        self._write_names()

    def _build_host(self, host: int) -> None:
        name, port = self._names[host], self._port(host)
        call("netns", "add", name)
        if self._links:
            other = f"{port}x"
            self._links.add(port, other)
            call("link", "set", other, "netns", name, "name", "eth0")
        else:
            call("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
        card = f"02:fe:dc:ba:00:{host:02x}"  # the same again after a loss of power
        call("-n", name, "link", "set", "eth0", "address", card)
        call("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            call("-n", name, "link", "set", link, "up")
        call("link", "set", port, "master", self._bridge, "up")

    def _remove_host(self, host: int) -> None:
        self.kill(host)
        call("netns", "delete", self._names[host], check=False)
        call("link", "delete", self._port(host), check=False)

    def _write_names(self) -> None:
        """Tell each host the address of host 0; `ip netns exec` puts the file in place."""
        for name in self._names:
            folder = NAMES / name
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n{self.address(0)} {SERVER}\n")

    def remove(self) -> None:
        """End all processes and take everything down."""
        for k, name in enumerate(self._names):
            self._remove_host(k)
            shutil.rmtree(NAMES / name, ignore_errors=True)
        call("link", "delete", self._bridge, check=False)
        for process in self._started:
            process.wait(60)

    def start(
        self,
        host: int,
        log: str,
        *command: object,
        environment: Mapping[str, object] | None = None,
        hidden: Path | None = None,
    ) -> "subprocess.Popen[bytes]":
        """Start a process on a host, whose log is in the host's home.

        Args:
            host: Where.
            log: Name of its log.
            command: Words.
            environment: Variables of its own.
            hidden: A folder that this host does not have: an empty one is in its place.
        """
        words = self.words(host)
        if hidden:
            script = 'mount -t tmpfs none "$0" && exec "$@"'
            words += ["sh", "-c", script, str(hidden)]
        extra = {key: str(value) for key, value in (environment or {}).items()}
        with (self.home(host) / log).open("ab") as file:
            process = subprocess.Popen(
                [*words, *map(str, command)],
                cwd=self.home(host),
                env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **extra},
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def log(self, host: int, name: str) -> str:
        return (self.home(host) / name).read_text(errors="replace")

    def cut(self, host: int) -> None:
        """Take a host off the network; nobody is told, its connections stay open."""
        call("link", "set", self._port(host), "nomaster")

    def join(self, host: int) -> None:
        """Give a host that was cut off its link back."""
        call("link", "set", self._port(host), "master", self._bridge)

    def shift_clock(self, host: int, seconds: int) -> None:
        """Set a host's clock this far ahead of ours; skip the test where there is no compiler."""
        if not self._clock:
            pytest.skip("needs a C compiler for clocks of hosts")
        with self._clock_shift(host).open("r+b") as file:  # running processes see it at once
            file.write(seconds.to_bytes(8, sys.byteorder, signed=True))

    def kill(self, host: int) -> None:
        """Kill all processes of a host."""
        found = subprocess.run(
            ["ip", "netns", "pids", self._names[host]], capture_output=True, text=True
        )
        for number in found.stdout.split():
            try:
                os.kill(int(number), signal.SIGKILL)
            except ProcessLookupError:
                continue

    def lose_power(self, host: int) -> None:
        """End a host at once: no connection of it is closed or reset."""
        self.cut(host)
        self.kill(host)

    def start_again(self, host: int) -> None:
        """Give a host its power back: it knows of no connection, and runs nothing."""
        self._remove_host(host)
        self._build_host(host)

    def move(self, host: int) -> None:
        """Change a host's address; that of host 0 is told to all."""
        before, self._numbers[host] = self.address(host), self._numbers[host] + 100
        for verb, address in (("delete", before), ("add", self.address(host))):
            call("-n", self._names[host], "address", verb, f"{address}/24", "dev", "eth0")
        self._write_names()

    def _clock_shift(self, host: int) -> Path:
        return self.folder / f"clock-{host}"

    def _port(self, host: int) -> str:
        return f"fc{os.getpid()}p{host}"


def find_address(number: int) -> str:
    """Return an address of this process's network."""
    process = os.getpid()  # several tests may run at once
    return f"10.{64 + process % 128}.{process // 128 % 256}.{number}"


def call(*words: str, check: bool = True) -> None:
    """Call `ip`."""
    subprocess.run(["ip", *words], check=check, capture_output=True)


@contextmanager
def open_hosts(
    count: int, folder: Path, links: Links | None = None, *, clocks: bool = False
) -> Iterator[Hosts]:
    """Make hosts; skip the test where network namespaces are refused."""
    if not shutil.which("ip"):
        pytest.skip("needs `ip`, of the package iproute2")
    hosts = Hosts(count, folder, links, clocks=clocks)
    try:
        try:
            hosts.build()
        except subprocess.CalledProcessError as error:
            reason = error.stderr.decode().strip()
            if not any(word in reason for word in REFUSALS):
                raise AssertionError(f"{error}: {reason}") from error
            pytest.skip(f"needs the right to make network namespaces: {reason}")
        except OSError as error:
            pytest.skip(f"needs the right to make network namespaces: {error}")
        yield hosts
    finally:
        hosts.remove()
        if links:
            links.close()
