"""Losses of a user's own, named by import strings: conditional entropies and defences."""

from functools import lru_cache, partial
from typing import Any, final

from pydantic import PrivateAttr

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.losses.cel.conditional_entropy import RefreshedCEL, SpreadCEL, linear_penalty
from fedcel.losses.client_loss import ClientLossTerm
from fedcel.losses.contract import LOSS_CHECKS, LOSS_RESULTS, LossCase
from fedcel.losses.defences.rival import Rival
from fedcel.losses.defences.transform import Transform, append_transform
from fedcel.losses.protocol import ClientLoss, CutShape
from fedcel.losses.terms import WeightedTerm
from fedcel.nets import SplitNet


@final
class ImportedCEL(SpreadCEL, RefreshedCEL, ClientLossTerm, is_imported=True):
    """Loss that a user's object makes of (options, penalty, D, classes)."""

    _loss: ClientLoss = PrivateAttr()
    _metric_names: frozenset[str] = PrivateAttr(frozenset())

    def bind(self, cut: CutShape) -> "ImportedCEL":
        """Make the user's loss, held to its contract; see `CEL.bind`."""
        bound = super().bind(cut)
        # The penalty of the trial is nowhere flat.
        arguments = self, linear_penalty, bound._cut.features, cut.classes
        sizes = {"features": bound._cut.features, "classes": cut.classes}
        bound._metric_names = _check_loss(self._part, arguments, **sizes, least=0.0)
        return bound._charged()

    def set_threshold(self, threshold: float) -> "ImportedCEL":
        """Make the user's loss of another penalty; see `LossTerm.set_threshold`."""
        return super().set_threshold(threshold)._charged()

    @property
    def _part(self) -> plugins.PartName:
        return plugins.PartName("cel.kind", self.kind, "check_cel")

    def _charged(self) -> "ImportedCEL":
        """Give the bound loss the user's, of its own penalty."""
        arguments = self, self.charge, self._cut.features, self._cut.classes
        loss = _make_part(self._part, arguments, ClientLoss)
        self._loss = plugins.guard_part(self._part, loss, **LOSS_RESULTS)
        return self


@final
class ImportedDefence(Rival, ClientLossTerm, is_imported=True):
    """Defence that a user's object makes of (settings of the run, an image's shape)."""

    _loss: ClientLoss = PrivateAttr()
    _metric_names: frozenset[str] = PrivateAttr(frozenset())

    def end_encoder(self, net: SplitNet, image: tuple[int, ...], run: object) -> SplitNet:
        """Append the user's transform, if it is one; see `Rival.end_encoder`."""
        defence = self._make(run, image)
        if not isinstance(defence, Transform):
            return net
        return append_transform(defence, net, image, self.name)

    def make_term(self, cut: CutShape, run: Any) -> WeightedTerm | None:
        """Make the user's loss, held to its contract; see `LossOptions.make_term`."""
        defence = self._make(run, cut.image)
        if not isinstance(defence, ClientLoss):
            return None
        burn_in = run.chain.burn_in_rounds(run.rounds)
        run.cel.check_rounds(run.rounds, burn_in, loss=f"defence.name is {self.name!r}")
        part = plugins.PartName("defence.name", self.name, "check_defence")
        names = _check_loss(part, (run, cut.image), features=cut.features, shape=cut.image)
        bound = self.bind(cut)
        bound._loss, bound._metric_names = plugins.guard_part(part, defence, **LOSS_RESULTS), names
        return self.weigh(bound, run)

    def _make(self, run: object, image: tuple[int, ...]) -> ClientLoss | Transform:
        part = plugins.PartName("defence.name", self.name, "check_defence or check_transform")
        defence: ClientLoss | Transform = _make_part(part, (run, image), ClientLoss | Transform)
        return defence


def _make_part(part: plugins.PartName, arguments: tuple[object, ...], kinds: Any) -> Any:
    """Make a user's object; PluginError unless it is of one of the `kinds`."""
    part_object = plugins.make_part(part.setting, part.ref, *arguments)
    if not isinstance(part_object, kinds):
        lack = "refresh, loss or update" + ("" if kinds is ClientLoss else ", or transform")
        renamed = "; `step` is `update(state)` now" if hasattr(part_object, "step") else ""
        raise PluginError(f"{part} made {part_object!r}, which lacks {lack}{renamed}")
    return part_object


@lru_cache(maxsize=16)
def _check_loss(
    part: plugins.PartName, arguments: tuple[object, ...], **sizes: Any
) -> frozenset[str]:
    """Hold the loss that a user's object makes to its contract; return its metrics' names."""
    case = LossCase(partial(_make_part, part, arguments, ClientLoss), **sizes)
    plugins.check_contract(part, LOSS_CHECKS, case)
    return frozenset(case.metric_names)
