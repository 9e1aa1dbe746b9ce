"""Columns of every kind of cut: without noise, with dropout, with noise that is learned."""

import math
from typing import Any

import pytest
import torch

import fedcel
from fedcel.attacks import KernelRidge
from fedcel.leakage import SmashedData, find_law
from sims.play import FACTORS, MESSAGE_COUNTS, Column, prepare_column
from sims.play.attackers import Background, make_attacker
from sims.play.column import Look, describe_column
from sims.play.noise_levels import MeanMessage, NoiseLevel, find_level, list_levels
from tests.clients.serving import made_run
from tests.sims.play.conftest import shorten_decoders

FEW = {"data.test": 40, "data.auxiliary": 24}
KINDS: dict[str, dict[str, Any]] = {
    "gaussian": {},
    "noiseless": {"net.noise": 0},
    "dropout": {"defence.name": "dropout", "defence.strength": 0.4},
    "feature": {"defence.name": "learned-noise", "defence.strength": 0},
    "image": {"defence.name": "vib"},
    "full": {"chain.scope": "full"},
}


def make_column(kind: str) -> Column:
    run = made_run(2, **FEW, **KINDS[kind])
    run.samples[0][:] += 0.1 * torch.randn(len(run.model), generator=torch.Generator())
    run.samples[1][: run.flat.device_size] = run.samples[0][: run.flat.device_size]
    column = prepare_column(run, Look(kind, "#000", "●"), Background())
    column.attackers.wait()
    return column


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_cut_is_shown(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The posterior is Bayes' rule, the bits are measure_leakage's, all numbers are finite."""
    shorten_decoders(monkeypatch)
    monkeypatch.setattr("sims.play.noise_levels.FACTORS", (0.5, 1.0, 2.0))  # more are as these
    column = make_column(kind)
    x, y = column.candidates
    level = NoiseLevel(1.0, 4)
    sent = column.send(x[3], 3, level, seed=1)
    posterior = column.posterior(sent, level, is_own=False)
    assert float(posterior.sum()) == pytest.approx(1)
    if column.net.cut.is_random:
        law = find_law(SmashedData(column.net), x)
        expected = law(sent.messages).double().sum(0).softmax(0)
        torch.testing.assert_close(posterior, expected)
    else:
        assert float(posterior[3]) == 1
    own = column.posterior(sent, level, is_own=True)
    assert len(own) == 41 and float(own.sum()) == pytest.approx(1)
    shown = describe_column(column, x[3], 3, int(y[3]), level=NoiseLevel(1.0, 1), seed=1)
    scale = column.net.noise_scale
    sigma = column.net.cut.sigma
    whole = fedcel.measure_leakage(
        column.net.encoder,
        x,
        y,
        noise=sigma if scale is None else lambda z: sigma * scale(z),
        dropout=column.net.cut.dropout,
        draws=300,
    )
    assert whole.beyond is not None
    allowed = 2 * shown["bits"]["beyond-half-width"] + 0.01
    assert abs(shown["bits"]["beyond-label"] - float(whole.beyond[3])) < allowed
    if kind in ("noiseless", "dropout"):
        assert shown["picture"] is None
    else:
        picture, noise = shown["picture"], column.describe_noise(1.0)
        assert noise is not None
        linear = fedcel.measure_linearised(column.net.encoder, x, noise=noise, prior=column.prior)
        bound = (picture["bound"], picture["bound-half-width"])
        assert bound == pytest.approx((linear.bound, linear.bound_half_width))
        twice = fedcel.measure_linearised(
            column.net.encoder, x[[3, 3]], noise=noise, prior=column.prior
        )
        fisher = (picture["dfil"], picture["fsinfo"])
        assert fisher == pytest.approx((twice.dfil, twice.fsinfo), rel=1e-5)
        louder = column.estimate_picture(x[3], NoiseLevel(2.0, 1))
        assert louder is not None and 0 < louder["bits"] < picture["bits"]
        assert louder["dfil"] < picture["dfil"] and louder["fsinfo"] < picture["fsinfo"]
        assert louder["bound"] > picture["bound"]
        same = column.estimate_picture(x[3], NoiseLevel(2.0, 4))
        assert same is not None
        for name in ("bits", "dfil", "fsinfo", "bound"):
            assert same[name] == pytest.approx(picture[name], rel=1e-5) or kind == "image"
    for name, rebuilt in shown["rebuilt"].items():
        assert math.isfinite(rebuilt["mse"]), name
    assert sum(shown["answer"]["probabilities"]) == pytest.approx(1, abs=1e-3)


def test_levels_that_are_alike_are_one() -> None:
    """Four messages in twice the noise; without noise all; under dropout each is its own."""
    net = made_run(1, **FEW).flat.net
    assert find_level(net, NoiseLevel(2.0, 4)) == find_level(net, NoiseLevel(1.0, 1)) == (1.0, 1)
    assert len(list_levels(net)) == len(FACTORS) + len(MESSAGE_COUNTS) - 1
    assert len(list_levels(made_run(1, **FEW, **KINDS["noiseless"]).flat.net)) == 1
    dropping = made_run(1, **FEW, **KINDS["dropout"]).flat.net
    assert find_level(dropping, NoiseLevel(1.0, 4)) == (1.0, 4)


@pytest.mark.parametrize("kind", ["gaussian", "dropout", "feature"])
def test_the_mean_message_has_the_law_of_the_mean(kind: str) -> None:
    """Mean and variance of what attackers learn from are those of the mean of real messages."""
    run = made_run(1, **FEW, **KINDS[kind])
    net, x = run.flat.net, run.splits.test.x[:1]
    stream = torch.Generator().manual_seed(1)
    level = NoiseLevel(1.0, 4)
    copies = x.expand(20_000, -1, -1, -1)
    learned = MeanMessage(net, [level], is_described=False).sample(copies, stream)
    with torch.no_grad():
        real = (
            net.add_noise(net.encode(copies.repeat(4, 1, 1, 1)), stream).view(4, 20_000, -1).mean(0)
        )
    torch.testing.assert_close(learned.mean(0), real.mean(0), atol=0.01, rtol=0)
    torch.testing.assert_close(learned.std(0), real.std(0), atol=0, rtol=0.04)


def test_what_was_learned_once_is_what_the_attack_rebuilds() -> None:
    """`learn` and `reconstruct` of the closed form agree to the bit."""
    run = made_run(1, **FEW)
    level = NoiseLevel(1.0, 1)
    attacker = make_attacker(run.flat.net, run, [level], is_described=False)
    observed = attacker.observation.sample(run.splits.test.x[:5], torch.Generator())
    rebuilt = KernelRidge().learn(attacker)(observed)
    again = make_attacker(run.flat.net, run, [level], is_described=False)
    expected = KernelRidge().reconstruct(
        again.observation, again.auxiliary, observed, 1.0, again.generator
    )
    assert torch.equal(rebuilt, expected)
