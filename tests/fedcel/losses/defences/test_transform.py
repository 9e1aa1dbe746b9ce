"""A user's defence that changes what is sent: part of the encoder for all who know it."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fedcel.data import load_splits
from fedcel.errors import PluginError
from fedcel.leakage import SmashedData
from fedcel.losses import Batch, ClientLoss, ClientLossTerm
from fedcel.losses.protocol import CutShape, State, Term
from fedcel.nets import BoundMethod
from fedcel.run_parts import init_net
from fedcel.settings import Settings, parse_settings

SHAPE = (1, 8, 8)


class Halves:
    """Sends every value halved."""

    def __init__(self, settings: Settings, shape: tuple[int, ...]) -> None:
        self.factor = settings.defence.strength

    def transform(self, z: Tensor) -> Tensor:
        return self.factor * z


class Both(Halves, ClientLoss):
    """A transform with a loss."""

    def loss(self, state: State, batch: Batch, measure: bool = True) -> Term:
        return Term(batch.z.square().mean(), {})


def change(transform: Callable[[Tensor], Tensor]) -> type[Halves]:
    """Return a transform that breaks a rule."""
    return type("Changed", (Halves,), {"transform": lambda self, z: transform(z)})


COUNTER = torch.Generator()
narrow, infinite = change(lambda z: z[:, :3]), change(lambda z: z / 0)
batch, flat = change(lambda z: z - z.mean(0)), change(lambda z: z.round().detach())
random = change(lambda z: z + torch.rand(z.shape, generator=COUNTER))


def named(name: str) -> Settings:
    keys = {"defence.name": f"{__name__}:{name}", "defence.strength": 0.5, "net.noise": 0.1}
    return parse_settings({**keys, "clients": 2})


def bind(s: Settings) -> object:
    term = s.defence.make_term(CutShape(10, s.net.features, 0.1, image=SHAPE), s)
    return None if term is None else term.term


def test_what_is_sent_is_transformed_for_everybody() -> None:
    """The net of a run, and the attacker's likelihood, which peaks at the transformed features."""
    s = named("Halves")
    splits = load_splits(s.data, s.clients, s.seed)
    plain = init_net(s.model_copy(update={"defence": parse_settings({}).defence}), splits)
    changed = init_net(s, splits)
    x = splits.test.x[:3]
    assert torch.equal(changed.vector, plain.vector)
    assert torch.equal(changed.net.encode(x), 0.5 * plain.net.encode(x))
    law = SmashedData(changed.net).law_of(x)(0.5 * plain.net.encode(x).detach())
    assert law.argmax(1).tolist() == [0, 1, 2]
    assert torch.equal(law.diagonal(), torch.zeros(3).double())
    assert bind(s) is None


def test_a_transform_may_bring_a_loss() -> None:
    """The same object is asked for both."""
    s = named("Both")
    assert isinstance(bind(s), ClientLossTerm)
    net = init_net(s, load_splits(s.data, s.clients, s.seed)).net
    assert BoundMethod in map(type, net.encoder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("narrow", r"turned \(4, 64\) .* into \(4, 3\)"),
        ("infinite", "as many finite values.*, not finite"),
        ("batch", "not changed the same way again, or alone"),
        ("random", "draw nothing: the cut adds the noise"),
        ("flat", r"return z \+ \(changed - z\).detach\(\)"),
    ],
)
def test_a_transform_that_breaks_a_rule_is_refused(name: str, message: str) -> None:
    """Before a run begins, with the rule."""
    s = named(name)
    with pytest.raises(PluginError, match=message):
        init_net(s, load_splits(s.data, s.clients, s.seed))
