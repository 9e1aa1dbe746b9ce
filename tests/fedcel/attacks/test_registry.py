"""Attacks by name."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.attacks.attack import Attack
from fedcel.attacks.averaging import Averaging
from fedcel.attacks.registry import ATTACKS, parse_attacks, parse_entry
from fedcel.errors import PluginError, SettingsError
from fedcel.settings import AttackSettings


@pytest.mark.parametrize("name", ATTACKS)
def test_each_name_is_that_of_its_attack(name: str) -> None:
    """What is asked for is what a row says, alone and repeated."""
    single, repeated = parse_attacks(f"{name},{name}*16")
    assert isinstance(single.attack, Attack) and single.attack.name == single.name == name
    assert repeated.attack and repeated.attack.name == repeated.name == f"{name}*16"


def test_list_in_order() -> None:
    """Spaces are nothing; the optimal attacker is None; own attacks may repeat too."""
    attacks = parse_attacks("optimal, decoder*4,optimal*2,fedcel.attacks.pixel_descent:RMLE*3")
    assert [(named.attack and named.attack.name, named.repeats) for named in attacks] == [
        (None, 1), ("decoder*4", 4), (None, 2), ("rmle*3", 3),
    ]  # fmt: skip
    assert isinstance(attacks[1].attack, Averaging)


def test_default_is_cheap() -> None:
    """No search unless asked for."""
    names = [named.name for named in parse_attacks(AttackSettings().names)]
    assert names == ["optimal", "decoder", "kernel-ridge"]


def test_an_entry_and_what_rows_call_it() -> None:
    """The name of an own attack is its own."""
    own = "fedcel.attacks.pixel_descent:RMLE"
    attacks = parse_attacks(f"optimal*4, decoder*2,{own}")
    assert [(named.entry, named.name) for named in attacks] == [
        ("optimal*4", "optimal"), ("decoder*2", "decoder*2"), (own, "rmle"),
    ]  # fmt: skip


@pytest.mark.parametrize("names", ["", "decoder,", "decoder, ,rmle"])
def test_an_empty_name_is_no_misspelt_one(names: str) -> None:
    """A comma too many asks for nothing."""
    with pytest.raises(SettingsError, match="has an empty name"):
        parse_attacks(names)


@settings(deadline=None)
@given(st.integers(2, 10**6))
def test_split_is_undone_by_joining(repeats: int) -> None:
    """NAME*M."""
    named = parse_entry(f"decoder*{repeats}")
    assert (named.name, named.repeats) == (f"decoder*{repeats}", repeats)


@pytest.mark.parametrize(
    "name", ["decoder*", "decoder*1", "decoder*x", "decoder*-2", "decoder*2*2"]
)
def test_wrong_repeats(name: str) -> None:
    """Said with what is right."""
    with pytest.raises(SettingsError, match=r"as in 'decoder\*16'"):
        parse_attacks(name)


def test_wrong_names() -> None:
    """The nearest right one; an object that is no attack."""
    with pytest.raises(SettingsError, match="did you mean 'decoder'"):
        parse_attacks("optimal,decodr*4")
    with pytest.raises(PluginError, match="is no attack"):
        parse_attacks("fedcel.seeding:make_generator")
