"""What tells one version of the code that nodes run from another."""

import shutil
from pathlib import Path

import fedcel
from fedcel.federation import digest_code
from fedcel.federation.code_digest import digest_files

ROOT = Path(fedcel.__file__).parents[1]


def copy_code(home: Path) -> Path:
    for name in ("fedcel", "clients"):
        skip = shutil.ignore_patterns("__pycache__", *(["testing"] if name == "fedcel" else []))
        shutil.copytree(ROOT / name, home / name, ignore=skip)
    return home


def digest_home(home: Path) -> int:
    """Digest the code below a folder as `digest_code` does."""
    return digest_files(home, [home / "fedcel", home / "clients"])


def test_the_same_code_has_one_digest_wherever_it_lies(tmp_path: Path) -> None:
    """In a checkout with contracts and compiled files, and in a bundle without; it is a number."""
    home = copy_code(tmp_path / "bundle")
    (home / "fedcel" / "__pycache__").mkdir()
    (home / "fedcel" / "__pycache__" / "x.pyc").write_bytes(b"x")
    assert digest_home(home) == digest_code() < 2**48


def test_any_change_gives_another_digest(tmp_path: Path) -> None:
    """A comment, a file less as of a bundle that was half installed, a file of another name."""
    home = copy_code(tmp_path / "bundle")
    digests = [digest_home(home)]
    changed = home / "clients" / "flower" / "posterior_client.py"
    changed.write_text(changed.read_text() + "# changed\n")
    digests.append(digest_home(home))
    changed.unlink()
    digests.append(digest_home(home))
    (home / "fedcel" / "forks.py").rename(home / "fedcel" / "forked.py")
    digests.append(digest_home(home))
    assert len(set(digests)) == 4
