"""Which engine trains a run that leaves the choice: one client at a time, or many at once."""

from torch import nn

from fedcel.federation import (
    build_workspace_net,
    count_clients_at_once,
    find_obstacle,
    select_client_images,
)
from fedcel.nets import CPU, fastest_device
from fedcel.settings import OWN_STRATEGY, Settings

FEWEST_CLIENTS = 4
"""Clients of a round below which one at a time is as fast."""
LARGEST_NET = 2**17
"""Parameters of a net above which one at a time can be as fast: its products are large enough."""
LARGEST_DEVICE_NET = 2**20
"""The same on a GPU, whose grouped convolutions of large nets are slow."""
LARGEST_CONVOLVED = 8 * 8
"""Pixels of an image above which convolutions of several clients at once take longer."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)


def choose_engine(settings: Settings) -> str:
    """Choose the engine of a run, by what `tests.bench.batched` and `tests.bench.gpu` measured.

    Args:
        settings: The run's settings.

    Returns:
        Its engine; in the place of `auto` the faster of `loop` and `batched`.
    """
    if settings.engine != "auto":
        return settings.engine
    if settings.strategy.name != OWN_STRATEGY or find_obstacle(settings):
        return "loop"
    clients = settings.clients_per_round or settings.clients
    if min(clients, count_clients_at_once(settings)) < FEWEST_CLIENTS:
        return "loop"
    flat = build_workspace_net(settings)
    if fastest_device(flat.net) != CPU:
        return "loop" if len(flat.vector) > LARGEST_DEVICE_NET else "batched"
    pixels = select_client_images(settings, 0).x.shape[-2:].numel()
    convolves = any(isinstance(layer, CONVOLUTIONS) for layer in flat.net.modules())
    is_slower = len(flat.vector) > LARGEST_NET or (convolves and pixels > LARGEST_CONVOLVED)
    return "loop" if is_slower else "batched"
