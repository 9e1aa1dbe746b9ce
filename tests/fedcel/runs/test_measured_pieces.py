"""An evaluation that was interrupted goes on where it was."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from fedcel.runs import evaluation
from fedcel.runs.evaluation import Evaluation, evaluate_run, write_evaluation
from fedcel.runs.measured_pieces import PIECES_FOLDER
from fedcel.runs.run_folder import Run
from tests.fedcel.runs.test_evaluation import trained

PIECES = {
    "predictions": "score_predictions",
    "optimal-leak": "attack_test_images",
    "picture": "estimate_picture",
    "leakage": "measure_run_leakage",
    "pictures": "guess_test_images",
}
"""Pieces in their order, and what measures each."""


def interrupt(*_: object) -> None:
    """End the process, as Ctrl-C does."""
    raise KeyboardInterrupt


def make_run(folder: Path) -> Run:
    """Return a trained run in a folder that is there."""
    folder.mkdir()
    (folder / "events.jsonl").touch()
    return trained(folder)


def written(evaluation: Evaluation, folder: Path) -> dict[str, object]:
    """Write an evaluation; return what result.json says, less scores under noise without a seed."""
    write_evaluation(folder, evaluation)
    result: dict[str, object] = json.loads((folder / "result.json").read_text())
    return {key: value for key, value in result.items() if key != "private"}


def test_finished_pieces_are_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before each piece in turn; the result is that of a run which nobody interrupted."""
    whole = evaluate_run(make_run(tmp_path / "whole"), 1.0)
    run, measured = make_run(tmp_path / "killed"), list[str]()

    def note(piece: str, measure: Callable[..., object]) -> Callable[..., object]:
        def measure_once(*arguments: object) -> object:
            measured.append(piece)
            return measure(*arguments)

        return measure_once

    for piece, function in PIECES.items():
        monkeypatch.setattr(evaluation, function, note(piece, getattr(evaluation, function)))
    for number, function in enumerate(PIECES.values()):
        with monkeypatch.context() as killed:
            killed.setattr(evaluation, function, interrupt)
            with pytest.raises(KeyboardInterrupt):
                evaluate_run(run, 1.0)
        assert measured == [*PIECES][:number]
    again = evaluate_run(run, 1.0)
    assert measured == [*PIECES]
    for name, vector in whole.per_image.items():
        assert torch.equal(again.per_image[name], vector), name
    for name, tensor in whole.guesses.items():
        assert torch.equal(again.guesses[name], tensor), name
    assert written(again, run.folder) == written(whole, tmp_path / "whole")
    assert not (run.folder / PIECES_FOLDER).exists()


def test_pieces_of_another_model_are_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one that was trained further, or with other settings; a damaged one, too."""
    run = make_run(tmp_path / "run")
    first = evaluate_run(run, 1.0)
    with monkeypatch.context() as patched:
        for function in PIECES.values():
            patched.setattr(evaluation, function, interrupt)
        assert evaluate_run(run, 1.0).result == first.result  # private scores, too
        moved = run._replace(model=run.model + 0.1)
        seeded = run._replace(settings=run.settings.model_copy(update={"seed": 7}))
        for other in (moved, seeded):
            with pytest.raises(KeyboardInterrupt):
                evaluate_run(other, 1.0)
        (run.folder / PIECES_FOLDER / "predictions.safetensors").write_bytes(b"damaged")
        with pytest.raises(KeyboardInterrupt):
            evaluate_run(run, 1.0)
