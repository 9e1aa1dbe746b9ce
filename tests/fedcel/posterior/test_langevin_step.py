"""A user's sampler by import string: it decides the steps, and is refused where it is none."""

import pytest
import torch

from fedcel.data import Images
from fedcel.errors import PluginError, SettingsError
from fedcel.losses.protocol import State
from fedcel.nets import Mlp, build_net
from fedcel.nets.cut import Cut
from fedcel.nets.flat_net import FlatNet
from fedcel.posterior import build_sampler
from fedcel.posterior.sampler import NoiseAdder
from fedcel.posterior.schedule import RoundPlan
from fedcel.settings import LocalSettings, parse_settings
from fedcel.torch_state import make_generator
from tests.fedcel.train_one import train_one

PLAN = RoundPlan(0.3, 0.0, 0.0, 0.02**2, False, 1.0)


class Counting:
    """Moves down by the number of the step, and by half a draw of noise."""

    def __init__(self, local: LocalSettings) -> None:
        self.most = local.steps

    def start(self, w: torch.Tensor, plan: RoundPlan) -> State:
        """Return a count of 0."""
        return {"count": torch.zeros(())}

    def step(
        self,
        state: State,
        w: torch.Tensor,
        gradient: torch.Tensor,
        add_noise: NoiseAdder,
        plan: RoundPlan,
    ) -> State:
        """Move all parameters alike; the gradient is there and not used."""
        assert gradient.any()
        assert self.most == plan.steps
        w.sub_(state["count"])
        add_noise(w, 0.5)
        return {"count": state["count"] + 1}


def delta(name: str, plan: RoundPlan = PLAN) -> torch.Tensor:
    """Return the update of a round of four steps."""
    net = build_net(Mlp(features=6, width=9), (1, 4, 4), 3, make_generator(0, "net"), cut=Cut())
    flat, x = FlatNet(net), torch.rand(12, 1, 4, 4, generator=make_generator(1, "x"))
    local = LocalSettings(sampler=name, steps=4, batch_size=6)
    streams = lambda purpose: make_generator(3, purpose)  # noqa: E731
    labels = torch.arange(12) % 3
    return train_one(
        flat, flat.vector.clone(), Images(x, labels), plan=plan, local=local, streams=streams
    ).delta


def test_a_users_sampler_moves_and_is_given_the_noise() -> None:
    """-(0 + 1 + 2 + 3) for each parameter, and four draws of half the planned deviation of .02."""
    assert torch.allclose(
        delta(f"{__name__}:Counting", PLAN._replace(noise_variance=0.0)), torch.tensor(-6.0)
    )
    noise = delta(f"{__name__}:Counting") + 6
    assert noise.std().item() == pytest.approx(0.5 * 0.02 * 4**0.5, rel=0.1)
    assert not torch.allclose(delta("langevin"), torch.tensor(-6.0))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("math:pi", "cannot be called"),
        ("builtins:repr", "which lacks start or step"),
        ("fedcel.posterior.langevin_step:Langevine", "did you mean 'Langevin'"),
    ],
)
def test_what_is_no_sampler_is_refused(name: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        build_sampler(LocalSettings(sampler=name))


def test_a_typo_is_refused_with_the_right_name() -> None:
    """As every other part."""
    with pytest.raises(SettingsError, match=r"local.sampler is 'langevine', must be 'langevin' or"):
        parse_settings({"local.sampler": "langevine"})
