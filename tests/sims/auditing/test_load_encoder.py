"""Encoders of every kind give the features that the module itself gives."""

from pathlib import Path

import pytest
import torch
from torch import nn

from fedcel.errors import NetError, PluginError
from sims.auditing.load_encoder import load_encoder
from sims.commands.onnx_export import convert_encoder

IMAGES = torch.rand(7, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def build_encoder() -> nn.Module:
    """Return the same encoder at every call."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.Dropout(0.5), nn.Sigmoid()).eval()


ENCODER = build_encoder()
NUMBER = 3


def export_program(path: Path, batch: int | None) -> Path:
    """Write the encoder by `torch.export`, for so many images at once; None: for any number."""
    shapes = None if batch else ({0: torch.export.Dim("batch")},)
    example = torch.rand(batch or 2, 1, 8, 8)
    torch.export.save(torch.export.export(ENCODER, (example,), dynamic_shapes=shapes), path)
    return path


@pytest.mark.parametrize("reference", [f"{__name__}:build_encoder", f"{__name__}:ENCODER"])
def test_an_object_is_a_module_or_makes_one(reference: str) -> None:
    """A module, whose gradient attacks may have; the file says nothing of noise."""
    loaded = load_encoder(reference)
    assert isinstance(loaded.encode, nn.Module) and loaded.noise is None
    torch.testing.assert_close(loaded.encode(IMAGES), ENCODER(IMAGES))


@pytest.mark.parametrize("batch", [None, 2, 3])
def test_a_program_of_torch_export(tmp_path: Path, batch: int | None) -> None:
    """Any number of images, also where the program takes a fixed one."""
    loaded = load_encoder(str(export_program(tmp_path / "encoder.pt2", batch)))
    torch.testing.assert_close(loaded.encode(IMAGES), ENCODER(IMAGES))


def test_an_onnx_file(tmp_path: Path) -> None:
    """As another runtime computes it; the noise that its metadata state is read."""
    import onnx

    model = convert_encoder(ENCODER, (1, 8, 8))
    onnx.helper.set_model_props(model, {"fedcel.sigma": "0.25", "fedcel.dropout": "0.1"})
    path = tmp_path / "encoder.onnx"
    path.write_bytes(model.SerializeToString())
    loaded = load_encoder(str(path))
    assert (loaded.noise, loaded.dropout) == (0.25, 0.1)
    torch.testing.assert_close(loaded.encode(IMAGES), ENCODER(IMAGES).detach())
    with pytest.raises(NetError, match=r"refuses images \(7, 3, 9, 9\)"):
        loaded.encode(torch.rand(7, 3, 9, 9))


@pytest.mark.parametrize(
    ("reference", "error", "words"),
    [
        ("nowhere.onnx", NetError, "there is no file nowhere.onnx"),
        ("nowhere", NetError, "'nowhere' is no encoder; give a run folder, a file that ends in"),
        (f"{__name__}:NUMBER", PluginError, "is int, must be a torch.nn.Module"),
        (f"{__name__}:export_program", PluginError, "called without arguments, failed"),
        ("nowhere:encoder", PluginError, "no module 'nowhere'"),
    ],
)
def test_what_is_no_encoder_is_refused(reference: str, error: type[Exception], words: str) -> None:
    """With what is allowed."""
    with pytest.raises(error, match=words):
        load_encoder(reference)


@pytest.mark.parametrize("name", ["damaged.onnx", "damaged.pt2"])
def test_a_damaged_file_is_refused(tmp_path: Path, name: str) -> None:
    """By its name, whatever the reader makes of it."""
    (tmp_path / name).write_bytes(b"no encoder")
    with pytest.raises(NetError, match=f"{name} cannot be read as"):
        load_encoder(str(tmp_path / name))


def test_a_module_says_which_images_it_refuses() -> None:
    """And what to set."""
    loaded = load_encoder(f"{__name__}:ENCODER")
    with pytest.raises(NetError, match=r"refuses images \(2, 3, 9, 9\): .*set --size and --grey"):
        loaded.encode(torch.rand(2, 3, 9, 9))
