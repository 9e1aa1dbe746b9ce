"""Averaged predictions of a chain."""

from dataclasses import replace

import pytest
import torch

from fedcel.nets import Mlp, build_net
from fedcel.nets.flat_net import FlatNet
from fedcel.posterior.predict import Prediction, build_device_net, copy_heads, predict
from fedcel.torch_state import make_generator

X = torch.rand(5, 1, 4, 4, generator=torch.Generator().manual_seed(0))


def chain(scope: str) -> tuple[FlatNet, list[torch.Tensor]]:
    """Return a net and three samples, of the head alone or of everything."""
    net = build_net(Mlp(features=6, width=9, noise=0.2), (1, 4, 4), 3, make_generator(0, "net"))
    flat = FlatNet(net)
    stream = torch.Generator().manual_seed(1)
    samples = []
    for _ in range(3):
        vector = flat.vector + 0.3 * torch.randn(flat.vector.shape, generator=stream)
        if scope == "head":
            vector[: flat.device_size] = flat.vector[: flat.device_size]
        samples.append(vector)
    return flat, samples


def test_one_sample_is_that_net() -> None:
    """The prediction is the softmax of the head on one noisy message."""
    flat, samples = chain("head")
    probabilities = predict(flat, samples[:1], X, make_generator(0, "n")).probabilities
    flat.load(samples[0])
    with torch.no_grad():
        message = flat.net.add_noise(flat.net.encode(X), make_generator(0, "n"))
        want = flat.net.answer(message).softmax(1)
    torch.testing.assert_close(probabilities, want)


@pytest.mark.parametrize("scope", ["head", "full"])
def test_copied_heads_answer_what_a_device_sends(scope: str) -> None:
    """Without noise, as the prediction does."""
    flat, samples = chain(scope)
    flat.net.cut = replace(flat.net.cut, sigma=0.0)
    wanted = predict(flat, samples, X, make_generator(0, "n"), scope=scope).logits
    with torch.no_grad():
        sent = build_device_net(flat, samples, scope).encode(X)
        torch.testing.assert_close(copy_heads(flat, samples, scope)(sent), wanted)


@pytest.mark.parametrize("scope", ["head", "full"])
def test_several_messages_are_those_of_repeated_images(scope: str) -> None:
    """Each image is encoded once, and gets the noise that it would get as often in a row."""
    flat, samples = chain(scope)
    repeated = X.repeat(4, 1, 1, 1)
    want = predict(flat, samples, repeated, make_generator(0, "n"), scope=scope)
    made = predict(flat, samples, X, make_generator(0, "n"), scope=scope, draws=4)
    torch.testing.assert_close(made.samples, want.samples)


@pytest.mark.parametrize("scope", ["head", "full"])
def test_the_average_is_a_distribution_and_its_log_agrees(scope: str) -> None:
    """Rows sum to 1; logits are the log of the mean probability."""
    flat, samples = chain(scope)
    prediction = predict(flat, samples, X, make_generator(0, "n"), scope=scope)
    assert prediction.samples.shape == (3, 5, 3)
    torch.testing.assert_close(prediction.probabilities.sum(1), torch.ones(5))
    torch.testing.assert_close(prediction.logits.exp(), prediction.probabilities)


def test_logits_stay_finite_when_a_probability_underflows() -> None:
    """A log-probability of -500 is no -inf."""
    log = torch.tensor([[[0.0, -500.0]], [[0.0, -490.0]]])
    assert Prediction(log).logits.isfinite().all()


def test_scope_full_sends_one_message_per_encoder() -> None:
    """Three encoders: three times the features; the head's scope sends one."""
    flat, samples = chain("full")
    with torch.no_grad():
        assert build_device_net(flat, samples, "full").encode(X).shape == (5, 18)
        sent = build_device_net(flat, samples, "head")
        flat.load(samples[0])
        torch.testing.assert_close(sent.encode(X), flat.net.encode(X))


def test_no_sample_is_refused() -> None:
    flat, _ = chain("head")
    with pytest.raises(ValueError, match="run past burn-in"):
        predict(flat, [], X, make_generator(0, "n"))
