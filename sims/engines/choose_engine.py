"""Engine of a run that leaves the choice, and the clients that it trains at once."""

import os
from typing import Literal, NamedTuple

from fedcel.nets import CPU, fastest_device, has_convolutions
from fedcel.run_parts import (
    build_workspace_net,
    count_clients_at_once,
    select_client_images,
)
from fedcel.settings import Settings

FEWEST_CLIENTS = 4
"""Clients of a round below which one at a time is as fast."""
LARGEST_NET = 2**17
"""Parameters of a net above which one at a time can be as fast: its products are large enough."""
LARGEST_DEVICE_NET = 2**20
"""The same on a GPU, whose grouped convolutions of large nets are slow."""
LARGEST_CONVOLVED = 8 * 8
"""Pixels of an image above which convolutions of several clients at once take longer."""


class EngineChoice(NamedTuple):
    """Engine of a run, and why it is this one."""

    name: Literal["ray", "local"]
    reason: str


def choose_engine(settings: Settings) -> EngineChoice:
    """Choose the engine; for `auto` Ray where there is a cluster."""
    if settings.engine != "auto":
        return EngineChoice(settings.engine, f"engine is {settings.engine!r}")
    if os.environ.get("RAY_ADDRESS"):
        return EngineChoice("ray", "RAY_ADDRESS names a cluster")
    return EngineChoice("local", "one process; --engine ray takes all cores")


def choose_clients_at_once(settings: Settings) -> int:
    """Choose how many clients the engine `local` trains at once.

    It is `local.at-once`, as far as losses allow; for `auto` the faster of one and as many as fit,
    by what `tests.bench.batched` and `tests.bench.gpu` measured.
    """
    chosen = settings.local.at_once
    if chosen != "auto":
        return chosen
    clients = settings.clients_per_round or settings.clients
    fitting = count_clients_at_once(settings)
    if min(clients, fitting) < FEWEST_CLIENTS:
        return 1
    flat = build_workspace_net(settings)
    if fastest_device(flat.net) != CPU:
        return 1 if len(flat.vector) > LARGEST_DEVICE_NET else fitting
    pixels = select_client_images(settings, 0).x.shape[-2:].numel()
    is_slower = len(flat.vector) > LARGEST_NET or (
        has_convolutions(flat.net) and pixels > LARGEST_CONVOLVED
    )
    return 1 if is_slower else fitting
