"""API keys: of high entropy, hashed at rest, compared in constant time, shown once.

A key is `fedcel_ID_SECRET`; the file beside the ledger keeps ID, client, expiry and the SHA-256 of
the whole key. 256 random bits need no slow hash: nobody guesses them.
"""

import hmac
import os
import re
import secrets
import time
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from clients.service.problems import Kinds, ProblemError
from fedcel.errors import RunError, SettingsError
from fedcel.files import lock_file, write_whole

FORMAT = 1
CLIENT = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
PRIVATE = 0o600  # who may read the file: its owner
KEY = re.compile(r"fedcel_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
NOBODY = "0" * 64  # compared with where there is no such key, so that both take as long


class Entry(BaseModel):
    """One key at rest."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    client: str
    digest: str
    created: int
    expires: int | None


class KeyTable(BaseModel):
    """The file's content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int
    keys: list[Entry]


class Known(NamedTuple):
    """Whose key was shown."""

    id: str
    client: str


def key_table_path(ledger: Path) -> Path:
    """Return where a ledger's keys are kept."""
    return ledger.with_name(f"{ledger.name}.keys.json")


def read_keys(path: Path) -> list[Entry]:
    """Return the keys, none where there is no file yet; RunError when it is damaged."""
    try:
        table = KeyTable.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return []
    except ValidationError as error:
        raise RunError(
            f"{path} is damaged: {error.error_count()} problems; restore a backup, or remove it "
            "and hand out new keys with `fedcel ledger keys`"
        ) from None
    if table.format != FORMAT:
        raise RunError(f"{path}: format is {table.format}, this version reads {FORMAT}")
    return table.keys


def add_key(path: Path, client: str, days: float | None, now: float) -> str:
    """Return a new key of `client` that lasts `days` (None: for ever); nobody can show it again.

    SettingsError on a name that is none.
    """
    check_client(client)
    name = secrets.token_hex(8)
    key = f"fedcel_{name}_{secrets.token_urlsafe(32)}"
    expires = None if days is None else int(now + 86_400 * days)
    entry = Entry(id=name, client=client, digest=hash_key(key), created=int(now), expires=expires)
    with lock_file(lock_path(path)):
        write_keys(path, [*read_keys(path), entry])
    return key


def check_client(client: str) -> None:
    """Refuse what is no client's name: SettingsError."""
    if not re.fullmatch(CLIENT, client):
        raise SettingsError(
            f"client is {client!r}, must be 1 to 64 letters, digits, '.', '_' or '-', the first a "
            "letter or a digit"
        )


def revoke_key(path: Path, name: str) -> None:
    """Forget a key by its id; SettingsError when there is none such."""
    if name not in [entry.id for entry in read_keys(path)]:
        raise SettingsError(f"no key {name!r} in {path}; see `fedcel ledger list`")
    with lock_file(lock_path(path)):
        write_keys(path, [entry for entry in read_keys(path) if entry.id != name])


def lock_path(path: Path) -> Path:
    """Return the lock's file, which stays: the table itself is replaced by every writer."""
    return path.with_name(f"{path.name}.lock")


def write_keys(path: Path, entries: list[Entry]) -> None:
    """Write the file whole, for its owner alone."""
    table = KeyTable(format=FORMAT, keys=entries)
    write_whole(path, table.model_dump_json(indent=1) + "\n", PRIVATE)


def hash_key(key: str) -> str:
    """Return what is kept of a key."""
    return sha256(key.encode()).hexdigest()


class Keys:
    """The file, read again when it changes, so that new and revoked keys need no restart."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._stamp: tuple[int, int] | None = None
        self._entries: dict[str, Entry] = {}

    def _fresh(self) -> dict[str, Entry]:
        try:
            found = os.stat(self.path)
        except FileNotFoundError:
            stamp = None
        else:
            stamp = found.st_mtime_ns, found.st_ino
        if stamp != self._stamp:
            self._entries = {entry.id: entry for entry in read_keys(self.path)}
            self._stamp = stamp
        return self._entries

    def find(self, header: str | None) -> Known:
        """Return whose key an Authorization header shows; ProblemError where it shows none."""
        scheme, _, key = (header or "").partition(" ")
        parts = KEY.fullmatch(key)
        entry = self._fresh().get(parts[1]) if parts else None
        same = hmac.compare_digest(hash_key(key), entry.digest if entry else NOBODY)
        if scheme.lower() != "bearer" or entry is None or not same:
            raise ProblemError(
                Kinds.UNAUTHENTICATED,
                "Send `Authorization: Bearer KEY` with a key of this service.",
            )
        if entry.expires is not None and time.time() >= entry.expires:
            raise ProblemError(Kinds.EXPIRED, "Ask the operator for a new key.")
        return Known(entry.id, entry.client)
