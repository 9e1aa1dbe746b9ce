"""Finished pieces of a run's evaluation, kept until all of it is done."""

import json
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedcel.errors import RunError
from fedcel.files import read_tensors, write_tensors
from fedcel.runs.run_folder import Run, digest_weights
from fedcel.short_repr import show_shapes

PIECES_FOLDER = "measured"
"""Folder in a run, from the first piece to the result."""


@show_shapes
class Piece(NamedTuple):
    """A part of an evaluation: what JSON can hold, and tensors."""

    measures: dict[str, Any]
    tensors: dict[str, Tensor]


class PieceStore(NamedTuple):
    """The pieces of one run, valid for the same model, settings and versions only."""

    folder: Path
    key: str

    @classmethod
    def open(cls, run: Run, versions: dict[str, str]) -> "PieceStore":
        """Open the store of a run."""
        stated = [run.settings.model_dump_json(), digest_weights(run.settings), versions]
        digest = sha256(json.dumps(stated, sort_keys=True).encode())
        for vector in (run.model, *run.samples):
            digest.update(vector.cpu().numpy().tobytes())
        return cls(run.folder / PIECES_FOLDER, digest.hexdigest())

    def take(self, name: str, measure: Callable[[], Piece]) -> Piece:
        """Return a piece that an interrupted evaluation has finished, else measure and keep it."""
        path = self.folder / f"{name}.safetensors"
        with suppress(RunError):  # there is none, or it is damaged
            tensors, stated = read_tensors(path)
            if stated.get("key") == self.key:
                return Piece(json.loads(stated["measures"]), tensors)
        piece = measure()
        self.folder.mkdir(exist_ok=True)
        stated = {"key": self.key, "measures": json.dumps(piece.measures)}
        write_tensors(path, piece.tensors, stated)
        return piece
