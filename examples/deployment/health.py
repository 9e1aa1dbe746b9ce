"""Whether a server on this machine answers: health.py [URL].

URL, or FEDCEL_HEALTH: for a SuperLink https://127.0.0.1:9092/health, for a node
http://127.0.0.1:9094/health, for the service https://127.0.0.1:8443/healthz. Exit status 0 when it
answers with 200, or when neither is given; else 1.
"""

import atexit
import os
import socket
import ssl
import sys
import threading
from http.client import HTTPException
from itertools import pairwise
from urllib.request import urlopen

SECONDS = 10.0  # within which it has to answer, and between two questions of a watch

TRUSTING = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # certificates here may be for other names
TRUSTING.check_hostname = False
TRUSTING.verify_mode = ssl.CERT_NONE


def is_healthy(url: str) -> bool:
    """Ask a server of this machine."""
    try:
        with urlopen(url, timeout=SECONDS, context=TRUSTING) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException, ValueError):
        return False


def notify_manager(message: str) -> None:
    """Tell systemd, if it started this process, what it waits for."""
    if not (address := os.environ.get("NOTIFY_SOCKET")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        door.connect("\0" + address[1:] if address[0] == "@" else address)
        door.send(message.encode())


def watch(url: str) -> None:
    """Tell systemd that this process is ready, then that it is alive, for as long as it is."""
    ended = threading.Event()

    def ask_again_and_again() -> None:
        while not ended.is_set():
            if is_healthy(url):
                notify_manager("READY=1\nWATCHDOG=1")
            ended.wait(SECONDS / 5)

    def end() -> None:  # a thread inside OpenSSL while Python shuts down is a segmentation fault
        ended.set()
        asking.join(SECONDS)

    if "NOTIFY_SOCKET" in os.environ:
        asking = threading.Thread(target=ask_again_and_again, daemon=True)
        asking.start()
        atexit.register(end)


def read_url(scheme: str) -> str:
    """Return where the process that was started with these options answers."""
    options = read_options()
    host = options.get("--host", "127.0.0.1")
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    if "--port" not in options:
        sys.exit("give --port PORT: this program asks its own server there whether it is healthy")
    return f"{scheme}://{host}:{options['--port']}/health"


def read_options() -> dict[str, str]:
    """Return the options of this process by name, of both forms: --port 9092 and --port=9092."""
    words = [part for word in sys.argv[1:] for part in word.split("=", 1)]
    return dict(pairwise(words))


if __name__ == "__main__":
    url = (sys.argv[1:] or [os.environ.get("FEDCEL_HEALTH", "")])[0]
    sys.exit(0 if not url or is_healthy(url) else 1)
