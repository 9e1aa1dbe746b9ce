"""A client's round in passes over its own images: as many steps as they take, and no other bits."""

import math
from collections.abc import Mapping

import pytest
import torch

from fedcel.errors import SettingsError
from fedcel.posterior import LocalSettings, RoundOrder
from fedcel.run_parts import (
    build_server_parts,
    select_client_images,
)
from fedcel.settings import dump_settings, parse_settings
from tests.fedcel.federation.test_round_trainer import BASE, SAMPLED, compare
from tests.fedcel.train_one import update_one

UNEVEN = {
    "local.steps": 0,
    "local.epochs": 1.5,
    "local.batch-size": 16,
    "clients": 9,
    "data.train": 400,
    "data.alpha": 1.0,
}


@pytest.mark.parametrize(
    ("epochs", "images", "steps"),
    [
        (1, 320, 10),
        (1, 321, 11),
        (2.5, 64, 5),
        (0.1, 960, 3),
        (0.01, 64, 1),
        (3, 7, 3),
        (0.5, 7, 1),
    ],
)
def test_steps_are_those_of_the_passes(epochs: float, images: int, steps: int) -> None:
    """ceil(epochs n / b), b = 32 or all n of a small client."""
    assert LocalSettings(epochs=epochs).count_steps(images) == steps
    assert LocalSettings(steps=4).count_steps(images) == 4


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"local.steps": 20, "local.epochs": 1}, "local.steps is 20 and local.epochs 1: exactly"),
        ({"local.steps": 0}, "local.steps is 0 and local.epochs 0: exactly one"),
        ({"local.epochs": -1}, "local.epochs is -1, must be 0 or more"),
        ({"local.epochs": math.inf}, "local.epochs is inf, must be finite"),
        ({"local.epochs": "all"}, "local.epochs is 'all', must be a number"),
        ({"local.epochs": 1, "local.balance": True}, "local.epochs is 1 and local.balance true"),
    ],
)
def test_exactly_one_of_steps_and_epochs(raw: dict[str, object], message: str) -> None:
    """Anything else is refused with what to write."""
    with pytest.raises(SettingsError, match=message):
        parse_settings(raw)


def test_a_later_layer_decides() -> None:
    """Epochs of a command line end a scenario's steps, and the other way round; 0 ends nothing."""
    layers: list[tuple[Mapping[str, object], int, float]] = [
        ({"local.epochs": 2}, 0, 2),
        ({"local.steps": 5}, 5, 0),
        ({"local.epochs": 0}, 40, 0),
    ]
    for layer, steps, epochs in layers:
        local = parse_settings({"local": {"steps": 40}}, layer).local
        assert (local.steps, local.epochs) == (steps, epochs)
    settings = parse_settings({"local.epochs": 2}, {"local.steps": 5})
    assert (settings.local.steps, settings.local.epochs) == (5, 0)
    settings = parse_settings({"local.epochs": 2})
    assert parse_settings(dump_settings(settings)) == settings


def test_each_client_has_the_plan_of_its_steps() -> None:
    """The prior takes back the same share of each round, and the noise makes up for it."""
    schedule = build_server_parts(parse_settings({"local.epochs": 2, "prior.pull": 0.2})).schedule
    for images, steps in ((32, 2), (320, 20)):
        plan = schedule.plan(RoundOrder(110, 1000), images)
        kept = 1 - plan.rate * plan.pull
        assert plan.steps == steps and kept**steps == pytest.approx(0.8)
        ratio = (1 + kept**steps) / (1 + kept)
        assert plan.noise_variance == pytest.approx(2 * plan.rate / (1000 * ratio))


def test_an_update_is_that_of_as_many_steps() -> None:
    """To the bit, whatever the client's size."""
    settings = parse_settings({**BASE, **UNEVEN})
    for client in (0, 3):
        images = len(select_client_images(settings, client).y)
        steps = math.ceil(1.5 * images / min(16, images))
        same = parse_settings({**BASE, **UNEVEN, "local.epochs": 0, "local.steps": steps})
        in_epochs, in_steps = (
            update_one(s, client, 0.1, number=1, total=400) for s in (settings, same)
        )
        assert torch.equal(in_epochs.delta, in_steps.delta) and in_steps.delta.any()


def test_clients_at_once_are_those_one_by_one() -> None:
    """Those with as many steps come together; in burn-in, and while the chain is sampled."""
    settings = parse_settings({**BASE, **UNEVEN})
    sizes = [len(select_client_images(settings, k).y) for k in range(9)]
    steps = [settings.local.count_steps(size) for size in sizes]
    assert 2 < len(set(steps)) < 9
    assert compare({**UNEVEN, "cel.kind": "cluster"}) == []
    assert compare({**UNEVEN, **SAMPLED, "temperature": 1.0, "chain.scope": "full"}, first=4) == []
