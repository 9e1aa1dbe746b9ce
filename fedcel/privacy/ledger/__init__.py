"""Budgets of clients: a database that accounts for every epsilon spent."""

from fedcel.privacy.budget_units import MICRO, to_granted_micro, to_micro_epsilon
from fedcel.privacy.ledger.address import LedgerAddress, PostgresAddress, parse_ledger_address
from fedcel.privacy.ledger.ledger import (
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
    "to_granted_micro",
    "to_micro_epsilon",
]
