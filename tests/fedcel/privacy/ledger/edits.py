"""Edits of a ledger's tables, past the ledger."""

import sqlite3

SCHEMA_NAME = "fedcel_ledger"


def edit_tables(address: str, statement: str, *, is_allowed: bool = False) -> None:
    """Run a statement; `is_allowed`: without the triggers and checks that keep the log."""
    if not address.startswith("postgresql:"):
        edit_file(address, statement, is_allowed=is_allowed)
        return
    import psycopg

    statement = statement.replace("zeroblob(32)", r"decode(repeat('00', 32), 'hex')")
    statement = statement.replace("x'00'", r"'\x00'::bytea")
    with psycopg.connect(address, autocommit=True) as db:
        db.execute(f"SET search_path = {SCHEMA_NAME}")
        if is_allowed:
            db.execute("DROP TRIGGER append_only ON log")
            db.execute("ALTER TABLE log DROP CONSTRAINT log_kind_check")
        db.execute(statement)


def make_older(address: str) -> None:
    """Make of a ledger one of format 2, with the table that older ones had beside the log."""
    edit_tables(address, "CREATE TABLE answers (request TEXT PRIMARY KEY)")
    for column in ("digest", "delta"):
        edit_tables(address, f"ALTER TABLE accounts DROP COLUMN {column}")
    is_file = not address.startswith("postgresql:")
    mark = "PRAGMA user_version =" if is_file else "UPDATE ledger SET format ="
    edit_tables(address, f"{mark} 2")


def edit_file(path: str, statement: str, *, is_allowed: bool) -> None:
    db = sqlite3.connect(path, isolation_level=None)
    names = db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall()
    try:
        if is_allowed:
            for (name,) in names:
                db.execute(f"DROP TRIGGER {name}")
            db.execute("PRAGMA ignore_check_constraints = ON")
            db.execute("PRAGMA writable_schema = ON")
            kinds = "replace(sql, '(''grant''', '(''answer'', ''grant''')"
            db.execute(f"UPDATE sqlite_master SET sql = {kinds}")
        db.execute(statement)
    finally:
        db.close()
