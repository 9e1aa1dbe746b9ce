"""Texts of errors that nobody foresaw, which may be anybody's."""

import pytest

from fedcel.errors import describe_unforeseen, escape_controls, join_first, shorten_text


class Mute(Exception):  # noqa: N818 - of a user's
    """An error that cannot be shown."""

    def __str__(self) -> str:
        raise LookupError("no text")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07\x00\x7f\x9b2J", r"\x1b[31mred\x07\x00\x7f\x9b2J"),
        ("\u202eleft\u2028", r"\u202eleft\u2028"),
        ("a surrogate \ud800", r"a surrogate \ud800"),
        ("lines\nand\ttabs, ümlaut, 日本\u3000語", "lines\nand\ttabs, ümlaut, 日本\u3000語"),
    ],
)
def test_what_steers_a_terminal_is_shown(text: str, shown: str) -> None:
    """Letters of any language stay."""
    assert escape_controls(text) == shorten_text(text) == shown


def test_an_error_is_one_line_whatever_its_text() -> None:
    """Escapes included; an error whose text cannot be had is still named."""
    assert (
        describe_unforeseen(ValueError("two\r\nlines \x1b[2J")) == r"ValueError: two lines \x1b[2J"
    )
    assert describe_unforeseen(ValueError()) == "ValueError"
    assert describe_unforeseen(Mute()) == "Mute: it has no text: its __str__ raises"


def test_the_first_of_several_are_named() -> None:
    """And how many more there are, if any."""
    assert join_first(["a", "b"], 2) == "a, b"
    assert join_first(["a", "b", "c"], 1) == "a and 2 more"
    assert join_first(["a", "b", "c"], 2, "; ") == "a; b; and 1 more"
