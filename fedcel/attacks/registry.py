"""Which attacks there are, by name."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial

from fedcel import plugins
from fedcel.attacks.averaging import Averaging
from fedcel.attacks.black_box_search import BlackBoxSearch
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.decoder_networks import LARGE
from fedcel.attacks.first_layer import FirstLayer
from fedcel.attacks.gan_decoder import GANDecoder
from fedcel.attacks.gradient_inversion import GradientInversion
from fedcel.attacks.hybrid_inversion import Hybrid
from fedcel.attacks.inversion_training import Effort
from fedcel.attacks.kernel_ridge import KernelRidge
from fedcel.attacks.logit_inversion import LogitInversion
from fedcel.attacks.mi_face import MIFace
from fedcel.attacks.protocol import Attack
from fedcel.attacks.rmle import RMLE
from fedcel.attacks.shadow import Shadow
from fedcel.attacks.unsplit import UnSplit
from fedcel.errors import PluginError, SettingsError

OPTIMAL = "optimal"
REVISION = 2
"""Of all attacks: raised when one finds more with the same settings. Cells attacked by an earlier
one are attacked again when asked for, and what `fedcel escalate` wrote is told apart."""
ATTACKS: dict[str, Callable[[], Attack]] = {
    "decoder": Decoder,
    "decoder-large": partial(Decoder, "decoder-large", effort=Effort(size=LARGE)),
    "kernel-ridge": KernelRidge,
    "gan-decoder": GANDecoder,
    "rmle": RMLE,
    "hybrid-inversion": Hybrid,
    "shadow": Shadow,
    "shadow-other": partial(Shadow, clone=False),
    "unsplit": UnSplit,
    "logit-inversion": LogitInversion,
    "mi-face": MIFace,
    "blackbox-search": BlackBoxSearch,
    "gradient-inversion": GradientInversion,
    "first-layer": FirstLayer,
}
"""Attacks by short name that reconstruct images; `NAME*M` sees M observations of each target."""


def parse_attacks(names: str) -> list[tuple[Attack | None, int]]:
    """Return each attack of a comma-separated list, None for the optimal one, and its repeats.

    SettingsError or PluginError on the first name that is wrong; see `find_attack`.
    """
    found: list[tuple[Attack | None, int]] = []
    for name in names.split(","):
        base, repeats = parse_repeats(name.strip())
        found.append((None if base == OPTIMAL else find_attack(name.strip()), repeats))
    return found


def list_entries(names: str) -> list[tuple[str, str]]:
    """Return each entry of the list as typed, and the name that rows have of its attack.

    An own attack's name is not the import string. Errors as of `parse_attacks`.
    """
    each = zip(names.split(","), parse_attacks(names), strict=True)
    return [(entry.strip(), made.name if made else OPTIMAL) for entry, (made, _) in each]


def parse_repeats(name: str) -> tuple[str, int]:
    """Return `NAME*M` in its parts, M is 1 where it is left out; SettingsError on a wrong M."""
    base, star, times = name.partition("*")
    if star and not (times.isdecimal() and int(times) >= 2):
        raise SettingsError(
            f"attack.names has {name!r}: after the * goes a whole number from 2 on, as in "
            f"{base + '*16'!r}"
        )
    return base, int(times) if star else 1


def find_attack(name: str) -> Attack:
    """Return the attack that a name or import string means, `*M` for one on M observations.

    SettingsError with the nearest right name; PluginError when the object is no attack.
    """
    base, repeats = parse_repeats(name)
    single = ATTACKS[base]() if base in ATTACKS else load_attack(base)
    return single if repeats == 1 else Averaging(single, repeats)


def load_attack(name: str) -> Attack:
    """Return a user's own attack."""
    if not name:
        raise SettingsError("attack.names has an empty name; between two commas goes one, as rmle")
    if ":" not in name:
        near = get_close_matches(name, [OPTIMAL, *ATTACKS], 1, cutoff=0)
        raise SettingsError(
            f"attack.names has {name!r}; did you mean {near[0]!r}? "
            "An own attack is 'package.module:object'"
        )
    found = plugins.load_object(name)
    made = plugins.make_part("attack.names", name) if isinstance(found, type) else found
    if not isinstance(made, Attack):
        raise PluginError(f"{name!r} is no attack: it needs name, needs, observes, reconstruct()")
    return made
