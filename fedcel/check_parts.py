"""Every part that a run's settings name is built once, before the run begins."""

from jaxtyping import Float
from torch import Tensor

from fedcel import attacks
from fedcel.data import check_first_images, load_splits
from fedcel.nets import FlatNet, check_layers
from fedcel.posterior import build_sampler
from fedcel.run_parts import bind_terms, init_net
from fedcel.settings import Settings

TRIAL_CLASSES = 10  # of a net that is built to look at its layers


def build_parts(settings: Settings) -> FlatNet:
    """Build every part but the strategy; return the net, of which a strategy needs the shapes.

    What cannot be built is refused now, and a user's part is held to its contract.

    Raises:
        FedcelError: A part is wrong: DataError, NetError, PluginError, SettingsError.
    """
    build_sampler(settings.local)  # what needs no images first: reading them may take minutes
    attacks.parse_attacks(settings.attack.names)

    def check_net(images: Float[Tensor, "2 C H W"]) -> None:
        check_layers(settings.net, tuple(images.shape[1:]), TRIAL_CLASSES)

    with check_first_images(check_net):
        splits = load_splits(settings.data, settings.clients, settings.seed)
    flat = init_net(settings, splits)
    bind_terms(settings, flat.net, splits)
    if settings.privacy.is_private:
        settings.privacy.build(splits.classes)
    return flat
