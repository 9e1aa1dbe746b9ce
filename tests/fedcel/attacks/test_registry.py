"""Attacks by name."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.attacks.averaging import Averaging
from fedcel.attacks.protocol import Attack
from fedcel.attacks.registry import ATTACKS, list_entries, parse_attacks, parse_repeats
from fedcel.errors import PluginError, SettingsError
from fedcel.settings import AttackSettings


@pytest.mark.parametrize("name", ATTACKS)
def test_each_name_is_that_of_its_attack(name: str) -> None:
    """What is asked for is what a row says, alone and repeated."""
    (single, _), (repeated, _) = parse_attacks(f"{name},{name}*16")
    assert isinstance(single, Attack) and single.name == name
    assert repeated and repeated.name == f"{name}*16"


def test_list_in_order() -> None:
    """Spaces are nothing; the optimal attacker is None; own attacks may repeat too."""
    attacks = parse_attacks("optimal, decoder*4,optimal*2,fedcel.attacks.rmle:RMLE*3")
    assert [(attack and attack.name, repeats) for attack, repeats in attacks] == [
        (None, 1), ("decoder*4", 4), (None, 2), ("rmle*3", 3),
    ]  # fmt: skip
    assert isinstance(attacks[1][0], Averaging)


def test_default_is_cheap() -> None:
    """No search and no critic unless asked for."""
    assert [attack and attack.name for attack, _ in parse_attacks(AttackSettings().names)] == [
        None,
        "decoder",
        "kernel-ridge",
    ]


def test_an_entry_and_what_rows_call_it() -> None:
    """The name of an own attack is its own."""
    entries = list_entries("optimal*4, decoder*2,fedcel.attacks.rmle:RMLE")
    assert entries == [
        ("optimal*4", "optimal"), ("decoder*2", "decoder*2"), ("fedcel.attacks.rmle:RMLE", "rmle"),
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
    assert parse_repeats(f"decoder*{repeats}") == ("decoder", repeats)


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
