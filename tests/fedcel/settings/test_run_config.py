"""Flower's run config: what it leaves to the server."""

import pytest

from fedcel.errors import SettingsError
from fedcel.settings import parse_run_config


def test_what_only_the_server_reads_is_no_setting() -> None:
    """`out` and `resume` pass."""
    settings = parse_run_config({"rounds": 7, "out": "/run", "resume": True})
    assert (settings.rounds, settings.clients) == (7, 8)


@pytest.mark.parametrize(
    ("config", "words"),
    [
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
