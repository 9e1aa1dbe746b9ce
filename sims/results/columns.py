"""The measures: their keys in files, and how every table shows them."""

from math import inf
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedcel.leakage import USELESS_BITS


class Column(NamedTuple):
    """A measure as tables show it: its heading, decimals, and what it is multiplied with.

    A limit above `useful` limits nothing, and tables say so.
    """

    key: str
    head: str
    digits: int
    scale: float = 1.0
    useful: float = inf

    def titled(self, head: str) -> "Column":
        """Return the column under another heading."""
        return self._replace(head=head)


ACCURACY = Column("accuracy", "accuracy, %", 1, 100)
BITS = Column("bits-beyond-label", "bits beyond label", 2)
IDENTIFICATION = Column("identification-optimal", "optimal identification, %", 1, 100)
MSE = Column("mse", "attack's MSE", 4)
RIGHT_IMAGE = Column("identification-1", "right image, %", 1, 100)
ORACLE_MSE = Column("oracle-mse", "class means' MSE", 4)
STEP_RATIO = Column("train-step-ratio", "training step, ×", 2)
ATTENTION = Column("attention-share", "attention n_eff/n", 2)
COLUMNS = (
    *(ACCURACY, BITS, IDENTIFICATION, MSE, ORACLE_MSE, RIGHT_IMAGE, STEP_RATIO, ATTENTION),
    Column("certificate-bits", "certificate, bits", 2),
    Column("certificate-bits-within-class", "certificate beyond label, bits", 2),
    Column("population-bits", "unseen images, bits", 2, useful=USELESS_BITS),
    Column("population-beyond-label", "unseen images beyond label, bits", 2, useful=USELESS_BITS),
    Column(
        "population-beyond-label-bernstein",
        "unseen beyond label, bits (Bernstein)",
        2,
        useful=USELESS_BITS,
    ),
    Column("linearised-bits", "linearised bits beyond label", 1),
    Column("linearised-mse", "linearised MSE", 4),
    Column("linearised-psnr", "linearised PSNR, dB", 1),
    Column("van-trees-mse", "van Trees bound, MSE", 4),
    Column("dfil", "dFIL", 2),
    Column("fsinfo", "FSInfo, nats", 2),
    Column("attribute-bits", "attribute beyond label, bits", 2),
    Column("attribute-accuracy", "attribute named, %", 1, 100),
    Column("attribute-by-label", "by the label alone, %", 1, 100),
    Column("attribute-by-others", "by other images, %", 1, 100),
    Column("within-class-spread", "within-class spread", 4),
    Column("encoder-parameters", "encoder's parameters, k", 1, 1e-3),
    Column("flops-per-inference", "encoder, MFLOP", 3, 1e-6),
    Column("bytes-per-inference", "bytes sent", 0),
    Column("psnr", "PSNR, dB", 1),
    Column("ssim", "SSIM", 3),
    Column("identification-5", "among five, %", 1, 100),
    Column("label-accuracy", "label read, %", 1, 100),
    Column("nll", "NLL", 3),
    Column("ece", "ECE", 3),
    Column("brier", "Brier", 3),
    Column("auroc", "OOD AUROC", 3),
    Column("answer-bits", "answers alone, bits", 2),
    Column("between-client-spread", "between clients, z²", 4),
    Column("top1-kept", "top-1 kept, %", 1, 100),
    Column("confidence-before", "confidence before, %", 1, 100),
    Column("confidence-after", "confidence after, %", 1, 100),
    Column("ceiling", "ceiling, %", 1, 100),
    Column("seconds", "seconds", 1),
)
"""The measures of runs, of rows of a bench, and of attacks."""
POSITIONS = {column.key: position for position, column in enumerate(COLUMNS)}
"""Places of the measures in an array whose last axis, K, is `COLUMNS`."""
Measures = Float[np.ndarray, "*batch K"]
"""Measures of rows; NaN: not measured."""


def find_columns(*keys: str) -> tuple[Column, ...]:
    """Return the columns of these measures."""
    return tuple(COLUMNS[POSITIONS[key]] for key in keys)
