"""Encoders of every kind give the features that the module itself gives."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import fedcel
from fedcel.errors import NetError, PluginError, RefusedImagesError
from fedcel.nets import call_encoder, encode_images, split_outputs
from sims.auditing.load_encoder import AdaptedEncoder, load_encoder
from sims.commands.onnx_export import convert_encoder

IMAGES = torch.rand(7, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def build_encoder() -> nn.Module:
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
    torch.testing.assert_close(call_encoder(loaded.encode, IMAGES), ENCODER(IMAGES))


@pytest.mark.parametrize("batch", [None, 2, 3])
def test_a_program_of_torch_export(tmp_path: Path, batch: int | None) -> None:
    """Any number of images, also where the program takes a fixed one."""
    loaded = load_encoder(str(export_program(tmp_path / "encoder.pt2", batch)))
    torch.testing.assert_close(call_encoder(loaded.encode, IMAGES), ENCODER(IMAGES))


def test_an_onnx_file(tmp_path: Path) -> None:
    """As another runtime computes it; the noise that its metadata state is read."""
    import onnx

    model = convert_encoder(ENCODER, (1, 8, 8))
    onnx.helper.set_model_props(model, {"fedcel.sigma": "0.25", "fedcel.dropout": "0.1"})
    path = tmp_path / "encoder.onnx"
    path.write_bytes(model.SerializeToString())
    loaded = load_encoder(str(path))
    assert (loaded.noise, loaded.dropout) == (0.25, 0.1)
    torch.testing.assert_close(call_encoder(loaded.encode, IMAGES), ENCODER(IMAGES).detach())
    with pytest.raises(NetError, match=r"refuses images \(7, 3, 9, 9\)"):
        loaded.encode(torch.rand(7, 3, 9, 9))


@pytest.mark.parametrize("limits", [{"max": 4}, {"min": 3, "max": 4}, {"min": 3}])
def test_a_program_gets_a_batch_that_it_takes(tmp_path: Path, limits: dict[str, int]) -> None:
    """Of more images than its largest batch, of fewer than its least, and of one alone."""
    path, example = tmp_path / "encoder.pt2", torch.rand(4, 1, 8, 8)
    shapes = ({0: torch.export.Dim("batch", **limits)},)
    torch.export.save(torch.export.export(ENCODER, (example,), dynamic_shapes=shapes), path)
    encode = load_encoder(str(path)).encode
    torch.testing.assert_close(encode_images(encode, IMAGES), ENCODER(IMAGES).detach())
    torch.testing.assert_close(encode_images(encode, IMAGES[:1]), ENCODER(IMAGES[:1]).detach())


def write_onnx(path: Path, kind: str, shape: list[int | str] | None) -> Path:
    """Write an ONNX file that gives the images' values as floating numbers, flat."""
    from onnx import TensorProto, helper, save

    nodes = [helper.make_node("Cast", ["images"], ["values"], to=TensorProto.FLOAT)]
    nodes.append(helper.make_node("Flatten", ["values"], ["z"]))
    images = helper.make_tensor_value_info("images", TensorProto.DataType.Value(kind), shape)
    z = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(helper.make_graph(nodes, "g", [images], [z]), opset_imports=opset)
    model.ir_version = 8
    save(model, path)
    return path


@pytest.mark.parametrize(
    ("kind", "shape", "words", "order", "scale"),
    [
        ("FLOAT", None, "", (0, 1, 2, 3), 1),
        ("DOUBLE", ["N", 3, 4, 5], "", (0, 1, 2, 3), 1),
        ("FLOAT16", ["N", 3, 4, 5], "", (0, 1, 2, 3), 1),
        ("UINT8", [2, 3, 4, 5], ", which takes bytes", (0, 1, 2, 3), 255),
        ("FLOAT", ["N", 4, 5, 3], ", which takes channels last", (0, 2, 3, 1), 1),
        (
            "UINT8",
            ["N", "H", "W", 3],
            ", which takes bytes, which takes channels last",
            (0, 2, 3, 1),
            255,
        ),
        ("FLOAT", ["N", 60], ", which takes images made flat, channel by channel", (0, 1, 2, 3), 1),
    ],
)
def test_an_onnx_file_gets_images_in_its_form(
    tmp_path: Path,
    kind: str,
    shape: list[int | str] | None,
    words: str,
    order: tuple[int, ...],
    scale: int,
) -> None:
    """Its type, its order, its batch; the description says so. 8 bits are exact in each."""
    path = write_onnx(tmp_path / "encoder.onnx", kind, shape)
    loaded = load_encoder(str(path))
    images = torch.arange(7 * 60).remainder(256).view(7, 3, 4, 5) / 255
    expected = (images * scale).permute(order).flatten(1)
    features = encode_images(loaded.encode, images)
    torch.testing.assert_close(features, expected, atol=5e-4, rtol=0)
    assert loaded.description == f"ONNX file {path}{words}"


def test_other_types_of_an_onnx_file_are_refused(tmp_path: Path) -> None:
    """With those that are taken; images that are no bytes likewise."""
    path = write_onnx(tmp_path / "encoder.onnx", "INT64", ["N", 3, 4, 5])
    with pytest.raises(NetError, match=r"takes tensor\(int64\), must take tensor\(float\)"):
        load_encoder(str(path))
    write_onnx(path, "FLOAT", ["N", 4, 5])
    with pytest.raises(NetError, match=r"takes \['N', 4, 5\], must take images \(N, C, H, W\)"):
        load_encoder(str(path))
    write_onnx(path, "UINT8", ["N", 3, 4, 5])
    with pytest.raises(NetError, match="pixels are in .*; leave --mean and --std out"):
        call_encoder(load_encoder(str(path)).encode, torch.rand(2, 3, 4, 5) - 0.5)


@pytest.mark.parametrize(
    ("reference", "error", "words"),
    [
        ("nowhere.onnx", NetError, "there is no file nowhere.onnx"),
        ("nowhere", NetError, "'nowhere' does not exist; give a run folder, a file that ends in"),
        (__file__, NetError, "'.*' is no encoder; give a run folder, a file that ends in"),
        (f"{__name__}:NUMBER", PluginError, "is int, must be a torch.nn.Module"),
        (f"{__name__}:export_program", PluginError, "called without arguments, failed"),
        ("nowhere:encoder", PluginError, "no module 'nowhere'"),
    ],
)
def test_what_is_no_encoder_is_refused(reference: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        load_encoder(reference)


@pytest.mark.parametrize("name", ["damaged.onnx", "damaged.pt2"])
def test_a_damaged_file_is_refused(tmp_path: Path, name: str) -> None:
    """By its name, whatever the reader makes of it."""
    (tmp_path / name).write_bytes(b"no encoder")
    with pytest.raises(NetError, match=f"{name} cannot be read as"):
        load_encoder(str(tmp_path / name))


def test_a_module_says_which_images_it_refuses() -> None:
    """Whatever the module raises."""
    loaded = load_encoder(f"{__name__}:ENCODER")
    with pytest.raises(RefusedImagesError, match=r"refuses images \(2, 3, 9, 9\) of torch.float32"):
        call_encoder(loaded.encode, torch.rand(2, 3, 9, 9))


class Backbone(nn.Module):
    """A backbone with features by name, and what it says of its images as modules of timm do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 2, 3)
        self.pretrained_cfg = {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.1)}

    def forward_features(self, images: Tensor) -> Tensor:
        return self.layer(images)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        features = self.forward_features(images)
        return {"map": features, "pooled": features.mean((2, 3), keepdim=True)}


BACKBONE = Backbone()


def test_a_method_and_the_normalisation_of_timm() -> None:
    """`forward_features` is an encoder whose gradient can be had; its module says mean and std."""
    loaded = load_encoder(f"{__name__}:BACKBONE.forward_features")
    images = torch.rand(2, 1, 8, 8, requires_grad=True)
    assert loaded.normalisation == ((0.5, 0.4, 0.3), (0.2, 0.2, 0.1))
    features = call_encoder(AdaptedEncoder(loaded.encode, loaded.normalisation), images)
    mean, std = (torch.tensor(values)[:, None, None] for values in loaded.normalisation)
    expected = BACKBONE.layer((images - mean) / std)  # grey became three channels
    torch.testing.assert_close(features, expected.flatten(1))
    assert torch.autograd.grad(features.sum(), images)[0].abs().sum() > 0
    with pytest.raises(PluginError, match="did you mean 'forward_features'"):
        load_encoder(f"{__name__}:BACKBONE.forward_feature")


def test_outputs_are_chosen_by_name() -> None:
    """All of them side by side, or those named; a wrong name is refused with the right ones."""
    encode = load_encoder(f"{__name__}:BACKBONE").encode
    images = torch.rand(2, 3, 8, 8)
    assert call_encoder(encode, images).shape == (2, 2 * 36 + 2)
    pooled = call_encoder(AdaptedEncoder(encode, outputs=["pooled"]), images)
    torch.testing.assert_close(pooled, BACKBONE(images)["pooled"].flatten(1))
    assert dict(split_outputs({"states": (images, images[:2])})).keys() == {"states.0", "states.1"}
    with pytest.raises(NetError, match="'mean', must be of what the encoder gives: map, pooled"):
        call_encoder(AdaptedEncoder(encode, outputs=["mean"]), images)


@pytest.mark.parametrize("batch", [None, 3])
def test_a_program_has_a_gradient_and_no_layers(tmp_path: Path, batch: int | None) -> None:
    """Attacks may follow it; those that draw its layers anew are refused."""
    encode = load_encoder(str(export_program(tmp_path / "encoder.pt2", batch))).encode
    result = fedcel.invert(
        encode, IMAGES[:2], auxiliary=IMAGES[2:], noise=0.1, attacks=["rmle"], budget=0.01
    )
    assert result.reconstructions["rmle"].shape == (2, 1, 8, 8)
    with pytest.raises(ValueError, match="needs architecture, head, which is not granted"):
        fedcel.invert(encode, IMAGES[:2], auxiliary=IMAGES[2:], noise=0.1, attacks=["shadow"])


def test_an_onnx_file_has_no_gradient(tmp_path: Path) -> None:
    """Said where an attack needs one; all of its outputs are what leaves the device."""
    import onnx

    model = convert_encoder(ENCODER, (1, 8, 8))
    path = tmp_path / "encoder.onnx"
    onnx.save(model, path)
    encode = load_encoder(str(path)).encode
    with pytest.raises(ValueError, match="'rmle' needs mean, which is not granted: give a PyTorch"):
        fedcel.invert(encode, IMAGES[:2], auxiliary=IMAGES[2:], noise=0.1, attacks=["rmle"])
    model.graph.output.append(model.graph.output[0])
    twice = onnx.helper.make_node("Identity", [model.graph.output[0].name], ["copy"])
    model.graph.node.append(twice)
    model.graph.output[1].CopyFrom(model.graph.output[0])
    model.graph.output[1].name = "copy"
    onnx.save(model, path)
    torch.testing.assert_close(
        call_encoder(load_encoder(str(path)).encode, IMAGES),
        ENCODER(IMAGES).detach().repeat(1, 2),
    )


def test_a_module_is_cut_at_a_layer() -> None:
    """Its first part, in the words of the command."""
    loaded = load_encoder(f"{__name__}:build_encoder", at="1")
    assert loaded.description.endswith("up to 1")
    wanted = ENCODER[:2](IMAGES)
    torch.testing.assert_close(call_encoder(loaded.encode, IMAGES), wanted.flatten(1))


def test_a_model_of_torchvision(tmp_path: Path) -> None:
    """With weights of a file, up to a layer, behind its normalisation."""
    models = pytest.importorskip("torchvision").models
    model = models.shufflenet_v2_x0_5(num_classes=7).eval()
    torch.save(model.state_dict(), tmp_path / "own.pth")
    full = models.shufflenet_v2_x0_5()
    torch.save(full.state_dict(), tmp_path / "full.pth")
    name = "torchvision:shufflenet_v2_x0_5"
    loaded = load_encoder(name, "maxpool", str(tmp_path / "full.pth"))
    assert loaded.normalisation is not None and loaded.normalisation[0][0] == 0.485
    x = torch.rand(2, 3, 32, 32)
    full.eval()
    with torch.no_grad():
        torch.testing.assert_close(loaded.encode.eval()(x), full.maxpool(full.conv1(x)))
    with pytest.raises(NetError, match="another model"):
        load_encoder(name, "maxpool", str(tmp_path / "own.pth"))
    first, second = (load_encoder(name, "maxpool") for _ in range(2))
    assert "random parameters" in first.description
    for one, other in zip(first.encode.parameters(), second.encode.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("reference", "at", "weights", "message"),
    [
        ("encoder.onnx", "1", "", "is cut already; leave --at out"),
        (f"{__name__}:ENCODER", "", "own.pth", "leave --weights out"),
        (f"{__name__}:ENCODER", "nowhere", "", "Sequential does not have"),
        ("torchvision:resnet81", "layer1", "", "nearest of torchvision"),
    ],
)
def test_refused_cuts_and_weights(reference: str, at: str, weights: str, message: str) -> None:
    pytest.importorskip("torchvision")
    with pytest.raises(NetError, match=message):
        load_encoder(reference, at, weights)
