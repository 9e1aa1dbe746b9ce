"""Every part that a run's settings name is built once, before the run begins."""

from fedcel import attacks, privacy
from fedcel.data import load_splits
from fedcel.federation import init_net
from fedcel.losses import cel, defences
from fedcel.nets import FlatNet
from fedcel.posterior import build_sampler
from fedcel.settings import Settings


def build_parts(settings: Settings) -> FlatNet:
    """Build every part but the strategy, and forget it: what cannot be built is refused now.

    A part of a user's own is held to its contract.

    Args:
        settings: The run's settings.

    Returns:
        The net, of which a strategy needs the shapes.

    Raises:
        FedcelError: A part is wrong: DataError, NetError, PluginError, SettingsError.
    """
    splits = load_splits(settings.data, settings.clients, settings.seed)
    flat = init_net(settings, splits)
    cel.build_net_cel(settings.cel, flat.net, splits.classes)
    defences.build_defence(settings, splits.shape, splits.classes)
    build_sampler(settings.local)
    attacks.parse_attacks(settings.attack.names)
    if settings.privacy.mechanism != "none":
        privacy.build_mechanism(settings.privacy, splits.classes)
    return flat
