"""The measures: their keys in files, and how every table shows them."""

from collections.abc import Mapping
from typing import NamedTuple

from sims.results.records import BenchRow


class Column(NamedTuple):
    """A measure as tables show it: its heading, decimals, and what it is multiplied with."""

    key: str
    head: str
    digits: int
    scale: float = 1.0

    def titled(self, head: str) -> "Column":
        """Return the column under another heading."""
        return self._replace(head=head)


ACCURACY = Column("accuracy", "accuracy, %", 1, 100)
NLL = Column("nll", "NLL", 3)
ECE = Column("ece", "ECE", 3)
BRIER = Column("brier", "Brier", 3)
AUROC = Column("auroc", "OOD AUROC", 3)
BITS = Column("bits-beyond-label", "bits beyond label", 2)
IDENTIFICATION = Column("identification-optimal", "optimal identification, %", 1, 100)
CERTIFICATE = Column("certificate-bits", "certificate, bits", 2)
CERTIFICATE_BEYOND = Column("certificate-bits-within-class", "certificate beyond label, bits", 2)
SPREAD = Column("within-class-spread", "within-class spread", 4)
ATTENTION = Column("attention-share", "attention n_eff/n", 2)
STEP_RATIO = Column("train-step-ratio", "training step, ×", 2)
PARAMETERS = Column("encoder-parameters", "encoder's parameters, k", 1, 1e-3)
FLOPS = Column("flops-per-inference", "encoder, MFLOP", 3, 1e-6)
BYTES = Column("bytes-per-inference", "bytes sent", 0)
MSE = Column("mse", "MSE", 4)
PSNR = Column("psnr", "PSNR, dB", 1)
SSIM = Column("ssim", "SSIM", 3)
RIGHT_IMAGE = Column("identification-1", "right image, %", 1, 100)
AMONG_FIVE = Column("identification-5", "among five, %", 1, 100)
LABEL_READ = Column("label-accuracy", "label read, %", 1, 100)

MEASURES = (
    *(ACCURACY, BITS, IDENTIFICATION, CERTIFICATE, CERTIFICATE_BEYOND, SPREAD, ATTENTION),
    *(STEP_RATIO, PARAMETERS, FLOPS, BYTES),
    *(MSE, PSNR, SSIM, RIGHT_IMAGE, AMONG_FIVE, LABEL_READ),
)
"""Of a row of bench.json."""
Measures = Mapping[str, float]
"""Numbers of one row by the keys of their columns."""


def row_measures(row: BenchRow) -> dict[str, float]:
    """Return what was measured of a cell, the scores of its worst attack among it."""
    measured = {column.key: row.measure(column.key) for column in MEASURES}
    return {key: value for key, value in measured.items() if value is not None}
