"""Training on a GPU, stood in for by a device that mixes with no other; who uses one."""

import pytest
import torch
from torch import nn

from fedcel import run_parts
from fedcel.data import Images, load_splits
from fedcel.federation import ClientUpdate
from fedcel.losses import ClientLoss, GradientRule, WeightedTerm
from fedcel.losses.cel import CEL
from fedcel.losses.defences import Adversarial, NoPeek
from fedcel.losses.terms import _place_state
from fedcel.nets import FlatNet, Strided, build_net
from fedcel.nets.device import CPU, fast_precision, fastest_device
from fedcel.posterior import RoundPlan
from fedcel.run_parts import build_client_nets, init_net
from fedcel.settings import LocalSettings, parse_settings
from fedcel.torch_state import make_generator, use_full_precision
from tests.fedcel.elsewhere import ELSEWHERE, Elsewhere, pretended
from tests.fedcel.losses.single import bind_rival, single, to_term
from tests.fedcel.train_one import train_one

SHAPE, CLASSES, FEATURES = (1, 8, 8), 3, 6
NET = Strided(features=FEATURES, width=9, noise=0.3)
PLAN = RoundPlan(0.1, 0.1, 0.1, 0.01**2, False, 1.0)
LOSSES = {
    "plain": {},
    "cluster": {"clusters": 2},
    "gated": {},
    "hybrid": {"clusters": 2},
    "mutual-information": {},
}


def build(name: str) -> ClientLoss:
    """Return a loss by its kind and what else is set."""
    settings = CEL.model_validate({"kind": name.split()[0]} | LOSSES[name])
    return single(settings, CLASSES, FEATURES, 0.3)


def test_the_stand_in_refuses_what_a_gpu_refuses() -> None:
    """Two devices, even for a number that lives there, and random numbers of its own."""
    with Elsewhere():
        far, number = torch.ones(3).to(ELSEWHERE), torch.tensor(2.0).to(ELSEWHERE)
        for mixed in (
            lambda: far + torch.ones(3),
            lambda: number * torch.ones(3),
            lambda: torch.stack([number, torch.tensor(1.0)]),
            lambda: torch.rand(3, device=ELSEWHERE),
        ):
            with pytest.raises(RuntimeError, match="of (tensors of two devices|another device's)"):
                mixed()
        assert (far * torch.tensor(2.0)).tolist() == [2, 2, 2]
        assert (far * number)[torch.tensor([0])].tolist() == [2]


def weighted_cel(name: str, clip: float | None = 1.0) -> WeightedTerm:
    """Return a loss as a term of weight 1."""
    return WeightedTerm("cel", to_term(build(name)), 1.0, GradientRule(clip))


def build_flat() -> FlatNet:
    return FlatNet(build_net(NET, SHAPE, CLASSES, make_generator(0, "net")))


def make_images() -> Images:
    stream = make_generator(1, "data")
    return Images(torch.rand(24, *SHAPE, generator=stream), torch.arange(24) % CLASSES)


def update(
    *terms: WeightedTerm, device: torch.device = CPU, plan: RoundPlan = PLAN
) -> ClientUpdate:
    """Return one client's round of a convolutional net, everything on that can be."""
    flat = build_flat()
    received = flat.vector.clone()
    augment = "none" if plan.is_encoder_frozen else "affine,flip"  # as a schedule plans it
    return train_one(
        flat if device == CPU else flat.copy_to(device),
        received,
        make_images(),
        plan=plan,
        local=LocalSettings(steps=6, batch_size=12, augment=augment, balance=True, clip=1.0),
        streams=lambda p: make_generator(3, p),
        terms=terms,
    )


def same(here: ClientUpdate, there: ClientUpdate) -> None:
    """The whole of a round is on the processor, every number alike."""
    assert there.delta.device == CPU
    assert torch.equal(here.delta, there.delta)
    assert here.delta.abs().max() > 0
    assert here.metrics == there.metrics
    assert here.state.keys() == there.state.keys()
    for name, part in here.state.items():
        assert there.state[name].device == CPU
        assert torch.equal(part, there.state[name]), name


@pytest.mark.parametrize("defence", [NoPeek(), Adversarial()], ids=["nopeek", "adversarial"])
def test_defences_elsewhere(defence: NoPeek | Adversarial) -> None:
    bound = bind_rival(defence, features=FEATURES, image=SHAPE)
    term = WeightedTerm("defence", to_term(bound), 1.0)
    here = update(term)
    with Elsewhere():
        same(here, update(term, device=ELSEWHERE))


def test_a_frozen_encoder_elsewhere() -> None:
    """Images are encoded there once, the head alone moves."""
    plan = PLAN._replace(is_encoder_frozen=True)
    here = update(plan=plan)
    with Elsewhere():
        same(here, update(plan=plan, device=ELSEWHERE))


@pytest.mark.parametrize("count", [1, 3])
def test_clients_train_where_pytorch_finds_a_gpu(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their nets are made there, with memory of their own; without one they are here."""
    settings = parse_settings({"net.name": "cnn", "seed": count})
    build_client_nets.cache_clear()
    with pretended(monkeypatch, run_parts):
        there = build_client_nets(settings, count)
        assert there.vectors.device == ELSEWHERE
        assert there._gradients.device == ELSEWHERE
        assert there.vectors.shape[0] == count
    build_client_nets.cache_clear()
    here = build_client_nets(settings, count)
    assert here.vectors.device == CPU
    assert here.vectors.shape == there.vectors.shape


def test_dense_nets_stay_on_the_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever there is; convolutions go where PyTorch sees a GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert fastest_device(nn.Linear(2, 2)) == CPU
    assert fastest_device(nn.Sequential(nn.Conv2d(1, 1, 3))).type == "cuda"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert fastest_device(nn.Sequential(nn.Conv2d(1, 1, 3))) == CPU


def test_convolutions_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor with units for it alone; a GPU's are not used, nor those of dense nets."""
    dense, net = nn.Linear(2, 2), nn.Sequential(nn.Conv2d(1, 1, 3))
    for unit, expected in (("avx512_bf16", torch.bfloat16), ("avx2", torch.float32)):
        units = {unit: True}
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda units=units: units, raising=False)
        assert fast_precision(net, CPU) == expected and fast_precision(dense, CPU) == torch.float32
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    for name, expected in (("mlp", torch.float32), ("cnn", torch.bfloat16)):
        settings = parse_settings({"net.name": name, "local.precision": "auto"})
        splits = load_splits(settings.data, settings.clients, settings.seed)
        assert init_net(settings, splits).precision == expected
    assert fast_precision(net, torch.device("cuda")) == torch.float32
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # an older PyTorch
    assert fast_precision(net, CPU) == torch.float32


def test_what_learns_goes_on_learning_elsewhere() -> None:
    """As a leaf of its own; a state that is there already keeps its tensors."""
    theta = torch.ones(3, requires_grad=True)
    state = {"theta": theta, "t": torch.tensor(1)}
    moved = _place_state(state, ELSEWHERE)
    assert moved["theta"].is_leaf
    assert moved["theta"].requires_grad
    assert not moved["t"].requires_grad
    assert all(part.device == ELSEWHERE for part in moved.values())
    assert _place_state(state, CPU)["theta"] is theta


def test_full_precision_puts_the_flags_back() -> None:
    """And keeps the library switched on."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, cudnn.enabled, cudnn.deterministic
    with use_full_precision():
        assert (cudnn.allow_tf32, cudnn.enabled, cudnn.deterministic) == (False, True, True)
    assert (cudnn.allow_tf32, cudnn.enabled, cudnn.deterministic) == before
