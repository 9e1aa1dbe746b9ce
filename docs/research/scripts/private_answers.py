"""What calibration makes of private answers: accuracy and calibration error before and after.

`private_answers.py ROWS RUN...` reads finished runs, measures every mechanism
and epsilon, writes the rows and prints the tables of docs/research/private-answers.md. Before: the
label is the largest value of the answer, its probability the softmax (or, of noisy probabilities,
the nearest distribution). After: both are Bayes' rule's. Answers are about test images, the
references are all validation images, and the first `FEW` of them where there are many more.
"""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import torch

from fedcel.data import Digits
from fedcel.files import write_json
from fedcel.metrics import ece, score_probabilities
from fedcel.privacy import LabelledLogits, fit_calibration
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
ANSWERS = 10_000
FEW = 150
Row = dict[str, str | int | float]


def main() -> None:
    """Write the rows of all runs, and print their tables."""
    torch.set_num_threads(1)
    target, *folders = map(Path, sys.argv[1:])
    rows: list[Row] = []
    for folder in folders:
        run = read_run(folder)
        references, test = predict_references(run), predict_labelled(run, run.splits.test, "bench")
        sizes = [len(references.labels)]
        sizes += [FEW] if sizes[0] >= 2 * FEW else []
        for size in sizes:
            few = keep_first(references, size, run.splits.classes)
            name = "digits" if isinstance(run.settings.data.source, Digits) else folder.name
            rows += measure_rows(name, few, test, run.splits.classes)
    write_json(target, rows)
    print("\n\n".join(make_tables(rows)))


def keep_first(references: LabelledLogits, size: int, classes: int) -> LabelledLogits:
    """Return the first references, as many of each class."""
    if size == len(references.labels):
        return references
    labels = references.labels
    places = [(labels == label).nonzero().flatten()[: size // classes] for label in range(classes)]
    chosen = torch.cat(places)
    return LabelledLogits(references.logits[chosen], labels[chosen])


def measure_rows(
    name: str, references: LabelledLogits, test: LabelledLogits, classes: int
) -> Iterator[Row]:
    """Measure every mechanism at every epsilon."""
    many = test.repeat(math.ceil(ANSWERS / len(test.labels)))
    for mechanism_name, kind, clip in OPTIONS:
        for epsilon in EPSILONS:
            options = {"mechanism": mechanism_name, "clip-kind": kind, "clip": clip}
            if mechanism_name == "label-only":
                options = {}
            privacy = PrivacySettings.model_validate(options | {"epsilon": epsilon})
            mechanism = privacy.build(classes)
            reader = fit_calibration(mechanism, references.logits, references.labels)
            answers = mechanism.answer(many.logits.double())
            is_logits = mechanism.unit == "logits"
            naive = answers.softmax(1) if is_logits else project_simplex(answers, 1.0)
            after = reader.probabilities(answers)
            is_right = answers.argmax(1) == many.labels
            shown = kind if kind == "probabilities" else f"{kind} {clip:g}"
            yield {
                "data": name,
                "references": len(references.labels),
                "answers": len(many.labels),
                "accuracy-without-privacy": score_probabilities(
                    test.logits.softmax(1), test.labels
                )["accuracy"],
                "mechanism": mechanism_name,
                "clip": "-" if mechanism_name == "label-only" else shown,
                "epsilon": epsilon,
                "accuracy-before": float(is_right.double().mean()),
                "ece-before": ece(naive, many.labels),
                "accuracy": score_probabilities(after, many.labels)["accuracy"],
                "ece": ece(after, many.labels),
            }


def make_tables(rows: Sequence[Row]) -> list[str]:
    """Return a Markdown table of each data set and number of references.

    Args:
        rows: As they are written.

    Returns:
        Tables, each below its heading.
    """
    tables = []
    for (name, count), same in groupby(rows, lambda row: (row["data"], row["references"])):
        part = list(same)
        own = 100 * float(part[0]["accuracy-without-privacy"])
        lines = [
            f"{str(name).capitalize()}, {count} references, {own:.1f} % right without privacy:",
            "",
            f"| mechanism | clip | {' | '.join(f'ε {epsilon:g}' for epsilon in EPSILONS)} |",
            f"|---|---|{'---|' * len(EPSILONS)}",
        ]
        for (mechanism, clip), cells in groupby(
            part, lambda row: (str(row["mechanism"]), str(row["clip"]))
        ):
            texts = [
                f"{100 * float(row['accuracy-before']):.1f} ({row['ece-before']:.3f}) → "
                f"{100 * float(row['accuracy']):.1f} ({row['ece']:.3f})"
                for row in cells
            ]
            lines.append(
                f"| `{mechanism.removeprefix('discrete-')}` | {clip} | {' | '.join(texts)} |"
            )
        tables.append("\n".join(lines))
    return tables


def read_rows(path: Path) -> list[Row]:
    """Return rows as they were written."""
    rows: list[Row] = json.loads(path.read_text())
    return rows


if __name__ == "__main__":
    main()
