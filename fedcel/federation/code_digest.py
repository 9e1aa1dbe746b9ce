"""Digest of the code that nodes run, different for each version of it."""

from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path

_PACKAGES = ("fedcel", "clients")
_NOT_BUNDLED = "testing"  # of fedcel: Flower's bundle goes without it
_BYTES = 6  # of the digest: a number that every message can carry


@cache
def digest_code() -> int:
    """Digest the code that this process trains with: the Python files of fedcel and its clients.

    Returns:
        The same number wherever the files are the same, whatever folder they lie in.
    """
    home = Path(__file__).parents[2]
    return digest_files(home, [home / name for name in _PACKAGES])


def digest_files(home: Path, folders: Iterable[Path]) -> int:
    """Digest the Python files of folders below `home`, but for those that no bundle has.

    Files are named by their path below `home`. The number is below 2**48.
    """
    digest = sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            if path.relative_to(folder).parts[0] == _NOT_BUNDLED:
                continue
            content = path.read_bytes()
            digest.update(f"{path.relative_to(home).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return int.from_bytes(digest.digest()[:_BYTES])
