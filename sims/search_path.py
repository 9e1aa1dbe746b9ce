"""Search path of modules: fedcel's own first, the working folder last.

A user's `clients.py`, `json.py` or `sims` in the working folder replaces nothing that way, and a
part of a user's own beside a scenario is found all the same.
"""

import os
import sys
from contextlib import suppress


def drop_leading_folder() -> None:
    """Take out what `python -m` put in front: the working folder."""
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", _find_working_folder()):
        del sys.path[0]


def append_working_folder() -> None:
    """Let modules of the working folder be found where no other has their name."""
    folder = _find_working_folder()
    if folder and folder not in sys.path:
        sys.path.append(folder)


def _find_working_folder() -> str:
    """Return the working folder; empty where it was removed."""
    with suppress(FileNotFoundError):
        return os.getcwd()
    return ""
