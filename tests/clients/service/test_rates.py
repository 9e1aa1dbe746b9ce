"""The token bucket against its closed form."""

from hypothesis import given
from hypothesis import strategies as st

from clients.service.rates import Rates


def test_a_burst_of_twice_the_rate_then_the_rate() -> None:
    """10 a second: 20 at once, the next after .1 s, another client at once."""
    now = [0.0]
    rates = Rates(10.0, lambda: now[0])
    assert [rates.wait("a") for _ in range(20)] == [0] * 20
    assert abs(rates.wait("a") - 0.1) < 1e-9
    assert rates.wait("b") == 0
    now[0] = 0.1
    assert rates.wait("a") == 0
    assert rates.wait("a") > 0


@given(st.floats(0.1, 100), st.lists(st.floats(0, 1), min_size=1, max_size=200))
def test_never_more_than_the_rate_and_the_burst(rate: float, gaps: list[float]) -> None:
    """Over any time T at most max(1, 2 rate) + rate T pass."""
    now = [0.0]
    rates = Rates(rate, lambda: now[0])
    passed = 0
    for gap in gaps:
        now[0] += gap
        passed += rates.wait("a") == 0
    assert passed <= max(1.0, 2 * rate) + rate * sum(gaps) + 1e-6
