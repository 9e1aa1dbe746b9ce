"""The law of private answers: exact where it can be integrated, and within epsilon's bound."""

from copy import deepcopy
from dataclasses import dataclass
from math import exp

import pytest
import torch
from jaxtyping import Float
from torch import Tensor, nn

import sims.attacking.observed_surfaces
from clients import EvaluationClient
from fedcel.attacks import RepeatedObservation, run_attacks
from fedcel.data import Images
from fedcel.leakage import HEAD, LOG_PROB, Law, find_law, optimal_leak
from fedcel.nets.cut import Cut, NoiseScale
from fedcel.nets.flat_net import FlatNet
from fedcel.nets.split_net import SplitNet
from fedcel.posterior.predict import build_device_net
from fedcel.privacy import KnownLaw
from fedcel.settings import AttackSettings, Settings, parse_settings
from fedcel.testing.attacks import FEATURES, load_digit_targets
from fedcel.testing.attacks import make_stream as stream
from sims.attacking.observed_surfaces import (
    PrivateLogits,
    sample_messages,
    send_messages,
)
from tests.fedcel.attacks.undefended import train_undefended


def settings_of(mechanism: str, epsilon: float, kind: str = "l1", c: float = 1.0) -> Settings:
    table = {
        "mechanism": mechanism,
        "epsilon": epsilon,
        "budget": 1e4,
    }
    if mechanism != "label-only":
        table |= {"clip-kind": kind, "clip": c}
    return parse_settings({"privacy": table})


def answers(settings: Settings, sigma: float, scale: float = 3.0) -> PrivateLogits:
    """Return private answers of a head that multiplies three pixels by `scale`."""
    head = nn.Linear(3, 3)
    head.weight.data.copy_(scale * torch.eye(3))
    head.bias.data.zero_()
    flat = FlatNet(SplitNet(nn.Flatten(), head, Cut(sigma), 3))
    nothing = Images(torch.zeros(1, 1, 1, 3), torch.zeros(1, dtype=torch.long))
    client = EvaluationClient(settings, flat, nothing, [flat.vector.clone()])
    mechanism = settings.privacy.build(3)
    return PrivateLogits(client, build_device_net(flat, client.samples, "head"), [head], mechanism)


def images(count: int) -> Float[Tensor, "M 1 1 3"]:
    """Return random images of three pixels."""
    return torch.rand(count, 1, 1, 3, generator=stream(9))


@pytest.mark.parametrize("mechanism", ["laplace", "label-only"])
@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_identification_within_the_bound_of_epsilon(mechanism: str, sigma: float) -> None:
    """At most e^eps/(e^eps + M - 1) for pure epsilon, with and without noise at the cut."""
    epsilon, count = 2.0, 12
    seen, x = answers(settings_of(mechanism, epsilon), sigma, 30.0), images(count)
    leak = optimal_leak(
        seen,
        x,
        torch.zeros(count, dtype=torch.long),
        stream(),
        identification_candidates=count,
        draws=150,
    )
    bound = exp(epsilon) / (exp(epsilon) + count - 1)
    assert leak.identification < bound + leak.identification_half_width
    assert leak.information_bits > (0.01 if sigma == 0 else -0.1)


def test_label_only_reaches_the_bound() -> None:
    """Three images, three labels, no noise at the cut: e^eps/(e^eps + 2), 5 errors wide."""
    seen = answers(settings_of("label-only", 1.5), 0.0)
    x = torch.eye(3).view(3, 1, 1, 3)
    leak = optimal_leak(seen, x, torch.arange(3), stream(), identification_candidates=3, draws=3000)
    wanted = exp(1.5) / (exp(1.5) + 2)
    assert leak.identification == pytest.approx(wanted, abs=5 * (0.25 / 9000) ** 0.5)


@dataclass(frozen=True)
class Exact:
    """The same answers, the noise at the cut integrated in closed form."""

    of: PrivateLogits
    name: str = "exact"
    grants: frozenset[str] = frozenset({LOG_PROB})

    def sample(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self.of.sample(x, generator)

    def law_of(self, x: Tensor) -> Law:
        """Return the law N(P s x, P (s sigma)^2 + tau^2), P the centring, s the head's scale."""
        centring = torch.eye(3).double() - 1 / 3
        scale, tau = self.of.net.head.weight[0, 0].item(), self.of.mechanism.sigma
        spread = (scale * self.of.net.cut.sigma) ** 2 * centring + tau**2 * torch.eye(3).double()
        means = scale * x.flatten(1).double() @ centring
        law = torch.distributions.MultivariateNormal(means, spread)
        return lambda observed: law.log_prob(observed.double()[:, None])


class Recorded:
    """One set of answers, judged by any law: what differs then is the law."""

    name, grants = "recorded", frozenset({LOG_PROB})

    def __init__(self, answers: Tensor, law: PrivateLogits | Exact | RepeatedObservation) -> None:
        self.answers, self.law = answers, law

    def sample(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return self.answers

    def law_of(self, x: Tensor) -> Law:
        return find_law(self.law, x)


def test_monte_carlo_against_the_exact_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A linear head, Gaussian noise twice: posteriors near the closed form's with 300 draws.

    Information with 2 draws is smaller than with 60, which is at most the exact one, up to chance.
    """
    settings = settings_of("gaussian", 2000.0, "clamp", 8.0)
    seen, x = answers(settings, 0.1, 8.0), images(30)
    exact, y = Exact(seen), torch.zeros(30, dtype=torch.long)
    monkeypatch.setattr(sims.attacking.observed_surfaces, "LAW_DRAWS", 300)
    observed = seen.sample(x, stream(1))
    ours, theirs = (find_law(each, x)(observed).softmax(1) for each in (seen, exact))
    assert (ours - theirs).abs().mean() < 0.006  # .0031 +- .0003 over 60 draws, one draw .035
    many = seen.sample(x.repeat(10, 1, 1, 1), stream(2))

    def bits(law: PrivateLogits | Exact, draws: int) -> float:
        monkeypatch.setattr(sims.attacking.observed_surfaces, "LAW_DRAWS", draws)
        return optimal_leak(Recorded(many, law), x, y, stream(2), draws=10).information_bits

    few, more, best = bits(seen, 2), bits(seen, 60), bits(exact, 1)
    assert few < more - 0.5  # 2.0 +- .2 over 40 sets of answers
    assert best - 0.25 < more < best + 0.06  # -.084 +- .029 over as many


def test_sixteen_answers_against_the_exact_law() -> None:
    """Errors of the averaged law add up over answers: the bits stay within 3 % of the exact ones.

    99 % of 2.6 bits; averaged over 32 messages drawn for each image apart, 84 %.
    """
    seen, x = answers(settings_of("gaussian", 100.0, "clamp", 8.0), 0.3, 8.0), images(30)
    y = torch.zeros(30, dtype=torch.long)
    many = RepeatedObservation(seen, 16).sample(x.repeat(10, 1, 1, 1), stream(2))
    ours, best = (
        optimal_leak(
            Recorded(many, RepeatedObservation(law, 16)), x, y, stream(2), draws=10
        ).information_bits
        for law in (seen, Exact(seen))
    )
    assert 0.97 * best < ours < 1.01 * best


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_messages_that_images_share_follow_the_law_of_the_cut(dropout: float) -> None:
    """Each alone: its mean (1 - p) z and its spread; two images differ by no noise."""
    z = torch.tensor([[1.0, -2.0], [1.5, 0.0]])
    net = SplitNet(nn.Identity(), nn.Identity(), Cut(0.5, dropout), 2)
    drawn = torch.stack(list(sample_messages(net, z, 40_000, stream())))
    kept = 1 - dropout
    torch.testing.assert_close(drawn.mean(0), kept * z, atol=0.03, rtol=0)
    wanted = (0.25 + kept * dropout * z.square()).sqrt()
    torch.testing.assert_close(drawn.std(0), wanted, atol=0.03, rtol=0)
    if dropout == 0:
        torch.testing.assert_close(drawn[:, 0] - drawn[:, 1], (z[0] - z[1]).expand(40_000, 2))
        torch.testing.assert_close(drawn[::2] + drawn[1::2], 2 * z.expand(20_000, 2, 2))


def test_messages_of_learned_noise_follow_its_law() -> None:
    """Each value has the spread of its own scale."""
    layer = NoiseScale(2, is_of_image=True, limit=4.0)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, generator=stream(1))
    net = SplitNet(nn.Identity(), nn.Identity(), Cut(0.5), 2, noise_scale=layer)
    z = torch.tensor([[1.0, -2.0], [1.5, 0.0]])
    scale = net.scale_noise(z)
    with torch.no_grad():
        drawn = torch.stack(list(sample_messages(net, z, 40_000, stream())))
    torch.testing.assert_close(drawn.mean(0), z, atol=0.03, rtol=0)
    torch.testing.assert_close(drawn.std(0), 0.5 * scale.detach(), atol=0, rtol=0.03)


def test_images_are_encoded_once_for_all_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen answers, one table of the law, which gives what sixteen calls give."""
    seen, x = answers(settings_of("laplace", 1.0), 0.3), images(5)
    asked: list[int] = []
    encode = SplitNet.encode
    observed = RepeatedObservation(seen, 16).sample(x, stream())

    def counted(net: SplitNet, rows: Tensor) -> Tensor:
        asked.append(len(rows))
        return encode(net, rows)

    monkeypatch.setattr(SplitNet, "encode", counted)
    found = RepeatedObservation(seen, 16).law_of(x)(observed)
    assert asked == [5]
    each = sum(seen.law_of(x)(part) for part in torch.chunk(observed, 16, 1))
    assert torch.equal(found, each)


@pytest.mark.parametrize("kind", ["clamp", "l1", "probabilities"])
@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_density_integrates_to_its_share(mechanism: str, kind: str) -> None:
    """Importance weights of fresh answers under two laws average to 1: both are densities.

    E over answers about a of p(. | b)/p(. | a) is 1 where the law is that of the answers.
    """
    settings = settings_of(mechanism, 2.0, kind)
    seen = answers(settings, 0.0, 1.0)
    x = images(2)
    observed = seen.sample(x[:1].expand(5000, -1, -1, -1), stream())
    known = seen.mechanism
    assert isinstance(known, KnownLaw)
    with torch.no_grad():
        law = known.log_density(
            observed, known.answer_without_noise(seen.answer(seen.net.encode(x)))
        )
    ratio = (law[:, 1] - law[:, 0]).exp()
    error = float(ratio.std()) / len(ratio) ** 0.5
    assert float(ratio.mean()) == pytest.approx(1, abs=5 * error)
    assert error > 0


@pytest.mark.parametrize(
    ("mechanism", "epsilon", "sigma", "ratio"),
    [("laplace", 2.0, 0.0, 0.75), ("laplace", 100.0, 0.5, 1.0), ("gaussian", 2.0, 0.0, 1.0)],
)
def test_several_answers_tell_what_their_law_allows(
    mechanism: str, epsilon: float, sigma: float, ratio: float
) -> None:
    """Of Laplace noise the median: .60 +- .03 of the squared error of 64 answers' mean.

    Where they vary by the noise at the cut instead, their mean as ever.
    """
    seen, x = answers(settings_of(mechanism, epsilon), sigma), images(1).expand(400, -1, -1, -1)
    many = RepeatedObservation(seen, 64)
    observed = many.sample(x, stream())
    parts = observed.view(400, 64, 3)
    assert isinstance(seen.mechanism, KnownLaw)
    usual = (
        seen.mechanism.answer_without_noise(seen.answer(seen.net.encode(x[:1])))
        if sigma == 0
        else parts.mean((0, 1))
    )
    error, plain = ((e - usual).square().mean() for e in (many.average(observed), parts.mean(1)))
    assert error <= ratio * plain


def test_without_a_known_law_no_likelihood() -> None:
    """An own mechanism is attacked without it."""
    seen = answers(settings_of("laplace", 1.0), 0.0)
    other = PrivateLogits(seen.client, seen.net, seen.heads, None)
    assert other.grants == frozenset()
    assert seen.grants == {LOG_PROB}


def test_no_head_reads_the_messages_of_several_encoders() -> None:
    """Scope `full`, two samples: no attack through the head, as there is on a single message."""
    flat = FlatNet(deepcopy(train_undefended()))
    sample = flat.vector.clone()
    both = send_messages(flat, [sample, sample + 0.01], "full")
    assert both.net.features == 2 * FEATURES
    assert HEAD not in both.grants
    how = AttackSettings(names="shadow,decoder", seeds=1, budget=0.01)
    attacked = run_attacks([both], how, *load_digit_targets(), seed=1)
    rows = [row.to_json() for row in attacked.rows]
    assert [row.get("skipped") for row in rows] == ["needs head, which is not granted", None]
    for samples, scope in (([sample], "full"), ([sample, sample], "head")):
        assert HEAD in send_messages(flat, samples, scope).grants


def test_an_answer_that_comes_again_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thousands of answers that tell a class alone are few; each has the bits that it had alone."""
    seen, x = answers(settings_of("label-only", 2.0), 0.5), images(5)
    law = seen.law_of(x)
    observed = seen.sample(x.repeat(20, 1, 1, 1), stream())
    alone = torch.cat([law(row) for row in torch.split(observed, 1)])
    counts = list[int]()
    log_density = type(seen.mechanism).log_density

    def count_answers(mechanism: object, answers: Tensor, rows: Tensor) -> Tensor:
        counts.append(len(answers))
        return log_density(mechanism, answers, rows)

    monkeypatch.setattr(type(seen.mechanism), "log_density", count_answers)
    assert torch.equal(law(observed), alone)
    assert sum(counts) == len(observed.unique(dim=0)) <= 3
