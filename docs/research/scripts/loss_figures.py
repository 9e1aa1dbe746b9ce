"""Draw the pictures of docs/concepts/losses.md, in two minutes of one core."""

import math
import warnings
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from torch import Tensor

from fedcel.files import read_json, write_json
from fedcel.leakage import SmashedData
from fedcel.losses import Batch
from fedcel.losses.cel import (
    THRESHOLD_SHARE,
    CutShape,
    Gated,
    Penalty,
    StackedFeatures,
    channel_penalty,
    linear_penalty,
    log_penalty,
)
from fedcel.runs import build_sent_net, run_folder
from fedcel.settings import Scalar, parse_settings
from sims.engines.simulate import simulate
from sims.progress import print_line
from sims.report.chart import COLOURS, FAINT, INK, LINES, MARKERS

COMMON: dict[str, Scalar] = {
    "engine": "local",
    "clients": 8,
    "rounds": 40,
    "local.steps": 40,
    "cel.clusters": 0,  # several centres, to show the spread that they leave between them
}
"""Digits; every net of the first picture has the same noise, weight and step size."""
SIGMA, WEIGHT = 0.4, 1.0
LOSSES = ("plain", "cluster", "gated", "mutual-information")
PLANE_CLASSES = (0, 1, 4)  # of the upper row: three means lie in one plane
SIGMAS, WEIGHTS = (0.1, SIGMA), (0.0, 0.3, 1.0, 3.0)
"""Every pair of them is tried with `plain`; weight 0: no loss."""
TITLES = ("what a spread costs", "how hard it is pulled in", "mutual-information: flat at log n")
MODES: tuple[Literal["ascend", "minimise", "detach", "floor"], ...]
MODES = ("ascend", "minimise", "detach", "floor")
STEPS, MEMBERS, FEATURES = 200, 32, 64
RESULT_KEYS = (
    "accuracy",
    "bits-beyond-label",
    "answer-bits",
    "certificate-bits-within-class",
    "within-class-spread",
    "between-client-spread",
)
Numbers = dict[str, object]
"""What a picture shows, by name; written beside it."""


class Case(NamedTuple):
    """What is varied from one training to the next."""

    kind: str
    sigma: float
    weight: float


class TrainedNet(NamedTuple):
    """A net's smashed data of the test images in units of sigma, and its result.json."""

    z: Float[Tensor, "N D"]
    y: Int[Tensor, " N"]
    result: dict[str, float]


Nets = dict[Case, TrainedNet]


def train_case(folder: Path, case: Case) -> TrainedNet:
    """Return a short federated training on digits."""
    varied = {"net.noise": case.sigma, "cel.kind": case.kind, "cel.weight": case.weight}
    settings = parse_settings(COMMON, varied)
    title = f"{case.kind} sigma {case.sigma:g} weight {case.weight:g}"
    simulate(settings, folder / title, title=title)
    run = run_folder.read_run(folder / title)
    net = build_sent_net(run)
    result = cast(dict[str, float], read_json(folder / title / "result.json"))
    x, y = run.splits.test
    z = SmashedData(net).encode(x) / case.sigma
    return TrainedNet(z, y, {key: result[key] for key in RESULT_KEYS})


def sweep_cases(sigma: float) -> list[Case]:
    """Return the cases of one line of the last picture."""
    return [Case("plain" if weight else "none", sigma, weight) for weight in WEIGHTS]


def list_cases() -> dict[str, Case]:
    """Return the cases of the first picture by their titles."""
    return {"no loss": Case("none", SIGMA, 0.0)} | {k: Case(k, SIGMA, WEIGHT) for k in LOSSES}


def drawn_cases() -> list[Case]:
    """Return the cases of both pictures, each once."""
    swept = [case for sigma in SIGMAS for case in sweep_cases(sigma)]
    return list(dict.fromkeys([*list_cases().values(), *swept]))


def draw_classes(nets: Nets) -> tuple[Figure, Numbers]:
    """Draw three classes of every net, and all classes' deviations, in units of the noise."""
    titled = {title: nets[case] for title, case in list_cases().items()}
    figure = Figure(figsize=(2.4 * len(titled), 5.4), layout="constrained")
    grid = figure.subplots(2, len(titled), sharex="row", sharey="row")
    for (title, net), (top, bottom) in zip(titled.items(), grid.T, strict=True):
        draw_plane(top, net)
        draw_deviations(bottom, net)
        accuracy, bits = 100 * net.result["accuracy"], net.result["bits-beyond-label"]
        text = f"{title}\n{accuracy:.1f} % right\n{bits:.2f} bits leak"
        top.set_title(text, fontsize=11, color=INK)
    grid[0, 0].set_ylabel(f"only {', '.join(map(str, PLANE_CLASSES))}\nunit: σ")
    grid[1, 0].set_ylabel("all ten, each less its\nclass mean; unit: σ")
    figure.supxlabel("circle: the noise that hides a point, one σ", fontsize=10, color=INK)
    results = {title: net.result for title, net in titled.items()}
    return figure, {"sigma": SIGMA, "weight": WEIGHT, **results}


def draw_plane(axes: Axes, net: TrainedNet) -> None:
    """Draw the plane through the three class means, where their distances are true."""
    groups = [net.z[net.y == label] for label in PLANE_CLASSES]
    means = torch.stack([group.mean(0) for group in groups])
    _, _, basis = torch.linalg.svd(means - means.mean(0), full_matrices=False)
    for group, label, colour, marker in zip(groups, PLANE_CLASSES, COLOURS, MARKERS, strict=False):
        points = (group - means.mean(0)) @ basis[:2].T
        axes.plot(*points.T, marker, ms=3.5, color=colour, alpha=0.6, mec="none")
        centre = points.mean(0).tolist()
        axes.add_patch(Circle(centre, 1, fill=False, color=INK, lw=1.4))
        axes.annotate(
            str(label), centre, ha="center", va="center", fontsize=12, weight="bold", color=INK
        )
    axes.set_aspect("equal")


def draw_deviations(axes: Axes, net: TrainedNet) -> None:
    """Draw every class's images about their mean, along that class's two widest directions."""
    for label in range(10):
        z = net.z[net.y == label]
        directions, scale, _ = torch.linalg.svd(z - z.mean(0), full_matrices=False)
        axes.plot(
            *(directions * scale)[:, :2].T, ".", ms=3, color=COLOURS[0], alpha=0.4, mec="none"
        )
    axes.add_patch(Circle((0, 0), 1, fill=False, color=INK, lw=1.4))
    axes.set_aspect("equal")


def draw_attention() -> tuple[Figure, Numbers]:
    """Draw what a learned weighting does to a class whose features never move."""
    z = 0.1 * torch.randn(MEMBERS, FEATURES, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(MEMBERS, dtype=torch.long)
    features = StackedFeatures(z, y, torch.zeros_like(y))
    batch = Batch.of_features(z.unsqueeze(0), y.unsqueeze(0))
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    left_axes, right_axes = figure.subplots(1, 2, sharex=True)
    numbers: Numbers = {"members": MEMBERS}
    for mode, colour, marker in zip(MODES, COLOURS, MARKERS, strict=False):
        loss = Gated(penalty="linear", attention=mode).bind(CutShape(1, FEATURES))
        state = loss.refresh(None, lambda: iter([features]), [torch.Generator()])
        counts, ratios = list[float](), list[float]()
        for _ in range(STEPS + 1):
            with warnings.catch_warnings():  # of the collapse, which is what is drawn
                warnings.filterwarnings("ignore", "attention-share", UserWarning)
                term = loss.loss(state, batch, True)
            counts.append(MEMBERS * float(term.metrics["attention-share"]))
            ratios.append(float(term.metrics["weighted-spread"] / term.metrics["plain-spread"]))
            if term.loss.requires_grad:
                torch.autograd.backward(term.loss)
            state = loss.update(state)
        for axes, curve in ((left_axes, counts), (right_axes, ratios)):
            axes.plot(curve, color=colour, marker=marker, markevery=40, label=mode)
        numbers[mode] = {"members-that-count": counts[-1], "weighted-over-plain": ratios[-1]}
    left_axes.set(xlabel="steps of the attention", ylabel="members that count, 1/Σα²", ylim=0)
    right_axes.set(
        xlabel="steps of the attention", ylabel="spread it reports / true spread", ylim=0
    )
    right_axes.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.3))
    left_axes.set_title("who is looked at", fontsize=11, color=INK)
    right_axes.set_title("what is reported; the features never move", fontsize=11, color=INK)
    return figure, numbers


def draw_penalties() -> tuple[Figure, Numbers]:
    """Draw the penalties and their slopes, and the pairwise bound that saturates."""
    ratio = torch.logspace(-2, 1.5, 200, dtype=torch.float64)  # v in units of D sigma^2
    v = (ratio * FEATURES * SIGMA**2).requires_grad_()
    tau = THRESHOLD_SHARE * SIGMA**2 * FEATURES
    penalties: dict[str, Penalty] = {
        "linear": linear_penalty,
        "log": partial(log_penalty, threshold=tau),
        "channel": partial(channel_penalty, features=FEATURES, sigma=SIGMA),
    }
    figure = Figure(figsize=(11, 3.2), layout="constrained")
    panels = cost, pull, bound = figure.subplots(1, 3)
    for (name, penalty), colour, style in zip(penalties.items(), COLOURS, LINES, strict=False):
        (slope,) = torch.autograd.grad(penalty(v).sum(), v)
        cost.loglog(ratio, penalty(v).detach(), style, color=colour, label=name)
        pull.loglog(ratio, slope.where(slope > 0, math.nan), style, color=colour)
    unit = "spread v / (D σ²)"
    cost.set(xlabel=unit, ylabel="penalty R(v)", ylim=(1e-2, 1e3))
    pull.set(xlabel=unit, ylabel="pull on the encoder, dR/dv")
    cost.legend(frameon=False)
    numbers: Numbers = {"features": FEATURES, "sigma": SIGMA, "tau": tau}
    small_ratio = torch.logspace(-4, 0, 100, dtype=torch.float64)
    for count, colour, style in zip((4, 16, 64), COLOURS, LINES, strict=False):
        bits = [pairwise_bits(count, float(value)) for value in small_ratio]
        bound.semilogx(small_ratio, bits, style, color=colour, label=f"{count} of a class")
        bound.axhline(math.log2(count), color=FAINT, lw=0.8)
        numbers[f"pairwise-bits-of-{count}-at-one"] = pairwise_bits(count, 1.0)
    bound.set(xlabel=unit, ylabel="pairwise bound, bits")
    bound.legend(frameon=False, loc="upper left")
    for axes, title in zip(panels, TITLES, strict=True):
        axes.set_title(title, fontsize=11, color=INK)
    return figure, numbers


def pairwise_bits(count: int, ratio: float) -> float:
    """Return the upper pairwise bound of `count` normal features, v = ratio D sigma^2, in bits."""
    stream = torch.Generator().manual_seed(count)
    z = math.sqrt(ratio) * torch.randn(count, FEATURES, generator=stream, dtype=torch.float64)
    log_kernel = -torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").square() / 2
    return float((math.log(count) - log_kernel.logsumexp(1)).mean()) / math.log(2)


def draw_choice(nets: Nets) -> tuple[Figure, Numbers]:
    """Draw accuracy and leak of `plain` over weights and two strengths of noise."""
    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axes, numbers = figure.subplots(), Numbers()
    for sigma, colour, marker, below in zip(SIGMAS, COLOURS, MARKERS, (8, -14), strict=False):
        results = {case.weight: nets[case].result for case in sweep_cases(sigma)}
        bits = [result["bits-beyond-label"] for result in results.values()]
        accuracies = [100 * result["accuracy"] for result in results.values()]
        axes.plot(bits, accuracies, marker=marker, color=colour, label=f"σ = {sigma:g}")
        for weight, point in zip(results, zip(bits, accuracies, strict=True), strict=True):
            axes.annotate(
                f"λ {weight:g}" if weight else "no loss", point, xytext=(0, below),
                textcoords="offset points", ha="center", color=colour,
            )  # fmt: skip
            numbers[f"sigma {sigma:g} weight {weight:g}"] = results[weight]
    axes.set(xlabel="bits beyond the label", ylabel="accuracy, %", xlim=0)
    axes.margins(y=0.15)
    axes.legend(frameon=False, loc="lower right")
    return figure, numbers


def save_figure(out: Path, name: str, picture: tuple[Figure, Numbers]) -> None:
    """Write a picture and the numbers behind it."""
    figure, numbers = picture
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(out / f"{name}.png", dpi=110, metadata={"Software": None})
    write_json(out / f"{name}.json", numbers)
    print_line(f"drawn: {out / name}.png")


def draw_all(out: Path) -> None:
    """Draw every picture."""
    torch.set_num_threads(1)
    save_figure(out, "attention", draw_attention())
    save_figure(out, "penalties", draw_penalties())
    with TemporaryDirectory() as folder:
        nets = {case: train_case(Path(folder), case) for case in drawn_cases()}
    save_figure(out, "classes", draw_classes(nets))
    save_figure(out, "choice", draw_choice(nets))


if __name__ == "__main__":
    draw_all(Path(__file__).parents[2] / "figures")
