"""A folder for a model hub: read back without any image, and what its card says."""

import asyncio
from pathlib import Path

import httpx
import pytest
import torch
from huggingface_hub import ModelCard

import fedcel
from clients import AsyncSplitClient, ImageOwner, SplitClient
from fedcel.errors import RunError, ServiceError
from fedcel.files import read_json, read_toml, write_toml
from fedcel.runs import run_folder
from fedcel.settings import parse_settings
from sims.commands.main import main
from sims.engines.simulate import simulate
from tests.clients.serving import running

SETTINGS = parse_settings(
    {
        "clients": 2, "rounds": 3, "local.steps": 3, "chain.burn-in": 0.3, "chain.thin": 1,
        "engine": "local", "data.test": 120, "net.noise": 2.0,
    }
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three short rounds."""
    folder = tmp_path_factory.mktemp("run") / "run"
    simulate(SETTINGS, folder)
    return folder


@pytest.fixture(scope="module")
def hub(run: Path) -> Path:
    folder = run.parent / "digits-private"
    assert main(["export", str(run), "--hub-folder", str(folder)]) == 0
    return folder


def test_the_posterior_is_read_back_without_images(
    run: Path, hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same answers to the bit; nothing that needs images takes it for a run."""
    x = fedcel.read_run(run).splits.test.x[:20]
    wanted = fedcel.Posterior.open(run)(x)
    monkeypatch.delattr(run_folder, "load_splits")
    opened = fedcel.Posterior.open(hub)
    assert len(opened.run.samples) == 2
    assert torch.equal(opened(x).probabilities, wanted.probabilities)
    with pytest.raises(RunError, match="a model without its images"):
        fedcel.read_run(hub)


def test_the_card_says_what_was_measured(run: Path, hub: Path) -> None:
    """Its front matter is what the hub reads; no line is wanting, and no picture is there."""
    card = ModelCard.load(hub / "README.md")
    result = read_json(run / "result.json")
    assert isinstance(result, dict)
    metrics = {metric.metric_type: metric.metric_value for metric in card.data.eval_results or ()}
    assert metrics == {
        "accuracy": round(result["accuracy"], 4),
        "bits-beyond-label": round(result["bits-beyond-label"], 4),
    }
    for key, digits in (("population-beyond-label", 2), ("certificate-bits-within-class", 2)):
        assert f"| {result[key]:.{digits}f} |" in card.text
    for words in ("## Who this is true of", "## Intended use", "120 test images", "deviation 2"):
        assert words in card.text
    names = {path.name for path in hub.rglob("*") if path.is_file()}
    samples = {"000000.safetensors", "000001.safetensors"}
    written = {"README.md", "settings.toml", "images.json", "model.safetensors"}
    assert names == samples | written | {"encoder.safetensors"}


def test_a_client_asks_with_the_encoder_of_the_folder(
    run: Path, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is downloaded but the card; another model's encoder is refused."""
    served = run_folder.read_run(run)
    x, y = served.splits.test
    owner = ImageOwner(x[:60], y[:60], message_limit=2.5)
    asked: list[str] = []
    send = httpx.AsyncClient.send

    async def note(
        client: httpx.AsyncClient, request: httpx.Request, **options: object
    ) -> httpx.Response:
        asked.append(request.url.path)
        return await send(client, request, **options)  # type: ignore[arg-type]

    file = hub / "encoder.safetensors"
    with running(tmp_path, served) as up:
        monkeypatch.setattr(httpx.AsyncClient, "send", note)
        with SplitClient(up.url, up.key, owner, encoder_file=file) as client:
            assert client.ask(x[0]).is_fresh
        assert asked == ["/v1/model", "/v1/query"]

        async def ask() -> bool:
            connecting = AsyncSplitClient.connect(up.url, up.key, owner, encoder_file=file)
            async with await connecting as waiting:
                return (await waiting.ask(x[1])).is_fresh

        assert asyncio.run(ask())
        assert asked == 2 * ["/v1/model", "/v1/query"]
        other = tmp_path / "other.safetensors"
        other.write_bytes(file.read_bytes()[:-1] + b"\0")
        with pytest.raises(ServiceError, match="not the one that /v1/model states"):
            SplitClient(up.url, up.key, owner, encoder_file=other)


def test_a_folder_of_others_runs_nothing_of_its_own(
    hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A net that it names is not even imported; what is damaged is said."""
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    table = read_toml(hub / "settings.toml")
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("images.json", "model.safetensors"):
        (copy / name).write_bytes((hub / name).read_bytes())
    write_toml(copy / "settings.toml", {**table, "net": {"name": "trap:build"}})
    with pytest.raises(RunError, match="never loaded from an exported model"):
        fedcel.Posterior.open(copy)
    (copy / "images.json").write_text('{"shape": [1, 8], "classes": 10}')
    with pytest.raises(RunError, match="damaged, export the run again"):
        fedcel.Posterior.open(copy)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "writes one thing"),
        (("--out", "x.onnx", "--hub-folder", "x"), "writes one thing"),
        (("--out", "encoder"), "--out is 'encoder', must end in .onnx"),
        (("--hub-folder", "."), "exists, nothing is written over"),
    ],
)
def test_what_cannot_be_exported_leaves_nothing(
    run: Path, words: tuple[str, ...], reason: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """Refused in a line; no folder is begun."""
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(run), *words]) == 2
    assert reason in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
