"""Defences of a user's own, named by import strings: a loss, or a transform of what is sent."""

from functools import lru_cache
from typing import final

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.losses.contract import LOSS_CHECKS, LossCase, guard_loss
from fedcel.losses.defences.rival import Rival
from fedcel.losses.defences.transform import Transform, append_transform
from fedcel.losses.one_client import DefenceTerm
from fedcel.losses.protocol import CutShape, Defence
from fedcel.losses.terms import LossTerm
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
        part = plugins.PartName("defence.name", self.name, "check_defence")
        _check_imported(part, self, cut, run)
        return DefenceTerm(guard_loss(part, defence))

    def _make(self, run: object, image: tuple[int, ...]) -> Defence | Transform:
        defence = plugins.make_part("defence.name", self.name, run, image)
        if not isinstance(defence, Defence | Transform):
            raise PluginError(
                f"defence.name {self.name!r} made {defence!r}, which lacks refresh, loss or step, "
                "or transform"
            )
        return defence


@lru_cache(maxsize=16)
def _check_imported(
    part: plugins.PartName, options: ImportedDefence, cut: CutShape, run: object
) -> None:
    """Hold a user's loss to its contract."""

    def build() -> Defence:
        defence = options._make(run, cut.image)
        assert isinstance(defence, Defence)
        return defence

    case = LossCase.of_defence(build, features=cut.features, shape=cut.image)
    plugins.check_contract(part, LOSS_CHECKS, case)
