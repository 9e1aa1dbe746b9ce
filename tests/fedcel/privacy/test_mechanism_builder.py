"""From settings to a mechanism, and what is refused on the way."""

import math

import pytest
import torch
from jaxtyping import Float
from scipy.stats import kstest, laplace
from torch import Tensor

from fedcel.errors import PluginError, SettingsError
from fedcel.privacy import (
    Gaussian,
    LabelOnly,
    Laplace,
    Mechanism,
    build_mechanism,
    clip_rows,
    clip_sensitivity,
    perturb_rows,
    private_logits,
)
from fedcel.privacy.protocol import PROTECTS
from fedcel.settings import MECHANISMS, PrivacySettings, parse_settings
from fedcel.testing import MechanismContract

KINDS = ("clamp", "l1", "probabilities")
ALPHA = 1e-6

LAPLACE = {"privacy.mechanism": "laplace"}


class Noise:
    """A user's mechanism: noise alone, whatever the logits."""

    name, delta, protects, unit = "noise", 0.0, PROTECTS, "logits"

    def __init__(self, privacy: PrivacySettings, classes: int) -> None:
        self.epsilon = privacy.epsilon / 2
        self.classes = classes

    def answer(self, logits: Float[Tensor, "B C"]) -> Float[Tensor, "B C"]:
        """Return rows that say nothing."""
        if logits.shape[1] != self.classes or not logits.isfinite().all():
            raise ValueError("no such logits")
        return perturb_rows(torch.zeros(len(logits), 1), 1.0, 1.0).expand(-1, self.classes)


def dear(privacy: PrivacySettings, classes: int) -> Mechanism:
    """Return what costs more than it may."""
    return LabelOnly(2 * privacy.epsilon, classes)


def nothing(privacy: PrivacySettings, classes: int) -> int:
    """Return what is no mechanism."""
    return classes


class TestOwn(MechanismContract):
    """A mechanism of one's own passes the contract."""

    def build(self) -> Mechanism:
        """Return it from its import string."""
        return build_mechanism(PrivacySettings(mechanism=f"{__name__}:Noise", epsilon=2.0), 3)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("laplace", Laplace(4.0, 5, clip_kind="clamp", clip=2.0, sensitivity=20.0)),
        (
            "gaussian",
            Gaussian(4.0, 5, delta=1e-6, clip_kind="clamp", clip=2.0, sensitivity=4 * math.sqrt(5)),
        ),
        ("label-only", LabelOnly(4.0, 5)),
    ],
)
def test_each_name(name: str, expected: Mechanism) -> None:
    """With the sensitivity of its norm, and its own price."""
    mechanism = build_mechanism(PrivacySettings(mechanism=name, clip_kind="clamp", clip=2.0), 5)
    assert mechanism == expected
    assert (mechanism.name, mechanism.epsilon) == (name, 4.0)
    assert mechanism.delta == (1e-6 if name == "gaussian" else 0)


def test_none_is_refused_where_an_answer_must_be_private() -> None:
    """And every other name can be built."""
    for name in MECHANISMS:
        if name == "none":
            with pytest.raises(SettingsError, match="answers would not be private"):
                build_mechanism(PrivacySettings(mechanism=name), 3)
        else:
            assert isinstance(build_mechanism(PrivacySettings(mechanism=name), 3), Mechanism)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "made 3, which lacks"),
        ("PROTECTS", "cannot be called"),
        ("dear", "costs epsilon 8.0.*at most privacy.epsilon 4.0"),
    ],
)
def test_own_objects_that_do_not_fit(name: str, message: str) -> None:
    """Each with the reason."""
    with pytest.raises(PluginError, match=message):
        build_mechanism(PrivacySettings(mechanism=f"{__name__}:{name}"), 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_stated_sensitivity_must_be_enforced(kind: str) -> None:
    """At least the clip's, in the mechanism's norm; more is more noise."""
    for name, norm in (("laplace", 1), ("gaussian", 2)):
        least = clip_sensitivity(kind, 2.0, 5, norm)
        stated = PrivacySettings(mechanism=name, clip_kind=kind, clip=2.0, sensitivity=1.5 * least)
        mechanism = build_mechanism(stated, 5)
        assert isinstance(mechanism, Laplace | Gaussian)
        assert mechanism.sensitivity == 1.5 * least
        short = stated.model_copy(update={"sensitivity": 0.99 * least})
        with pytest.raises(SettingsError, match="lets two answers .* be that far apart"):
            build_mechanism(short, 5)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (
            {**LAPLACE, "privacy.sensitivity": 1.0},
            "sensitivity is 1, must be at least 2: the clip 'l1'",
        ),
        (
            {**LAPLACE, "privacy.sensitivity": 3.9, "privacy.clip-kind": "clamp"},
            "must be at least 4: the c",
        ),
        (
            {**LAPLACE, "privacy.sensitivity": 1.4, "privacy.clip-kind": "probabilities"},
            "at least 2",
        ),
        ({"privacy.sensitivity": 9, "privacy.mechanism": "label-only"}, "set it to 'none'"),
        ({"privacy.sensitivity": 9, "privacy.mechanism": "none"}, "set it to 'none'"),
        (
            {**LAPLACE, "privacy.sensitivity": 0},
            "privacy.sensitivity is 0, must be .* above 0, or .none",
        ),
        ({"privacy.budget": 3.0}, r"budget is 3, must be at least privacy.epsilon \(4\)"),
        ({"privacy.budget": 1e300}, r"privacy.budget is 1e\+300, must be .* below 4.6e12"),
        ({"privacy.budget": 1e-7}, r"privacy.budget is 1e-07, must be at least 1e-06"),
        ({"privacy.mechanism": "laplcae"}, "nearest: 'laplace'"),
        ({"privacy.delta": 1.0}, "privacy.delta is 1.0"),
    ],
)
def test_settings_that_promise_nothing_are_refused(raw: dict[str, object], message: str) -> None:
    """Before a run starts."""
    with pytest.raises(SettingsError, match=message):
        parse_settings(raw)


def test_settings_that_fit() -> None:
    """A larger sensitivity, L2 for the Gaussian, an own mechanism, no mechanism without budget."""
    assert parse_settings({**LAPLACE, "privacy.sensitivity": 2.0}).privacy.sensitivity == 2
    gaussian = {"privacy.mechanism": "gaussian", "privacy.clip-kind": "probabilities"}
    parse_settings({**gaussian, "privacy.sensitivity": 1.42})
    parse_settings({"privacy.mechanism": "mine:Own"})
    parse_settings({"privacy.mechanism": "none", "privacy.budget": 0.1})


@pytest.mark.parametrize("kind", KINDS)
def test_private_logits_use_the_settings(kind: str) -> None:
    """Scale Delta/epsilon of the settings or of the argument; `none` adds nothing."""
    logits = torch.zeros(600, 10)
    privacy = PrivacySettings(mechanism="laplace", clip_kind=kind, clip=3.0, epsilon=2.0)
    clipped = clip_rows(logits, kind, 3.0)
    for epsilon in (2.0, 0.5):
        answer = private_logits(logits, privacy, None if epsilon == 2 else epsilon)
        assert answer.dtype == torch.float32 and answer.shape == logits.shape
        draws = (answer - clipped).flatten().numpy()
        scale = clip_sensitivity(kind, 3.0, 10) / epsilon
        assert kstest(draws, laplace(scale=scale).cdf).pvalue > ALPHA
    off = privacy.model_copy(update={"mechanism": "none"})
    torch.testing.assert_close(private_logits(logits, off), clipped.float())


@pytest.mark.parametrize("name", ["gaussian", "label-only"])
def test_no_mechanism_lets_clipped_logits_through(name: str) -> None:
    """What leaves is not what went in."""
    logits = torch.zeros(100, 3)
    assert not torch.equal(private_logits(logits, PrivacySettings(mechanism=name)), logits)


@pytest.mark.parametrize("key", ["privacy.clip", "privacy.clip-kind"])
def test_a_clip_that_nothing_uses_is_said(key: str) -> None:
    """Label-only, the default, has no logits to clip; where logits are answered it is right."""
    value = {"privacy.clip": 2.0, "privacy.clip-kind": "clamp"}[key]
    with pytest.warns(UserWarning, match="do nothing to 'label-only' answers"):
        parse_settings({key: value})
    assert parse_settings({**LAPLACE, key: value})
