"""Commands one after the other in one process: each process of its own loads for seconds.

This file is the program, too: none of the modules beside it can be taken for another.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread

MARK = "\n== the next command\n"


def run_in_turn(
    folder: Path, *commands: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """Run commands in a folder, in another process; returns what each printed.

    A service, whose last word is its port, is ended once it is ready.
    """
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(commands)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]
    return done.stdout.split(MARK)[1:]


def end_once_ready(port: str) -> None:
    from urllib.request import urlopen

    while True:
        with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60):
            break  # any other status than 200 is an error
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    from sims.commands.main import main

    for words in json.loads(sys.argv[1]):
        print(MARK, end="", flush=True)
        if words[0] == "serve":
            Thread(target=end_once_ready, args=words[-1:], daemon=True).start()
        assert main(words) == 0, words
