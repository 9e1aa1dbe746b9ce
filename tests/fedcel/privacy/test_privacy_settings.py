"""From settings to a mechanism, and what is refused on the way."""

import pytest
import torch
from scipy.stats import kstest, laplace

from fedcel.errors import PluginError, SettingsError
from fedcel.privacy import (
    Gaussian,
    LabelOnly,
    Laplace,
    LaplaceAnswers,
    Mechanism,
    OpenAnswers,
    OwnAnswers,
    clip_sensitivity,
    private_logits,
)
from fedcel.privacy.clip import clip_rows
from fedcel.settings import PrivacySettings, parse_settings

KINDS = ("clamp", "l1", "probabilities")
ALPHA = 1e-6

LAPLACE = {"privacy.mechanism": "laplace"}


def dear(privacy: PrivacySettings, classes: int) -> Mechanism:
    """Return what costs more than it may."""
    return LabelOnly(2 * privacy.epsilon, classes)


def nothing(privacy: PrivacySettings, classes: int) -> int:
    return classes


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("laplace", Laplace(4.0, 5, clip_kind="clamp", clip=2.0)),
        (
            "gaussian",
            Gaussian(4.0, 5, delta=1e-6, clip_kind="clamp", clip=2.0),
        ),
        ("label-only", LabelOnly(4.0, 5)),
    ],
)
def test_each_name(name: str, expected: Mechanism) -> None:
    """With the sensitivity of its norm, and its own price."""
    clip = {} if name == "label-only" else {"clip-kind": "clamp", "clip": 2.0}
    mechanism = PrivacySettings.model_validate({"mechanism": name, **clip}).build(5)
    assert mechanism == expected
    assert (mechanism.name, mechanism.epsilon) == (name, 4.0)
    assert mechanism.delta == (1e-6 if name == "gaussian" else 0)


def test_none_is_refused_where_an_answer_must_be_private() -> None:
    """And every other name can be built."""
    for name in PrivacySettings.kinds.keys() - {":"}:
        privacy = PrivacySettings.model_validate({"mechanism": name})
        if name == "none":
            with pytest.raises(SettingsError, match="answers would not be private"):
                privacy.build(3)
        else:
            assert isinstance(privacy.build(3), Mechanism)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "int lacks some"),
        ("ALPHA", "cannot be called"),
        ("dear", "costs epsilon 8.0.*at most privacy.epsilon 4.0"),
    ],
)
def test_own_objects_that_do_not_fit(name: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        OwnAnswers(mechanism=f"{__name__}:{name}").build(3)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"privacy.clip": 2.0}, "privacy.clip is of privacy.mechanism .* is 'label-only'"),
        ({"privacy.budget": 3.0}, r"budget is 3, must be at least privacy.epsilon \(4\)"),
        ({"privacy.budget": 1e300}, r"privacy.budget is 1e\+300, must be .* below 4.6e12"),
        ({"privacy.budget": 1e-7}, r"privacy.budget is 1e-07, must be at least 1e-06"),
        ({"privacy.mechanism": "laplcae"}, "nearest: 'laplace'"),
    ],
)
def test_settings_that_promise_nothing_are_refused(raw: dict[str, object], message: str) -> None:
    """Before a run starts."""
    with pytest.raises(SettingsError, match=message):
        parse_settings(raw)


def test_settings_that_fit() -> None:
    """An own mechanism, no mechanism without budget."""
    parse_settings({"privacy.mechanism": "mine:Own"})
    parse_settings({"privacy.mechanism": "none", "privacy.budget": 0.1})


@pytest.mark.parametrize("kind", KINDS)
def test_private_logits_use_the_settings(kind: str) -> None:
    """Scale Delta/epsilon; `none` adds nothing."""
    logits = torch.zeros(600, 10)
    clipped = clip_rows(logits, kind, 3.0)
    for epsilon in (2.0, 0.5):
        privacy = LaplaceAnswers(clip_kind=kind, clip=3.0, epsilon=epsilon)
        answer = private_logits(logits, privacy)
        assert answer.dtype == torch.float32 and answer.shape == logits.shape
        draws = (answer - clipped).flatten().numpy()
        scale = clip_sensitivity(kind, 3.0, 10) / epsilon
        assert kstest(draws, laplace(scale=scale).cdf).pvalue > ALPHA
    off = OpenAnswers(clip_kind=kind, clip=3.0)
    torch.testing.assert_close(private_logits(logits, off), clipped.float())
