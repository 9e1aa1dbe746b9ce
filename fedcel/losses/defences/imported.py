"""Defences of a user's own, named by import strings: a loss, or a transform of what is sent."""

from functools import lru_cache
from typing import final

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.losses.contract import LOSS_CHECKS, guard_loss
from fedcel.losses.defences.contract import DefenceCase
from fedcel.losses.defences.protocol import Defence, Transform
from fedcel.losses.defences.rival import Rival
from fedcel.losses.defences.transform import append_transform
from fedcel.losses.protocol import CutShape, FeatureReader, State, Term
from fedcel.losses.row_term import RowTerm
from fedcel.losses.terms import Batch, LossTerm, Streams
from fedcel.nets import SplitNet


@final
class ImportedDefence(Rival, is_imported=True):
    """Defence that a user's object makes of (settings of the run, an image's shape)."""

    def end_encoder(self, net: SplitNet, image: tuple[int, ...], run: object) -> SplitNet:
        """Append the user's transform, if it is one; see `Rival.end_encoder`."""
        defence = self._make(run, image)
        if not isinstance(defence, Transform):
            return net
        return append_transform(defence, net, image, self.name)

    def bind(self, cut: CutShape, run: object) -> LossTerm | None:
        """Return the user's loss, held to its contract; see `Rival.bind`."""
        defence = self._make(run, cut.image)
        if not isinstance(defence, Defence):
            return None
        part = plugins.PartName("defence.name", self.name, "DefenceContract")
        _check_imported(part, self, cut, run)
        return DefenceTerm(guard_loss(part, defence))

    def _make(self, run: object, image: tuple[int, ...]) -> Defence | Transform:
        """Return the user's defence."""
        defence = plugins.make_part("defence.name", self.name, run, image)
        if not isinstance(defence, Defence | Transform):
            raise PluginError(
                f"defence.name {self.name!r} made {defence!r}, which lacks refresh, loss or step, "
                "or transform"
            )
        return defence


class DefenceTerm(RowTerm):
    """A defence of one client, such as a user's own, mapped over the clients.

    Args:
        defence: The defence.
    """

    def __init__(self, defence: Defence) -> None:
        self._defence = defence

    def refresh_row(
        self, state: State | None, read_features: FeatureReader, stream: Streams, step: int
    ) -> State:
        """Return one client's state; see `Defence.refresh`."""
        return self._defence.refresh(state, stream("defence"))

    def evaluate_row(self, state: State, batch: Batch, measure: bool) -> Term:
        """Return the loss of one client's batch; see `Defence.loss`."""
        return self._defence.loss(state, batch.x, batch.z, batch.smashed, measure)

    def move_row(self, state: State, batch: Batch) -> State:
        """Return one client's state after the backward pass; see `Defence.step`."""
        return self._defence.step(state)


@lru_cache(maxsize=16)
def _check_imported(
    part: plugins.PartName, options: ImportedDefence, cut: CutShape, run: object
) -> None:
    """Hold a user's loss to its contract."""

    def build() -> Defence:
        defence = options._make(run, cut.image)
        assert isinstance(defence, Defence)
        return defence

    plugins.check_contract(part, LOSS_CHECKS, DefenceCase(build, cut.image, cut.features))
