"""Budgets of clients: a database that accounts for every epsilon spent."""

from fedcel.lazy import list_names as _list_names
from fedcel.privacy.budget_units import MICRO as MICRO
from fedcel.privacy.budget_units import to_granted_micro as to_granted_micro
from fedcel.privacy.budget_units import to_micro_epsilon as to_micro_epsilon
from fedcel.privacy.ledger.address import LedgerAddress as LedgerAddress
from fedcel.privacy.ledger.address import PostgresAddress as PostgresAddress
from fedcel.privacy.ledger.address import parse_ledger_address as parse_ledger_address
from fedcel.privacy.ledger.ledger import Balance as Balance
from fedcel.privacy.ledger.ledger import Charge as Charge
from fedcel.privacy.ledger.ledger import Ledger as Ledger
from fedcel.privacy.ledger.ledger import LedgerSums as LedgerSums
from fedcel.privacy.ledger.ledger import Receipt as Receipt
from fedcel.privacy.ledger.ledger import Refusal as Refusal

__all__ = _list_names(globals())
