"""What each client has spent: a database that answers for every epsilon."""

from fedcel.privacy.ledger.ledger import MICRO, Balance, Charge, Ledger, Receipt, Refusal

__all__ = ["MICRO", "Balance", "Charge", "Ledger", "Receipt", "Refusal"]
