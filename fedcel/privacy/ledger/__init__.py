"""What each client has spent: a database that answers for every epsilon."""

from fedcel.privacy.ledger.address import LedgerAddress, PostgresAddress, parse_ledger_address
from fedcel.privacy.ledger.ledger import (
    MICRO,
    Balance,
    Charge,
    Ledger,
    LedgerSums,
    Receipt,
    Refusal,
)

__all__ = [
    "MICRO",
    "Balance",
    "Charge",
    "Ledger",
    "LedgerAddress",
    "LedgerSums",
    "PostgresAddress",
    "Receipt",
    "Refusal",
    "parse_ledger_address",
]
