"""The server's arithmetic against closed forms."""

import pytest

from fedcel.federation.aggregation import (
    renormalise_weights,
    select_clients,
    weigh_clients,
)


def test_weights_of_the_kept_make_up_for_the_rest() -> None:
    """Nobody left out: the same bits; else the same sum. Noise is right for its own weight."""
    weights = {0: 0.3, 2: 0.5, 5: 0.2}
    assert renormalise_weights(weights, [0, 2, 5], has_noise=False) == [0.3, 0.5, 0.2]
    assert renormalise_weights(weights, [0, 5], has_noise=False) == pytest.approx([0.6, 0.4])
    assert renormalise_weights(weights, [0, 5], has_noise=True) == [0.3, 0.2]


def test_shares_are_unbiased_over_the_draw() -> None:
    """Everybody: N_k/N. A part: K/m times that, so that the mean over all draws is N_k/N."""
    examples = {0: 10, 1: 30, 2: 60}
    assert weigh_clients(examples, [0, 1, 2]) == pytest.approx({0: 0.1, 1: 0.3, 2: 0.6})
    pairs = [[0, 1], [0, 2], [1, 2]]
    mean = sum(weigh_clients(examples, pair).get(0, 0) for pair in pairs) / 3
    assert mean == pytest.approx(0.1)


def test_clients_are_drawn_anew_each_round_and_repeatably() -> None:
    """Three of eight, sorted, different in some round, the same when asked again."""
    draws = [select_clients(0, 8, 3, number) for number in range(1, 20)]
    assert draws == [select_clients(0, 8, 3, number) for number in range(1, 20)]
    assert all(len(set(draw)) == 3 and draw == sorted(draw) for draw in draws)
    assert {client for draw in draws for client in draw} == set(range(8))
