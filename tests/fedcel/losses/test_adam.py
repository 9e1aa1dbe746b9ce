"""Adam against torch's own."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedcel.losses import adam
from fedcel.losses.cel import State
from fedcel.tensors import select_row


def normal(seed: int) -> torch.Tensor:
    return torch.randn(7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def start(seed: int) -> State:
    """Return a state whose theta has seven values."""
    generator = torch.Generator().manual_seed(seed)
    return select_row(adam.init_states([adam.draw_layers([(7, 3)], generator, torch.float64)]), 0)


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**31), st.floats(1e-4, 1.0))
def test_it_is_torchs_adam(seed: int, rate: float) -> None:
    """Ten steps on changing gradients, 1e-12 apart."""
    state = start(seed)
    theirs = state["theta"].detach().clone().requires_grad_()
    optimiser = torch.optim.Adam([theirs], rate, adam.BETAS, adam.EPSILON)
    for number in range(10):
        state["theta"].grad = normal(seed + number)
        theirs.grad = normal(seed + number)
        state = adam.take_step(state, rate)
        optimiser.step()
    torch.testing.assert_close(state["theta"], theirs, rtol=1e-12, atol=1e-12)
    assert state["t"] == 10


def test_no_gradient_no_step() -> None:
    """Nothing moves when none arrived or all of it is 0; what arrived is cleared."""
    state = start(3)
    assert adam.take_step(state, 0.1) is state
    state["theta"].grad = torch.zeros(7, dtype=torch.float64)
    after = adam.take_step(state, 0.1)
    assert all(torch.equal(after[name], state[name]) for name in adam.STATE_NAMES)
    assert after["theta"].requires_grad
    state["theta"].grad = normal(4)
    moved = adam.take_step(state, 0.1)
    assert not any(torch.equal(moved[name], state[name]) for name in adam.STATE_NAMES)
    assert state["theta"].grad is None


def test_clients_at_once_move_each_by_itself() -> None:
    """One has no gradient, and they have taken unequal numbers of steps."""
    states = [start(seed) for seed in range(3)]
    for state, steps in zip(states, (0, 2, 5), strict=True):
        for step in range(steps):
            state["theta"].grad = normal(step)
            state |= adam.take_step(state, 0.1)
    gradients = [normal(7), torch.zeros(7, dtype=torch.float64), normal(9)]
    joined = {name: torch.stack([s[name].detach() for s in states]) for name in adam.STATE_NAMES}
    joined["theta"].requires_grad_()
    joined["theta"].grad = torch.stack(gradients)
    at_once = adam.take_step(joined, 0.1)
    for k, (state, gradient) in enumerate(zip(states, gradients, strict=True)):
        state["theta"].grad = gradient
        for name, tensor in adam.take_step(state, 0.1).items():
            assert torch.equal(at_once[name][k], tensor), name


def test_step_is_pure_and_keeps_other_names() -> None:
    """The old state holds its values; the new theta learns."""
    state = {**start(5), "bank": torch.ones(2)}
    before = {name: tensor.detach().clone() for name, tensor in state.items()}
    state["theta"].grad = normal(6)
    after = adam.take_step(state, 0.1)
    assert all(torch.equal(state[name].detach(), before[name]) for name in before)
    assert after["bank"] is state["bank"]
    assert after["theta"].is_leaf
    assert after["theta"].requires_grad


def test_resume_gives_a_theta_of_its_own() -> None:
    """Ready to learn, the same bits."""
    state = {name: tensor.detach() for name, tensor in start(7).items()}
    again = adam.resume_state(state, 7, "attention", "cel.hidden")
    assert torch.equal(again["theta"], state["theta"])
    assert again["theta"].requires_grad
    assert again["theta"].data_ptr() != state["theta"].data_ptr()
