"""The attack a defence is held to."""

from sims.worst import worst_attack


def test_the_lowest_mean_over_seeds_and_not_the_luckiest_seed() -> None:
    """Of two attacks, b has the best seed and a the best mean; the first of equals wins."""
    assert worst_attack([("b", 0.1), ("a", 0.2), ("b", 0.5), ("a", 0.2)]) == "a"
    assert worst_attack([("b", 0.2), ("a", 0.2)]) == "b"


def test_no_trained_attack() -> None:
    """Nobody rebuilt an image."""
    assert worst_attack([]) is None
