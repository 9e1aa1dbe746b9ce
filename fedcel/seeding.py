"""One random stream per (seed, purpose, round, client), the same on every engine."""

from collections.abc import Callable
from hashlib import blake2b
from typing import TypeVar

import torch

from fedcel.errors import ContractError

Made = TypeVar("Made")


def stream_seed(seed: int, purpose: str, round_number: int = 0, client: int = 0) -> int:
    """Return 63 bits that differ for every (seed, purpose, round, client).

    torch's CPU generator keeps the low 32 of them: enough to keep streams apart, no secret.
    """
    name = f"{seed}/{purpose}/{round_number}/{client}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big") >> 1


def make_generator(
    seed: int, purpose: str, round_number: int = 0, client: int = 0
) -> torch.Generator:
    """Return a fresh CPU generator for one purpose; no global state is touched."""
    return torch.Generator().manual_seed(stream_seed(seed, purpose, round_number, client))


def make_twice(make: Callable[[], Made]) -> tuple[Made, Made]:
    """Call `make` before and after torch's global stream has moved, and return both results.

    ContractError where they draw from that stream, which no part may use.
    """
    before = torch.random.get_rng_state()
    try:
        first = make()
        if not torch.equal(torch.random.get_rng_state(), before):
            raise ContractError(
                "it must draw from the generator that it is given, not from torch's global stream"
            )
        torch.rand(3)
        return first, make()
    finally:
        torch.random.set_rng_state(before)
