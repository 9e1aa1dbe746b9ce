"""The ledger's append-only log: each row holds a digest of all rows before it.

Whoever edits a row, or takes one out, has to compute every later link anew; who keeps the last link
of an export elsewhere finds even that.
"""

import json
import sqlite3
from collections.abc import Iterator
from hashlib import sha256
from typing import Literal, NamedTuple

Kind = Literal["grant", "limit", "charge", "answer"]

START = bytes(32)
COLUMNS = "position, kind, request, client, model, micro, delta, content, link"


class Entry(NamedTuple):
    """What happened; fields that do not apply are empty.

    `content` is the digest of a charge's message, or of an answer.
    """

    kind: Kind
    request: str = ""
    client: str = ""
    model: str = ""
    micro: int = 0
    delta: float = 0.0
    content: bytes = b""


class Row(NamedTuple):
    """An entry at its place in the chain."""

    position: int
    entry: Entry
    link: bytes

    def line(self) -> str:
        """Return the row as a line of JSON, bytes in hexadecimal."""
        fields = {"position": self.position, **self.entry._asdict(), "link": self.link}
        return json.dumps(fields, default=bytes.hex) + "\n"


def link_entry(before: bytes, position: int, entry: Entry) -> bytes:
    """Return the SHA-256 of the link before and the entry at its position."""
    return sha256(before + json.dumps([position, *entry], default=bytes.hex).encode()).digest()


def read_log(db: sqlite3.Connection) -> Iterator[Row]:
    """Yield all rows in order."""
    for position, *entry, link in db.execute(f"SELECT {COLUMNS} FROM log ORDER BY position"):
        yield Row(position, Entry(*entry), link)
