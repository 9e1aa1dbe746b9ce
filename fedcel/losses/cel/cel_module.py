"""Conditional entropy losses as PyTorch modules, for your own training loop.

They hold the state and call the losses that a federation's clients use; nothing is computed twice.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from inspect import Parameter, Signature
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Shaped
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from torch import Tensor, nn

from fedcel.errors import FedcelError, SettingsError
from fedcel.losses.cel.conditional_entropy import CEL, RefreshedCEL
from fedcel.losses.client_loss import TermLoss
from fedcel.losses.protocol import Batch, CutShape, FeatureBatches, State, Term
from fedcel.settings_table import describe_problems
from fedcel.tensors import ArrayLike, to_labels, to_tensor
from fedcel.torch_state import make_generator, usual_torch_state

Batches = Iterable[tuple[ArrayLike, ArrayLike]]
"""Features and labels, batch by batch; read again from the start where a loss needs it."""

LEARNED = "theta"
"""The tensor of a state that learns by a gradient."""
_LIBRARY_NAMES = {
    "net.noise": "noise",
    "net.features": "the number of features",
    "local.rate": "the learning rate",
    "local.clip": "the gradient's clip",
}
"""Settings of a run besides `cel` that errors of the losses name, and what they are called here."""
_RAISES = """
    Raises:
        SettingsError: An option is not allowed, or needs noise where there is none.
"""


class CELModule(nn.Module):
    """Base of the conditional entropy losses for your own training loop; see `ClusterCEL`.

    `cel(z, y)` is a scalar with a gradient for the encoder, to be added to the task's loss. The
    number of features is that of the first batch. Computed in float32 under autocast and of half
    precision, in float64 of float64. State follows the features from device to device, is part of
    `state_dict`, and is no parameter: an optimiser never moves it.
    """

    options: ClassVar[type[CEL]]
    feature_count: Tensor
    refresh_count: Tensor

    def __init_subclass__(cls, *, options: type[CEL], **more: Any) -> None:
        """Take keywords, their defaults and docstring from the options of the loss."""
        super().__init_subclass__(**more)
        fields = list_library_options(options)
        off = {name: None for name, field in fields.items() if field.default == "none"}
        defaults = {"noise": 0.3, **{k: f.default for k, f in fields.items()}, **off, "seed": 0}
        texts = {
            "classes": "C; labels are in 0..C-1.",
            "noise": "Standard deviation of the Gaussian noise that your loop adds to features.",
            **{name: str(field.description) for name, field in fields.items()},
            "seed": "Decides the start of clusters and attention.",
        }
        keyword = partial(Parameter, kind=Parameter.KEYWORD_ONLY)
        parameters = [keyword("classes"), *(keyword(k, default=v) for k, v in defaults.items())]
        cls.options, cls.__signature__ = options, Signature(parameters)  # type: ignore[attr-defined]
        lines = [f"        {name}: {text}" for name, text in texts.items()]
        cls.__doc__ = "\n".join([f"{cls.__doc__}".rstrip(), "", "    Args:", *lines, _RAISES])

    @usual_torch_state()
    def __init__(
        self, *, classes: int, noise: float = 0.3, seed: int = 0, **options: object
    ) -> None:
        """Check the options; the loss is built once the number of features is known."""
        super().__init__()
        type(self).__signature__.bind(classes=classes, **options)  # type: ignore[attr-defined]
        if type(classes) is not int or classes < 1:
            raise ValueError(f"classes is {classes!r}, must be a whole number, 1 or more")
        self.classes, self.noise, self.seed = classes, float(noise), seed
        self._options = read_options(self.options, self.noise, options)
        self._loss: TermLoss | None = None
        self._width = 0
        self._state_names: tuple[str, ...] | None = None
        self.register_buffer("feature_count", torch.zeros((), dtype=torch.long))
        self.register_buffer("refresh_count", torch.zeros((), dtype=torch.long))

    @property
    def kind(self) -> str:
        """Kind of the loss, as `cel.kind` names it."""
        return self._options.kind

    def extra_repr(self) -> str:
        """Show what decides the loss."""
        return f"classes={self.classes}, noise={self.noise:g}"

    @property
    def needs_refresh(self) -> bool:
        """Whether `refresh` has to be called before the first batch."""
        return isinstance(self._options, RefreshedCEL) and self._state_names is None

    def forward(self, z: Shaped[Tensor, "B ..."], y: ArrayLike) -> Float[Tensor, ""]:
        """Compute the loss of one batch.

        An attention (`GatedCEL`, `HybridCEL`) first takes the step that the last backward pass has
        prepared; see `update`.

        Args:
            z: Features before their noise, (B, D) or (B, C, H, W), with a gradient.
            y: Labels (B,), from 0.

        Returns:
            The loss, a scalar; of an empty batch 0.

        Raises:
            RuntimeError: The loss needs `refresh` first.
            ValueError: A shape or a label is not allowed.
        """
        return self._evaluate(z, y, measure=False).loss

    def measure(self, z: Shaped[Tensor, "B ..."], y: ArrayLike) -> dict[str, float]:
        """Measure what there is to log of a batch, such as its spread.

        Args:
            z: Features, as of `forward`.
            y: Labels (B,), from 0.

        Returns:
            Numbers by name; which ones, the kind of loss says.
        """
        with torch.no_grad():
            metrics = self._evaluate(z, y, measure=True).metrics
        return {name: float(value) for name, value in metrics.items()}

    def refresh(
        self,
        features: ArrayLike | Batches,
        labels: ArrayLike | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        """Compute the statistics that the loss needs, best once an epoch.

        Kinds without any ignore it. Computed on the processor.

        Args:
            features: Of all training images, without noise, (N, D) or (N, C, H, W); or batches
                (features, labels), which may be read several times.
            labels: (N,), from 0; None where `features` are batches.
            generator: Decides the start of the clusters; None: one for each refresh, of `seed`.

        Raises:
            ValueError: There is no example, or a shape, number or label is not allowed.
        """
        self.update()
        batches = self._read_batches(features, labels)
        first, _ = next(batches(), (None, None))
        if first is None:
            raise ValueError("there are 0 examples, must be 1 or more")
        device = self.feature_count.device
        self._refresh(first.shape[1], batches, generator)
        self.to(device)

    @usual_torch_state()
    def update(self) -> None:
        """Move the attention by the gradient of the last backward pass, where there is one.

        The next `forward`, `measure`, `refresh` and `state_dict` do it by themselves. A gradient
        that is not finite is left out, as `torch.amp.GradScaler` leaves such steps out.
        """
        state = self._state()
        if self._loss is None or all(tensor.grad is None for tensor in state.values()):
            return
        for tensor in state.values():
            if tensor.grad is not None and not tensor.grad.isfinite().all():
                tensor.grad = None
        self._keep(self._loss.update(state))

    def _evaluate(self, z: Shaped[Tensor, "B ..."], y: ArrayLike, *, measure: bool) -> Term:
        """Return the loss and its metrics, after the steps that are due."""
        self.update()
        table = self._flatten(z)
        labels = to_labels(y, len(table)).to(table.device)
        if self.needs_refresh:
            raise RuntimeError(
                f"{type(self).__name__} has no statistics yet: call refresh(features, labels) with "
                "the features of all training images before the first batch, and once an epoch"
            )
        loss = self._build(table.shape[1])
        if self._state_names is None:  # one that starts with any batch
            self._refresh(table.shape[1], self._read_batches(table, labels), None)
        if self.feature_count.device != table.device:
            self.to(table.device)
        state = self._state()
        dtype = next((t.dtype for t in state.values() if t.is_floating_point()), table.dtype)
        with without_autocast(table.device.type), in_library_terms():
            return loss.loss(state, Batch.of_features(table.to(dtype), labels), measure)

    @usual_torch_state()
    def _refresh(
        self, width: int, batches: FeatureBatches, generator: torch.Generator | None
    ) -> None:
        loss = self._build(width)
        if generator is None:
            generator = make_generator(self.seed, "cel-module", int(self.refresh_count))
        self.to("cpu")
        before = None if self._state_names is None else self._state()
        with in_library_terms():
            self._keep(loss.refresh(before, batches, generator))
        self.refresh_count += 1

    def _build(self, width: int) -> TermLoss:
        """Return the loss of so many features; ValueError where they were others before."""
        known_width = int(self.feature_count) if self._loss is None else self._width
        if known_width not in (0, width):
            raise ValueError(
                f"features have {width} values, those before had {known_width}; make a new "
                f"{type(self).__name__} for another encoder"
            )
        if self._loss is None:
            with in_library_terms():
                self._loss, self._width = self._fix_width(width), width
            self.feature_count.fill_(width)
        return self._loss

    def _fix_width(self, width: int) -> TermLoss:
        """Return the loss of so many features, pooled already."""
        options = self._options.model_copy(update={"pool": "flatten"})
        return TermLoss(options.bind(CutShape(self.classes, width, self.noise)))

    def _flatten(self, z: object) -> Float[Tensor, "B D"]:
        """Return one vector an image, of float32 or float64, the gradient kept."""
        table = z if isinstance(z, Tensor) and not z.is_inference() else to_tensor(z, "features")
        if table.dim() < 2 or not table.is_floating_point() or 0 in table.shape[1:]:
            raise ValueError(
                f"features are {tuple(table.shape)} of {table.dtype}, must be floating numbers of "
                "shape (B, D) or (B, C, H, W)"
            )
        if table.dim() > 2:
            table = table.flatten(2).mean(2) if self._options.pool == "mean" else table.flatten(1)
        return table if table.dtype == torch.float64 else table.float()

    def _read_batches(
        self, features: ArrayLike | Batches, labels: ArrayLike | None
    ) -> FeatureBatches:
        """Return what reads features and labels on the processor, from the start at each call."""
        if labels is not None:
            source: Batches = [(features, labels)]  # type: ignore[list-item]
        elif isinstance(features, Tensor) or hasattr(features, "__array__"):
            raise ValueError("labels are missing: refresh(features, labels), or batches of both")
        elif isinstance(features, Iterator):  # can be read once
            source = list(features)
        else:
            source = features  # type: ignore[assignment]

        def read() -> Iterator[tuple[Tensor, Tensor]]:
            for z, y in source:
                table = self._flatten(z).detach().cpu()
                yield table, to_labels(y, len(table)).cpu()

        return read

    def _state(self) -> State:
        """Return the state under the loss's own names."""
        return {name: self.get_buffer(to_key(name)) for name in self._state_names or ()}

    def _make_blank_state(self, width: int) -> State:
        """Return a state of the loss's names and shapes, of an image of each class."""
        read = self._read_batches(torch.zeros(self.classes, width), torch.arange(self.classes))
        return self._fix_width(width).refresh(None, read, torch.Generator())

    def _keep(self, state: State | None) -> None:
        """Hold the tensors of a state as buffers; None: there is none yet."""
        for name in self._state_names or ():
            del self._buffers[to_key(name)]
        for name, tensor in (state or {}).items():
            self.register_buffer(to_key(name), tensor)
        self._state_names = None if state is None else tuple(state)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "CELModule":
        """Follow a move to another device, and keep the type: statistics are no half numbers."""

        def move(tensor: Tensor) -> Tensor:
            device = fn(tensor.detach()).device
            if device == tensor.device:
                return tensor
            return tensor.detach().to(device).requires_grad_(tensor.requires_grad)

        super()._apply(move, recurse)  # type: ignore[no-untyped-call]
        return self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        self.update()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    @usual_torch_state()
    def _load_from_state_dict(
        self, state_dict: Mapping[str, Any], prefix: str, *arguments: Any
    ) -> None:
        """Load a state of any number of features and refreshes, none included."""
        width = int(state_dict.get(f"{prefix}feature_count", 0))
        blank = self._make_blank_state(width) if width else {}
        keys = {name: f"{prefix}{to_key(name)}" for name in blank}
        state = {
            name: blank[name].detach().to(self.feature_count.device, state_dict[key].dtype)
            for name, key in keys.items()
            if key in state_dict
        }
        self._loss = None
        self._keep(blank | state if state else None)  # PyTorch holds what is stored to its shapes
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        for name in self._state_names or ():
            if name.endswith(LEARNED):
                self.get_buffer(to_key(name)).requires_grad_()
        if width:
            self._build(width)


def without_autocast(device_type: str) -> AbstractContextManager[None]:
    """Return a context without mixed precision, of any device."""
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def to_key(name: str) -> str:
    """Return the name of a buffer, which may have no dot."""
    return name.replace(".", "/")


def list_library_options(options: type[CEL]) -> dict[str, FieldInfo]:
    """List what a loss is made of, without what only a run decides, such as its weight."""
    return {
        name: field
        for name, field in options.model_fields.items()
        if name in ("pool", "share") or name not in RefreshedCEL.model_fields
    }


def read_options(kind: type[CEL], noise: float, options: Mapping[str, object]) -> CEL:
    """Return the options of a loss, checked by its rules; SettingsError."""
    values = {name: "none" if value is None else value for name, value in options.items()}
    with in_library_terms():
        try:
            checked = kind.model_validate(values)
        except ValidationError as error:
            raise SettingsError(describe_problems(error, values, "cel.")) from None
        checked.check_noise(noise)
    return checked


@contextmanager
def in_library_terms() -> Iterator[None]:
    """Let errors within the block name arguments where they name settings of a run."""
    try:
        yield
    except FedcelError as error:
        raise type(error)(re.sub(r"\b[a-z]+\.[a-z-]+", name_argument, str(error))) from error


def name_argument(setting: re.Match[str]) -> str:
    """Return the name of a run's setting where there is no run."""
    if setting[0].startswith("cel."):
        return setting[0].removeprefix("cel.").replace("-", "_")
    return _LIBRARY_NAMES.get(setting[0], setting[0])
