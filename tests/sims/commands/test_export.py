"""The encoder as ONNX: the same features elsewhere, and the law to disturb them by."""

import json
from pathlib import Path

import onnxruntime
import pytest
import torch

import fedcel
from fedcel.errors import NetError
from fedcel.nets import Cnn, ResNet, Strided, Vgg11, build_net
from fedcel.posterior import build_device_net
from fedcel.runs import posterior_samples, run_folder
from fedcel.settings import NetSettings, parse_settings
from fedcel.torch_state import make_generator
from sims.auditing.load_encoder import load_encoder
from sims.commands.main import main
from sims.commands.onnx_export import convert_encoder
from sims.engines import local


def trained(folder: Path, scope: str) -> Path:
    """Return a run of three short rounds that keeps samples."""
    given = {"clients": 3, "rounds": 3, "local.steps": 3, "chain.burn-in": 0.3, "engine": "local"}
    settings = parse_settings({**given, "chain.thin": 1, "chain.scope": scope})
    run_folder.create_run(folder, settings)
    local.train_locally(settings, folder, lambda _: None, measure=False)
    return folder


def features(model: bytes, images: torch.Tensor) -> torch.Tensor:
    """Return z as another runtime computes it."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return torch.from_numpy(session.run(["z"], {"images": images.numpy()})[0])


def test_an_exported_encoder_is_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of `fedcel export`: equal to rounding for any number of images; the cut's law is stated."""
    run = run_folder.read_run(trained(tmp_path / "run", "head"))
    out = tmp_path / "encoder.onnx"
    assert main(["export", str(run.folder), "--out", str(out)]) == 0
    assert "z itself hides nothing" in capsys.readouterr().out
    run.flat.load(run.samples[0])
    for many in (1, 5):
        images = run.splits.test.x[:many]
        found = features(out.read_bytes(), images)
        torch.testing.assert_close(found, run.flat.net.encode(images).detach(), rtol=0, atol=1e-5)
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    stated = session.get_modelmeta().custom_metadata_map
    assert float(stated["fedcel.sigma"]) == run.flat.net.cut.sigma


@pytest.mark.parametrize(
    ("net", "shape"),
    [
        (Cnn(), (1, 28, 28)),
        (Strided(), (1, 28, 28)),
        (Vgg11(features=512, width=32), (3, 32, 32)),
        (ResNet(width=32), (3, 32, 32)),
    ],
)
def test_every_net_can_be_exported(net: NetSettings, shape: tuple[int, ...]) -> None:
    """Equal features in the other runtime."""
    encoder = build_net(net, shape, 10, make_generator(0, "net")).encoder.eval()
    images = torch.rand(3, *shape, generator=make_generator(0, "images"))
    found = features(convert_encoder(encoder, shape).SerializeToString(), images)
    torch.testing.assert_close(found, encoder(images).detach(), rtol=0, atol=1e-5)


def test_a_run_of_whole_nets_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its encoders are many; nothing is written."""
    folder = trained(tmp_path / "run", "full")
    assert main(["export", str(folder), "--out", str(tmp_path / "e.onnx")]) == 2
    assert "one encoder is exported" in capsys.readouterr().err
    assert not (tmp_path / "e.onnx").exists()
    assert main(["export", str(folder), "--out", "encoder"]) == 2
    assert "--out is 'encoder', must end in .onnx" in capsys.readouterr().err


def learned(folder: Path, defence: str) -> run_folder.Run:
    """Return a run whose noise was learned for a few steps."""
    given = {"clients": 3, "rounds": 8, "local.steps": 5, "engine": "local", "temperature": 0.0}
    shaped = {"defence.name": defence, "defence.strength": 0.1}
    settings = parse_settings({**given, **shaped, "cel.warm-up": 0, "cel.ramp": 0.2})
    run_folder.create_run(folder, settings)
    local.train_locally(settings, folder, lambda _: None)
    return run_folder.read_run(folder)


@pytest.mark.parametrize("defence", ["learned-noise", "vib"])
def test_learned_noise_is_exported_and_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], defence: str
) -> None:
    """A second output has the standard deviations; an audit measures what the run measured."""
    run, out = learned(tmp_path / "run", defence), tmp_path / "encoder.onnx"
    assert main(["export", str(run.folder), "--out", str(out)]) == 0
    assert "standard deviations in the output 'noise'" in capsys.readouterr().out
    net = build_device_net(run.flat, posterior_samples(run), "head")
    images = run.splits.test.x[:5]
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    z, noise = map(torch.from_numpy, session.run(["z", "noise"], {"images": images.numpy()}))
    expected = net.encode(images).detach()
    torch.testing.assert_close(z, expected, rtol=0, atol=1e-5)
    scale = net.scale_noise(expected)
    assert scale is not None
    torch.testing.assert_close(noise, 0.3 * scale.detach(), rtol=1e-4, atol=1e-5)
    assert float((scale.detach() - 1).abs().max()) > 0.01

    bits = json.loads((run.folder / "result.json").read_text())["bits-beyond-label"]
    x, y = run.splits.test
    loaded = load_encoder(str(run.folder))
    leak = fedcel.measure_leakage(loaded.encode, x, y, noise=loaded.learned_noise)
    assert leak.bits_beyond_label == pytest.approx(bits, abs=0.1)
    if defence == "vib":  # whose noise differs from image to image
        with pytest.raises(NetError, match="audit the run's folder"):
            load_encoder(str(out))
        return
    loaded = load_encoder(str(out))
    again = fedcel.measure_leakage(loaded.encode, x, y, noise=loaded.learned_noise)
    assert again.bits_beyond_label == pytest.approx(leak.bits_beyond_label, abs=1e-3)
