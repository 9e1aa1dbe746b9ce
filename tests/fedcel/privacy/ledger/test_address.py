"""Addresses of ledgers: paths, URLs, and no password in any text."""

from pathlib import Path

import pytest

from fedcel.errors import SettingsError
from fedcel.privacy.ledger import PostgresAddress, parse_ledger_address


@pytest.mark.parametrize("text", ["budget.db", "runs/a b/budget.db", "./postgresql", "a:b.db"])
def test_a_path_is_a_file(text: str) -> None:
    """Also where it looks a little like something else."""
    assert parse_ledger_address(text) == Path(text) == parse_ledger_address(Path(text))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://host/fedcel", "postgresql://host/fedcel"),
        ("postgres://ann@host:5433/fedcel", "postgresql://ann@host:5433/fedcel"),
        ("postgresql://ann:s3cret@host/fedcel", "postgresql://ann:***@host/fedcel"),
        ("postgresql://ann:s3cret%40x@[::1]:5432/a", "postgresql://ann:***@[::1]:5432/a"),
        ("postgresql://ann:s3cret:x@host/fedcel", "postgresql://ann:***@host/fedcel"),
        ("postgresql:///fedcel?host=/run/pg", "postgresql:///fedcel?host=/run/pg"),
        (
            "postgresql://host/fedcel?password=s3cret&sslmode=require&options=-cs3cret",
            "postgresql://host/fedcel?sslmode=require",
        ),
    ],
)
def test_a_url_shows_no_password(url: str, shown: str) -> None:
    """Neither as text nor as Python writes it; the driver gets all of it."""
    address = parse_ledger_address(url)
    assert isinstance(address, PostgresAddress) and address.url == url
    assert str(address) == shown
    assert "s3cret" not in f"{address}{address!r}"
    assert parse_ledger_address(address) is address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no path"),
        ("mysql://ann:s3cret@host/a", "a URL of mysql"),
        ("PostgreSQL://ann:s3cret@host/a", "a URL of PostgreSQL"),
        ("postgresql:/ann:s3cret@host/a", "without //"),
        ("postgresql://ann:s3cret@host", "without a database"),
        ("postgresql://ann:s3cret@host/", "without a database"),
        ("postgresql://ann:s3cret", "host or port"),
        ("postgresql://ann:s3cret@host:many/a", "host or port"),
        ("postgresql://ann:s3cret/x@host/a", "host or port"),
        ("postgresql://ann:12/s3cret@host/a", "a sign where none can be"),
        ("postgresql://ann:12?s3cret@host/a", "a sign where none can be"),
        ("postgresql://ann:12#s3cret@host/a", "a sign where none can be"),
        ("postgresql://host/a?s3cret", "options cannot be read"),
        ("postgresql://host/a?s3cret=", "options cannot be read"),
    ],
)
def test_what_is_no_ledger_is_refused(text: str, reason: str) -> None:
    """With what is allowed, and nothing of what may be a password."""
    with pytest.raises(SettingsError, match=reason) as caught:
        parse_ledger_address(text)
    assert "must be the path of a file, or postgresql://USER@HOST" in str(caught.value)
    chain = [caught.value, caught.value.__cause__]
    assert not any("s3cret" in str(error) for error in chain)
