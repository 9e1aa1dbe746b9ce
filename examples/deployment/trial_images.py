"""Real digits for a trial: trial_images.py FIRST LAST FILE.

Writes images FIRST to LAST - 1 of scikit-learn's 1797 digits, in an order that is the same on every
machine, as an npz file with x_train and y_train: what a node's `data-path` names.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

if len(sys.argv) != 4:
    sys.exit(__doc__)
first, last, path = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
images, labels = load_digits(return_X_y=True)
chosen = np.random.default_rng(0).permutation(len(labels))[first:last]
path.parent.mkdir(parents=True, exist_ok=True)
np.savez(path, x_train=images[chosen].reshape(-1, 8, 8) / 16, y_train=labels[chosen])
print(path)
