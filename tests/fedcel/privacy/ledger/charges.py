"""Charges of one client for messages of their own."""

from hashlib import sha256

from fedcel.privacy.ledger import MICRO, Charge


def charge(
    request: str, message: str = "", client: str = "ann", model: str = "v1", epsilon: int = MICRO
) -> Charge:
    """Return a charge for a message, by default one of its own."""
    digest = sha256((message or request).encode()).digest()
    return Charge(request, client, model, epsilon, 2.0**-12, digest)
