"""What is read, what is refused before any rule is asked, and how it is said."""

from pathlib import Path

import pytest

from fedcel.errors import SettingsError
from fedcel.runs import parse_run_settings
from fedcel.settings import (
    Settings,
    dump_settings,
    flatten_settings,
    parse_settings,
)


def test_round_trip_through_tables_and_flat_keys() -> None:
    """`parse(dump(s)) == s`, nested or flattened."""
    s = parse_settings({"cel": {"kind": "gated", "warm-up": 3}, "data.alpha": 0.3})
    assert (
        parse_settings(dump_settings(s)) == s == parse_settings(flatten_settings(dump_settings(s)))
    )
    assert s.cel.warm_up == 3


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"cel.wieght": 1}, "unknown setting 'cel.wieght'; did you mean 'cel.weight'"),
        ({"cel": {"kind": "clutser"}}, "cel.kind is 'clutser'.*cluster"),
        ({"cel.weight": -1}, "cel.weight is -1, must be 0 or more"),
        ({"rounds": 2.5}, "rounds is 2.5, must be a whole number"),
        ({"data.alpha": "x"}, "data.alpha is 'x'.*number"),
        (
            {"cel.kind": "plain", "cel.threshold": "off"},
            "cel.threshold is 'off', must be a number, or 'none'",
        ),
        ({"seed": [1, 2]}, r"seed is \[1, 2\]; settings are scalars"),
        ({"cel": 3}, "unknown setting 'cel'"),
        ({"defence.name": "nopeak"}, "nearest: 'nopeek'"),
        (
            {"data.source": "npz", "data.path": "photos\udcff"},
            r"data.path is 'photos.udcff', must be of characters that",
        ),
        ({"defence.strength": -1}, "defence.strength is -1, must be 0 or more, or 'auto'"),
    ],
)
def test_refusals_name_value_limit_and_remedy(raw: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_settings(raw)


@pytest.mark.parametrize(
    ("name", "at_once", "words"),
    [
        ("loop", 1, "engine 'loop' is now engine 'local', local.at-once 1;"),
        ("batched", "auto", "engine 'batched' is now engine 'local';"),
        ("processes", 1, "engine 'processes' is now engine 'local', local.at-once 1;"),
    ],
)
def test_an_engine_s_former_name_is_read_with_what_to_write_now(
    name: str, at_once: int | str, words: str
) -> None:
    """What is set beside it stays; the warning is about the caller's line."""
    with pytest.warns(UserWarning, match=words) as told:
        settings = parse_settings({"engine": name})
    assert [warning.filename for warning in told] == [__file__]
    assert (settings.engine, settings.local.at_once) == ("local", at_once)
    with pytest.warns(UserWarning, match="engine 'local', local.at-once 4;"):
        settings = parse_settings({"engine": name, "local": {"at-once": 4}})
    assert settings == parse_settings({"engine": "local", "local.at-once": 4})


@pytest.mark.parametrize("number", [0, -1, 2.5, "many"])
def test_clients_at_once_are_counted(number: object) -> None:
    """A number from 1, or the word."""
    with pytest.raises(SettingsError, match="local.at-once is .*, must be .*'auto'"):
        parse_settings({"local.at-once": number})


def test_settings_are_frozen_and_hashable() -> None:
    """They are keys of caches."""
    s = Settings()
    assert hash(s) == hash(parse_settings({}))
    with pytest.raises(ValueError, match="frozen"):
        s.rounds = 3  # type: ignore[misc]


def test_the_settings_of_an_older_run_are_read(tmp_path: Path) -> None:
    """They hold the keys of all kinds."""
    older = {
        "cel": {"kind": "cluster", "refresh": 0, "attention": "ascend", "bound": "upper"},
        "prior": {"mode": "consistent", "width": 1.0, "pull": 0.1},
        "privacy": {"mechanism": "label-only", "clip": 1.0},
        "data": {"source": "digits", "path": "none", "partition": "dirichlet"},
    }
    settings = parse_run_settings({"format": 1, **older}, tmp_path / "settings.toml")
    assert settings == parse_settings({"cel.kind": "cluster", "cel.refresh": 0})
    with pytest.raises(SettingsError, match="cel.attention is of cel.kind"):
        parse_settings(older)
