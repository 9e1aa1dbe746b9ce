"""Attacks by name."""

import pytest

from fedcel.attacks.attack import Attack
from fedcel.attacks.averaging import Averaging
from fedcel.attacks.registry import ATTACKS, parse_attacks
from fedcel.errors import SettingsError
from fedcel.settings import AttackSettings


@pytest.mark.parametrize("name", ATTACKS)
def test_each_name_is_that_of_its_attack(name: str) -> None:
    """What is asked for is what a row says, alone and repeated."""
    single, repeated = parse_attacks(f"{name},{name}*16")
    assert isinstance(single.attack, Attack) and single.attack.name == single.name == name
    assert repeated.attack and repeated.attack.name == repeated.name == f"{name}*16"


def test_list_in_order() -> None:
    """As typed, and as rows call it; spaces are nothing, the optimal attacker is no `Attack`."""
    own = "fedcel.attacks.pixel_descent:RMLE"
    attacks = parse_attacks(f"optimal*4, decoder*2,optimal,{own}*3")
    assert [(named.entry, named.name, named.repeats) for named in attacks] == [
        ("optimal*4", "optimal", 4), ("decoder*2", "decoder*2", 2), ("optimal", "optimal", 1),
        (f"{own}*3", "rmle*3", 3),
    ]  # fmt: skip
    assert [isinstance(named.attack, Averaging) for named in attacks] == [False, True, False, True]


def test_default_is_cheap() -> None:
    """No search unless asked for."""
    names = [named.name for named in parse_attacks(AttackSettings().names)]
    assert names == ["optimal", "decoder", "kernel-ridge"]


@pytest.mark.parametrize("names", ["", "decoder,", "decoder, ,rmle"])
def test_an_empty_name_is_no_misspelt_one(names: str) -> None:
    """A comma too many asks for nothing."""
    with pytest.raises(SettingsError, match="has an empty name"):
        parse_attacks(names)


@pytest.mark.parametrize(
    "name", ["decoder*", "decoder*1", "decoder*x", "decoder*-2", "decoder*2*2"]
)
def test_wrong_repeats(name: str) -> None:
    """Said with what is right."""
    with pytest.raises(SettingsError, match=r"as in 'decoder\*16'"):
        parse_attacks(name)
