"""Address of a ledger: a file of SQLite, or a database of PostgreSQL that several hosts share."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlencode, urlsplit

from fedcel.errors import SettingsError

SCHEMES = ("postgresql", "postgres")
ALLOWED = (
    "the path of a file, or postgresql://USER@HOST:PORT/DATABASE with HOST and PORT optional and "
    "options of libpq after a `?`"
)
UNREADABLE = "postgresql://***"
"""Shown in place of a URL that cannot be taken apart: its password may be anywhere."""
SHOWN_OPTIONS = ("host", "port", "sslmode")
SECRET_OPTIONS = ("password", "sslpassword", "passfile", "oauth_client_secret")


@dataclass(frozen=True)
class PostgresAddress:
    """A database of PostgreSQL; as text it shows no password."""

    url: str = field(repr=False)
    """All of it, the password included: only for the driver."""
    shown: str

    def __str__(self) -> str:
        """Return the URL for messages and logs."""
        return self.shown

    @property
    def secrets(self) -> list[str]:
        """Return what no message may hold, as it stands in the URL and decoded."""
        parts = urlsplit(self.url)
        raw = [parts.netloc.rpartition("@")[0].partition(":")[2]]
        raw += [value for name, value in split_options(parts.query) if name in SECRET_OPTIONS]
        return [text for value in raw for text in {value, unquote(value)} if text]


LedgerAddress = Path | PostgresAddress


def parse_ledger_address(text: str | Path | PostgresAddress) -> LedgerAddress:
    """Read what `--ledger` takes.

    Args:
        text: A path or a URL.

    Returns:
        The path, or the database that the URL names.

    Raises:
        SettingsError: It is the URL of something else, or has parts that no ledger can use. The
            message shows no password.
    """
    if isinstance(text, PostgresAddress):
        return text
    if isinstance(text, Path):
        if re.match(r"(?i)postgres(ql)?:/", str(text)):
            raise refuse(UNREADABLE, "a URL that was made a path, which breaks it", "pass a string")
        return text
    scheme, colon, _ = text.partition("://")
    if not colon or not re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", scheme):
        if re.match(r"(?i)postgres(ql)?:", text):
            raise refuse(UNREADABLE, "a URL without //", "write postgresql://")
        if not text or "\0" in text:
            raise refuse(repr(text), "no path", "name a file")
        return Path(text)
    if scheme not in SCHEMES:
        raise refuse(f"{scheme}://***", f"a URL of {scheme}", "use one of the two")
    return PostgresAddress(text, show_url(text))


def show_url(url: str) -> str:
    """Return a URL of PostgreSQL without what is secret in it; SettingsError where it is none.

    Only parts that are known to be no secret are shown. A password with a sign that should have
    been encoded ends in another part, which then cannot be right.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise refuse(UNREADABLE, "a URL whose host or port cannot be read", ENCODE) from None
    database = unquote(parts.path.removeprefix("/"))
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    strange = [name for name in (user, parts.hostname or "", database) if re.search("[@/:]", name)]
    if parts.fragment or "@" in parts.query or (strange and "[" not in parts.netloc):
        raise refuse(UNREADABLE, "a URL with a sign where none can be", ENCODE)
    if not database:
        raise refuse(UNREADABLE, "a URL without a database", "add /DATABASE, such as /fedcel")
    options = split_options(parts.query)
    if parts.query and not all(name and value for name, value in options):
        raise refuse(UNREADABLE, "a URL whose options cannot be read", "write ?NAME=VALUE")
    host = parts.netloc.rpartition("@")[2].removesuffix(f":{port}")
    secret = ":***" if password else ""
    account = f"{user}{secret}@" if user else ""
    place = f"{host}:{port}" if port else host
    shown = [(name, unquote(value)) for name, value in options if name in SHOWN_OPTIONS]
    query = f"?{urlencode(shown, safe='/', quote_via=quote)}" if shown else ""
    return f"postgresql://{account}{place}/{quote(database)}{query}"


ENCODE = "write signs of the password such as @ : / ? # as %40 %3A %2F %3F %23"


def split_options(query: str) -> list[tuple[str, str]]:
    """Return names and values of a URL's options, still encoded."""
    pairs = (part.partition("=") for part in query.split("&") if part)
    return [(name, value) for name, _, value in pairs]


def refuse(shown: str, reason: str, remedy: str) -> SettingsError:
    """Return the error for an address that no ledger can have."""
    return SettingsError(f"the ledger is {shown}, {reason}, must be {ALLOWED}; {remedy}")
