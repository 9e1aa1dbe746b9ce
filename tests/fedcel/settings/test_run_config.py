"""Flower's run config: its own names, and what it leaves to the server."""

import pytest

from fedcel.errors import SettingsError
from fedcel.settings import parse_run_config


def test_names_of_flowers_own_apps_mean_the_settings_that_they_equal() -> None:
    """Those that are left at "none" change nothing; `out` and `resume` are no settings."""
    config = {"num-server-rounds": 7, "batch-size": "none", "out": "/run", "resume": True}
    settings = parse_run_config(config)
    assert (settings.rounds, settings.local.batch_size, settings.clients) == (7, 32, 8)
    settings = parse_run_config({"batch-size": 16, "rounds": 120, "local.batch-size": 32})
    assert (settings.rounds, settings.local.batch_size) == (120, 16)
    assert parse_run_config({"num-server-rounds": 7, "rounds": 7}).rounds == 7


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"num-server-rounds": 7, "rounds": 8}, "num-server-rounds is 7 and rounds 8; give one"),
        ({"num-server-rounds": 0}, "rounds is 0, must be 1 or more"),
        ({"local-epochs": 2}, r"local-epochs is 2; this app has local\.steps"),
        ({"fraction-train": 0.5}, r"fraction-train is 0\.5; this app has clients-per-round"),
        ({"num-rounds": 3}, "unknown setting 'num-rounds'; did you mean"),
        ({"clients": "nodes"}, "clients is 'nodes', and the message does not say"),
    ],
)
def test_what_has_no_equal_is_refused(config: dict[str, object], words: str) -> None:
    """By its name, with what there is instead."""
    with pytest.raises(SettingsError, match=words):
        parse_run_config(config)


def test_clients_that_are_left_to_the_nodes_are_as_many_as_there_are() -> None:
    """An operator's number stands."""
    assert parse_run_config({"clients": "nodes"}, 3).clients == 3
    assert parse_run_config({"clients": 5}, 3).clients == 5
