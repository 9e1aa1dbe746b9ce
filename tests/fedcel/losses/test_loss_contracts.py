"""Each line of the losses' contracts is broken by a loss that keeps to most others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from fedcel.errors import ContractError, FedcelError
from fedcel.losses import CEL_TESTS, DEFENCE_TESTS, Batch, ClientLoss, LossCase, TermLoss
from fedcel.losses.cel import FeatureBatches, Plain, State, Term
from fedcel.losses.defences import TRANSFORM_TESTS, TransformCase
from tests.fedcel.losses.single import single

PLAIN = single(Plain(penalty="linear"), 3)


class Changed(ClientLoss):
    """The spread within classes with one change; labels above 2 count as 2.

    Args:
        change: Takes the loss, features and labels.
        refresh: Takes the state and all features.
        update: Takes the state.
    """

    def __init__(
        self,
        change: Callable[..., Any] = lambda loss, z, y: loss,
        refresh: Callable[[State | None, Tensor], State] = lambda state, z: {},
        update: Callable[[State], State] = lambda state: state,
    ) -> None:
        self.change, self.new_state, self.next_state = change, refresh, update

    def refresh(
        self, state: State | None, batches: FeatureBatches, generator: torch.Generator
    ) -> State:
        """Return a state of the features, or of nothing."""
        return self.new_state(state, torch.cat([z for z, _ in batches()]))

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        spread = PLAIN.loss({}, batch.z, batch.y.clamp(max=2)).loss
        return Term(self.change(spread, batch.z, batch.y), {})

    def update(self, state: State) -> State:
        return self.next_state(state)


class Unscaled(torch.autograd.Function):
    """The sum of squares, whose backward pass forgets its weight."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z.square().sum()

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return 2 * z


def write(z: Tensor) -> Tensor:
    """Overwrite the values and return 0."""
    z.data.zero_()
    return z.sum().detach()


def tangle(state: State | None, z: Tensor) -> State:
    return {"tangled": torch.ones(2, 3).T}


LOSSES: dict[str, Changed] = {
    "gradient": Changed(lambda loss, z, y: 0 * loss),
    "inputs": Changed(lambda loss, z, y: loss + write(z)),
    "small-batches": Changed(lambda loss, z, y: loss.sqrt()),
    "undefined-features": Changed(lambda loss, z, y: PLAIN.loss({}, z.nan_to_num(), y).loss),
    "stored-state": Changed(refresh=tangle),
    "foreign-state": Changed(refresh=lambda state, z: {"mine": state["mine"]} if state else {}),
    "every-image": Changed(lambda loss, z, y: PLAIN.loss({}, z[1:], y[1:]).loss),
    "order": Changed(lambda loss, z, y: loss * (1 + z[0].square().sum())),
    "labels": Changed(),
    "undefined-statistics": Changed(refresh=lambda state, z: {"mean": z.mean(0)}),
    "absent-classes": Changed(lambda loss, z, y: loss * float((y == 2).any())),
    "no-signal": Changed(lambda loss, z, y: loss + z.square().sum()),
    "equal-features": Changed(lambda loss, z, y: loss + 1),
    "shift": Changed(lambda loss, z, y: loss * (1 + z.square().mean())),
    "weight": Changed(lambda loss, z, y: loss + Unscaled.apply(z)),
}


def find_check(checks: tuple[Callable[..., None], ...], name: str) -> Callable[..., None]:
    (check,) = (c for c in checks if c.__name__ == f"_check_{name.replace('-', '_')}")
    return check


def test_every_check_has_a_loss_that_breaks_it() -> None:
    """None is without one; a defence's last check has its own below."""
    names = [check.__name__.removeprefix("_check_").replace("_", "-") for check in CEL_TESTS]
    assert names == list(LOSSES)
    assert [check.__name__ for check in DEFENCE_TESTS[8:]] == ["_check_one_update"]


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_with_one_fault_is_refused(name: str) -> None:
    """By the check of this fault, and the unchanged loss by none."""
    check = find_check(CEL_TESTS, name)
    check(LossCase(lambda: TermLoss(PLAIN.term), features=4, least=0.0))
    with pytest.raises((FedcelError, KeyError)):
        check(LossCase(lambda: LOSSES[name], features=4, least=0.0))


def test_a_loss_below_zero_is_refused() -> None:
    """By the first batch; of a defence it may be."""
    negative = Changed(lambda loss, z, y: loss - 9)
    CEL_TESTS[0](LossCase(lambda: negative, features=4))
    with pytest.raises(ContractError, match=r"0 or more, is -\d"):
        CEL_TESTS[0](LossCase(lambda: negative, features=4, least=0.0))


def test_a_second_update_of_a_defence_must_change_nothing() -> None:
    """One that counts its steps is refused."""
    check = find_check(DEFENCE_TESTS, "one-update")
    check(LossCase(Changed, features=4))
    counting = Changed(
        refresh=lambda state, z: state or {"count": torch.zeros(1)},
        update=lambda state: {"count": state["count"] + 1},
    )
    with pytest.raises(ContractError, match="a second `update`"):
        check(LossCase(lambda: counting, features=4))


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
