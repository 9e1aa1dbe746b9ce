"""A round of the server, on clients whose updates are known."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedcel.errors import RoundError
from fedcel.federation import (
    ClientUpdate,
    Rejection,
    RoundReport,
    RoundRequest,
    advance_model,
    begin_round,
    finish_round,
    init_server_state,
    play_round,
    weighted_sum,
)
from fedcel.posterior import RoundOrder
from fedcel.run_parts import build_server_parts
from fedcel.settings import Settings, parse_settings

EXAMPLES = {0: 10, 1: 30, 2: 60}


class KnownTrainer:
    """Client k moves every parameter by k + 1."""

    def __init__(self) -> None:
        self.requests: list[RoundRequest] = []

    def train(self, request: RoundRequest) -> Iterator[ClientUpdate]:
        self.requests.append(request)
        for client in request.weights:
            delta = torch.full((4,), client + 1.0)
            yield ClientUpdate(delta, request.model + delta, {}, {"loss": float(client)})


def settings(**raw: object) -> Settings:
    """Return settings of three clients whose deltas are added as they are."""
    base = {"clients": 3, "strategy.momentum": 0.0, "temperature": 0.0, "chain.scope": "full"}
    return parse_settings(base | {"prior.mode": "none"} | raw)


def test_a_round_adds_the_weighted_deltas() -> None:
    """.1 * 1 + .3 * 2 + .6 * 3 = 2.5; mean loss 1.5; drift^2 4 (.1 + 1.2 + 5.4 - 2.5^2) = 1.8."""
    trainer = KnownTrainer()
    state = init_server_state(torch.zeros(4))
    state, report = play_round(
        build_server_parts(settings()), state, EXAMPLES, trainer, device_size=2
    )
    torch.testing.assert_close(state.model, torch.full((4,), 2.5))
    assert state.round == 1
    assert (report.clients, report.rejected) == ([0, 1, 2], [])
    assert report.metrics == pytest.approx({"loss": 1.5, "client-drift": 1.8**0.5})
    assert trainer.requests[0].weights == pytest.approx({0: 0.1, 1: 0.3, 2: 0.6})


@pytest.mark.parametrize("gap", [0.0, 1e-3])
def test_drift_of_clients_that_agree_does_not_cancel(gap: float) -> None:
    """Updates of length 200 that differ by 2 gap in each of 40 000 values, or not at all."""
    request = RoundRequest(
        build_server_parts(settings()).schedule.plan(RoundOrder(1, 100)),
        torch.zeros(40_000),
        {0: 0.5, 1: 0.5},
    )
    deltas = (torch.full((40_000,), 1.0 + sign * gap) for sign in (-1, 1))
    updates = (ClientUpdate(delta, delta, {}, {}) for delta in deltas)
    state = init_server_state(request.model)
    _, report = finish_round(build_server_parts(settings()), state, request, updates, device_size=0)
    assert report.metrics["client-drift"] == pytest.approx(200 * gap, rel=1e-3)


def test_without_noise_the_used_weights_make_up_for_the_rejected() -> None:
    """(.3 * 2 + .6 * 3) / .9, and nine tenths of the weight are logged."""
    s, state = settings(), init_server_state(torch.zeros(4))
    request = begin_round(build_server_parts(s), state, EXAMPLES)
    updates = list(KnownTrainer().train(request))[1:]
    rejected = [Rejection(0, "it is late")]
    after, report = finish_round(
        build_server_parts(s),
        state,
        request,
        updates,
        device_size=2,
        used=[1, 2],
        rejected=rejected,
    )
    torch.testing.assert_close(after.model, torch.full((4,), 2.4 / 0.9))
    assert report.rejected == rejected
    assert report.kept_share == pytest.approx(0.9)


@pytest.mark.parametrize("stranger", [-1, 7, "node 9"])
def test_a_reply_that_nobody_asked_for_changes_nothing_but_the_report(stranger: int | str) -> None:
    """While sampling: model and metrics are those without it."""
    s = settings(temperature=1.0, **{"chain.burn-in": 0.0})
    outcomes = []
    for rejected in ([], [Rejection(stranger, "it was not asked")]):
        state = init_server_state(torch.zeros(4))
        request = begin_round(build_server_parts(s), state, EXAMPLES)
        updates = KnownTrainer().train(request)
        outcomes.append(
            finish_round(
                build_server_parts(s), state, request, updates, device_size=2, rejected=rejected
            )
        )
        assert outcomes[-1][1].rejected == rejected
    (before, alone), (after, report) = outcomes
    assert report.metrics == alone.metrics and report.kept_share == 1.0
    assert torch.equal(after.model, before.model)


def test_a_round_without_an_update_ends_the_run_in_words() -> None:
    """With the first reason."""
    s, state = settings(), init_server_state(torch.zeros(4))
    request = begin_round(build_server_parts(s), state, EXAMPLES)
    with pytest.raises(RoundError, match="no client of 3 .* the first: it is late"):
        finish_round(
            build_server_parts(s),
            state,
            request,
            [],
            device_size=2,
            used=[],
            rejected=[Rejection(0, "it is late")],
        )


def test_the_share_that_is_kept_is_the_server_s_alone() -> None:
    """Whatever clients report under its name, and whoever was not asked."""
    metrics = {"kept-share": 0.1}
    assert RoundReport([0, 1], [], metrics, kept_share=1.0).share == 1.0
    strangers = [Rejection(-1, "it is from a node that was not asked")] * 5
    assert RoundReport([0, 1], strangers, kept_share=1.0).share == 1.0
    lost = [Rejection(2, "no reply"), Rejection(3, "no reply")]
    assert RoundReport([0, 1], lost).share == 0.5


def test_no_momentum_is_federated_averaging_to_the_bit() -> None:
    """Beta 0, gamma 1: w + sum w_k delta_k, summed in order."""
    stream = torch.Generator().manual_seed(0)
    model = torch.randn(50, generator=stream)
    deltas = [torch.randn(50, generator=stream) for _ in range(3)]
    weights = [0.2, 0.5, 0.3]
    by_hand = torch.zeros(50)
    for delta, weight in zip(deltas, weights, strict=True):
        by_hand = torch.add(by_hand, delta, alpha=weight)
    delta = weighted_sum(deltas, weights)
    after = advance_model(build_server_parts(settings()), init_server_state(model), delta)
    assert torch.equal(after.model, model + by_hand)
    assert after.round == 1


@given(st.floats(0, 0.95))
def test_a_constant_delta_ends_at_its_own_size(momentum: float) -> None:
    """m_t = (1 - beta^t) D."""
    parts = build_server_parts(settings())._replace(momentum=momentum)
    state, delta = init_server_state(torch.zeros(2)), torch.tensor([1.0, -2.0])
    for _ in range(5):
        state = advance_model(parts, state, delta)
    torch.testing.assert_close(state.average, (1 - momentum**5) * delta)


def test_frozen_parameters_stay_whatever_the_average_holds() -> None:
    """The average's memory of the encoder is dropped with the freeze."""
    state = init_server_state(torch.zeros(4))._replace(average=torch.ones(4))
    parts = build_server_parts(settings())._replace(momentum=0.5)
    after = advance_model(parts, state, torch.tensor([0.0, 0.0, 1.0, 1.0]), frozen=2)
    assert after.average.tolist() == [0.0, 0.0, 1.0, 1.0]
