"""The built-in sampler holds its contract."""

from fedcel.testing import check_sampler


def test_plain_langevin_steps() -> None:
    """Every line of it."""
    check_sampler("langevin")
