"""A run as a callable."""

from pathlib import Path

import pytest
import torch

from fedcel import Posterior
from fedcel.errors import RunError
from fedcel.files import read_json
from fedcel.metrics import calibration
from fedcel.posterior import predict
from fedcel.runs import run_folder
from fedcel.settings import parse_settings
from fedcel.torch_state import make_generator
from sims.engines.simulate import simulate
from tests.sims.small import SAMPLED


def test_images_in_probabilities_and_uncertainty_out(tmp_path: Path) -> None:
    """More images than are answered at once: the same as the parts; noise is the disagreement's."""
    simulate(parse_settings(SAMPLED), tmp_path / "run")
    posterior, run = Posterior.open(tmp_path / "run"), run_folder.read_run(tmp_path / "run")
    images = run.splits.test.x.repeat(2, 1, 1, 1)
    prediction = posterior(images)
    assert prediction.probabilities.shape == (800, 10)
    assert torch.allclose(prediction.probabilities.sum(1), torch.ones(800))
    noise = make_generator(0, "answers-to-images")
    first = predict(run.flat, run.samples, images[:512], noise).samples
    assert len(first) == 4
    assert torch.equal(prediction.bald[:512], calibration.bald(first))
    assert torch.equal(prediction.entropy[:512], calibration.predictive_entropy(first))
    assert ((prediction.bald >= -1e-6) & (prediction.bald <= prediction.entropy + 1e-6)).all()
    with pytest.raises(ValueError, match=r"must be \(N, 1, 8, 8\)"):
        posterior(images[:, :, :4])
    of_array = posterior(images.double().numpy())
    assert all(torch.equal(*pair) for pair in zip(of_array, prediction, strict=True))
    with pytest.raises(ValueError, match=r"images are of type torch.uint8.*divide by 255"):
        posterior((255 * images).byte())


def test_a_run_without_noise_is_a_point(tmp_path: Path) -> None:
    """Iterates of SGD are no posterior: one model answers, and what disagrees is nothing."""
    simulate(
        parse_settings({**SAMPLED, "temperature": 0.0, "chain.scope": "full"}), tmp_path / "run"
    )
    posterior, run = Posterior.open(tmp_path / "run"), run_folder.read_run(tmp_path / "run")
    assert run.samples == []
    prediction = posterior(run.splits.test.x[:64])
    noise = make_generator(0, "answers-to-images")
    alone = predict(
        run.flat, [run.model], run.splits.test.x[:64], noise, scope="full"
    ).probabilities
    assert torch.equal(prediction.probabilities, alone)
    assert not prediction.bald.any()
    result = read_json(tmp_path / "run" / "result.json")
    assert isinstance(result, dict)
    assert (result["samples"], result["bald"]) == (0, 0.0)


def test_a_run_of_another_format_is_refused_by_name(tmp_path: Path) -> None:
    """An older one and one that says nothing; the path and both formats are named."""
    path = tmp_path / "run" / "settings.toml"
    run_folder.create_run(path.parent, parse_settings(SAMPLED))
    for line in ("format = 0", ""):
        path.write_text(path.read_text().replace("format = 1", line))
        with pytest.raises(RunError, match=r"settings.toml: format is (0|None), this version"):
            run_folder.read_run(path.parent)
        path.write_text("format = 1\n" + path.read_text().replace("format = 0\n", ""))
