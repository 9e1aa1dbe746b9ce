"""What a finished run is worth: predictions, uncertainty, exact leakage, private utility."""

import platform
from importlib.metadata import version
from math import log2

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.stats import hypergeom
from torch import Tensor

from fedcel import metrics
from fedcel.attacks.observation import SmashedData
from fedcel.attacks.optimal import optimal
from fedcel.certificate import certificate
from fedcel.posterior.predict import Prediction, predict, what_is_sent
from fedcel.privacy.utility import utility
from fedcel.runs import Run
from fedcel.seeding import generator

NOISE_DRAWS = 8  # messages per image over which accuracy is averaged


def sampled(run: Run) -> list[Float[Tensor, " P"]]:
    """Return the posterior samples, or the last model alone where none were kept."""
    return run.samples or [run.model]


def outcome(run: Run, seconds: float) -> dict[str, object]:
    """Return result.json of a run, measured on the test set."""
    x, y = run.splits.test
    s = run.settings
    many, labels = x.repeat(NOISE_DRAWS, 1, 1, 1), y.repeat(NOISE_DRAWS)

    def predicted(samples: list[Float[Tensor, " P"]]) -> Prediction:
        return predict(run.flat, samples, many, generator(s.seed, "test-noise"), s.chain.scope)

    posterior, point = predicted(sampled(run)), predicted([run.model])
    return {
        **metrics.scores(posterior.probabilities, labels),
        "samples": len(run.samples),
        "entropy": float(metrics.predictive_entropy(posterior.samples).mean()),
        "bald": float(metrics.bald(posterior.samples).mean()),
        "point": metrics.scores(point.probabilities, labels),
        "reliability": {
            "posterior": metrics.reliability(posterior.probabilities, labels),
            "point": metrics.reliability(point.probabilities, labels),
        },
        **leakage(run),
        "private": private(run, posterior.logits[: len(y)], y),
        "parameters": run.flat.vector.numel(),
        "encoder-parameters": run.flat.cut,
        "bytes-per-inference": 4 * what_is_sent(run.flat, sampled(run), s.chain.scope).features,
        "versions": versions(),
        "seconds": seconds,
    }


def leakage(run: Run) -> dict[str, object]:
    """Return what the optimal attacker learns from one inference, and the certificate."""
    x, y = run.splits.test
    s = run.settings
    net = what_is_sent(run.flat, sampled(run), s.chain.scope)
    found = optimal(SmashedData(net), x, y, generator(s.seed, "optimal"), s.attack.candidates)
    with torch.no_grad():
        bound = certificate(net.encode(x), y, net.cut.sigma, s.attack.candidates)
    counts = y.bincount(minlength=run.splits.classes).double()
    return {
        "bits-beyond-label": found.bits_beyond_label,
        "information-bits": found.information_bits,
        "identification-optimal": found.identification,
        "candidates": found.candidates,
        "bits-cap": found.cap_beyond_label,
        "information-cap": log2(found.candidates),
        "identification-candidates": min(s.attack.candidates, len(y)),
        "label-only-identification": label_only(counts, min(s.attack.candidates, len(y))),
        "certificate-bits": bound.bits,
        "certificate-bits-within-class": bound.bits_within_class,
        "fano-identification": bound.identification,
    }


def label_only(counts: Float[Tensor, " K"], candidates: int) -> float:
    """Return how often one who knows only the label picks the right one of `candidates`.

    E[1/(1 + hypergeometric number of others of the class)], exact.
    """
    total = int(counts.sum())
    chance = 0.0
    for count in counts.tolist():
        k = np.arange(int(count))  # others of the class among the candidates
        law = hypergeom.pmf(k, total - 1, max(int(count) - 1, 0), candidates - 1)
        chance += float((law / (1 + k)).sum()) * count / total
    return chance


def private(
    run: Run, logits: Float[Tensor, "N K"], y: Int[Tensor, " N"]
) -> dict[str, dict[str, float]]:
    """Return the utility of the private logits at each epsilon of `privacy.epsilons`."""
    privacy = run.settings.privacy
    return {
        text.strip(): utility(logits, y, privacy.model_copy(update={"epsilon": float(text)}))
        for text in privacy.epsilons.split(",")
    }


def versions() -> dict[str, str]:
    """Return the versions that the numbers depend on."""
    names = ["fedcel", "flwr", "numpy", "opendp", "ray", "scikit-learn", "torch"]
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
