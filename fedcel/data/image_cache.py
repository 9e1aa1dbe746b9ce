"""Decoded images, kept once a machine in a file that all processes map."""

import hashlib
import json
import os
from pathlib import Path
from tempfile import NamedTemporaryFile

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedcel.data.images import Images, to_bytes
from fedcel.data.source import FileSource, Source, SourceData, read_source
from fedcel.errors import describe_unforeseen
from fedcel.files import lock_file

LEAST_BYTES = 2**24
"""Smaller sets are decoded anew, which takes about a second."""
FORMAT = 2
"""Number of the file's form, and of the way in which pictures are decoded."""
_FACTS = "facts"
_FACT_NAMES = ("classes", "notes", "class_names")


def read_cached(source: Source, *, is_numbered_anew: bool = False) -> SourceData:
    """Read all images of a source, from the cache where they were decoded before.

    A folder or file of 16 MB of pixels or more is decoded once; further processes map what the
    first one kept, and those that come meanwhile wait for it. It is found again as long as names,
    sizes and times of its files are the same. A damaged file of the cache is written anew; where
    none can be written, a note says so.

    Args:
        source: As of `read_source`.
        is_numbered_anew: As of `read_source`.

    Returns:
        The images; those of a large folder or file are unsigned bytes unless they were resized.

    Raises:
        DataError: As `read_source`.
        PluginError: As `read_source`.
    """
    if not isinstance(source, FileSource) or not source.is_local or not Path(source.path).exists():
        return read_source(source, is_numbered_anew=is_numbered_anew)
    words = f"{FORMAT} {is_numbered_anew} {source.model_dump_json()}"
    key = hashlib.sha256(f"{words} {list_files(Path(source.path))}".encode()).hexdigest()[:32]
    file = cache_folder() / f"{key}.safetensors"
    if (cached := map_file(file)) is not None:
        return cached
    data = None
    try:
        with lock_file(file.with_suffix(".lock")):
            if (cached := map_file(file)) is not None:  # another process was first
                return cached
            data = read_source(source, is_numbered_anew=is_numbered_anew)
            if count_bytes(data) < LEAST_BYTES:
                return data
            write_file(file, data)
            return map_file(file) or data
    except OSError as error:
        if data is None:
            data = read_source(source, is_numbered_anew=is_numbered_anew)
        reason = f"decoded images cannot be kept in {file.parent}: {describe_unforeseen(error)}"
        return data._replace(notes=(*data.notes, f"{reason}; FEDCEL_CACHE names another folder"))


def cache_folder() -> Path:
    """Return the folder of decoded images: $FEDCEL_CACHE, else `fedcel` in the user's caches."""
    chosen = os.environ.get("FEDCEL_CACHE")
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "fedcel"))


def list_files(path: Path) -> list[tuple[str, int, int]]:
    """List name, size and time of every file of a folder, or of one file."""
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [(str(f), (s := f.stat()).st_size, s.st_mtime_ns) for f in files if f.is_file()]


def count_bytes(data: SourceData) -> int:
    """Count the pixels of a set, which take a byte each."""
    return data.train.x.numel() + (0 if data.test is None else data.test.x.numel())


def write_file(file: Path, data: SourceData) -> None:
    """Write a set of images, whole or not at all; OSError where there is no room."""
    tensors = {"train.x": to_bytes(data.train.x), "train.y": data.train.y}
    if data.test is not None:
        tensors |= {"test.x": to_bytes(data.test.x), "test.y": data.test.y}
    if data.holders is not None:
        tensors["holders"] = data.holders
    facts = json.dumps({name: getattr(data, name) for name in _FACT_NAMES})
    with NamedTemporaryFile(dir=file.parent, suffix=".part", delete=False) as part:
        try:
            save_file(tensors, part.name, {_FACTS: facts})
            os.replace(part.name, file)
        except SafetensorError as error:  # how the library tells of a full disk
            raise OSError(str(error)) from error
        finally:
            Path(part.name).unlink(missing_ok=True)


def map_file(file: Path) -> SourceData | None:
    """Map a file of the cache into memory; None where there is none, or it is damaged."""
    try:
        with safe_open(file, framework="pt") as opened:
            facts = json.loads(opened.metadata()[_FACTS])
            names = opened.keys()
            tensors: dict[str, Tensor] = {name: opened.get_tensor(name) for name in names}
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
    train, test = (
        Images(tensors[f"{part}.x"], tensors[f"{part}.y"]) if f"{part}.x" in tensors else None
        for part in ("train", "test")
    )
    if train is None:
        return None
    holders = tensors.get("holders")
    notes, names = tuple(facts["notes"]), tuple(facts["class_names"])
    return SourceData(train, test, facts["classes"], holders, notes, names)
