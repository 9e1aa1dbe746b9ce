"""Our inversions beside scikit-learn's regressors: `python -m tests.bench.regressors`.

Three nets for digits without a defence. All attackers have the same 250 images and the same 60
targets; the regressors get four noisy messages of each image and choose their settings by five-fold
cross-validation over images. Where one of them beats all of ours, our attacks are weak.
"""

import time
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.ensemble import RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, GroupKFold
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from fedcel.attacks.attack import Attack
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.kernel_ridge import KernelRidge as OurRidge
from fedcel.attacks.pixel_descent import HybridInversion
from fedcel.attacks.score_card import mse, score_images
from fedcel.leakage import SmashedData
from fedcel.nets.split_net import SplitNet
from fedcel.testing.attacks import load_digit_targets
from tests.fedcel.attacks.undefended import class_means, train_undefended

NETS = ((0.1, 1), (0.1, 2), (1.0, 2))  # noise in training and in use, layers of the encoder
DRAWS, FOLDS = 4, 5
Invert = Callable[[SplitNet, Tensor], Tensor]
"""Images (T, 1, 8, 8) from the net that is attacked and the messages observed (T, F)."""
GRIDS: dict[str, tuple[RegressorMixin, dict[str, list[float]]]] = {
    "ridge regression": (Ridge(), {"alpha": [0.1, 1.0, 10.0, 100.0, 1000.0]}),
    "kernel ridge, Gaussian kernel": (
        KernelRidge(kernel="rbf"),
        {"alpha": [0.01, 0.1, 1.0], "gamma": [0.001, 0.003, 0.01, 0.03]},
    ),
    "nearest neighbours": (
        KNeighborsRegressor(weights="distance"),
        {"n_neighbors": [16, 32, 64, 128]},
    ),
    "random forest, 200 trees": (
        RandomForestRegressor(200, random_state=0),
        {"max_features": [0.3]},
    ),
    "multilayer perceptron, 256-256": (
        MLPRegressor(
            hidden_layer_sizes=(256, 256), max_iter=60, random_state=0, tol=0.0, n_iter_no_change=60
        ),
        {"alpha": [1e-4, 1e-2, 1.0]},
    ),
}


class Score(NamedTuple):
    """Of one attacker on one net."""

    error: float
    right: float
    seconds: float


def ours(attack: Attack) -> Invert:
    """Return one of our attacks at its default effort."""

    def invert(net: SplitNet, observed: Tensor) -> Tensor:
        stream = torch.Generator().manual_seed(1)
        return attack.reconstruct(SmashedData(net), load_digit_targets()[0], observed, 1.0, stream)

    return invert


def theirs(name: str) -> Invert:
    """Return a regressor as an attack."""
    model, grid = GRIDS[name]

    def invert(net: SplitNet, observed: Tensor) -> Tensor:
        known, stream = load_digit_targets()[0].x, torch.Generator().manual_seed(1)
        seen = [SmashedData(net).sample(known, stream) for _ in range(DRAWS)]
        step = type(model).__name__.lower()
        search = GridSearchCV(
            make_pipeline(StandardScaler(), model),
            {f"{step}__{key}": values for key, values in grid.items()},
            scoring="neg_mean_squared_error",
            cv=GroupKFold(FOLDS),
        )
        pixels = known.flatten(1).numpy()
        groups = np.tile(np.arange(len(known)), DRAWS)
        search.fit(torch.cat(seen).numpy(), np.tile(pixels, (DRAWS, 1)), groups=groups)
        made = torch.from_numpy(search.predict(observed.numpy())).float()
        return made.clamp(0, 1).view(-1, 1, 8, 8)

    return invert


def score(net: SplitNet, invert: Invert) -> Score:
    """Return the error on the targets and how often the image is nearest to its own."""
    targets = load_digit_targets()[1]
    observed = SmashedData(net).sample(targets.x, torch.Generator().manual_seed(5))
    begin = time.perf_counter()
    made = invert(net, observed)
    seconds = time.perf_counter() - begin
    right = float(score_images(made, targets.x, len(targets.y)).identification_1.mean())
    return Score(mse(made, targets.x), right, seconds)


def main() -> None:
    """Print a row for each attacker: mean and extremes over the nets."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", ConvergenceWarning)  # 60 epochs are what the perceptron gets
    known, targets = load_digit_targets()
    print(f"class means: {mse(class_means(targets.y, known), targets.x):.4f}")
    print("| attacker | MSE | right one of 60 | seconds |")
    print("|---|---|---|---|")
    own = [Decoder(), OurRidge(), HybridInversion()]
    attackers = {f"ours, `{attack.name}`": ours(attack) for attack in own}
    for name, invert in (attackers | {name: theirs(name) for name in GRIDS}).items():
        rows = np.array([score(train_undefended(*net), invert) for net in NETS])
        low, mid, high = rows.min(0), rows.mean(0), rows.max(0)
        cells = [f"{m:.4f} ({a:.4f} to {b:.4f})" for a, m, b in zip(low, mid, high, strict=True)]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
