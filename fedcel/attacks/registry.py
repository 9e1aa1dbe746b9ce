"""Which attacks there are, by name."""

from collections.abc import Callable
from difflib import get_close_matches
from functools import partial

from fedcel import plugins
from fedcel.attacks.attack_contract import ATTACK_CHECKS
from fedcel.attacks.attribute_inference import ATTRIBUTE
from fedcel.attacks.averaging import Averaging
from fedcel.attacks.black_box_search import BlackBoxSearch
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.decoder_networks import LARGE_DECODER
from fedcel.attacks.first_layer import FirstLayer
from fedcel.attacks.gan_decoder import GANDecoder
from fedcel.attacks.gradient_inversion import GradientInversion
from fedcel.attacks.hybrid_inversion import HybridInversion
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
"""The name of the optimal attacker, who identifies images and reconstructs none."""
WITHOUT_IMAGES = (OPTIMAL, ATTRIBUTE)
"""Attacks that rebuild no image."""
REVISION = 2
"""Version of the attacks: raised when one finds more with the same settings. Cells attacked by an
earlier one are attacked again when asked for, and their rows are told apart."""
ATTACKS: dict[str, Callable[[], Attack]] = {
    "decoder": Decoder,
    "decoder-large": partial(Decoder, "decoder-large", effort=Effort(size=LARGE_DECODER)),
    "kernel-ridge": KernelRidge,
    "gan-decoder": GANDecoder,
    "rmle": RMLE,
    "hybrid-inversion": HybridInversion,
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
    """Build the attacks of a list such as `optimal, decoder*4, package.module:object`.

    Args:
        names: Names or import strings, separated by commas, each with `*M` for M observations of
            each target.

    Returns:
        Each attack in order, None for one that rebuilds no image, and its number of observations.

    Raises:
        SettingsError: A name is wrong; the nearest right one is said.
        PluginError: An import string leads to no attack.
    """
    attacks: list[tuple[Attack | None, int]] = []
    for entry in names.split(","):
        base, repeats = parse_repeats(entry.strip())
        attacks.append((None if base in WITHOUT_IMAGES else build_attack(base, repeats), repeats))
    return attacks


def list_entries(names: str) -> list[tuple[str, str]]:
    """List the entries of a list of attacks beside the names that rows give their attacks.

    The name of an attack of your own is not its import string.

    Args:
        names: A list as `parse_attacks` takes it.

    Returns:
        Each entry as typed, and the name of its attack.

    Raises:
        SettingsError: A name is wrong; the nearest right one is said.
        PluginError: An import string leads to no attack.
    """
    attacks = (attack for attack, _ in parse_attacks(names))
    return [
        (entry, attack.name if attack else parse_repeats(entry)[0])
        for entry, attack in zip(map(str.strip, names.split(",")), attacks, strict=True)
    ]


def parse_repeats(name: str) -> tuple[str, int]:
    """Return `NAME*M` in its parts, M is 1 where it is left out; SettingsError on a wrong M."""
    base, star, times = name.partition("*")
    if star and not (times.isdecimal() and int(times) >= 2):
        raise SettingsError(
            f"attack.names has {name!r}: after the * goes a whole number from 2 on, as in "
            f"{base + '*16'!r}"
        )
    return base, int(times) if star else 1


def build_attack(base: str, repeats: int) -> Attack:
    """Return an attack by its name without repeats; errors as of `parse_attacks`."""
    single = ATTACKS[base]() if base in ATTACKS else load_attack(base)
    return single if repeats == 1 else Averaging(single, repeats)


def load_attack(name: str) -> Attack:
    """Return a user's own attack; SettingsError or PluginError where there is none."""
    if not name:
        raise SettingsError("attack.names has an empty name; between two commas goes one, as rmle")
    if ":" not in name:
        nearest = get_close_matches(name, [*WITHOUT_IMAGES, *ATTACKS], 1, cutoff=0)
        raise SettingsError(
            f"attack.names has {name!r}; did you mean {nearest[0]!r}? "
            "An own attack is 'package.module:object'"
        )
    plugin = plugins.load_object(name)
    attack = plugins.make_part("attack.names", name) if isinstance(plugin, type) else plugin
    if not isinstance(attack, Attack):
        raise PluginError(f"{name!r} is no attack: it needs name, needs, observes, reconstruct()")
    part = plugins.PartName("attack.names", name, "AttackContract")
    plugins.check_contract(part, ATTACK_CHECKS, attack)
    return attack
