"""A run's numbers and pictures in trackers, read back; what fails there ends nothing."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from fedcel.errors import PluginError, SettingsError
from fedcel.extras import MissingExtraError
from fedcel.settings import parse_settings
from sims import tracking
from sims.commands.main import main
from sims.engines.simulate import simulate
from sims.tracking import TrackerFactory, load_trackers, track_run
from tests.sims.small import CLUSTERED
from tests.sims.trained import model

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "track.md"
SETTINGS = parse_settings(
    CLUSTERED | {"data.test": 60, "data.auxiliary": 40, "data.validation": 40, "bits-every": 3}
)
FINAL = "final/test images, and the exact attacker's guesses"


class Recorder:
    """Keeps what it is told."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self.folder, self.settings = folder, settings
        self.scores = dict[int, dict[str, float]]()
        self.pictures = list[tuple[str, int, Any]]()
        self.endings = list[bool]()

    def log_scores(self, scores: Mapping[str, float], number: int) -> None:
        self.scores[number] = {**self.scores.get(number, {}), **scores}

    def log_picture(self, name: str, picture: Any, number: int) -> None:
        self.pictures.append((name, number, picture))

    def close(self, *, is_finished: bool) -> None:
        self.endings.append(is_finished)


class Broken(Recorder):
    """Fails in the third round."""

    def log_scores(self, scores: Mapping[str, float], number: int) -> None:
        """Keep scores, but for the third."""
        super().log_scores(scores, number)
        if number == 3:
            raise SystemExit("the disk is full")


def train(folder: Path, **factories: TrackerFactory) -> Path:
    """Train six rounds, tracked."""
    with track_run(factories, folder, SETTINGS) as listen:
        simulate(SETTINGS, folder, listen=listen)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run without a tracker."""
    return train(tmp_path_factory.mktemp("plain") / "run")


def test_all_is_handed_on_and_what_fails_is_told_once(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Settings, every number of each round and of the result, a picture; the same model."""
    made = dict[str, Recorder]()

    def keep(kind: type[Recorder]) -> TrackerFactory:
        def make(folder: Path, settings: Mapping[str, Any]) -> Recorder:
            made[kind.__name__] = kind(folder, settings)
            return made[kind.__name__]

        return make

    refuse = Mock(side_effect=ConnectionError("nobody answers"))
    folder = train(tmp_path / "run", good=keep(Recorder), bad=keep(Broken), none=refuse)
    assert torch.equal(model(folder), model(plain))
    recorder = made["Recorder"]
    assert recorder.settings["cel.kind"] == "cluster" and recorder.endings == [True]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    for event in events:
        numbers = {k: v for k, v in event.items() if isinstance(v, int | float) and k != "round"}
        scores = recorder.scores[event["round"]]
        assert {k: v for k, v in scores.items() if not k.startswith("final/")} == numbers
    assert "bits-beyond-label" in recorder.scores[3]
    result = json.loads((folder / "result.json").read_text())
    assert recorder.scores[6]["final/bits-beyond-label"] == result["bits-beyond-label"]
    private = result["private"]["4"]["accuracy"]
    assert recorder.scores[6]["final/private/4/accuracy"] == private
    pictures = {(name, number): picture for name, number, picture in recorder.pictures}
    assert list(pictures) == [(FINAL, 6)]
    picture = pictures[FINAL, 6]
    assert picture.dtype == np.uint8 and picture.shape[2] == 3 and picture.std() > 10
    assert list(made["Broken"].scores) == [1, 2, 3] and made["Broken"].endings == []
    told = re.findall(r"--track (\w+) failed: (.*); the run goes on", capsys.readouterr().err)
    assert [name for name, _ in told] == ["none", "bad"]
    assert "nobody answers" in told[0][1] and "the disk is full" in told[1][1]


def test_a_training_that_fails_ends_the_trackers(tmp_path: Path) -> None:
    made = list[Recorder]()

    def make(folder: Path, settings: Mapping[str, Any]) -> Recorder:
        made.append(Recorder(folder, settings))
        return made[0]

    def stop_after_a_round() -> None:
        with track_run({"good": make}, tmp_path, SETTINGS) as listen:
            assert listen is not None
            listen({"round": 1, "accuracy": 0.5})
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop_after_a_round()
    assert made[0].endings == [False] and made[0].scores == {1: {"accuracy": 0.5}}


def test_a_run_that_is_resumed_to_be_measured_is_tracked(plain: Path, tmp_path: Path) -> None:
    """All its rounds were done when it was stopped: scores and picture are of the last one."""
    made = list[Recorder]()

    def make(folder: Path, settings: Mapping[str, Any]) -> Recorder:
        made.append(Recorder(folder, settings))
        return made[0]

    with track_run({"good": make}, plain, SETTINGS):
        pass  # no round is left
    (recorder,) = made
    assert recorder.endings == [True] and list(recorder.scores) == [6]
    assert "final/bits-beyond-label" in recorder.scores[6]
    assert [(name, number) for name, number, _ in recorder.pictures] == [(FINAL, 6)]


def replay(folder: Path, name: str) -> None:
    """Hand a finished run to a tracker, round by round."""
    with track_run(load_trackers([name]), folder, SETTINGS) as listen:
        assert listen is not None
        for line in (folder / "events.jsonl").read_text().splitlines():
            listen(json.loads(line))


def test_tensorboard_reads_it_back(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Scalars of each round, the final ones, the settings and the pictures."""
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="TensorBoard is not installed",
    )
    replay(plain, "tensorboard")
    assert "failed" not in capsys.readouterr().err
    events = reader.EventAccumulator(str(plain / "tracking" / "tensorboard")).Reload()
    lines = [json.loads(line) for line in (plain / "events.jsonl").read_text().splitlines()]
    scalars = [(item.step, item.value) for item in events.Scalars("accuracy")]
    assert scalars == [(line["round"], pytest.approx(line["accuracy"])) for line in lines]
    assert [item.step for item in events.Scalars("bits-beyond-label")] == [3, 6]
    result = json.loads((plain / "result.json").read_text())
    (accuracy,) = events.Scalars("final/accuracy")
    assert accuracy.value == pytest.approx(result["accuracy"])
    (picture,) = events.Images(FINAL)
    assert picture.encoded_image_string.startswith(b"\x89PNG") and picture.step == 6
    (table,) = events.Tensors("settings/text_summary")
    assert b"| cel.kind | cluster |" in table.tensor_proto.string_val[0]


def test_mlflow_reads_it_back(plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a store that is a folder: parameters, metrics by round, a picture, the status."""
    pytest.importorskip("mlflow", reason="MLflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    replay(plain, "mlflow")
    from mlflow import MlflowClient

    client = MlflowClient()
    experiment = client.get_experiment_by_name("fedcel")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_name == "run"
    assert run.data.params["cel.kind"] == "cluster"
    lines = [json.loads(line) for line in (plain / "events.jsonl").read_text().splitlines()]
    history = client.get_metric_history(run.info.run_id, "accuracy")
    assert [(item.step, item.value) for item in history] == [
        (line["round"], line["accuracy"]) for line in lines
    ]
    result = json.loads((plain / "result.json").read_text())
    assert run.data.metrics["final/accuracy"] == result["accuracy"]
    (picture,) = client.list_artifacts(run.info.run_id, "pictures")
    assert picture.path.endswith("round 000006.png")


def test_wandb_reads_it_back(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the files of its offline mode."""
    pytest.importorskip("wandb", reason="W&B is not installed")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    replay(plain, "wandb")
    (path,) = (plain / "tracking" / "wandb").glob("offline-run-*/*.wandb")
    content = path.read_bytes()
    assert b"final/accuracy" in content and b"cel.kind" in content
    (picture,) = path.parent.rglob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_tracker_of_the_page_works(
    plain: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten lines, by their import string."""
    (block,) = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (tmp_path / "mytracker.py").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    replay(plain, "mytracker:CsvTracker")
    rows = [line.split(",") for line in (plain / "scores.csv").read_text().splitlines()]
    (plain / "scores.csv").unlink()
    result = json.loads((plain / "result.json").read_text())
    assert ["6", "final/accuracy", str(result["accuracy"])] in rows


def test_what_cannot_be_loaded_is_refused_before_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name that is none, a module that is none, a package that is missing: with the remedy."""
    command = ["simulate", "digits", "--out", str(tmp_path / "run"), "--track"]
    assert main([*command, "tensorbord"]) == 2
    assert "must be tensorboard, mlflow, wandb" in capsys.readouterr().err
    with pytest.raises(PluginError, match="no module 'nowhere'"):
        load_trackers(["nowhere:Tracker"])
    with pytest.raises(SettingsError, match="is no class and no function"):
        load_trackers(["sims.tracking:TRACKERS"])
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r'pip install "fedcel\[trackers\]"'):
        load_trackers(["tensorboard"])
    with pytest.raises(MissingExtraError, match=r'pip install "fedcel\[wandb\]"'):
        load_trackers(["wandb"])
    assert not (tmp_path / "run").exists()
