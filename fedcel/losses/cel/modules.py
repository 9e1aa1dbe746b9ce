"""The conditional entropy losses as PyTorch modules, for a training loop of one's own.

They hold the state and call the losses that a federation's clients use; nothing is computed twice.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from fedcel.errors import FedcelError
from fedcel.losses.cel.build_cel import build_cel
from fedcel.losses.cel.cluster import DEFAULT_CLUSTERS, SCALE_NAMES
from fedcel.losses.cel.hybrid import CLUSTER_PREFIX, GATED_PREFIX
from fedcel.losses.protocol import ConditionalEntropy, FeatureBatches, State, Term
from fedcel.seeding import make_generator
from fedcel.settings import (
    Attention,
    AttentionStep,
    ClassShare,
    ClusterForm,
    Clustering,
    InformationBound,
    OutlierRule,
    Pool,
    Settings,
    parse_settings,
)
from fedcel.tensors import ArrayLike, to_labels, to_tensor
from fedcel.torch_state import usual_torch_state

PenaltyName = Literal["linear", "log", "channel"]
Batches = Iterable[tuple[ArrayLike, ArrayLike]]
"""Features and labels, batch by batch; read again from the start where a loss needs it."""

LEARNED = "theta"
"""The tensor of a state that learns by a gradient."""
_LIBRARY_TERMS = (
    (r"cel\.kind (?:to )?'([\w-]+)'", lambda m: m[1].title().replace("-", "") + "CEL"),
    (r"\bcel\.([a-z-]+)", lambda m: m[1].replace("-", "_")),
    (r"net\.noise", lambda m: "noise"),
    (r"net\.features", lambda m: "the number of features"),
    (r"local\.rate", lambda m: "the learning rate"),
)
"""Settings of a run that errors of the losses name, and what they are called here."""


class CELModule(nn.Module):
    """Base of the conditional entropy losses for a loop of one's own; see `ClusterCEL`.

    `cel(z, y)` is a scalar with a gradient for the encoder, to be added to the task's loss. The
    number of features is that of the first batch. Computed in float32 under autocast and of half
    precision, in float64 of float64. State follows the features from device to device, is part of
    `state_dict`, and is no parameter: an optimiser never moves it.
    """

    feature_count: Tensor
    refresh_count: Tensor

    @usual_torch_state()
    def __init__(
        self, kind: str, *, classes: int, noise: float, pool: Pool, seed: int, options: Settings
    ) -> None:
        """Keep what a loss is built of, once the number of features is known."""
        super().__init__()
        if type(classes) is not int or classes < 1:
            raise ValueError(f"classes is {classes!r}, must be a whole number, 1 or more")
        if pool not in ("flatten", "mean"):
            raise ValueError(f"pool is {pool!r}, must be 'flatten' or 'mean'")
        self.kind, self.classes, self.noise = kind, classes, float(noise)
        self.pool, self.seed = pool, seed
        self._cel_settings = options.cel
        self._loss: ConditionalEntropy | None = None
        self._width = 0
        self._state_names: tuple[str, ...] = ()
        self.register_buffer("feature_count", torch.zeros((), dtype=torch.long))
        self.register_buffer("refresh_count", torch.zeros((), dtype=torch.long))

    def extra_repr(self) -> str:
        """Show what decides the loss."""
        return f"classes={self.classes}, noise={self.noise:g}"

    @property
    def needs_refresh(self) -> bool:
        """Whether `refresh` has to be called before the first batch."""
        return self.kind in ("cluster", "hybrid") and not self._state_names

    def forward(self, z: Shaped[Tensor, "B ..."], y: ArrayLike) -> Float[Tensor, ""]:
        """Compute the loss of one batch.

        An attention (`GatedCEL`, `HybridCEL`) first takes the step that the last backward pass has
        prepared; see `step`.

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
        """Compute the statistics that the loss needs anew, best once an epoch.

        Kinds without any ignore it. Computed on the processor.

        Args:
            features: Of all training images, without noise, (N, D) or (N, C, H, W); or batches
                (features, labels), which may be read several times.
            labels: (N,), from 0; None where `features` are batches.
            generator: Decides the start of the clusters; None: one for each refresh, of `seed`.

        Raises:
            ValueError: There is no example, or a shape, number or label is not allowed.
        """
        self.step()
        batches = self._read_batches(features, labels)
        first_z, _ = next(batches(), (None, None))
        if first_z is None:
            raise ValueError("there are 0 examples, must be 1 or more")
        device = self.feature_count.device
        self._refresh(first_z.shape[1], batches, generator)
        self._place(device)

    @usual_torch_state()
    def step(self) -> None:
        """Move the attention by the gradient of the last backward pass, where there is one.

        The next `forward`, `refresh` and `state_dict` do it by themselves. A gradient that is not
        finite is left out, as `torch.amp.GradScaler` leaves such steps out.
        """
        if self._loss is None or not self._state_names:
            return
        state = self._state()
        for tensor in state.values():
            if tensor.grad is not None and not tensor.grad.isfinite().all():
                tensor.grad = None
        if any(tensor.grad is not None for tensor in state.values()):
            nobody = next(iter(state.values())).new_zeros(0, int(self.feature_count))
            self._keep(self._loss.step(state, nobody, torch.zeros(0, dtype=torch.long)))

    def _evaluate(self, z: Shaped[Tensor, "B ..."], y: ArrayLike, *, measure: bool) -> Term:
        """Return the loss and its metrics, after the steps that are due."""
        self.step()
        table = self._flatten(z)
        labels = to_labels(y, len(table)).to(table.device)
        if self.kind == "gated" and not self._state_names:
            example = table.detach().cpu(), labels.cpu()
            self._refresh(table.shape[1], lambda: iter([example]), None)
        if self.needs_refresh:
            raise RuntimeError(
                f"{type(self).__name__} has no centres yet: call refresh(features, labels) with "
                "the features of all training images before the first batch, and once an epoch"
            )
        loss = self._build(table.shape[1])
        self._place(table.device)
        state = self._state()
        dtype = next((t.dtype for t in state.values() if t.is_floating_point()), table.dtype)
        with without_autocast(table.device.type), in_library_terms():
            return loss.loss(state, table.to(dtype), labels, measure)

    @usual_torch_state()
    def _refresh(
        self, width: int, batches: FeatureBatches, generator: torch.Generator | None
    ) -> None:
        """Have the loss compute its state on the processor."""
        loss = self._build(width)
        if generator is None:
            generator = make_generator(self.seed, "cel-module", int(self.refresh_count))
        self._place(torch.device("cpu"))
        with in_library_terms():
            self._keep(loss.refresh(self._state() or None, batches, generator))
        self.refresh_count += 1

    def _build(self, width: int) -> ConditionalEntropy:
        """Return the loss of so many features; ValueError where they were others before."""
        known_width = int(self.feature_count) if self._loss is None else self._width
        if known_width not in (0, width):
            raise ValueError(
                f"features have {width} values, those before had {known_width}; make a new "
                f"{type(self).__name__} for another encoder"
            )
        if self._loss is None:
            with in_library_terms():
                loss = build_cel(self._cel_settings, self.noise, width, self.classes)
            assert loss is not None
            self._loss, self._width = loss, width
            self.feature_count.fill_(width)
        return self._loss

    def _flatten(self, z: object) -> Float[Tensor, "B D"]:
        """Return one vector an image, of float32 or float64, the gradient kept."""
        table = z if isinstance(z, Tensor) and not z.is_inference() else to_tensor(z, "features")
        if table.dim() < 2 or not table.is_floating_point() or 0 in table.shape[1:]:
            raise ValueError(
                f"features are {tuple(table.shape)} of {table.dtype}, must be floating numbers of "
                "shape (B, D) or (B, C, H, W)"
            )
        if table.dim() > 2:
            table = table.flatten(2).mean(2) if self.pool == "mean" else table.flatten(1)
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
        return {name: self.get_buffer(to_key(name)) for name in self._state_names}

    def _keep(self, state: State) -> None:
        """Hold the tensors of a state as buffers."""
        for name in self._state_names:
            del self._buffers[to_key(name)]
        for name, tensor in state.items():
            self.register_buffer(to_key(name), tensor)
        self._state_names = tuple(state)

    def _place(self, device: torch.device) -> None:
        """Bring all buffers to a device."""
        if self.feature_count.device != device:
            self.to(device)

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
        """Save the state after the steps that are due."""
        self.step()
        super()._save_to_state_dict(destination, prefix, keep_vars)

    @usual_torch_state()
    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Load a state of any number of features and refreshes, none included."""
        counter = state_dict.get(f"{prefix}feature_count")
        width = 0 if counter is None else int(counter)
        shapes = self._state_shapes(width) if width else {}
        keys = {name: f"{prefix}{to_key(name)}" for name in shapes}
        stored = {name: state_dict[key] for name, key in keys.items() if key in state_dict}
        if stored and stored.keys() != shapes.keys():
            error_msgs.append(f"{sorted(shapes.keys() - stored.keys())} are missing of the state")
            return
        for name, tensor in stored.items():
            if tuple(tensor.shape) != shapes[name]:
                error_msgs.append(
                    f"{keys[name]} is {tuple(tensor.shape)}, must be {shapes[name]} for "
                    f"{self!r}; make it with the arguments that it was saved with"
                )
                return
        device = self.feature_count.device
        self._loss = None
        self._keep({name: torch.empty_like(t, device=device) for name, t in stored.items()})
        super()._load_from_state_dict(
            state_dict,
            prefix,
            local_metadata,
            strict,
            missing_keys,
            unexpected_keys,
            error_msgs,
        )
        for name in self._state_names:
            if name.endswith(LEARNED):
                self.get_buffer(to_key(name)).requires_grad_()
        if width:
            self._build(width)

    def _state_shapes(self, width: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor of the state, by the loss's own names."""
        cel = self._cel_settings
        hidden = cel.hidden or min(256, max(64, width // 4))
        size = 2 * hidden * width + hidden
        attention = {LEARNED: (size,), "m": (size,), "v": (size,), "t": ()}
        slots = self.classes, cel.used_clusters or DEFAULT_CLUSTERS
        clusters: dict[str, tuple[int, ...]] = {
            "centres": (*slots, width),
            "weights": slots,
            "spreads": slots,
            "counts": (self.classes,),
        }
        if cel.clustering != "k-means":
            scales = (width,) if cel.clustering == "diagonal" else (width, width)
            clusters[SCALE_NAMES[cel.clustering]] = (*slots, *scales)
        if cel.outlier_rule == "truncate":
            clusters["limits"] = slots
        if self.kind == "gated":
            return attention
        if self.kind == "cluster":
            return clusters
        if self.kind == "hybrid":
            prefixed = {f"{GATED_PREFIX}{name}": shape for name, shape in attention.items()}
            return prefixed | {f"{CLUSTER_PREFIX}{name}": shape for name, shape in clusters.items()}
        return {}


def without_autocast(device_type: str) -> AbstractContextManager[None]:
    """Return a context without mixed precision, of any device."""
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)


def to_key(name: str) -> str:
    """Return the name of a buffer, which may have no dot."""
    return name.replace(".", "/")


def read_options(kind: str, noise: float, **options: object) -> Settings:
    """Return the options as the settings of a run, checked by their rules; SettingsError."""
    values = {
        f"cel.{name.replace('_', '-')}": "none" if value is None else value
        for name, value in options.items()
    }
    with in_library_terms():
        return parse_settings({"cel.kind": kind, "net.noise": float(noise), **values})


@contextmanager
def in_library_terms() -> Iterator[None]:
    """Let errors within the block name arguments where they name settings of a run."""
    try:
        yield
    except FedcelError as error:
        text = str(error)
        for setting, name in _LIBRARY_TERMS:
            text = re.sub(setting, name, text)
        raise type(error)(text) from error


class PlainCEL(CELModule):
    """Keeps each class close to its mean in the batch; no statistics, the plainest of all.

    Args are those of `ClusterCEL`, without those of clusters.
    """

    def __init__(
        self,
        *,
        classes: int,
        noise: float = 0.3,
        penalty: PenaltyName = "channel",
        threshold: float | None = None,
        share: ClassShare = "batch-share",
        pool: Pool = "flatten",
    ) -> None:
        """Make the loss; SettingsError where an option is not allowed."""
        options = read_options("plain", noise, penalty=penalty, threshold=threshold, share=share)
        super().__init__("plain", classes=classes, noise=noise, pool=pool, seed=0, options=options)


class ClusterCEL(CELModule):
    """Keeps each class close to a few centres of its own, which `refresh` finds.

    Example:
        >>> cel = fedcel.ClusterCEL(classes=10, noise=0.3)
        >>> cel.refresh(features, labels)  # once an epoch
        >>> loss = cross_entropy(head(z + 0.3 * torch.randn_like(z)), y) + weight * cel(z, y)

    Args:
        classes: C; labels are in 0..C-1.
        noise: Standard deviation of the Gaussian noise that your loop adds to the features.
        penalty: What a class's spread v costs: `channel` (D/2) log(1 + v/(D noise^2)) in nats,
            `log` or `linear`.
        threshold: Spread below which `log` costs nothing; None: 0.125 noise^2 D.
        share: A class's share in the loss: `batch-share` n_c/B, `mean-present`, or `none`.
        clusters: Centres a class; 0: 5, at most a quarter of the class; auto: 1.
        clustering: `k-means`, or Gaussian mixtures, `diagonal` or `full`.
        form: `renormalised`, or `original`: clusters absent from the batch as spread 0.
        reservoir: Features of a class that are kept for a refresh, at most.
        outlier: Clusters above this multiple of the median spread are too wide; None: none.
        outlier_rule: `reseed` such clusters, or `truncate` them: far members are left out.
        pool: Of features (B, C, H, W): `flatten` all values, which is what leaves the device; or
            their `mean` over positions, which does not bound what single positions tell.
        seed: Decides the start of the clusters.

    Raises:
        SettingsError: An option is not allowed, or needs noise where there is none.
    """

    def __init__(
        self,
        *,
        classes: int,
        noise: float = 0.3,
        penalty: PenaltyName = "channel",
        threshold: float | None = None,
        share: ClassShare = "batch-share",
        clusters: int | Literal["auto"] = "auto",
        clustering: Clustering = "k-means",
        form: ClusterForm = "renormalised",
        reservoir: int = 1024,
        outlier: float | None = None,
        outlier_rule: OutlierRule = "reseed",
        pool: Pool = "flatten",
        seed: int = 0,
    ) -> None:
        """Make the loss; SettingsError where an option is not allowed."""
        options = read_options(
            "cluster",
            noise,
            penalty=penalty,
            threshold=threshold,
            share=share,
            clusters=clusters,
            clustering=clustering,
            form=form,
            reservoir=reservoir,
            outlier=outlier,
            outlier_rule=outlier_rule,
        )
        super().__init__(
            "cluster", classes=classes, noise=noise, pool=pool, seed=seed, options=options
        )


class GatedCEL(CELModule):
    """Keeps each class close together under weights that a learned attention gives its members.

    The attention learns by itself: it takes its step at the next `forward` after a backward pass.
    It is made at the first batch; `refresh` is not needed.

    Args are those of `ClusterCEL`, without those of clusters, and:

    Args:
        attention: Who moves the attention: `ascend` against the loss, `minimise` with it, `floor`
            with it and a uniform share, or `detach` nobody.
        floor: Uniform share of the attention `floor`, in [0, 1].
        hidden: Hidden size of the attention; 0: D/4, in 64..256.
        attention_rate: By about how much a step moves its weights; of a plain step the factor.
        attention_step: `adam`, or `gradient`: a plain step along the gradient that arrived, in
            proportion to the weight that your loop gives the loss.
        entropy: Weight of a bonus that keeps the attention from a single member.
    """

    def __init__(
        self,
        *,
        classes: int,
        noise: float = 0.3,
        penalty: PenaltyName = "channel",
        threshold: float | None = None,
        share: ClassShare = "batch-share",
        attention: Attention = "ascend",
        floor: float = 0.5,
        hidden: int = 0,
        attention_rate: float = 0.01,
        attention_step: AttentionStep = "adam",
        entropy: float = 0.0,
        pool: Pool = "flatten",
        seed: int = 0,
    ) -> None:
        """Make the loss; SettingsError where an option is not allowed."""
        options = read_options(
            "gated",
            noise,
            penalty=penalty,
            threshold=threshold,
            share=share,
            attention=attention,
            floor=floor,
            hidden=hidden,
            attention_rate=attention_rate,
            attention_step=attention_step,
            entropy=entropy,
        )
        super().__init__(
            "gated", classes=classes, noise=noise, pool=pool, seed=seed, options=options
        )


class HybridCEL(CELModule):
    """The loss of `ClusterCEL` around centres whose starts an attention like `GatedCEL`'s draws.

    Args are those of both; `clusters` is not 1, and auto means 0.
    """

    def __init__(
        self,
        *,
        classes: int,
        noise: float = 0.3,
        penalty: PenaltyName = "channel",
        threshold: float | None = None,
        share: ClassShare = "batch-share",
        clusters: int | Literal["auto"] = "auto",
        clustering: Clustering = "k-means",
        form: ClusterForm = "renormalised",
        reservoir: int = 1024,
        outlier: float | None = None,
        outlier_rule: OutlierRule = "reseed",
        attention: Attention = "ascend",
        floor: float = 0.5,
        hidden: int = 0,
        attention_rate: float = 0.01,
        attention_step: AttentionStep = "adam",
        entropy: float = 0.0,
        pool: Pool = "flatten",
        seed: int = 0,
    ) -> None:
        """Make the loss; SettingsError where an option is not allowed."""
        options = read_options(
            "hybrid",
            noise,
            penalty=penalty,
            threshold=threshold,
            share=share,
            clusters=clusters,
            clustering=clustering,
            form=form,
            reservoir=reservoir,
            outlier=outlier,
            outlier_rule=outlier_rule,
            attention=attention,
            floor=floor,
            hidden=hidden,
            attention_rate=attention_rate,
            attention_step=attention_step,
            entropy=entropy,
        )
        super().__init__(
            "hybrid", classes=classes, noise=noise, pool=pool, seed=seed, options=options
        )


class MutualInformationCEL(CELModule):
    """Bounds what a message tells about the image beyond its label, in the batch, in nats.

    Needs several images of a class in a batch, and noise above 0; no statistics.

    Args:
        classes: C; labels are in 0..C-1.
        noise: Standard deviation of the Gaussian noise that your loop adds, above 0.
        share: A class's share in the loss, as of `ClusterCEL`.
        bound: `upper` or `lower`, by Kolchinsky and Tracey, Entropy 2017.
        pool: As of `ClusterCEL`.
    """

    def __init__(
        self,
        *,
        classes: int,
        noise: float = 0.3,
        share: ClassShare = "batch-share",
        bound: InformationBound = "upper",
        pool: Pool = "flatten",
    ) -> None:
        """Make the loss; SettingsError where an option is not allowed."""
        options = read_options("mutual-information", noise, share=share, bound=bound)
        super().__init__(
            "mutual-information", classes=classes, noise=noise, pool=pool, seed=0, options=options
        )
