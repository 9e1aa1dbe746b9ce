"""Our attacks beside others' code on the same net: `python -m tests.bench.others`.

MI-FACE beside that of the Adversarial Robustness Toolbox (optional: pip install
adversarial-robustness-toolbox): three undefended nets for digits, a picture of each of the ten
classes, the same start, step size and number of steps. A stronger attack makes the net surer, comes
nearer to the mean image of its class, and is read rightly by a classifier that never saw the net.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedcel.attacks.pixel_descent import MIFace
from fedcel.attacks.score_card import class_means, label_accuracy, mse
from fedcel.leakage import LOGITS
from fedcel.nets.split_net import SplitNet
from fedcel.testing.attacks import load_digit_targets
from tests.fedcel.attacks.undefended import train_undefended

STEPS, RATE = 1000, 0.1
NETS = ((0.1, 1), (0.1, 2), (1.0, 2))  # noise in training, layers of the encoder
CLASSES = torch.arange(10)
Invert = Callable[[SplitNet, Tensor], Tensor]
"""Ten pictures, one of each class, from the net and the picture to start from."""


@dataclass(frozen=True)
class Answers:
    """Logits of a net, without noise at the cut and without a mechanism."""

    net: SplitNet
    name: str = "private-logits"
    grants: frozenset[str] = frozenset({LOGITS})

    def logits(self, images: Tensor) -> Tensor:
        """Return them, with a gradient."""
        return self.net.answer(self.net.encode(images))

    def sample(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return them."""
        return self.logits(images).detach()


def ours(weight: float) -> Invert:
    """Return our attack with this weight of the total variation."""

    def invert(net: SplitNet, start: Tensor) -> Tensor:
        asked = 30 * nn.functional.one_hot(CLASSES).float()
        attack = replace(MIFace(), steps=STEPS, rate=RATE, weight=weight)
        return attack.reconstruct(
            Answers(net), load_digit_targets()[0], asked, 1.0, torch.Generator()
        )

    return invert


def theirs(threshold: float) -> Invert:
    """Return the toolbox's; ImportError without it.

    It ends the descent of a class whose 1 - p is above the `threshold`, .99 where none is given.
    """
    from art.attacks.inference.model_inversion import MIFace as Theirs
    from art.estimators.classification import PyTorchClassifier

    def invert(net: SplitNet, start: Tensor) -> Tensor:
        whole = nn.Sequential(net.encoder, net.head, nn.Softmax(1))
        model = PyTorchClassifier(
            whole, nn.CrossEntropyLoss(), (1, 8, 8), len(CLASSES), clip_values=(0.0, 1.0)
        )
        size = len(CLASSES)
        attack = Theirs(model, STEPS, 100, threshold, RATE, batch_size=size, verbose=False)
        return torch.from_numpy(attack.infer(start.numpy(), CLASSES.numpy()))

    return invert


def main() -> None:
    """Print a row for each attack: mean and extremes over the nets."""
    torch.set_num_threads(1)
    attacks = {"ours, no smoothing": ours(0.0), "ours, total variation .1": ours(0.1)}
    try:
        attacks["Adversarial Robustness Toolbox"] = theirs(0.99)
        attacks["the same, threshold 1: every class to the end"] = theirs(1.0)
    except ImportError:
        print("(pip install adversarial-robustness-toolbox for its row)")
    print("| MI-FACE | the net is sure to | MSE to the class's mean | read rightly | seconds |")
    print("|---|---|---|---|---|")
    for name, invert in attacks.items():
        rows = np.array([row(train_undefended(*net), invert) for net in NETS])
        told = [f"{m:.4f} ({a:.4f} to {b:.4f})" for m, a, b in zip(*spread(rows), strict=True)]
        print(f"| {name} | {' | '.join(told)} |", flush=True)


def spread(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return mean, least and largest of each column."""
    return rows.mean(0), rows.min(0), rows.max(0)


def row(net: SplitNet, invert: Invert) -> tuple[float, float, float, float]:
    """Return how sure the net is, the error to the class means, the share read rightly, seconds."""
    known, targets = load_digit_targets()
    start = known.x.mean(0).repeat(len(CLASSES), 1, 1, 1)
    begin = time.perf_counter()
    found = invert(net, start)
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        sure = Answers(net).logits(found).softmax(1)[CLASSES, CLASSES].mean()
    near = mse(found, class_means(CLASSES, targets))
    return float(sure), near, label_accuracy(found, CLASSES, known), seconds


if __name__ == "__main__":
    main()
