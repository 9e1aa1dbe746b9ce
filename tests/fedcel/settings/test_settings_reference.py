"""What is said of every setting."""

from fedcel.settings import describe_settings


def test_every_setting_has_a_sentence() -> None:
    """Ends with a full stop, at most one line."""
    for key, _, text, kind in describe_settings():
        assert text.endswith("."), key
        assert len(text) < 100, key
        assert kind
