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
