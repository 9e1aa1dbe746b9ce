"""What is served, and what is refused."""

import json
from pathlib import Path

import pytest
import torch

from clients.service import load_served
from clients.service.model_offer import ModelOffer, build_model_card
from fedcel.errors import RunError, SettingsError
from fedcel.privacy import fit_calibration
from tests.clients.serving import made_run


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("privacy.mechanism", "none", "privacy.mechanism is 'none'"),
        ("chain.scope", "full", "many times"),
    ],
)
def test_what_would_not_be_private_is_refused(key: str, value: str, words: str) -> None:
    """No mechanism, or several messages of one image."""
    with pytest.raises(SettingsError, match=words):
        load_served(made_run(**{key: value}))


def test_samples_with_different_encoders_are_refused() -> None:
    """One bit is enough."""
    run = made_run()
    run.samples[1][0] += 1e-3
    with pytest.raises(RunError, match="differ in the encoder"):
        load_served(run)


def test_the_version_follows_every_tensor_and_the_cut() -> None:
    """The same run twice gives the same; a head, the encoder, sigma change it; epsilon does not."""
    first = load_served(made_run()).version
    assert load_served(made_run()).version == first
    assert load_served(made_run(**{"privacy.epsilon": 1.0})).version == first
    assert load_served(made_run(**{"net.noise": 0.5})).version != first
    for index in (0, -1):
        run = made_run()
        for sample in run.samples:
            sample[index] += 1e-3
        assert load_served(run).version != first


def test_without_samples_the_last_model_answers() -> None:
    """A run that ended before its burn-in did."""
    run = made_run(samples=1)
    model = load_served(run._replace(samples=[]))
    assert model.samples == 1
    z = torch.rand(2, 8)
    torch.testing.assert_close(model.predict(z).logits, run.flat.net.answer(z).log_softmax(1))


def test_the_card_states_what_the_run_measured(tmp_path: Path) -> None:
    """Bits, and limits for unseen images; nothing where the run is not evaluated, junk is named."""
    run = made_run()._replace(folder=tmp_path)
    assert load_served(run).leak is None
    path = tmp_path / "result.json"
    measured = {"bits-beyond-label": 0.5, "population-beyond-label": 0.7, "accuracy": 0.9}
    limits = {"population-confidence": 0.95, "population-images": 400}
    path.write_text(json.dumps(measured | limits))
    model = load_served(run)
    mechanism = run.settings.privacy.build(model.classes)
    card = build_model_card(ModelOffer(model, mechanism, fit_calibration(mechanism)))
    assert card.leak is not None
    assert card.leak.model_dump() == {
        "bits": 0.5, "unseen": 0.7, "unseen_bernstein": None, "confidence": 0.95, "images": 400,
    }  # fmt: skip
    path.write_text("{")
    with pytest.raises(RunError, match="is damaged"):
        load_served(run)
