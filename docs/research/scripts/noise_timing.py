"""Whether the time of an answer tells its noise: `noise_timing.py [ANSWERS]`.

Rows are answered one by one in this process, without HTTP or ledger, with noise drawn ahead and
with noise drawn for each answer alone. Printed is Spearman's correlation of an answer's time with
the size of its noise, and the p-value of none.
"""

import json
import sys
import time

import torch
from scipy.stats import spearmanr

from fedcel.privacy.discrete_laplace import GridNoise, add_grid_noise


def main() -> None:
    """Measure; print a row a line, as JSON."""
    torch.set_num_threads(1)
    answers = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    row = torch.zeros(1, 10, dtype=torch.float64)
    for what, draw in (("drawn ahead", GridNoise()), ("drawn for each answer", add_grid_noise)):
        draw(row, 4.0, 2.0)
        times, sizes = [], []
        for _ in range(answers):
            begun = time.perf_counter()
            noisy = draw(row, 4.0, 2.0)
            times.append(time.perf_counter() - begun)
            sizes.append(float(noisy.abs().sum()))
        result = spearmanr(times, sizes)
        fields = {
            "kind": "noise-timing",
            "what": what,
            "answers": answers,
            "correlation": round(float(result.statistic), 3),
            "p-value": round(float(result.pvalue), 3),
        }
        print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
