"""What holds for the losses of both kinds, conditional entropy and defence."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.losses.protocol import State, Term
from fedcel.plugins import require


def require_state(state: object, method: str) -> State:
    """Refuse what is no state.

    Args:
        state: What a loss returned.
        method: Of which method, for the message.

    Returns:
        The state.

    Raises:
        ContractError: It is no dictionary of tensors by name.
    """
    line = f"`{method}` must return the state, a dictionary of tensors by name"
    require(isinstance(state, dict), f"{line}; it returned {type(state).__name__}")
    assert isinstance(state, dict)
    for name, value in state.items():
        require(isinstance(name, str), f"{line}; one of its names is {name!r}")
        require(isinstance(value, Tensor), f"{line}; {name!r} is {type(value).__name__}")
    return state


def require_term(term: object) -> Term:
    """Refuse what is no term.

    Args:
        term: What the method `loss` returned.

    Returns:
        The term.

    Raises:
        ContractError: It is no `Term` of a scalar tensor and scalar metrics by name.
    """
    line = "`loss` must return fedcel.Term(loss, metrics)"
    require(isinstance(term, Term), f"{line}; it returned {type(term).__name__}")
    assert isinstance(term, Term)
    is_tensor = isinstance(term.loss, Tensor)
    require(is_tensor, f"{line}, whose loss is a tensor; it is {type(term.loss).__name__}")
    shape = tuple(term.loss.shape)
    require(shape == (), f"{line}, whose loss is a scalar; its shape is {shape}")
    is_dictionary = isinstance(term.metrics, dict)
    require(is_dictionary, f"{line}, whose metrics are a dictionary by name")
    for name, value in term.metrics.items():
        is_scalar = isinstance(value, Tensor) and value.shape == ()
        require(is_scalar, f"{line}, whose metrics are scalar tensors; {name!r} is {value!r:.60}")
    return term


def evaluate_term(
    loss: Callable[[Tensor, bool], Term], z: Float[Tensor, "B D"]
) -> tuple[Float[Tensor, ""], Float[Tensor, "B D"]]:
    """Compute a loss and its gradient, and refuse what no loss may be.

    Args:
        loss: Takes the features and whether to measure.
        z: Features (B, D).

    Returns:
        The loss, and its gradient at z.

    Raises:
        ContractError: Loss, gradient or a metric are not finite, there is no gradient, metrics
            have one, or measuring changes the loss.
    """
    z = z.detach().clone().requires_grad_()
    before = z.detach().clone()
    term = require_term(loss(z, True))
    count = len(z)
    value = term.loss.detach()
    require(bool(value.isfinite()), f"the loss of {count} features must be finite, is {value:g}")
    require(term.loss.requires_grad, "the loss must have a gradient at the features; it has none")
    (gradient,) = torch.autograd.grad(term.loss, z, allow_unused=True)
    require(gradient is not None, "the loss must have a gradient at the features; it has none")
    require(
        bool(gradient.isfinite().all()),
        f"the gradient of the loss at {count} features must be finite, is not",
    )
    require(torch.equal(z.detach(), before), "`loss` must leave the features as they are")
    for name, metric in term.metrics.items():
        require(bool(metric.isfinite()), f"the metric {name!r} must be finite, is {metric:g}")
        require(not metric.requires_grad, f"the metric {name!r} must have no gradient; detach it")
    unmeasured = require_term(loss(z, False))
    require(
        torch.equal(unmeasured.loss, term.loss),
        "`loss` must give the same to the bit each time, with measure=False too; it draws nothing",
    )
    require(not unmeasured.metrics, "measure=False must give no metrics")
    return value, gradient


def require_unchanged(state: State, work: Callable[[], object]) -> None:
    """Do some work and refuse it where it changes a state.

    Args:
        state: A loss's state.
        work: What must not change it.

    Raises:
        ContractError: A tensor was replaced or written to.
    """
    before = {name: (t, t.detach().clone(), t._version) for name, t in state.items()}
    work()
    line = "`loss` must leave the state as it is"
    require(state.keys() == before.keys(), f"{line}; it has other names now")
    for name, (tensor, value, version) in before.items():
        is_same = state[name] is tensor and tensor._version == version
        require(is_same and torch.equal(tensor.detach(), value), f"{line}; it changed {name!r}")


def store_state(state: State) -> State:
    """Store a state and read it again, as between two rounds.

    Args:
        state: A loss's state.

    Returns:
        The state as it comes back from a file.

    Raises:
        ContractError: A tensor is not contiguous or not finite.
    """
    for name, tensor in state.items():
        line = f"the state must survive being stored; {name!r} is not"
        require(tensor.is_contiguous(), f"{line} contiguous: call .contiguous()")
        require(bool(tensor.isfinite().all()), f"{line} finite")
    arrays = {name: tensor.detach().numpy().copy() for name, tensor in state.items()}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}
