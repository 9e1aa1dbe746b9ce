"""Options of a loss that are the loss itself: base of conditional entropies and defences."""

from typing import Any, ClassVar, TypeVar

from pydantic import PrivateAttr

from fedcel.losses.protocol import CutShape
from fedcel.losses.terms import LossTerm, WeightedTerm
from fedcel.settings_table import Kind

AnyLoss = TypeVar("AnyLoss", bound="LossOptions")


class LossOptions(Kind, LossTerm):
    """Loss whose fields are its settings.

    Settings hold it without a cut; `bind` gives it the sizes of one net.
    """

    weight_key: ClassVar[str]
    """Setting that is its weight."""

    _cut: CutShape = PrivateAttr(CutShape(0, 0))

    @property
    def title(self) -> str:
        """Name in errors."""
        return f"{self.table}.{self.selector} {self.kind_name!r}"

    @property
    def remedy(self) -> str:
        """Advice where the loss is not finite."""
        is_imported = ":" in self.kind_name
        return "keep it finite" if is_imported else f"lower local.rate, or {self.weight_key}"

    def bind(self: AnyLoss, cut: CutShape) -> AnyLoss:
        """Return the loss of the features at one cut.

        Raises:
            SettingsError: The loss needs a sigma above 0, or positions that the features do not
                have.
            PluginError: A user's object makes no such loss, or one that breaks its contract.
        """
        bound = self.model_copy()
        bound._cut = cut
        return bound

    def make_term(self, cut: CutShape, run: Any) -> WeightedTerm | None:
        """Return the loss at one cut with its weight and schedule, None where there is no loss.

        Args:
            cut: Sizes of the features, as they pass the cut.
            run: The run's settings, which a user's defence is made of; its `cel` is the schedule
                of a defence.

        Raises:
            SettingsError: As of `bind`.
            PluginError: As of `bind`.
        """
        return None
