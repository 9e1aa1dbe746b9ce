"""A run that was stopped goes on as if it had not been, from its own sound state alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from fedcel.errors import RunError
from fedcel.federation import init_server_state
from fedcel.files import read_tensors, write_tensors
from fedcel.losses.cel import GoalControl
from fedcel.runs import run_folder
from fedcel.runs.server_run import ServerRun
from fedcel.settings import Settings, parse_settings
from sims.engines import local
from sims.engines.simulate import simulate
from tests.sims.small import CLUSTERED
from tests.sims.trained import (
    FOLLOWING,
    STEERED,
    events,
    model,
    run,
    stop_after,
)


def test_a_state_without_the_threshold_is_refused_by_name(tmp_path: Path) -> None:
    """A run with a fixed threshold wrote it."""
    folder = run(tmp_path / "run")
    fresh = init_server_state(model(folder))._replace(control=GoalControl("threshold", 1.0))
    with pytest.raises(RunError, match="holds no 'threshold'; start the run anew"):
        run_folder.read_state(folder, fresh)
    assert run_folder.read_state(folder, init_server_state(model(folder))).threshold is None
    fresh = init_server_state(model(folder))._replace(control=GoalControl("weight", 0.1))
    with pytest.raises(RunError, match="holds no 'gamma'; start the run anew"):
        run_folder.read_state(folder, fresh)


@pytest.mark.parametrize("told", ["[1]", '{"0": null}', '{"a": 1}', "{", "1"])
def test_a_state_whose_examples_are_damaged_is_refused_by_name(tmp_path: Path, told: str) -> None:
    """Whatever stands where the nodes' numbers of images were."""
    fresh = init_server_state(torch.zeros(3))
    run_folder.write_state(tmp_path, fresh._replace(examples={0: 5}))
    assert run_folder.read_state(tmp_path, fresh).examples == {0: 5}
    path = tmp_path / "state" / "server.safetensors"
    tensors, metadata = read_tensors(path)
    write_tensors(path, tensors, metadata | {"examples": told})
    with pytest.raises(RunError, match=r"server\.safetensors is damaged"):
        run_folder.read_state(tmp_path, fresh)


@pytest.mark.parametrize(
    ("moment", "change"),
    [
        (1, {}),
        (5, {}),
        (3, STEERED),
        (3, FOLLOWING),
        (5, {"cel.kind": "none", "chain.burn-in": 0.3}),  # samples on either side of the stop
        (4, {"defence.name": "ceb", "cel.kind": "none"}),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one_to_the_bit(
    tmp_path: Path, moment: int, change: dict[str, Any]
) -> None:
    """Model, events and samples, whatever the round it was stopped in."""
    whole, part = run(tmp_path / "whole", **change), tmp_path / "part"
    settings = stop_after(moment, part, **change)
    simulate(settings, part, resume=True)
    assert torch.equal(model(whole), model(part))
    assert events(whole) == events(part)
    sampled = [run_folder.open_chain(folder, settings).list_rounds() for folder in (whole, part)]
    assert sampled[0] == sampled[1]
    for expected, actual in zip(samples(whole), samples(part), strict=True):
        assert torch.equal(expected, actual)


def samples(folder: Path) -> list[torch.Tensor]:
    """Return a run's posterior samples."""
    return run_folder.read_run(folder).samples


def test_a_trained_run_is_only_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where it was stopped after its last round; progress says so."""
    folder = run(tmp_path / "run")
    result = json.loads((folder / "result.json").read_text())
    (folder / "result.json").unlink()
    capsys.readouterr()
    simulate(parse_settings(CLUSTERED), folder, resume=True)
    said = capsys.readouterr().err
    assert f"training: all {CLUSTERED['rounds']} rounds done" in said
    again = json.loads((folder / "result.json").read_text())
    assert result["accuracy"] == again["accuracy"]


def test_a_round_killed_after_its_clients_moved_is_repeated_to_the_bit(tmp_path: Path) -> None:
    """The clients' states are one round ahead of the server's; the older ones are used."""
    whole = run(tmp_path / "whole")
    settings, part = parse_settings(CLUSTERED), tmp_path / "part"
    run_folder.create_run(part, settings)
    calls = 0

    def tell(event: dict[str, object]) -> None:
        nonlocal calls
        calls += 1

    record = ServerRun.conclude_round

    def dies_in_round_4(self: Any, state: Any, *rest: Any) -> Any:
        if state.round == 4:
            raise KeyboardInterrupt
        return record(self, state, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ServerRun, "conclude_round", dies_in_round_4)
        with pytest.raises(KeyboardInterrupt):
            local.train_locally(settings, part, tell)
    assert calls == 3
    simulate(settings, part, resume=True)
    assert torch.equal(model(whole), model(part))


def test_a_run_folder_is_never_overwritten_and_resumes_only_with_its_own_settings(
    tmp_path: Path,
) -> None:
    folder = run(tmp_path / "run")
    settings: Settings = parse_settings(CLUSTERED)
    with pytest.raises(RunError, match="exists and is not empty.*--resume"):
        simulate(settings, folder)
    with pytest.raises(RunError, match="is finished"):
        simulate(settings, folder, resume=True)
    with pytest.raises(RunError, match="made with other settings"):
        simulate(parse_settings(CLUSTERED | {"seed": 5}), folder, resume=True)
    with pytest.raises(RunError, match="is not a folder"):
        simulate(settings, tmp_path / "nowhere", resume=True)


@pytest.mark.parametrize("at_once", [1, 3])
def test_clients_states_that_are_missing_are_one_error(tmp_path: Path, at_once: int) -> None:
    """An older one in its place would give another model, and nobody would know."""
    folder = tmp_path / "run"
    settings = stop_after(4, folder, **{"local.at-once": at_once})
    for client, words in ((1, "000004.safetensors is missing: .* round 5 starts"), (0, "are miss")):
        state = folder / "state" / f"partition-00000{client}" / "000004.safetensors"
        assert state.with_name("000003.safetensors").exists()
        state.unlink()
        with pytest.raises(RunError, match=words) as refusal:
            simulate(settings, folder, resume=True)
    assert str(refusal.value).count("000004.safetensors") == 2


@pytest.mark.parametrize(
    ("copied", "words"),
    [
        ("partition-000001/000003", "is of round 3, must be of round 4: another file"),
        ("partition-000002/000004", "is of client 2, must be of client 1: another file"),
    ],
    ids=["older", "of another client"],
)
def test_another_state_in_the_place_of_a_client_s_is_an_error(
    tmp_path: Path, copied: str, words: str
) -> None:
    """It would give another model without a word."""
    settings = stop_after(4, tmp_path / "run")
    root = tmp_path / "run" / "state"
    state = root / "partition-000001" / "000004.safetensors"
    state.write_bytes((root / f"{copied}.safetensors").read_bytes())
    with pytest.raises(RunError, match=words):
        simulate(settings, tmp_path / "run", resume=True)
