"""Commands one after the other in one process: each process of its own loads for seconds.

This file is the program, too: none of the modules beside it can be taken for another.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

MARK = "\n== the next command\n"
PYTEST = "pytest"
"""First word of a command that runs tests in the same process."""


def run_in_turn(
    folder: Path, *commands: Sequence[str], environment: Mapping[str, str]
) -> list[str]:
    """Run commands in a folder, in another process; returns what each printed."""
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


if __name__ == "__main__":
    from sims.commands.main import main

    for words in json.loads(sys.argv[1]):
        print(MARK, end="", flush=True)
        if words[0] == PYTEST:
            import pytest

            assert pytest.main(words[1:]) == 0
        else:
            assert main(words) == 0, words
