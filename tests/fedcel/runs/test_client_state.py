"""A client's own folder."""

from pathlib import Path

import torch

from fedcel.runs import ClientStateFolder


def test_the_newest_state_from_before_a_round_is_read(tmp_path: Path) -> None:
    """Two are kept; a repeated round reads the one before it, not its own."""
    folder = ClientStateFolder(tmp_path)
    for number in (3, 5, 8):
        folder.write_state(number, {"a": torch.tensor([float(number)])})
    assert sorted(path.stem for path in tmp_path.iterdir()) == ["000005", "000008"]
    for number, expected in ((9, 8.0), (8, 5.0), (6, 5.0)):
        state = folder.read_state(number)
        assert state is not None
        assert state["a"].item() == expected
    assert folder.read_state(5) is None


def test_later_states_of_another_run_are_deleted_where_a_folder_is_reused(tmp_path: Path) -> None:
    """Else a new run would read what an earlier one wrote after its rounds."""
    ClientStateFolder(tmp_path).write_state(8, {"a": torch.ones(1)})
    ClientStateFolder(tmp_path, is_reused=True).write_state(2, {"a": torch.zeros(1)})
    assert [path.stem for path in tmp_path.iterdir()] == ["000002"]


def test_a_client_without_a_folder_has_no_state(tmp_path: Path) -> None:
    """None, so that statistics are computed afresh; what is empty is not written."""
    folder = ClientStateFolder(tmp_path / "nowhere")
    folder.write_state(1, {})
    assert folder.read_state(2) is None
    assert not (tmp_path / "nowhere").exists()
