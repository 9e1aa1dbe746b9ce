"""A client's own folder: the state that a round starts from, and no other."""

from pathlib import Path

import pytest
import torch

from fedcel.errors import RunError
from fedcel.federation import StoredState, keep_state, load_state
from fedcel.losses.cel import State
from fedcel.runs import ClientStateFolder

NOBODY = StoredState(0, None)


def make_state(value: float) -> State:
    return {"a": torch.tensor([value])}


def list_rounds(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.iterdir())


def test_the_state_of_the_round_that_is_expected_is_read(tmp_path: Path) -> None:
    """Neither an older one nor a newer one takes its place; 0 is none."""
    folder = ClientStateFolder(tmp_path)
    folder.write_state(3, make_state(3.0), 0)
    folder.write_state(5, make_state(5.0), 3)
    assert load_state(folder, 9, 3).round == 3
    assert load_state(folder, 9, 4) == load_state(folder, 9, 0) == NOBODY
    assert load_state(folder, 9, 5).state == make_state(5.0)
    with pytest.raises(RunError, match=r"000004.safetensors is missing: .* put back"):
        folder.require_state(9, 4)


def test_without_an_expectation_it_is_the_newest(tmp_path: Path) -> None:
    """Of a server that is not ours; a repeated round does not read its own."""
    folder = ClientStateFolder(tmp_path)
    folder.write_state(3, make_state(3.0), 0)
    folder.write_state(5, make_state(5.0), 3)
    assert [load_state(folder, number, None).round for number in (9, 5, 3)] == [5, 3, 0]


def test_what_a_round_started_from_stays_however_often_it_is_repeated(tmp_path: Path) -> None:
    """Rounds whose update is left out start from the state before them; all others go."""
    folder = ClientStateFolder(tmp_path)
    assert keep_state(folder, 1, make_state(1.0), NOBODY, is_noisy=False).round == 1
    for number in (2, 3, 4):
        start = load_state(folder, number, 1)
        assert start.round == 1
        assert (
            keep_state(folder, number, make_state(float(number)), start, is_noisy=False).round
            == number
        )
    assert list_rounds(tmp_path) == [1, 4]


def test_states_of_another_run_are_deleted(tmp_path: Path) -> None:
    """Where a folder is used once more: with the first state that is written."""
    ClientStateFolder(tmp_path).write_state(8, make_state(8.0), 7)
    keep_state(ClientStateFolder(tmp_path), 2, make_state(2.0), NOBODY, is_noisy=False)
    assert list_rounds(tmp_path) == [2]


def test_a_diverged_round_leaves_the_state_before_it(tmp_path: Path) -> None:
    """And the client starts from that the next time."""
    folder = ClientStateFolder(tmp_path)
    folder.write_state(3, make_state(3.0), 0)
    start = load_state(folder, 4, 3)
    assert keep_state(folder, 4, make_state(torch.nan), start, is_noisy=False).round == 3
    assert list_rounds(tmp_path) == [3]


def test_noisy_updates_do_not_tell_how_the_training_went(tmp_path: Path) -> None:
    """Whether it diverged, and whether there was a state: what is returned is the round."""
    folder = ClientStateFolder(tmp_path)
    start = NOBODY
    for number, state in ((1, {}), (2, make_state(2.0)), (3, make_state(torch.inf))):
        assert keep_state(folder, number, state, start, is_noisy=True).round == number
        start = load_state(folder, number + 1, number)
    assert start == (3, make_state(2.0))


def test_a_client_without_a_folder_has_no_state(tmp_path: Path) -> None:
    """None, so that statistics are computed afresh; what is empty is not written."""
    folder = ClientStateFolder(tmp_path / "nowhere")
    assert keep_state(folder, 1, {}, NOBODY, is_noisy=False).round == 0
    assert load_state(folder, 2, None) == NOBODY
    assert not (tmp_path / "nowhere").exists()
