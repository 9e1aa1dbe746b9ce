"""Access to a service: clients' keys, their request ids, and how often each may ask.

An API key is `fedcel_ID_SECRET`, of high entropy, shown once and compared in constant time. A
file, by default beside the ledger, keeps ID, client, expiry and the SHA-256 of the whole key. 256
random bits need no slow hash: nobody guesses them.
"""

import hmac
import math
import os
import re
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

from pydantic import BaseModel, ValidationError

from clients.service.problems import ProblemError, ProblemKind
from clients.service_messages import REQUEST_ID_PATTERN
from fedcel.errors import RunError, SettingsError
from fedcel.files import lock_file, write_whole
from fedcel.privacy.ledger import LedgerAddress, PostgresAddress

TABLE_FORMAT = 1
TABLE_MODE = 0o600  # only its owner reads the table
CLIENT_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
KEY_PATTERN = re.compile(r"fedcel_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")
NO_DIGEST = "0" * 64  # compared with where there is no such key, so that both take as long


class StoredKey(BaseModel, frozen=True, extra="forbid"):
    """One key at rest."""

    id: str
    client: str
    digest: str
    created: int
    expires: int | None


class KeyTable(BaseModel, frozen=True, extra="forbid"):
    """The file's content."""

    format: int
    keys: list[StoredKey]


def key_table_path(ledger: LedgerAddress, keys: str | Path | None = None) -> Path:
    """Return where a ledger's keys are kept: `keys`, else beside its file.

    SettingsError for a ledger in PostgreSQL without `keys`.
    """
    if keys is not None:
        return Path(keys)
    if isinstance(ledger, PostgresAddress):
        raise SettingsError(
            f"the ledger {ledger} is no file that keys could be kept beside; give --keys FILE"
        )
    return ledger.with_name(f"{ledger.name}.keys.json")


def read_keys(path: Path) -> list[StoredKey]:
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
    if table.format != TABLE_FORMAT:
        raise RunError(f"{path}: format is {table.format}, this version reads {TABLE_FORMAT}")
    return table.keys


def add_key(path: Path, client: str, days: float | None, now: float) -> str:
    """Return a new key of `client` that lasts `days` (None: for ever); nobody can show it again.

    SettingsError on a name that is none.
    """
    check_client_name(client)
    key_id = secrets.token_hex(8)
    key = f"fedcel_{key_id}_{secrets.token_urlsafe(32)}"
    expires = None if days is None else int(now + 86_400 * days)
    digest, created = hash_key(key), int(now)
    stored = StoredKey(id=key_id, client=client, digest=digest, created=created, expires=expires)
    change_keys(path, lambda keys: [*keys, stored])
    return key


def remove_key(path: Path, key_id: str) -> None:
    """Forget a key by its id; SettingsError when there is none such."""
    if key_id not in [key.id for key in read_keys(path)]:
        raise SettingsError(f"no key {key_id!r} in {path}; see `fedcel ledger list`")
    change_keys(path, lambda keys: [key for key in keys if key.id != key_id])


def change_keys(path: Path, change: Callable[[list[StoredKey]], list[StoredKey]]) -> None:
    """Write the file whole, for its owner only; the lock's file stays."""
    with lock_file(path.with_name(f"{path.name}.lock")):
        table = KeyTable(format=TABLE_FORMAT, keys=change(read_keys(path)))
        write_whole(path, table.model_dump_json(indent=1) + "\n", TABLE_MODE)


def check_client_name(client: str) -> None:
    """Refuse what is no client's name: SettingsError."""
    if not re.fullmatch(CLIENT_PATTERN, client):
        raise SettingsError(
            f"client is {client!r}, must be 1 to 64 letters, digits, '.', '_' or '-', the first a "
            "letter or a digit"
        )


def check_request_id(request: str) -> None:
    """Refuse anything but a request id: ProblemError."""
    if not re.fullmatch(REQUEST_ID_PATTERN, request):
        raise ProblemError(
            ProblemKind.INVALID, f"Send a header Idempotency-Key that matches {REQUEST_ID_PATTERN}."
        )


def hash_key(key: str) -> str:
    """Return the digest that is kept of a key."""
    return sha256(key.encode()).hexdigest()


class KeyFile:
    """One version of the keys' file.

    It remembers headers that were right: hashing each again costs as much as the rest.
    """

    def __init__(self, version: tuple[int, int] | None, keys: dict[str, StoredKey]) -> None:
        self.version = version
        self.keys = keys
        self.find_key = lru_cache(maxsize=1024)(self._check)

    def _check(self, header: str) -> StoredKey:
        """Compare a header with what is kept, in the same time whether it is known or not."""
        scheme, _, key = header.partition(" ")
        match = KEY_PATTERN.fullmatch(key)
        stored_key = self.keys.get(match[1]) if match else None
        is_same = hmac.compare_digest(hash_key(key), stored_key.digest if stored_key else NO_DIGEST)
        if scheme.lower() != "bearer" or stored_key is None or not is_same:
            raise ProblemError(
                ProblemKind.UNAUTHENTICATED,
                "Send `Authorization: Bearer KEY` with a key of this service.",
            )
        return stored_key


class KeyStore:
    """The file, read again when it changes, so that new and revoked keys need no restart."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = KeyFile(None, {})

    def authenticate(self, header: str | None) -> StoredKey:
        """Return the key that an Authorization header shows; ProblemError where it shows none."""
        stored_key = self._read_changes().find_key(header or "")
        if stored_key.expires is not None and time.time() >= stored_key.expires:
            raise ProblemError(ProblemKind.EXPIRED, "Ask the operator for a new key.")
        return stored_key

    def measure_expiry(self, now: float) -> float:
        """Return the seconds to the first end of a key, infinite without one; RunError on damage.

        Keys that have ended are left out.
        """
        ends = [key.expires for key in self._read_changes().keys.values() if key.expires]
        return min((end - now for end in ends if end > now), default=math.inf)

    def _read_changes(self) -> KeyFile:
        version = None
        with suppress(FileNotFoundError):
            status = os.stat(self.path)
            version = status.st_mtime_ns, status.st_ino
        file = self._file
        if version != file.version:
            file = self._file = KeyFile(version, {key.id: key for key in read_keys(self.path)})
        return file


class RateLimiter:
    """One token bucket a client: `rate` questions a second on average, twice as many at once."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.rate = rate
        self.clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}

    def check(self, client: str) -> None:
        """Take a token; ProblemError where there is none."""
        if seconds := self.take_token(client):
            raise ProblemError(
                ProblemKind.RATE,
                f"At most {self.rate:g} a second on average.",
                retry_after=seconds,
            )

    def take_token(self, client: str) -> float:
        """Take a token and return 0, or return the seconds until there is one."""
        now = self.clock()
        capacity = max(1.0, 2 * self.rate)
        tokens, last_time = self._buckets.get(client, (capacity, now))
        tokens = min(capacity, tokens + (now - last_time) * self.rate)
        missing = max(0.0, 1 - tokens)
        self._buckets[client] = (tokens if missing else tokens - 1, now)
        return missing / self.rate
