"""Files are written whole or not at all, and damage is named."""

import os
from pathlib import Path

import pytest
import torch

from fedcel import files
from fedcel.errors import RunError


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path: Path) -> None:
    """NaN is no JSON; what was there stays."""
    path = tmp_path / "a.json"
    files.write_json(path, [1])
    with pytest.raises(ValueError, match="JSON"):
        files.write_json(path, [float("nan")])
    assert files.read_json(path) == [1]
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_a_crash_in_the_middle_leaves_no_half_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error at the rename keeps the old content and removes the temporary file."""
    path = tmp_path / "a.txt"
    files.write_whole(path, "old")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="disk full"):
        files.write_whole(path, "new")
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_an_interrupt_right_after_the_replacement_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is not lost behind the temporary file that is not there any more."""
    path, replace = tmp_path / "a.txt", os.replace

    def interrupted(old: str, new: Path) -> None:
        replace(old, new)
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        files.write_whole(path, "new")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("a.txt", "new")]


def test_a_file_is_for_all_readers_or_its_owner_alone(tmp_path: Path) -> None:
    """Whatever the file before it was."""
    path = tmp_path / "a.txt"
    for mode in (0o644, 0o600):
        files.write_whole(path, "x", mode)
        assert path.stat().st_mode & 0o777 == mode
    files.write_whole(path, "x")
    assert path.stat().st_mode & 0o777 == 0o644


def test_what_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    """A folder, what is below a file or a link to nothing; nothing is made meanwhile."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for place in (tmp_path, tmp_path / "file" / "x" / "a.md", tmp_path / "link" / "a.md"):
        with pytest.raises(RunError, match="folder"):
            files.check_writable(place)
    files.check_writable(tmp_path / "new" / "a.md")
    assert {path.name for path in tmp_path.iterdir()} == {"file", "link"}


def test_tensors_and_metadata_round_trip(tmp_path: Path) -> None:
    """Views too: they are written as what they show."""
    path = tmp_path / "t.safetensors"
    files.write_tensors(path, {"a": torch.arange(6.0).view(2, 3).T}, {"round": "4"})
    tensors, metadata = files.read_tensors(path)
    assert torch.equal(tensors["a"], torch.arange(6.0).view(2, 3).T)
    assert metadata == {"round": "4"}


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    for name, read in [
        ("a.json", files.read_json),
        ("a.toml", files.read_toml),
        ("a.safetensors", files.read_tensors),
    ]:
        path = tmp_path / name
        with pytest.raises(RunError, match=f"{name} is missing"):
            read(path)
        path.write_bytes(b"{[ no")
        with pytest.raises(RunError, match=name):
            read(path)


@pytest.mark.parametrize("metadata", [None, {}, {"net": "mlp"}])
@pytest.mark.parametrize("tensors", [{}, {"x": torch.zeros(0)}, {"x": torch.ones(3)}])
def test_few_tensors_are_read_back(
    tmp_path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None
) -> None:
    """None at all, an empty one; with metadata and without."""
    files.write_tensors(tmp_path / "x.safetensors", tensors, metadata)
    found, stated = files.read_tensors(tmp_path / "x.safetensors")
    assert found.keys() == tensors.keys() and stated == (metadata or {})
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_equal_tensors_have_equal_bytes(tmp_path: Path) -> None:
    """Whatever the order of names and metadata; the library reads them back."""
    tensors = {"b": torch.arange(3.0), "a": torch.ones(2, 2, dtype=torch.float64)}
    metadata = {name: name * 2 for name in ("net", "shape", "ü", "classes", "sigma")}
    written = {files.encode_tensors(tensors, metadata) for _ in range(9)}
    turned = dict(reversed(tensors.items())), dict(reversed(metadata.items()))
    assert written == {files.encode_tensors(*turned)}
    files.write_tensors(tmp_path / "x.safetensors", tensors, metadata)
    found, stated = files.read_tensors(tmp_path / "x.safetensors")
    assert stated == metadata and found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in tensors)


def test_what_is_written_can_be_read(tmp_path: Path) -> None:
    """Lone surrogates, as names of files may have: escaped at every depth, all else as it is."""
    value = {"a\udcff": ["b\udcff", {"c": "\ud800 für 画"}], "d": 1.5}
    escaped = {"a\\udcff": ["b\\udcff", {"c": "\\ud800 für 画"}], "d": 1.5}
    files.write_json(tmp_path / "a.json", value)
    assert files.read_json(tmp_path / "a.json") == escaped
    files.write_toml(tmp_path / "a.toml", value)
    assert files.read_toml(tmp_path / "a.toml") == escaped
    files.write_whole(tmp_path / "a.html", "b\udcff für")
    assert (tmp_path / "a.html").read_text("utf-8") == "b\\udcff für"
    with pytest.raises(RunError, match="must be of characters that UTF-8 has"):
        files.check_writable(tmp_path / "a\udcff.md")
