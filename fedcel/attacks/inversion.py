"""Rebuild images from what any encoder sends: the attacks, without a run."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedcel.attacks.attack import Progress
from fedcel.attacks.attack_row import describe_stop
from fedcel.attacks.averaging import observe_repeatedly
from fedcel.attacks.registry import OPTIMAL, parse_attacks
from fedcel.attacks.runner import find_surface, ignore, reconstruct_targets, refuse_known_targets
from fedcel.attacks.score_card import ReconstructionScores, score_reconstructions
from fedcel.data import Images, check_images
from fedcel.errors import NetError, RefusedImagesError
from fedcel.extras import import_optional, require_extra
from fedcel.leakage import (
    FREE_QUERIES,
    LOG_PROB,
    NOISELESS,
    NoiseFunction,
    SmashedData,
    read_noise,
)
from fedcel.nets import (
    Cut,
    Encoder,
    SplitNet,
    as_module,
    call_encoder,
    copy_module,
    encode_images,
    evaluation_mode,
    find_module,
    place_images,
    split_outputs,
    switch_to_evaluation,
)
from fedcel.ranges import CHANCE, NON_NEGATIVE, POSITIVE, check_whole
from fedcel.tensors import ArrayLike, check_features, number_labels, to_labels, to_tensor
from fedcel.torch_state import usual_torch_state

USUAL_ATTACKS = ("decoder", "kernel-ridge")
MAX_COLUMNS = 12  # images in a row of a grid


@dataclass(frozen=True, repr=False, eq=False)
class Inversion:
    """Reconstructions and their scores; `print` shows three lines in words."""

    targets: Float[Tensor, "T C H W"]
    reconstructions: dict[str, Float[Tensor, "T C H W"]]
    """One image in [0, 1] for each target, by the name of the attack."""
    scores: dict[str, ReconstructionScores]
    """The score card of each attack, with what needs no attack at all: the mean image and, with
    labels, the mean of the class."""
    candidates: int
    """Images among which the right one is looked for."""
    has_labels: bool = True
    learning_curves: dict[str, list[float]] = field(default_factory=dict)
    """Mean squared error on the attacker's held-out images after each epoch, of attacks that train
    a network: where it still falls at the end, a larger budget may rebuild better."""
    stopped: dict[str, float] = field(default_factory=dict)
    """Share of their steps that attacks took whose time was up."""
    seconds: float = 0.0
    """The most seconds of each attack; 0: no limit."""

    @property
    def best(self) -> str:
        """The name of the attack of the lowest squared error."""
        return min(self.scores, key=lambda name: self.scores[name].mse)

    def to_dict(self) -> dict[str, dict[str, float | None]]:
        """Give the scores as plain numbers.

        Returns:
            By attack and score, what JSON can hold.
        """
        return {name: asdict(scores) for name, scores in self.scores.items()}

    def __repr__(self) -> str:
        """Show the best attack and its error."""
        error = self.scores[self.best].mse
        return f"Inversion({len(self.targets)} targets, best={self.best!r}, mse={error:.4g})"

    def __str__(self) -> str:
        """Describe in three lines how close the best attack came, and what does not follow."""
        scores = self.scores[self.best]
        ssim = "" if scores.ssim is None else f", SSIM {scores.ssim:.2f}"
        oracle = f", the mean of its class {scores.oracle_mse:.4f}" if self.has_labels else ""
        others = [f"{name} {row.mse:.4f}" for name, row in self.scores.items() if name != self.best]
        beside = f" The others: {', '.join(others)}." if others else ""
        cut_short = [
            f" {name} was {describe_stop(share, self.seconds)}."
            for name, share in self.stopped.items()
        ]
        beside += "".join(cut_short)
        start = "The best attack"
        if scores.mse >= scores.mean_mse:
            start = "No attack did better than showing the mean image: the best"
        return (
            f"{start}, {self.best}, rebuilds an image with a squared error of "
            f"{scores.mse:.4f} (PSNR {scores.psnr:.1f} dB{ssim}); the mean image has "
            f"{scores.mean_mse:.4f}{oracle}.\n"
            f"Of {self.candidates} images the right one is the nearest to its rebuilt image in "
            f"{scores.identification_1:.1%} of all cases, a blind guess is in "
            f"{1 / self.candidates:.1%}.{beside}\n"
            "Another attack, more of the attacker's own images or more budget may rebuild better: "
            "what these attacks miss may leak all the same, up to the bits measured exactly."
        )

    def figure(self) -> Any:
        """Draw targets above what each attack made of them; needs the extra `report`.

        Returns:
            A Matplotlib figure.
        """
        rows = {"targets": self.targets, **self.reconstructions}
        columns = min(MAX_COLUMNS, len(self.targets))
        figure_class = import_optional("matplotlib.figure").Figure
        figure = figure_class(figsize=(columns, 1.2 * len(rows)), layout="constrained")
        axes = figure.subplots(len(rows), columns, squeeze=False)
        for line, (name, images) in zip(axes, rows.items(), strict=True):
            line[0].set_title(name, loc="left", fontsize=8)
            for place, image in zip(line, images[:columns], strict=True):
                is_grey = len(image) == 1
                pixels = image[0] if is_grey else image.permute(1, 2, 0)
                place.imshow(pixels.numpy(), cmap="gray" if is_grey else None, vmin=0, vmax=1)
                place.set_axis_off()
        return figure

    def save_grid(self, path: str | Path) -> None:
        """Write the figure to a file; needs the extra `report`.

        Args:
            path: Its name; the ending says the format, such as `.png` or `.svg`.
        """
        self.figure().savefig(path, dpi=150)


@usual_torch_state()
def invert(
    encoder: Encoder,
    targets: ArrayLike,
    labels: ArrayLike | None = None,
    *,
    auxiliary: ArrayLike,
    auxiliary_labels: ArrayLike | None = None,
    noise: Any,
    dropout: float = 0.0,
    attacks: Sequence[str] = USUAL_ATTACKS,
    head: nn.Module | None = None,
    budget: float = 1.0,
    seconds: float = 0.0,
    candidates: int = 100,
    seed: int = 0,
    features: ArrayLike | None = None,
    progress: Progress | None = None,
) -> Inversion:
    """Attack an encoder: rebuild images from one noisy message of each.

    The attacks are those of `fedcel attack`. The encoder is copied and not modified. An encoder
    without a gradient, such as a plain function, is attacked without one.

    Example:
        >>> result = fedcel.invert(encoder, targets, auxiliary=images, noise=0.3)
        >>> print(result)
        >>> result.reconstructions["decoder"], result.save_grid("rebuilt.png")

    Args:
        encoder: Images (B, C, H, W) to features (B, D), without its noise.
        targets: Images that the attacker wants to rebuild, (T, C, H, W) in [0, 1].
        labels: Their labels from 0, (T,), for the baseline of knowing only the label.
        auxiliary: The attacker's own images, (A, C, H, W) in [0, 1]; none of the targets.
        auxiliary_labels: Their labels, (A,); required with `labels`.
        noise: Standard deviation of the Gaussian noise at the cut: one number, one above 0 for
            each feature, or a function from features (B, D) to those of each image, (B, D).
        dropout: Chance that a feature is sent as 0, in [0, 1).
        attacks: Names, such as `decoder`, `kernel-ridge`, `gauss-newton`, `hybrid-inversion`,
            `decoder*16` for 16 messages of each target, or import strings.
        head: The module that answers messages; attacks such as `shadow` need it.
        budget: Multiple of each attack's default effort, above 0.
        seconds: The most seconds of each attack; 0: no limit.
        candidates: Number of images among which the right one is picked, 2 or more.
        seed: Seed of noise and attacks.
        features: What the encoder gives of targets and auxiliary images, (T + A, D), where it was
            computed already; None: the images are encoded.
        progress: Receives lines of progress, or None.

    Returns:
        Reconstructions and scores of each attack.

    Raises:
        MissingExtraError: The extra `attacks` is not installed.
        SizeError: An attack would take hours, or more memory than there is, at this size.
        ValueError: Images, labels or a number are not allowed, a target is one of the attacker's
            own images, or an attack needs what is not there.
    """
    require_extra("attacks")
    check_whole("seed", seed)
    check_whole("candidates", candidates, 2)
    POSITIVE.check("budget", budget)
    NON_NEGATIVE.check("seconds", seconds)
    if isinstance(attacks, str):
        raise ValueError(f"attacks is {attacks!r}, must be a list of names: [{attacks!r}]")
    if (labels is None) != (auxiliary_labels is None):
        raise ValueError("give labels and auxiliary_labels, or neither: the baseline needs both")
    chosen = parse_attacks(",".join(attacks))
    if any(named.attack is None for named in chosen):
        raise ValueError(f"attacks has {OPTIMAL!r}, which rebuilds nothing; call measure_leakage")
    target_images = read_images(targets, labels, "targets")
    auxiliary_images = read_images(auxiliary, auxiliary_labels, "auxiliary images")
    target_y, auxiliary_y = number_labels(target_images.y, auxiliary_images.y)
    target_images = target_images._replace(y=target_y)
    auxiliary_images = auxiliary_images._replace(y=auxiliary_y)
    sizes = [tuple(images.x.shape[1:]) for images in (target_images, auxiliary_images)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"targets are {sizes[0]}, auxiliary images {sizes[1]} each; must be of one size"
        )
    refuse_known_targets(target_images, auxiliary_images)
    observation = observe_encoder(encoder, auxiliary_images.x, noise, dropout, head=head)
    if features is not None:
        keep_features(observation, features, target_images.x, auxiliary_images.x)
    rebuilt: dict[str, Tensor] = {}
    scores: dict[str, ReconstructionScores] = {}
    curves: dict[str, list[float]] = {}
    stopped: dict[str, float] = {}
    for _, name, attack, repeats in chosen:
        assert attack is not None
        try:
            surface = find_surface(attack, [observe_repeatedly(observation, repeats)])
        except ValueError as error:
            raise ValueError(
                f"attack {name!r} {error}: give a PyTorch module with a gradient as the encoder, "
                "and the head where the attack needs it; an encoder alone sends nothing else than "
                "smashed data"
            ) from None
        with torch.random.fork_rng(devices=[]):  # fresh layers draw from the caller's stream
            rebuilt[name], curve, share = reconstruct_targets(
                attack,
                surface,
                target_images,
                auxiliary_images,
                budget=budget,
                seconds=seconds,
                seed=seed,
                attack_seed=0,
                progress=progress or ignore,
            )
        if curve:
            curves[name] = curve
        if share is not None:
            stopped[name] = share
        scores[name] = score_reconstructions(
            rebuilt[name], target_images, auxiliary_images, candidates
        )
    if labels is None:  # all of one class: a classifier has nothing to read
        scores = {name: replace(row, label_accuracy=None) for name, row in scores.items()}
    return Inversion(
        target_images.x,
        rebuilt,
        scores,
        min(candidates, len(target_images.x)),
        has_labels=labels is not None,
        learning_curves=curves,
        stopped=stopped,
        seconds=seconds,
    )


def keep_features(observation: SmashedData, features: ArrayLike, *images: Tensor) -> None:
    """Keep features of images; ValueError where they are none of these.

    Others than float32 are left out: an attack computes its own in float32.
    """
    table, stack = to_tensor(features, "features").cpu(), torch.cat(images)
    if tuple(table.shape) != (len(stack), observation.net.features):
        raise ValueError(
            f"features are {tuple(table.shape)}, must be {(len(stack), observation.net.features)}: "
            "a row for each target, then for each auxiliary image"
        )
    if table.dtype == torch.float32:
        encoder = observation.net.encoder
        unit = encoder.unit if isinstance(encoder, ScaledFeatures) else None
        observation.feature_store.add(stack, table if unit is None else table / unit.to(table))


def read_images(values: ArrayLike, labels: ArrayLike | None, name: str) -> Images:
    """Return images with their labels, 0 where there are none; ValueError on what is no image."""
    x = to_tensor(values, name).cpu().float()
    images = Images(x, torch.zeros(x.shape[:1], dtype=torch.long))
    check_images(images, name)
    if labels is None:
        return images
    return images._replace(y=to_labels(labels, len(x), f"labels of {name}").cpu())


class ScaledFeatures(nn.Module):
    """An encoder's features as flat vectors, in units of the noise where that differs."""

    def __init__(self, encoder: Encoder, unit: Float[Tensor, " D"] | None) -> None:
        super().__init__()
        self.encoder = encoder
        self.unit = unit

    def forward(self, images: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        """Return features (B, D)."""
        features = call_encoder(self.encoder, images)
        return features if self.unit is None else features / self.unit.to(features)


def count_positions(encoder: Encoder, images: Float[Tensor, "n C H W"]) -> int:
    """Count the positions of the map that an encoder gives, 1 where it gives none."""
    module = find_module(encoder)
    with evaluation_mode(module), torch.no_grad():
        parts = split_outputs(encoder(place_images(images, module).clone()))
    output = parts[0][1]
    is_map = len(parts) == 1 and isinstance(output, Tensor) and output.dim() == 4
    return output.shape[2:].numel() if is_map and isinstance(output, Tensor) else 1


class LearnedNoiseLayer(nn.Module):
    """A function from features to the standard deviation of their noise, as a layer."""

    def __init__(self, noise: NoiseFunction) -> None:
        super().__init__()
        self.noise = noise

    def forward(self, z: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
        """Return the standard deviations (B, D)."""
        return self.noise(z.clone())  # one may work in place


class QueriedMessages(SmashedData):
    """Messages of an encoder that gives no gradient: they can be asked for, and that is all."""

    @property
    def grants(self) -> frozenset[str]:
        """Queries, and the law of the noise."""
        return super().grants & {FREE_QUERIES, LOG_PROB, NOISELESS}


def observe_encoder(
    encoder: Encoder,
    images: Float[Tensor, "A C H W"],
    noise: Any,
    dropout: float,
    *,
    head: nn.Module | None,
) -> SmashedData:
    """Return what an attacker sees of images; ValueError where encoder or noise are none."""
    features = encode_images(encoder, images[:2])
    check_features(features)
    module = copy_differentiable(encoder, images)
    if module is None and callable(noise):
        raise NetError(
            "noise is a function and the encoder gives no gradient; give a PyTorch module"
        )
    if module is None and head is not None:
        raise NetError("head is given for an encoder that gives no gradient; leave it out")
    CHANCE.check("dropout", dropout)
    cut, scale, unit = Cut(1.0, dropout), None, None
    if callable(noise):
        if dropout:
            raise ValueError(f"dropout is {dropout} beside a function as noise, must be 0")
        scale = LearnedNoiseLayer(noise)
    else:
        sigma = read_noise(noise, dropout, features.double())
        if (sigma == sigma[0]).all():
            cut = replace(cut, sigma=float(sigma[0]))
        else:
            unit = sigma.cpu()
    if head is not None and unit is not None:
        raise NetError("head is given beside noise of each feature; use one noise for all")
    answers = nn.Identity() if head is None else copy_module(head).cpu().float().eval()
    encode = module or (lambda images: encode_images(encoder, images).cpu().float())
    flat = ScaledFeatures(encode, unit)
    net = SplitNet(
        flat,
        answers,
        cut,
        features.shape[1],
        noise_scale=scale,
        positions=count_positions(encoder, images[:2]),
    )
    if module is None:
        return QueriedMessages(net)
    # An attacker who knows a layer's kind can draw new parameters.
    can_be_reset = any(hasattr(layer, "reset_parameters") for layer in module.modules())
    return SmashedData(net, fits_head=head is not None, has_layers=can_be_reset)


@usual_torch_state()
def copy_differentiable(encoder: Encoder, images: Float[Tensor, "A C H W"]) -> nn.Module | None:
    """Copy an encoder to the processor, in float32, where its features have a gradient.

    Args:
        encoder: A PyTorch module, a method of one, or any function.
        images: Two or more that it takes.

    Returns:
        The copy in evaluation mode; None for a function, and for a module that has no gradient, or
        does not take float32.
    """
    module = as_module(encoder)
    if module is None:
        return None
    copy = switch_to_evaluation(copy_module(module).cpu().float())
    example = images[:2].detach().clone().requires_grad_()
    try:
        features = call_encoder(copy, example)
    except RefusedImagesError:  # a program whose type is part of it
        return None
    if not features.requires_grad:
        return None
    (gradient,) = torch.autograd.grad(features.sum(), example, allow_unused=True)
    return None if gradient is None else copy
