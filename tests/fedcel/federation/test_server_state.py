"""What moves the server's state."""

import torch

from fedcel.federation import advance_model, init_server_state, weighted_sum
from fedcel.run_parts import build_server_parts
from fedcel.settings import parse_settings


def test_no_momentum_is_federated_averaging_to_the_bit() -> None:
    """Beta 0, gamma 1: w + sum w_k delta_k, summed in order."""
    stream = torch.Generator().manual_seed(0)
    model = torch.randn(50, generator=stream)
    deltas = [torch.randn(50, generator=stream) for _ in range(3)]
    weights = [0.2, 0.5, 0.3]
    by_hand = torch.zeros(50)
    for delta, weight in zip(deltas, weights, strict=True):
        by_hand = torch.add(by_hand, delta, alpha=weight)
    settings = parse_settings({"strategy.momentum": 0.0, "temperature": 0.0, "chain.scope": "full"})
    delta = weighted_sum(deltas, weights)
    after = advance_model(build_server_parts(settings), init_server_state(model), delta)
    assert torch.equal(after.model, model + by_hand)
    assert after.round == 1
