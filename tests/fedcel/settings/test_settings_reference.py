"""What is said of every setting."""

from fedcel.settings import describe_settings


def test_every_setting_has_a_sentence() -> None:
    """Ends with a full stop, at most one line."""
    for setting in describe_settings():
        assert setting.description.endswith("."), setting.key
        assert len(setting.description) < 100, setting.key
        assert setting.type
