"""What holds for the losses of both kinds, conditional entropy and defence."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.losses.cel import State, Term


def evaluate_term(
    loss: Callable[[Tensor, bool], Term], z: Float[Tensor, "B D"]
) -> tuple[Float[Tensor, ""], Float[Tensor, "B D"]]:
    """Return the value and the gradient at z of `loss(z, measure)`, after checking both."""
    z = z.detach().clone().requires_grad_()
    term = loss(z, True)
    (gradient,) = torch.autograd.grad(term.loss, z)
    assert term.loss.shape == ()
    assert term.loss.isfinite()
    assert gradient.isfinite().all()
    for name, value in term.metrics.items():
        assert value.shape == (), name
        assert value.isfinite(), name
        assert not value.requires_grad, name
    unmeasured = loss(z, False)
    assert torch.equal(unmeasured.loss, term.loss)
    assert not unmeasured.metrics
    return term.loss.detach(), gradient


def check_unchanged(state: State, work: Callable[[], object]) -> None:
    """Assert that some work changes neither values nor version of any tensor of the state."""
    before = {name: (t, t.detach().clone(), t._version) for name, t in state.items()}
    work()
    assert state.keys() == before.keys()
    for name, (tensor, value, version) in before.items():
        assert state[name] is tensor, name
        assert tensor._version == version, name
        assert torch.equal(tensor.detach(), value), name


def store_state(state: State) -> State:
    """Return the state as it comes back from a file, after checking that it can be stored."""
    for name, tensor in state.items():
        assert tensor.is_contiguous(), name
        assert tensor.isfinite().all(), name
    arrays = {name: tensor.detach().numpy().copy() for name, tensor in state.items()}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
