"""Split networks of a user's own: a builder of both halves, or a model that is cut."""

from collections.abc import Callable
from inspect import isclass, signature
from typing import Any, ClassVar, cast

from torch import nn

from fedcel import plugins
from fedcel.errors import FedcelError, NetError, SettingsError
from fedcel.nets.library_net import CutNet, Normalise, read_normalisation
from fedcel.nets.net_settings import Halves, WideNet

ANSWERS = "num_classes"
"""Argument of a factory of models: the number of logits."""


class ImportedNet(CutNet, WideNet, is_imported=True):
    """Parts of a user's own, `package.module:object`.

    Without `net.cut` a builder of both halves, called with (shape, classes, this object). Its
    encoder bounds features as it likes, and may say how many `positions` a channel has. With
    `net.cut` a factory of a model, called with `num_classes` if it takes that; `net.width` has no
    effect then.
    """

    has_positions: ClassVar[bool] = True

    def check_rules(self) -> None:
        """Refuse options that a builder does not have."""
        if self.cut != "none":
            super().check_rules()
        elif self.weights != "none" or self.frozen != "none":
            raise SettingsError(
                "net.weights and net.frozen are of a model that is cut, and net.cut is 'none'; "
                "name the layer that is sent, or leave them to your builder"
            )
        elif not self.features:
            raise SettingsError("net.features is 0, must be 1 or more where net.cut is 'none'")

    @property
    def part(self) -> plugins.PartName:
        """Name of the builder, for messages."""
        return plugins.PartName("net.name", self.name, "check_net")

    def build(self, shape: tuple[int, ...], classes: int) -> Halves:
        """Build both halves; NetError where the object is no builder, or makes others."""
        if self.cut != "none":
            return super().build(shape, classes)
        if isclass(model := self._load()) and issubclass(model, nn.Module):
            raise NetError(
                f"net.name {self.name!r} is a model and net.cut is 'none'; name the layer that is "
                "sent"
            )
        halves = self._call(shape, classes, self)
        is_pair = isinstance(halves, tuple) and len(halves) == 2
        if not is_pair or not all(isinstance(half, nn.Module) for half in halves):
            raise NetError(f"net.name {self.name!r} must return (encoder, head), two torch modules")
        return cast("Halves", halves)

    def make_model(self, classes: int) -> tuple[nn.Module, nn.Module]:
        """Make the model; it is normalised for as a model of timm states."""
        is_counted = ANSWERS in signature(self._load()).parameters
        model = self._call(**{ANSWERS: classes} if is_counted else {})
        if not isinstance(model, nn.Module):
            raise NetError(
                f"net.name {self.name!r} must return a torch module that can be cut, not "
                f"{type(model).__name__}; leave net.cut out where it returns both halves"
            )
        stated = read_normalisation(model)
        return model, Normalise(*stated) if stated else nn.Identity()

    def _load(self) -> Callable[..., Any]:
        loaded = plugins.load_object(self.name)
        if not callable(loaded) or isinstance(loaded, nn.Module):
            raise NetError(f"net.name {self.name!r} is no builder: it cannot be called")
        return loaded

    def _call(self, *arguments: object, **named: object) -> Any:
        """Call the builder or factory; NetError says where it fails."""
        try:
            return self._load()(*arguments, **named)
        except FedcelError:
            raise
        except Exception as error:
            raise NetError(self.part.describe_failure(error)) from error
