"""Charges of one client for messages of their own."""

from collections.abc import Sequence
from hashlib import sha256

from fedcel.privacy.ledger import MICRO, Charge, Ledger, Receipt, Refusal


def charge(
    request: str, message: str = "", client: str = "ann", model: str = "v1", epsilon: int = MICRO
) -> Charge:
    digest = sha256((message or request).encode()).digest()
    return Charge(request, client, model, epsilon, 2.0**-12, digest)


def pay(ledger: Ledger, charges: Sequence[Charge]) -> list[Receipt | Refusal]:
    """Charge for answers that name their request."""
    return ledger.charge(charges, [f"answer to {charge.request}".encode() for charge in charges])


def fresh(request: str, remaining: int) -> Receipt:
    """Return what `pay` gives for a request that is charged."""
    return Receipt(f"answer to {request}".encode(), is_fresh=True, remaining=remaining)


def repeated(request: str, remaining: int) -> Receipt:
    """Return what `pay` gives where the answer to that request is told again."""
    return fresh(request, remaining)._replace(is_fresh=False)
