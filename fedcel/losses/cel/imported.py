"""Conditional entropy losses of a user's own, named by import strings."""

from collections.abc import Sequence
from functools import lru_cache
from typing import final

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.losses.cel.conditional_entropy import RefreshedCEL, pool_positions
from fedcel.losses.cel.contract import CELCase
from fedcel.losses.cel.spread_penalties import Penalty, SpreadCEL, linear_penalty
from fedcel.losses.contract import LOSS_CHECKS, guard_loss
from fedcel.losses.protocol import (
    ConditionalEntropy,
    CutShape,
    FeatureReader,
    State,
    Term,
    select_row,
)
from fedcel.losses.row_term import RowTerm
from fedcel.losses.terms import Batch, LossTerm, Streams


@final
class ImportedCEL(SpreadCEL, RefreshedCEL, is_imported=True):
    """Loss that a user's object makes of (options, penalty, D, classes)."""

    def bind(self, cut: CutShape) -> LossTerm:
        """Return the user's loss, held to its contract; see `CEL.bind`."""
        self.check_noise(cut.sigma)
        bound = self.model_copy()
        bound._cut = self.pool_cut(cut)
        part = plugins.PartName("cel.kind", self.kind, "CELContract")
        # A threshold that moves from round to round is no reason to hold the loss to it again.
        fixed = {} if self.threshold == "none" else {"threshold": 1.0}
        _check_imported(part, self.model_copy(update=fixed), bound._cut.features, cut.classes)
        loss = guard_loss(part, _make_loss(part, self, bound.charge, bound._cut))
        return CELTerm(loss, bound._cut.positions)


class CELTerm(RowTerm):
    """A loss of one client, such as a user's own, mapped over the clients.

    Args:
        loss: The loss.
        positions: Positions of each channel in z, over which it sees the mean; 1: it sees all of z.
    """

    def __init__(self, loss: ConditionalEntropy, positions: int = 1) -> None:
        self._loss, self._positions = loss, positions

    def refresh(
        self, state: State, read_features: FeatureReader, streams: Sequence[Streams], step: int
    ) -> State:
        """Compute the statistics anew; see `LossTerm.refresh`."""
        rows = [select_row(state, k) for k in range(len(streams))]
        return self._refresh_rows(rows, read_features, streams, step=step)

    def refresh_row(
        self, state: State | None, read_features: FeatureReader, stream: Streams, step: int
    ) -> State:
        """Return one client's statistics; see `ConditionalEntropy.refresh`."""
        return self._loss.refresh(
            state,
            lambda: ((pool_positions(z, self._positions), y) for z, y, _ in read_features()),
            stream(f"refresh-{step}"),
        )

    def evaluate_row(self, state: State, batch: Batch, measure: bool) -> Term:
        """Return the loss of one client's batch; see `ConditionalEntropy.loss`."""
        z = pool_positions(batch.whitened, self._positions)
        return self._loss.loss(state, z, batch.y, measure)

    def move_row(self, state: State, batch: Batch) -> State:
        """Return one client's state after the backward pass; see `ConditionalEntropy.step`."""
        z = pool_positions(batch.whitened.detach(), self._positions)
        return self._loss.step(state, z, batch.y)


def _make_loss(
    part: plugins.PartName, options: ImportedCEL, penalty: Penalty, cut: CutShape
) -> ConditionalEntropy:
    """Return the loss that the user's object makes."""
    loss = plugins.make_part(part.setting, part.ref, options, penalty, cut.features, cut.classes)
    if not isinstance(loss, ConditionalEntropy):
        raise PluginError(f"{part} made {loss!r}, which lacks refresh, loss or step")
    return loss


@lru_cache(maxsize=16)
def _check_imported(
    part: plugins.PartName, options: ImportedCEL, features: int, classes: int
) -> None:
    """Hold a user's loss to its contract, under a penalty that is nowhere flat."""

    def build() -> ConditionalEntropy:
        return _make_loss(part, options, linear_penalty, CutShape(classes, features))

    plugins.check_contract(part, LOSS_CHECKS, CELCase(build, features, classes))
