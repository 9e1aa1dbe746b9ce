"""Files of a run: TOML, JSON, safetensors; each written whole or not at all."""

import fcntl
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import file_digest
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO

import tomli_w
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedcel.errors import RunError, replace_unwritable


def digest_file(path: str | Path) -> str:
    """Return the SHA-256 of a file, which says what it held wherever it lay."""
    with open(path, "rb") as file:
        return f"sha256:{file_digest(file, 'sha256').hexdigest()}"


@contextmanager
def lock_file(path: Path, mode: int = 0o600) -> Iterator[IO[bytes]]:
    """Yield a file, made where there is none, to read and append; no other process has it then."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, mode), "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file


def check_writable(*paths: Path) -> None:
    """Refuse, before the work, files that cannot be written after it: RunError or OSError.

    Makes no folder: what is asked for may be refused for another reason.
    """
    for path in paths:
        if str(path) != replace_unwritable(str(path)):
            raise RunError(f"{str(path)!r} must be of characters that UTF-8 has; rename it")
        if path.is_dir():
            raise RunError(f"{path} is a folder; --out names the file to write")
        parents = path.absolute().parents
        folder = next(parent for parent in parents if parent.exists() or parent.is_symlink())
        if not folder.is_dir():
            raise RunError(f"{folder} is no folder; --out names a file in one, made if need be")
        with NamedTemporaryFile(dir=folder):
            pass


def write_whole(path: Path, data: bytes | str, mode: int = 0o644) -> None:
    """Replace `path` by `data` in one step; a killed process leaves the old file or the new one.

    Text is UTF-8; a lone surrogate, which a file's name may have, is written as an escape.

    A machine that loses power may lose both: waiting for the disk would cost each round more than
    its training. `mode` says who may read the file, from the first byte on.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    raw = data.encode(errors="backslashreplace") if isinstance(data, str) else data
    with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
        try:
            file.write(raw)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.replace(file.name, path)
        except BaseException:
            with suppress(FileNotFoundError):  # a signal may come right after the replacement
                os.unlink(file.name)
            raise


def write_json(path: Path, value: object) -> None:
    """Write indented JSON; NaN and infinity are refused (ValueError), they are not JSON."""
    write_whole(path, json.dumps(_replace_text(value), indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> object:
    """Read JSON; RunError names a file that is missing or damaged."""
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing; was the run finished?") from None
    except ValueError as error:  # not JSON, or not text
        raise RunError(f"{path} is damaged: {error}") from None


def write_toml(path: Path, value: Mapping[str, object]) -> None:
    """Write a TOML file."""
    texts = {replace_unwritable(key): _replace_text(part) for key, part in value.items()}
    write_whole(path, tomli_w.dumps(texts))


def _replace_text(value: object) -> object:
    """Return a value whose texts can all be read back; see `replace_unwritable`."""
    if isinstance(value, str):
        return replace_unwritable(value)
    if isinstance(value, Mapping):
        return {_replace_text(key): _replace_text(part) for key, part in value.items()}
    return [*map(_replace_text, value)] if isinstance(value, list | tuple) else value


def read_toml(path: Path) -> dict[str, object]:
    """Read TOML; RunError names a file that is missing or damaged, and the line."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is not TOML: {error}") from None


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write named tensors as safetensors, with string metadata."""
    write_whole(path, encode_tensors(tensors, metadata))


def encode_tensors(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> bytes:
    """Return named tensors as safetensors, with string metadata: the same bytes each time.

    The library writes metadata in another order in every call. Whoever compares digests, such as a
    device that asks two replicas of a service, would take equal files for different ones.
    """
    copies = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    stated = dict(metadata) if metadata else None  # {} without a tensor makes a broken header
    data = save(copies, stated)
    size = int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8 : 8 + size]), sort_keys=True, separators=(",", ":"))
    aligned = header.encode() + b" " * (-len(header.encode()) % 8)
    return len(aligned).to_bytes(8, "little") + aligned + data[8 + size :]


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read named tensors and metadata; RunError names a file that is missing or damaged."""
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except FileNotFoundError:
        raise RunError(f"{path} is missing") from None
    except SafetensorError as error:
        raise RunError(f"{path} is damaged: {error}") from None
