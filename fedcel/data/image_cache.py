"""Decoded images, kept once a machine in a file that all processes map."""

import hashlib
import json
import os
import re
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial, reduce
from pathlib import Path
from tempfile import NamedTemporaryFile
from zlib import crc32

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedcel.data.images import Images
from fedcel.data.pictures import resize_first_images
from fedcel.data.source import (
    FileSource,
    ImportedSource,
    Source,
    SourceData,
    describe_fit,
    read_source,
)
from fedcel.errors import DataError, describe_unforeseen
from fedcel.files import lock_file

LEAST_BYTES = 2**20
"""Sets whose files are smaller are decoded by each process, which takes about a second."""
USUAL_LIMIT = 20.0
"""Gigabytes of decoded images in the folder, unless FEDCEL_CACHE_GB is another number."""
FORMAT = 4
"""Number of the file's form, and of the way in which pictures are decoded."""
_READ_AT_ONCE = 2**20  # bytes
_FACTS, _CHECKSUM = "facts", "crc32"
_FACT_NAMES = ("classes", "notes", "class_names")
_OWN_FILE = re.compile(r"[0-9a-f]{32}\.(safetensors|\w+\.part)")
"""Names of sets, and of what a killed process left of one; nothing else is ever deleted."""


def read_cached(
    source: Source, *, is_numbered_anew: bool = False, takes_few: bool = False
) -> SourceData:
    """Read all images of a source, from the cache where they were decoded before.

    See `keep_decoded`.

    Args:
        source: As of `read_source`.
        is_numbered_anew: As of `read_source`.
        takes_few: Whether a part of the images is taken: those of one size in few files are kept
            in their own size, and only what is taken is resized, by `SourceData.resize`.

    Returns:
        The images.

    Raises:
        DataError: As `read_source`.
        PluginError: As `read_source`.
    """
    if takes_few and isinstance(source, FileSource) and source.is_of_one_size and source.size:
        with suppress(DataError), resize_first_images(source.size):  # of several sizes, say
            original = source.model_copy(update={"size": 0})
            data = read_cached(original, is_numbered_anew=is_numbered_anew)
            count = len(data.y)
            sized = data._replace(size=source.size)
            notes = describe_fit(tuple(data.train.x.shape[1:]), sized.shape, count, data.classes)
            return sized._replace(notes=(*data.notes, *notes))
    decode = partial(read_source, source, is_numbered_anew=is_numbered_anew)
    return keep_decoded(source, str(is_numbered_anew), decode)


def keep_decoded(source: Source, purpose: str, decode: Callable[[], SourceData]) -> SourceData:
    """Decode a source, or map what an earlier process has decoded.

    A folder or file of 1 MB or more is decoded once; further processes map what the first one kept,
    and those that come meanwhile wait for it. It is found again by the names and the content of its
    files, wherever they are; reading them takes about a second a gigabyte. A damaged file of the
    cache is written anew; where none can be written, a note says so.

    Args:
        source: The source; only folders and files of this machine are kept.
        purpose: Whatever else the result depends on.
        decode: Reads the images.

    Returns:
        The images.

    Raises:
        DataError: As `decode`, or FEDCEL_CACHE_GB is no size.
    """
    if not isinstance(source, FileSource) or isinstance(source, ImportedSource):
        return decode()  # what a user's own function makes of a file changes with its code
    if not source.is_local or not Path(source.path).exists():
        return decode()
    root = Path(source.path)
    files = list_files(root)
    if sum(file.stat().st_size for file in files) < LEAST_BYTES or not read_limit():
        return decode()
    kind = source.model_dump_json(exclude={"path"})
    digest = hashlib.sha256(f"{FORMAT} {purpose} {kind}".encode())
    try:
        for place in files:
            with place.open("rb") as opened:
                content = hashlib.file_digest(opened, "sha256").digest()
            digest.update(os.fsencode(place.relative_to(root)) + b"\0" + content)
        for folder in list_empty_folders(root):  # a class without an image is refused
            digest.update(os.fsencode(folder.relative_to(root)) + b"/\0")
    except OSError:  # what reads the images names the file, where it needs it
        return decode()
    key = digest.hexdigest()[:32]
    file = cache_folder() / f"{key}.safetensors"
    if (cached := map_file(file)) is not None:
        return cached
    data = None
    try:
        with lock_file(lock := file.with_suffix(".lock")), ExitStack() as stack:
            stack.callback(lock.unlink, missing_ok=True)  # who waits maps the set, or decodes too
            if (cached := map_file(file)) is not None:  # another process was first
                return cached
            data = decode()
            write_file(file, data)
            drop_oldest(file)
            return map_file(file) or data
    except OSError as error:
        if data is None:
            data = decode()
        reason = f"decoded images cannot be kept in {file.parent}: {describe_unforeseen(error)}"
        return data._replace(notes=(*data.notes, f"{reason}; FEDCEL_CACHE names another folder"))


def cache_folder() -> Path:
    """Return the folder of decoded images: $FEDCEL_CACHE, else `fedcel` in the user's caches."""
    chosen = os.environ.get("FEDCEL_CACHE")
    return Path(chosen or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "fedcel"))


def list_files(path: Path) -> list[Path]:
    """List every file of a folder by name, or the one file that `path` is."""
    files, visited = [path] if path.is_file() else [], set[str]()
    for folder, folders, names in os.walk(path, followlinks=True):
        folders[:] = [name for name in folders if _is_first(Path(folder, name), visited)]
        files += [Path(folder, name) for name in names]
    return [file for file in sorted(files) if file.is_file()]


def list_empty_folders(path: Path) -> list[Path]:
    """List the folders within a folder that hold nothing, by name."""
    return sorted(Path(folder) for folder, *contents in os.walk(path) if not any(contents))


def _is_first(folder: Path, visited: set[str]) -> bool:
    """Whether a folder, which links may lead to twice, is met for the first time."""
    real = os.path.realpath(folder)
    is_first = real not in visited
    visited.add(real)
    return is_first


def read_limit() -> float:
    """Return the bytes that the folder may hold; DataError unless FEDCEL_CACHE_GB is a size."""
    text = os.environ.get("FEDCEL_CACHE_GB") or str(USUAL_LIMIT)
    with suppress(ValueError):
        if (gigabytes := float(text)) >= 0:
            return gigabytes * 1e9
    raise DataError(
        f"FEDCEL_CACHE_GB is {text!r}, must be a number of gigabytes, 0 or more, such as "
        f"{USUAL_LIMIT:g}; 0 keeps no decoded images"
    )


def drop_oldest(newest: Path) -> None:
    """Delete the sets that were not used for longest, until the folder is within its limit.

    Processes that have mapped one keep it. `newest` stays.
    """
    with suppress(OSError):  # another process deletes at the same time, or its user is another
        files = [path for path in newest.parent.iterdir() if _OWN_FILE.fullmatch(path.name)]
        sets = sorted(
            (stat.st_mtime_ns, stat.st_size, path) for path in files if (stat := path.stat())
        )
        excess = sum(size for _, size, _ in sets) - read_limit()
        for _, size, path in sets:
            if excess > 0 and path != newest:
                path.unlink()
                excess -= size


def write_file(file: Path, data: SourceData) -> None:
    """Write a set of images, whole or not at all; OSError where there is no room."""
    tensors = {"train.x": data.train.x, "train.y": data.train.y}
    if data.test is not None:
        tensors |= {"test.x": data.test.x, "test.y": data.test.y}
    if data.holders is not None:
        tensors["holders"] = data.holders
    if (size := sum(tensor.nbytes for tensor in tensors.values())) > (limit := read_limit()):
        raise OSError(f"they take {size / 1e9:.3g} GB, FEDCEL_CACHE_GB allows {limit / 1e9:.3g}")
    sums = {name: crc32(tensor.numpy().data) for name, tensor in tensors.items()}
    facts = json.dumps({name: getattr(data, name) for name in _FACT_NAMES} | {_CHECKSUM: sums})
    with NamedTemporaryFile(
        dir=file.parent, prefix=f"{file.stem}.", suffix=".part", delete=False
    ) as part:
        try:
            save_file(tensors, part.name, {_FACTS: facts})
            os.replace(part.name, file)
        except SafetensorError as error:  # how the library tells of a full disk
            raise OSError(str(error)) from error
        finally:
            Path(part.name).unlink(missing_ok=True)


def compute_checksums(file: Path) -> dict[str, int]:
    """Compute the CRC-32 of each tensor of a file of safetensors, without mapping it."""
    sums = {}
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(length))
        del header["__metadata__"]
        for name, about in header.items():
            begin, end = about["data_offsets"]
            opened.seek(8 + length + begin)
            pieces = (min(_READ_AT_ONCE, end - start) for start in range(begin, end, _READ_AT_ONCE))
            sums[name] = reduce(lambda value, size: crc32(opened.read(size), value), pieces, 0)
    return sums


def map_file(file: Path) -> SourceData | None:
    """Map a file of the cache into memory; None where there is none, or it is damaged."""
    try:
        with safe_open(file, framework="pt") as opened:
            facts = json.loads(opened.metadata()[_FACTS])
            about = facts["classes"], facts["notes"], facts["class_names"]
            names = opened.keys()
            tensors: dict[str, Tensor] = {name: opened.get_tensor(name) for name in names}
        if facts[_CHECKSUM] != compute_checksums(file):
            return None
    except (OSError, SafetensorError, KeyError, TypeError, ValueError):
        return None
    with suppress(OSError):  # of another user, say
        os.utime(file)  # the time of its last use
    train, test = (
        Images(tensors[f"{part}.x"], tensors[f"{part}.y"]) if f"{part}.x" in tensors else None
        for part in ("train", "test")
    )
    if train is None:
        return None
    holders = tensors.get("holders")
    classes, notes, class_names = about
    return SourceData(train, test, classes, holders, tuple(notes), tuple(class_names))
