"""The net of a run before its first round."""

from fedcel.data import Splits
from fedcel.losses import defences
from fedcel.nets import FlatNet, split_net
from fedcel.seeding import make_generator
from fedcel.settings import Settings


def init_net(settings: Settings, splits: Splits) -> FlatNet:
    """Build the net of these settings, its defence included, with the parameters of round 0.

    Args:
        settings: Of the run; `seed` and `net.seed` decide the parameters.
        splits: The images of the run, which say shape and number of classes.

    Raises:
        NetError: The parts of the net do not fit together, or the images do not fit it.
        PluginError: A user's net or defence cannot be built.
    """
    stream = make_generator(settings.seed, "net", settings.net.seed)
    plain = split_net.build_net(
        defences.defended_net_settings(settings),
        splits.shape,
        splits.classes,
        stream,
        cut=defences.build_cut(settings),
    )
    return FlatNet(defences.apply_transform(settings, splits.shape, plain))
