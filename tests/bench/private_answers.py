"""What calibration makes of private answers: accuracy and calibration error before and after.

`python -m tests.bench.private_answers RUN...` reads finished runs and prints a table of each.
Before: the label is the largest value of the answer, its probability the softmax (or, of noisy
probabilities, the nearest distribution). After: both are Bayes' rule's. Answers are about test
images, the references are validation images. Last comes the processor time that the probabilities
of an answer take, in groups of 16.
"""

import sys
import time
from pathlib import Path

import torch

from fedcel.metrics import accuracy, ece
from fedcel.privacy import build_mechanism, fit_calibration
from fedcel.privacy.clip import project_simplex
from fedcel.runs import predict_labelled, predict_references, read_run
from fedcel.settings import PrivacySettings

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
CLIPS = (("l1", 1.0), ("l1", 8.0), ("clamp", 1.0), ("clamp", 8.0), ("probabilities", 1.0))
OPTIONS = [
    ("label-only", "l1", 1.0),
    *(("discrete-laplace", *clip) for clip in CLIPS),
    *(("gaussian", *clip) for clip in CLIPS),
]
GROUP, REPEATS = 16, 200


def main() -> None:
    """Print a table of each run."""
    torch.set_num_threads(1)
    for folder in sys.argv[1:]:
        run = read_run(Path(folder))
        references, test = predict_references(run), predict_labelled(run, run.splits.test, "bench")
        own = accuracy(test.logits.softmax(1), test.labels)
        print(f"\n{folder}: accuracy without privacy {own:.3f}, {len(test.labels)} answers\n")
        heads = " | ".join(f"{epsilon:g}: before | after" for epsilon in EPSILONS)
        print(f"| mechanism | clip | {heads} | us |")
        print("|---|---|" + "---|---|" * len(EPSILONS) + "---|")
        for name, kind, clip in OPTIONS:
            cells = []
            for epsilon in EPSILONS:
                privacy = PrivacySettings(
                    mechanism=name, clip_kind=kind, clip=clip, epsilon=epsilon
                )
                mechanism = build_mechanism(privacy, run.splits.classes)
                reader = fit_calibration(mechanism, references.logits, references.labels)
                answers = mechanism.answer(test.logits.double())
                is_logits = mechanism.unit == "logits"
                naive = answers.softmax(1) if is_logits else project_simplex(answers, 1.0)
                right = float((answers.argmax(1) == test.labels).double().mean())
                after = reader.probabilities(answers)
                cells.append(f"{right:.3f} / {ece(naive, test.labels):.3f}")
                cells.append(f"{accuracy(after, test.labels):.3f} / {ece(after, test.labels):.3f}")
            begin = time.process_time()
            for _ in range(REPEATS):
                reader.probabilities(answers[:GROUP])
            micros = 1e6 * (time.process_time() - begin) / (GROUP * REPEATS)
            shown = kind if kind == "probabilities" else f"{kind} {clip:g}"
            shown = "-" if name == "label-only" else shown
            print(f"| {name} | {shown} | {' | '.join(cells)} | {micros:.0f} |", flush=True)


if __name__ == "__main__":
    main()
