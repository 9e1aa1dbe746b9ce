"""Which engine trains a run that leaves the choice: one client at a time, or many at once."""

from torch import nn

from fedcel.federation import build_workspace_net, count_clients_at_once, find_obstacle
from fedcel.nets import CPU, fastest_device
from fedcel.settings import OWN_STRATEGY, Settings

FEWEST_AT_ONCE = 4
"""Clients at once below which one at a time is as fast: large nets leave room for few."""
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d)


def choose_engine(settings: Settings) -> str:
    """Choose the engine of a run, by what `tests.bench.batched` measured.

    Args:
        settings: The run's settings.

    Returns:
        Its engine; in the place of `auto` the faster of `loop` and `batched`. Convolutions of
        several clients at once can take longer on a processor than one after the other. `auto` has
        no rule from measurements on a GPU.
    """
    if settings.engine != "auto":
        return settings.engine
    if settings.strategy.name != OWN_STRATEGY or find_obstacle(settings):
        return "loop"
    net = build_workspace_net(settings).net
    is_on_processor = fastest_device(net) == CPU
    convolves = any(isinstance(layer, CONVOLUTIONS) for layer in net.modules())
    if is_on_processor and convolves:
        return "loop"
    clients = settings.clients_per_round or settings.clients
    at_once = min(clients, count_clients_at_once(settings))
    return "batched" if at_once >= FEWEST_AT_ONCE else "loop"
