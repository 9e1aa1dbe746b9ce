"""Edits of a ledger's tables, past the ledger."""

import sqlite3

SCHEMA_NAME = "fedcel_ledger"


def edit_tables(address: str, statement: str, *, is_allowed: bool = False) -> None:
    """Run a statement; `is_allowed`: without the triggers that keep log and answers as they are."""
    if not address.startswith("postgresql:"):
        edit_file(address, statement, is_allowed=is_allowed)
        return
    import psycopg

    statement = statement.replace("zeroblob(32)", r"decode(repeat('00', 32), 'hex')")
    statement = statement.replace("x'00'", r"'\x00'::bytea")
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(f"SET search_path = {SCHEMA_NAME}")
        if is_allowed:
            for table in ("log", "answers"):
                db.execute(f"DROP TRIGGER append_only ON {table}")
        db.execute(statement)


def make_older(address: str, version: int) -> None:
    """Take from a ledger what its tables have only since the formats after `version`."""
    is_file = not address.startswith("postgresql:")
    if version == 1:
        edit_tables(address, "ALTER TABLE log DROP COLUMN answer")
    for column in ("digest", "delta"):
        edit_tables(address, f"ALTER TABLE accounts DROP COLUMN {column}")
    edit_tables(address, "DROP INDEX by_answer")
    mark = "PRAGMA user_version =" if is_file else "UPDATE ledger SET format ="
    edit_tables(address, f"{mark} {version}")


def edit_file(path: str, statement: str, *, is_allowed: bool) -> None:
    """Run a statement on a file of SQLite."""
    db = sqlite3.connect(path, isolation_level=None)
    names = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    try:
        for (name,) in names if is_allowed else []:
            db.execute(f"DROP TRIGGER {name}")
        db.execute(statement)
    finally:
        db.close()
