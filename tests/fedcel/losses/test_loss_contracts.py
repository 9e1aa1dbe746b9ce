"""Each line of the losses' contracts is broken by a loss that keeps to most others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcel.errors import ContractError, FedcelError
from fedcel.losses import CEL_TESTS, DEFENCE_TESTS, LossCase
from fedcel.losses.cel import Plain, State, Term
from fedcel.losses.defences import TRANSFORM_TESTS, TransformCase
from tests.fedcel.losses.single import single

PLAIN = single(Plain(penalty="linear"), 3)


class Changed:
    """A loss, or the defence of the same features, with one change.

    Args:
        change: Takes the loss, features and labels.
        step: Takes the state.
    """

    def __init__(
        self,
        change: Callable[..., Any] = lambda loss, z, y: loss,
        refresh: Callable[[State | None, Tensor], State] = lambda state, z: {},
        step: Callable[[State], State] = lambda state: state,
    ) -> None:
        self.change, self.new_state, self.next_state = change, refresh, step

    def refresh(self, state: State | None, *arguments: Any) -> State:
        """Return a state of the features, or of nothing."""
        z = torch.cat([z for z, _ in arguments[0]()]) if len(arguments) == 2 else torch.ones(2, 2)
        return self.new_state(state, z)

    def step(self, state: State, *batch: Tensor) -> State:
        """Return the next state."""
        return self.next_state(state)


class ChangedCEL(Changed):
    """A conditional entropy loss."""

    def loss(self, state: State, z: Tensor, y: Tensor, measure: bool = True) -> Term:
        """Return the changed spread within classes; labels above 2 count as 2."""
        return Term(self.change(PLAIN.loss({}, z, y.clamp(max=2)).loss, z, y), {})


class ChangedDefence(Changed):
    """A defence."""

    def loss(
        self, state: State, x: Tensor, z: Tensor, smashed: Tensor, measure: bool = True
    ) -> Term:
        """Return the changed mean square."""
        return Term(self.change(smashed.square().mean(), z, x), {})


class Unscaled(torch.autograd.Function):
    """The sum of squares, whose backward pass forgets its weight."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        """Return the sum of squares."""
        ctx.save_for_backward(z)
        return z.square().sum()

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> Tensor:
        """Return the gradient of the sum itself."""
        (z,) = ctx.saved_tensors
        return 2 * z


def write(z: Tensor) -> Tensor:
    """Overwrite the values and return 0."""
    z.data.zero_()
    return z.sum().detach()


def tangle(state: State | None, z: Tensor) -> State:
    """Return a tensor that cannot be stored as it is."""
    return {"tangled": torch.ones(2, 3).T}


LOSSES: dict[str, Changed] = {
    "gradient": ChangedCEL(lambda loss, z, y: 0 * loss),
    "inputs": ChangedCEL(lambda loss, z, y: loss + write(z)),
    "small-batches": ChangedCEL(lambda loss, z, y: loss.sqrt()),
    "undefined-features": ChangedCEL(lambda loss, z, y: PLAIN.loss({}, z.nan_to_num(), y).loss),
    "stored-state": ChangedCEL(refresh=tangle),
    "foreign-state": ChangedCEL(refresh=lambda state, z: {"mine": state["mine"]} if state else {}),
    "every-image": ChangedCEL(lambda loss, z, y: PLAIN.loss({}, z[1:], y[1:]).loss),
    "order": ChangedCEL(lambda loss, z, y: loss * (1 + z[0].square().sum())),
    "labels": ChangedCEL(),
    "undefined-statistics": ChangedCEL(refresh=lambda state, z: {"mean": z.mean(0)}),
    "absent-classes": ChangedCEL(lambda loss, z, y: loss * float((y == 2).any())),
    "no-signal": ChangedCEL(lambda loss, z, y: loss + z.square().sum()),
    "equal-features": ChangedCEL(lambda loss, z, y: loss + 1),
    "shift": ChangedCEL(lambda loss, z, y: loss * (1 + z.square().mean())),
    "weight": ChangedCEL(lambda loss, z, y: loss + Unscaled.apply(z)),
}


def find_check(checks: tuple[Callable[..., None], ...], name: str) -> Callable[..., None]:
    """Return the check of a name."""
    (check,) = (c for c in checks if c.__name__ == f"_check_{name.replace('-', '_')}")
    return check


def test_every_check_has_a_loss_that_breaks_it() -> None:
    """None is without one; a defence's last check has its own below."""
    names = [check.__name__.removeprefix("_check_").replace("_", "-") for check in CEL_TESTS]
    assert names == list(LOSSES)
    assert [check.__name__ for check in DEFENCE_TESTS[8:]] == ["_check_one_step"]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_with_one_fault_is_refused(name: str) -> None:
    """By the check of this fault, and the unchanged loss by none."""
    check = find_check(CEL_TESTS, name)
    check(LossCase.of_cel(lambda: PLAIN, features=4))
    with pytest.raises((FedcelError, KeyError)):
        check(LossCase.of_cel(lambda: LOSSES[name], features=4))  # type: ignore[arg-type, return-value]


def test_a_loss_below_zero_is_refused() -> None:
    """By the first batch."""
    case = LossCase.of_cel(lambda: ChangedCEL(lambda loss, z, y: loss - 9), features=4)
    with pytest.raises(ContractError, match=r"0 or more, is -\d"):
        CEL_TESTS[0](case)


def test_a_second_step_of_a_defence_must_change_nothing() -> None:
    """One that counts its steps is refused."""
    check = find_check(DEFENCE_TESTS, "one-step")
    check(LossCase.of_defence(ChangedDefence, features=4, shape=(1, 4, 4)))

    def build() -> ChangedDefence:
        return ChangedDefence(
            refresh=lambda state, z: state or {"count": torch.zeros(1)},
            step=lambda state: {"count": state["count"] + 1},
        )

    with pytest.raises(ContractError, match="a second `step`"):
        check(LossCase.of_defence(build, features=4, shape=(1, 4, 4)))


class Doubled:
    """A transform with one change.

    Args:
        change: Takes the features.
    """

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        self.transform = change


TRANSFORMS: dict[str, Callable[[Tensor], Tensor]] = {
    "shape": lambda z: z.mul_(0.5),
    "rows": lambda z: z - z.mean(0),
    "repetition": lambda z: z + 1e-6 * torch.rand(z.shape),
    "way-back": lambda z: z.detach(),
    "every-image": lambda z: torch.where(z[:, :1] > z[:, :1].min(), z, 0),
    "mapping": lambda z: z / (1 if z.max().item() > 0 else 2),
    "bound": lambda z: 2 * z,
    "change": lambda z: z,
}


@pytest.mark.parametrize("check", TRANSFORM_TESTS)
def test_a_transform_with_one_fault_is_refused(check: Callable[[TransformCase], None]) -> None:
    """By the check of this fault, and half of the features by none."""
    z = torch.rand(7, 12, generator=torch.Generator().manual_seed(1))
    check(TransformCase(Doubled(lambda z: z / 2), z))
    name = check.__name__.removeprefix("_check_").replace("_", "-")
    with pytest.raises((ContractError, RuntimeError)):
        check(TransformCase(Doubled(TRANSFORMS[name]), z))
