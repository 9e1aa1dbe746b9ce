"""What a finished run is worth: predictions, uncertainty, exact leakage, private utility."""

import json
import platform
from importlib.metadata import version
from math import log2
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy
import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.federation import HEAVIEST
from fedcel.files import write_json
from fedcel.leakage import (
    OptimalLeak,
    SmashedData,
    answer_bits,
    certificate,
    gaussianity,
    optimal_leak,
)
from fedcel.metrics import between_group_spread, calibration, within_class_spread
from fedcel.nets import Cut, SplitNet, measure_cost
from fedcel.posterior import Prediction, answer_all, diagnose, predict, round_plan, what_is_sent
from fedcel.privacy import NoisyRound, account_updates, measure_utility
from fedcel.runs import per_image, run_folder
from fedcel.runs.run_folder import Run
from fedcel.seeding import make_generator
from fedcel.settings import MIN_SAMPLED_ROUNDS

NOISE_DRAWS = 8  # messages per image over which accuracy is averaged
ANSWER_DRAWS = 128  # messages per image whose answers are counted


class Evaluation(NamedTuple):
    """What result.json says, and what its means are of, image by image."""

    result: dict[str, object]
    per_image: per_image.Vectors


def store_evaluation(folder: Path, found: Evaluation) -> None:
    """Write both; result.json, which says that the run is finished, last."""
    per_image.write_vectors(folder, found.per_image)
    write_json(folder / "result.json", found.result)


def posterior_samples(run: Run) -> list[Float[Tensor, " P"]]:
    """Return the posterior samples, or the last model alone where none were kept."""
    return run.samples or [run.model]


def evaluate_run(run: Run, seconds: float) -> Evaluation:
    """Return what a run is worth, measured on the test set."""
    x, y = run.splits.test
    s = run.settings
    many, labels = x.repeat(NOISE_DRAWS, 1, 1, 1), y.repeat(NOISE_DRAWS)

    def predicted(samples: list[Float[Tensor, " P"]]) -> Prediction:
        return predict(run.flat, samples, many, make_generator(s.seed, "test-noise"), s.chain.scope)

    posterior, point = predicted(posterior_samples(run)), predicted([run.model])
    net, leak = attack_test_images(run)
    right = (posterior.probabilities.argmax(1) == labels).double().view(NOISE_DRAWS, len(y))
    result = {
        **calibration.score_probabilities(posterior.probabilities, labels),
        "samples": len(run.samples),
        "convergence": describe_convergence(run),
        "entropy": float(calibration.predictive_entropy(posterior.samples).mean()),
        "bald": float(calibration.bald(posterior.samples).mean()),
        "point": calibration.score_probabilities(point.probabilities, labels),
        "reliability": {
            "posterior": calibration.reliability(posterior.probabilities, labels),
            "point": calibration.reliability(point.probabilities, labels),
        },
        **measure_run_leakage(run, net, leak),
        "private": measure_private_utility(run, posterior.logits[: len(y)], y),
        **measure_device(run),
        **account_update_privacy(run),
        "versions": list_versions(),
        "seconds": seconds,
    }
    each = right.mean(0), leak.beyond, leak.identified
    names = "accuracy", "bits-beyond-label", "identification-optimal"
    return Evaluation(result, dict(zip(names, each, strict=True)))


def account_update_privacy(run: Run) -> dict[str, object]:
    """Return epsilon of all uploaded updates together; nothing where they have no noise."""
    how = run.settings.update
    if not how.noise:
        return {}
    lines = map(json.loads, (run.folder / "events.jsonl").read_text().splitlines())
    heaviest = {event["round"]: float(event[HEAVIEST]) for event in lines}
    # Once each round was taken into the model; an upload of a round begun again stands alone.
    rounds = [
        NoisyRound(round_plan.select_clients(run.settings, number), heaviest.pop(number, 1.0))
        for number in run_folder.read_asked_rounds(run.folder)
    ]
    found = account_updates(how.noise, rounds, how.delta)
    return {
        "update-epsilon": found.server,
        "update-epsilon-of-models": found.models,
        "update-rounds": found.rounds,
    }


def measure_device(run: Run) -> dict[str, int]:
    """Return the size of one net and of its encoder, and what one inference costs the device.

    In scope `full` the device runs each sampled encoder, and FLOPs and bytes are those of all.
    """
    net = what_is_sent(run.flat, posterior_samples(run), run.settings.chain.scope)
    cost, encoders = measure_cost(net, run.splits.test.x[0]), net.features // run.flat.net.features
    return {
        "parameters": run.flat.vector.numel(),
        "encoder-parameters": cost.parameters // encoders,
        "flops-per-inference": cost.flops,
        "bytes-per-inference": cost.bytes,
    }


def describe_convergence(run: Run) -> str:
    """Return in plain words whether anything speaks against the chain's convergence."""
    rows = run_folder.open_trace(run.folder).rows
    found = diagnose(torch.stack(rows)) if rows and run.settings.temperature > 0 else None
    few = f"{len(rows)} sampled rounds, {MIN_SAMPLED_ROUNDS} are needed"
    still = "nothing moves that it could be judged by, or in one half of its rounds only"
    reason = few if len(rows) < MIN_SAMPLED_ROUNDS else still
    return str(found) if found else f"not judged: {reason}"


def attack_test_images(run: Run) -> tuple[SplitNet, OptimalLeak]:
    """Return what sends, and what the optimal attacker learns of the test images from it."""
    s = run.settings
    net = what_is_sent(run.flat, posterior_samples(run), s.chain.scope)
    stream = make_generator(s.seed, "optimal")
    candidates = s.attack.candidates
    return net, optimal_leak(SmashedData(net), *run.splits.test, stream, candidates=candidates)


def measure_run_leakage(run: Run, net: SplitNet, found: OptimalLeak) -> dict[str, object]:
    """Return what the optimal attacker learns from one inference, and bounds on either side.

    `net` is what sends. Half widths are of 95 % intervals over the noise drawn, for these images:
    what is above a certificate by more is a mistake, see `fedcel.attacks.contradictions`.
    """
    x, y = run.splits.test
    s, sent = run.settings, SmashedData(net)
    z = sent.encode(x)
    bound = certificate(z, y, net.cut.sigma, s.attack.candidates)
    counts = y.bincount(minlength=run.splits.classes).double()
    return {
        "bits-beyond-label": found.bits_beyond_label,
        "bits-half-width": found.beyond_noise_half_width,
        "answer-bits": answer_bits(sample_answers(run, z), y, run.splits.classes),
        "information-bits": found.information_bits,
        "information-half-width": found.information_noise_half_width,
        "identification-optimal": found.identification,
        "candidates": found.candidates,
        "bits-cap": found.cap_beyond_label,
        "information-cap": log2(found.candidates),
        "identification-candidates": min(s.attack.candidates, len(y)),
        "label-only-identification": label_only_identification(
            counts, min(s.attack.candidates, len(y))
        ),
        "certificate-bits": bound.bits,
        "certificate-bits-within-class": bound.bits_within_class,
        "fano-identification": bound.identification,
        **measure_gaussianity(z, y, net.cut, found.bits_beyond_label),
        "within-class-spread": float(within_class_spread(z, y)),
        "between-client-spread": measure_client_spread(run, sent),
    }


def sample_answers(run: Run, z: Float[Tensor, "N M"]) -> Int[Tensor, "R N"]:
    """Return the most probable class for R fresh messages about each image, z what is encoded.

    In scope `full` z holds each sampled encoder's features in a row.
    """
    noise = make_generator(run.settings.seed, "answers")
    found = []
    for _ in range(ANSWER_DRAWS):
        message, samples = run.flat.net.cut.disturb(z, noise), posterior_samples(run)
        if run.settings.chain.scope == "full":
            own = zip(samples, torch.chunk(message, len(samples), 1), strict=True)
            logs = torch.cat([answer_all(run.flat, [vector], part) for vector, part in own])
        else:
            logs = answer_all(run.flat, samples, message)
        found.append(Prediction(logs).probabilities.argmax(1))
    return torch.stack(found)


def measure_gaussianity(
    z: Float[Tensor, "N M"], y: Int[Tensor, " N"], cut: Cut, bits: float
) -> dict[str, float | None]:
    """Return how far from Gaussian each class's messages are; None where it is not defined.

    `gaussianity-gap-bits` is their whole negentropy, a difference of two bounds on the same
    message: not under dropout, whose message is no code plus Gaussian noise.
    """
    if cut.sigma == 0 or cut.dropout > 0:
        keys = ("gap-bits", "direction-bits", "kurtosis")
        return {f"gaussianity-{key}": None for key in keys}
    found = gaussianity(z, y, cut.sigma)
    return {
        "gaussianity-gap-bits": found.gaussian_bits - bits,
        "gaussianity-direction-bits": found.direction_bits,
        "gaussianity-kurtosis": found.kurtosis,
    }


def measure_client_spread(run: Run, sent: SmashedData) -> float:
    """Return how far clients' class means lie apart, of training images, in units of z squared."""
    sizes = torch.tensor([len(part.y) for part in run.splits.clients])
    holder = torch.arange(len(sizes)).repeat_interleave(sizes)
    x, y = run.splits.training
    return float(between_group_spread(sent.encode(x), y, holder))


def label_only_identification(counts: Float[Tensor, " K"], candidates: int) -> float:
    """Return how often one who knows only the label picks the right one of `candidates`.

    E[1/(1 + hypergeometric number of others of the class)], exact.
    """
    total = int(counts.sum())
    chance = 0.0
    for count in counts.tolist():
        k = np.arange(int(count))  # others of the class among the candidates
        law = scipy.stats.hypergeom.pmf(k, total - 1, max(int(count) - 1, 0), candidates - 1)
        chance += float((law / (1 + k)).sum()) * count / total
    return chance


def measure_private_utility(
    run: Run, logits: Float[Tensor, "N K"], y: Int[Tensor, " N"]
) -> dict[str, dict[str, float]]:
    """Return the utility of the private logits at each epsilon of `privacy.epsilons`."""
    privacy = run.settings.privacy
    return {
        text.strip(): measure_utility(
            logits, y, privacy.model_copy(update={"epsilon": float(text)})
        )
        for text in privacy.epsilons.split(",")
    }


def list_versions() -> dict[str, str]:
    """Return the versions that the numbers depend on."""
    names = ["fedcel", "flwr", "numpy", "opendp", "ray", "scikit-learn", "torch"]
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
