"""One random stream per (seed, purpose, round, client), the same on every engine."""

from hashlib import blake2b

import torch


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
