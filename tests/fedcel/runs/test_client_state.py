"""A client's own folder."""

from pathlib import Path

import torch

from fedcel.runs import client_state


def test_the_newest_state_from_before_a_round_is_read(tmp_path: Path) -> None:
    """Two are kept; a repeated round finds the one before it, not its own."""
    for number in (3, 5, 8):
        client_state.save_client_state(tmp_path, number, {"a": torch.tensor([float(number)])})
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["000005", "000008"]
    for asked, found in ((9, 8.0), (8, 5.0), (6, 5.0)):
        state = client_state.read_client_state(tmp_path, asked)
        assert state is not None
        assert state["a"].item() == found
    assert client_state.read_client_state(tmp_path, 5) is None


def test_a_client_without_a_folder_has_no_state(tmp_path: Path) -> None:
    """None, so that statistics are computed afresh."""
    assert client_state.read_client_state(tmp_path / "nowhere", 1) is None
