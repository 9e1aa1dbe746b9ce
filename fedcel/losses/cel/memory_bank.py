"""Earlier smashed data of each class beside the batch, for any conditional entropy loss."""

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.losses.cel.class_spread import class_members
from fedcel.losses.cel.protocol import Codes, ConditionalEntropy, State, Term
from fedcel.losses.cel.reservoir import check_finite, sample_reservoir
from fedcel.losses.cel.state_names import add_prefix, check_holds, select_prefix

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
    were put in since the last refresh; the inner state under `inner.`. Each refresh fills the ring
    anew with a uniform sample of the client's own codes: those of its last round are the codes of
    another encoder by now.
    """

    inner: ConditionalEntropy
    size: int
    classes: int
    features: int

    def refresh(self, state: State | None, codes: Codes, generator: torch.Generator) -> State:
        """Return the inner state refreshed and a fresh ring.

        SettingsError when the state's bank is of another shape.
        """
        shape = (self.classes, self.size, self.features)
        if state is not None:
            check_holds(state, ("codes", "seen"), "a bank")
            if tuple(state["codes"].shape) != shape:
                raise SettingsError(
                    f"a client's bank is {tuple(state['codes'].shape)}, must be {shape}: cel.bank, "
                    "net.features or the data changed; start from an empty state"
                )
        kept = None if state is None else select_prefix(state, INNER)
        inner = self.inner.refresh(kept, codes, generator)
        return self._filled(codes, generator) | add_prefix(INNER, inner)

    def _filled(self, codes: Codes, generator: torch.Generator) -> State:
        """Return a ring of at most `size` codes of each class, the first places taken."""
        found = sample_reservoir(codes, self.classes, self.size, generator)
        counts = found.counts.clamp_max(self.size)
        slot = torch.arange(len(found.y)) - (counts.cumsum(0) - counts)[found.y]
        ring = torch.zeros(self.classes, self.size, self.features)
        ring[found.y, slot] = found.z.to(ring.dtype)
        return {"codes": ring, "seen": counts}

    def loss(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"], measure: bool = True
    ) -> Term:
        """Return the inner loss and its metrics, both of batch and bank; DataError on a label."""
        here = class_members(y, self.classes, z).counts > 0
        held: Bool[Tensor, "C M"] = (
            torch.arange(self.size, device=z.device) < state["seen"][:, None]
        )
        label, slot = (held & here[:, None]).nonzero().unbind(1)
        codes = state["codes"][label, slot].to(z.dtype)
        both = torch.cat([z, codes]), torch.cat([y, label])
        return self.inner.loss(select_prefix(state, INNER), *both, measure)

    @torch.no_grad()
    def step(self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]) -> State:
        """Return the state after the inner step, the batch put in over the oldest of its classes.

        Of a class with more than M members in the batch the last M. DataError on a wrong label,
        DivergedError when z is not finite: a bank would hand it on to every later batch.
        """
        check_finite(z, y)
        one_hot = class_members(y, self.classes, z).one_hot.long()
        counts = one_hot.sum(0)
        rank = (one_hot.cumsum(0) * one_hot).sum(1) - 1
        last = rank >= counts[y] - self.size
        own, slot = y[last], (state["seen"][y] + rank)[last] % self.size
        codes = state["codes"].clone()
        codes[own, slot] = z[last].to(codes.dtype)
        inner = self.inner.step(select_prefix(state, INNER), z, y)
        return {"codes": codes, "seen": state["seen"] + counts} | add_prefix(INNER, inner)
