"""Attacks by name."""

from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

from fedcel import plugins
from fedcel.attacks.attack import ATTACK_CHECKS, Attack
from fedcel.attacks.averaging import Averaging
from fedcel.attacks.decoder import Decoder, LargeDecoder, LogitInversion
from fedcel.attacks.gauss_newton import GaussNewton
from fedcel.attacks.kernel_ridge import KernelRidge
from fedcel.attacks.pixel_descent import RMLE, HybridInversion
from fedcel.attacks.unknown_encoder import Shadow
from fedcel.attacks.update_inversion import FirstLayer, GradientInversion
from fedcel.errors import PluginError, SettingsError

OPTIMAL = "optimal"
"""Name of the optimal attacker, who identifies images and reconstructs none."""
REVISION = 3
"""Version of the attacks: raised when one finds more with the same settings. Cells attacked by an
earlier one are attacked again when asked for, and their rows are told apart."""
ATTACKS: dict[str, Callable[[], Attack]] = {
    "decoder": Decoder,
    "decoder-large": LargeDecoder,
    "kernel-ridge": KernelRidge,
    "gauss-newton": GaussNewton,
    "rmle": RMLE,
    "hybrid-inversion": HybridInversion,
    "shadow": Shadow,
    "logit-inversion": LogitInversion,
    "gradient-inversion": GradientInversion,
    "first-layer": FirstLayer,
}
"""Attacks by short name that reconstruct images; `NAME*M` sees M observations of each target."""


class NamedAttack(NamedTuple):
    """An attack of a list, as it was asked for."""

    entry: str
    """As typed: an attack of your own by its import string."""
    name: str
    """As rows name it."""
    attack: Attack | None
    """None for the optimal one, which rebuilds no image."""
    repeats: int
    """Observations of each target."""


def parse_attacks(names: str) -> list[NamedAttack]:
    """Build the attacks of a list such as `optimal, decoder*4, package.module:object`.

    Args:
        names: Names or import strings, separated by commas, each with `*M` for M observations of
            each target.

    Returns:
        The attacks in order.

    Raises:
        SettingsError: A name is wrong; the nearest right one is said.
        PluginError: An import string leads to no attack.
    """
    return [parse_entry(entry.strip()) for entry in names.split(",")]


def parse_entry(entry: str) -> NamedAttack:
    """Build an attack of a list; errors as of `parse_attacks`."""
    base, star, times = entry.partition("*")
    if star and not (times.isdecimal() and int(times) >= 2):
        raise SettingsError(
            f"attack.names has {entry!r}: after the * goes a whole number from 2 on, as in "
            f"{base + '*16'!r}"
        )
    repeats = int(times) if star else 1
    if base == OPTIMAL:
        return NamedAttack(entry, base, None, repeats)
    single = ATTACKS[base]() if base in ATTACKS else load_attack(base)
    attack = single if repeats == 1 else Averaging(single, repeats)
    return NamedAttack(entry, attack.name, attack, repeats)


def load_attack(name: str) -> Attack:
    """Return a user's own attack; SettingsError or PluginError where there is none."""
    if not name:
        raise SettingsError("attack.names has an empty name; between two commas goes one, as rmle")
    if ":" not in name:
        nearest = get_close_matches(name, [OPTIMAL, *ATTACKS], 1, cutoff=0)
        raise SettingsError(
            f"attack.names has {name!r}; did you mean {nearest[0]!r}? "
            "An own attack is 'package.module:object'"
        )
    plugin = plugins.load_object(name)
    attack = plugins.make_part("attack.names", name) if isinstance(plugin, type) else plugin
    if not isinstance(attack, Attack):
        raise PluginError(f"{name!r} is no attack: it needs name, needs, observes, reconstruct()")
    part = plugins.PartName("attack.names", name, "check_attack")
    plugins.check_contract(part, ATTACK_CHECKS, attack)
    return attack
