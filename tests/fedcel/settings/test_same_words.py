"""A part is refused in the same words, by settings and by who makes it without settings."""

import re
from collections.abc import Callable, Mapping

import pytest
import torch

from fedcel.errors import SettingsError
from fedcel.losses.cel import MutualInformation, Plain
from fedcel.privacy import (
    LabelOnly,
    Laplace,
    compose_prices,
    perturb_rows,
)
from fedcel.privacy.clip import clip_rows
from fedcel.privacy.discrete_laplace import add_grid_noise
from fedcel.settings import parse_settings
from tests.fedcel.losses.single import single

ROWS = torch.zeros(2, 3)


def laplace(**changes: float) -> Laplace:
    """Return the mechanism for 3 classes."""
    values = {"epsilon": 1.0, "clip": 1.0} | changes
    return Laplace(classes=3, clip_kind="l1", **values)


Case = tuple[Mapping[str, object], Callable[[], object], str]

LOSSES: dict[str, Case] = {
    "penalty": (
        {"cel.kind": "plain", "net.noise": 0.0},
        lambda: single(Plain()),
        "net.noise is 0.0, must be above 0 for cel.penalty 'channel'",
    ),
    "threshold": (
        {"cel.kind": "plain", "cel.penalty": "log", "net.noise": 0.0},
        lambda: single(Plain(penalty="log")),
        "net.noise is 0.0, must be above 0 for cel.penalty 'log'",
    ),
    "information": (
        {"cel.kind": "mutual-information", "net.noise": 0.0},
        lambda: single(MutualInformation()),
        "net.noise is 0.0, must be above 0 for cel.kind 'mutual-information'",
    ),
}


@pytest.mark.parametrize(("raw", "make", "words"), LOSSES.values(), ids=LOSSES)
def test_losses(raw: Mapping[str, object], make: Callable[[], object], words: str) -> None:
    """The whole message is the same."""
    with pytest.raises(SettingsError) as by_settings:
        parse_settings(raw)
    with pytest.raises(SettingsError) as by_constructor:
        make()
    assert str(by_settings.value) == str(by_constructor.value)
    assert words in str(by_settings.value)


ANSWERS: dict[str, Case] = {
    "clip": (
        {"mechanism": "laplace", "clip": -0.5},
        lambda: laplace(clip=-0.5),
        "clip is -0.5, must be finite and above 0",
    ),
    "clip-kind": (
        {"mechanism": "laplace", "clip-kind": "l3"},
        lambda: clip_rows(ROWS, "l3", 1.0),
        "clip-kind is 'l3', must be 'clamp', 'l1' or 'probabilities'",
    ),
    "clip-rows": (
        {"mechanism": "laplace", "clip": -0.5},
        lambda: clip_rows(ROWS, "l1", -0.5),
        "clip is -0.5, must be finite and above 0",
    ),
    "epsilon": (
        {"epsilon": -0.5},
        lambda: laplace(epsilon=-0.5),
        "epsilon is -0.5, must be finite and above 0",
    ),
    "epsilon-of-noise": (
        {"epsilon": -0.5},
        lambda: perturb_rows(ROWS, -0.5, 1.0),
        "epsilon is -0.5, must be finite and above 0",
    ),
    "epsilon-of-many": (
        {"epsilon": -0.5},
        lambda: compose_prices({(-0.5, 0.0): 1}, 1e-6),
        "epsilon is -0.5, must be finite and above 0",
    ),
    "epsilon-of-labels": (
        {"epsilon": 1e-12, "mechanism": "label-only"},
        lambda: LabelOnly(1e-12, 3),
        "epsilon is 1e-12, must be finite and 1e-09 or more for 'label-only'",
    ),
    "epsilon-of-the-grid": (
        {"epsilon": 1e7, "budget": 1e8, "mechanism": "discrete-laplace"},
        lambda: add_grid_noise(ROWS, 1e7, 1.0),
        "epsilon is 10000000.0, must be above 0 and at most 1.04858e+06 for 'discrete-laplace'",
    ),
}


@pytest.mark.parametrize(("raw", "make", "words"), ANSWERS.values(), ids=ANSWERS)
def test_private_answers(raw: Mapping[str, object], make: Callable[[], object], words: str) -> None:
    """Settings put the group's name before it."""
    with pytest.raises(SettingsError) as by_settings:
        parse_settings({f"privacy.{key}": value for key, value in raw.items()})
    with pytest.raises(ValueError, match=re.escape(words)) as by_constructor:
        make()
    assert str(by_settings.value).removeprefix("privacy.") == str(
        by_constructor.value
    ).removeprefix("privacy.")
