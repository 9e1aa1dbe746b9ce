"""Earlier smashed data of each class beside the batch, for any conditional entropy loss."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.cel.base import Codes, ConditionalEntropy, State, Term
from fedcel.cel.reservoir import check_finite
from fedcel.cel.spread import members
from fedcel.cel.states import check_holds, named, part
from fedcel.errors import SettingsError

INNER = "inner."


@final
@dataclass(frozen=True)
class Bank:
    """The inner loss of the batch together with the last `size` smashed data of its classes.

    Banked codes are constants, encoded by the encoder of their own step. Classes that the batch
    lacks stay out, so that beta is taken over the batch's classes; within one, batch and bank
    count alike: with n of the batch and m banked, a code's gradient is about n/(n + m) of what it
    is without a bank, for which a larger cel.weight makes up.

    State: `codes` (C, M, D), a ring for each class, M = `size`; `seen` (C,), how many of the class
    were ever put in; the inner state under `inner.`. Empty at first, kept from round to round.
    """

    inner: ConditionalEntropy
    size: int
    classes: int
    features: int

    def refresh(self, state: State | None, codes: Codes, generator: torch.Generator) -> State:
        """Return the inner state refreshed; SettingsError when the bank is of another shape."""
        shape = (self.classes, self.size, self.features)
        if state is None:
            ring = {"codes": torch.zeros(shape), "seen": torch.zeros(self.classes).long()}
            return ring | named(INNER, self.inner.refresh(None, codes, generator))
        check_holds(state, ("codes", "seen"), "a bank")
        if tuple(state["codes"].shape) != shape:
            raise SettingsError(
                f"a client's bank is {tuple(state['codes'].shape)}, must be {shape}: cel.bank, "
                "net.features or the data changed; start from an empty state"
            )
        inner = self.inner.refresh(part(state, INNER), codes, generator)
        return {"codes": state["codes"], "seen": state["seen"]} | named(INNER, inner)

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Return the inner loss and its metrics, both of batch and bank; DataError on a label."""
        here = members(y, self.classes, z).counts > 0
        held: Bool[Tensor, "C M"] = (
            torch.arange(self.size, device=z.device) < state["seen"][:, None]
        )
        label, slot = (held & here[:, None]).nonzero().unbind(1)
        codes = state["codes"][label, slot].to(z.dtype)
        both = torch.cat([z, codes]), torch.cat([y, label])
        return self.inner.loss(part(state, INNER), *both, measure)

    @torch.no_grad()
    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Return the state after the inner step, the batch put in over the oldest of its classes.

        Of a class with more than M members in the batch the last M. DataError on a wrong label,
        DivergedError when z is not finite: a bank would hand it on to every later batch.
        """
        check_finite(z, y)
        one_hot = members(y, self.classes, z).one_hot.long()
        counts = one_hot.sum(0)
        rank = (one_hot.cumsum(0) * one_hot).sum(1) - 1
        last = rank >= counts[y] - self.size
        own, slot = y[last], (state["seen"][y] + rank)[last] % self.size
        codes = state["codes"].clone()
        codes[own, slot] = z[last].to(codes.dtype)
        inner = self.inner.step(part(state, INNER), z, y)
        return {"codes": codes, "seen": state["seen"] + counts} | named(INNER, inner)
