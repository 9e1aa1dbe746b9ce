"""Conditional entropy losses of a user's own, named by import strings."""

from functools import lru_cache
from typing import final

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.losses.cel.conditional_entropy import RefreshedCEL
from fedcel.losses.cel.spread_penalties import Penalty, SpreadCEL, linear_penalty
from fedcel.losses.contract import LOSS_CHECKS, LossCase, guard_loss
from fedcel.losses.one_client import CELTerm
from fedcel.losses.protocol import ConditionalEntropy, CutShape
from fedcel.losses.terms import LossTerm


@final
class ImportedCEL(SpreadCEL, RefreshedCEL, is_imported=True):
    """Loss that a user's object makes of (options, penalty, D, classes)."""

    def bind(self, cut: CutShape) -> LossTerm:
        """Return the user's loss, held to its contract; see `CEL.bind`."""
        self.check_noise(cut.sigma)
        bound = self.model_copy()
        bound._cut = self.pool_cut(cut)
        part = plugins.PartName("cel.kind", self.kind, "check_cel")
        # A threshold that moves from round to round is no reason to hold the loss to it again.
        fixed = {} if self.threshold == "none" else {"threshold": 1.0}
        _check_imported(part, self.model_copy(update=fixed), bound._cut.features, cut.classes)
        loss = guard_loss(part, _make_loss(part, self, bound.charge, bound._cut))
        return CELTerm(loss, bound._cut.positions)


def _make_loss(
    part: plugins.PartName, options: ImportedCEL, penalty: Penalty, cut: CutShape
) -> ConditionalEntropy:
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

    case = LossCase.of_cel(build, features=features, classes=classes)
    plugins.check_contract(part, LOSS_CHECKS, case)
