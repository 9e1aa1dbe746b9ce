"""Losses of a user's own, named by import strings: conditional entropies and defences."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, final

import torch
from pydantic import PrivateAttr

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.losses.cel.conditional_entropy import RefreshedCEL, SpreadCEL, linear_penalty
from fedcel.losses.contract import LOSS_CHECKS, LOSS_RESULTS, LossCase
from fedcel.losses.defences.rival import Rival, RunOptions
from fedcel.losses.defences.transform import Transform, append_transform
from fedcel.losses.protocol import Batch, ClientLoss, CutShape, FeatureReader, State, Term
from fedcel.losses.terms import LossTerm, WeightedTerm
from fedcel.named_tensors import select_row, stack_states
from fedcel.nets import SplitNet


class ClientLossTerm(LossTerm):
    """A loss of one client as a term: it is trained one client at a time.

    Args:
        loss: The loss, whose states may be of other shapes for other clients.
        metric_names: Names of its metrics, as far as they are known.
    """

    def __init__(self, loss: ClientLoss, metric_names: frozenset[str] = frozenset()) -> None:
        self._loss, self._metric_names = loss, metric_names

    @property
    def takes_stacks(self) -> bool:
        """Whether several clients are computed at once: no."""
        return False

    @property
    def metric_names(self) -> frozenset[str]:
        """Names of its metrics, as far as they are known."""
        return self._metric_names

    def refresh(
        self,
        state: State | None,
        read_features: FeatureReader,
        generators: Sequence[torch.Generator],
    ) -> State:
        """Compute the client's statistics; see `ClientLoss.refresh`."""
        row = None if state is None else select_row(state, 0)
        after = self._loss.refresh(
            row, lambda: ((z, y) for z, y, _ in read_features()), generators[0]
        )
        return stack_states([after])

    def loss(self, state: State, batch: Batch, measure: bool) -> Term:
        """Compute the client's loss; see `ClientLoss.loss`."""
        row = {name: tensor[0] for name, tensor in state.items()}
        parts = Batch._make(None if part is None else part[0] for part in batch)
        loss, metrics = self._loss.loss(row, parts, measure)
        return Term(loss.unsqueeze(0), {n: value.unsqueeze(0) for n, value in metrics.items()})

    def update(self, state: State) -> State:
        """Move what the client's loss learns; see `ClientLoss.update`."""
        row = {}
        for name, tensor in state.items():
            row[name] = tensor.detach()[0].requires_grad_(tensor.requires_grad)
            row[name].grad = None if tensor.grad is None else tensor.grad[0]
        return stack_states([self._loss.update(row)])


@final
class ImportedCEL(SpreadCEL, RefreshedCEL, ClientLossTerm, is_imported=True):
    """Loss that a user's object makes of (options, penalty, D, classes)."""

    _loss: ClientLoss = PrivateAttr()
    _metric_names: frozenset[str] = PrivateAttr(frozenset())

    def bind(self, cut: CutShape) -> "ImportedCEL":
        """Make the user's loss, held to its contract; see `CEL.bind`."""
        bound = super().bind(cut)
        part = plugins.PartName("cel.kind", self.kind, "check_cel")
        sizes = bound._cut.features, cut.classes
        loss = _make_part(part, (bound, bound.charge, *sizes), ClientLoss)
        # A threshold that moves from round to round is no reason to hold the loss to it again.
        fixed = {} if self.threshold == "none" else {"threshold": 1.0}
        # The penalty of the trial is nowhere flat.
        trial = self.model_copy(update=fixed), linear_penalty, *sizes
        names = _check_loss(part, trial, features=sizes[0], classes=sizes[1], least=0.0)
        bound._loss, bound._metric_names = plugins.guard_part(part, loss, **LOSS_RESULTS), names
        return bound


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

    def make_term(self, cut: CutShape, run: RunOptions) -> WeightedTerm | None:
        """Make the user's loss, held to its contract; see `LossOptions.make_term`."""
        defence = self._make(run, cut.image)
        if not isinstance(defence, ClientLoss):
            return None
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
