"""Flat parameters of one net or of copies for several clients, each of which is the net itself."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcel.errors import NetError, StackingError
from fedcel.nets import Cut, FlatNet, Mlp, NetSettings, SplitNet, build_net, to_arrays, to_vector
from fedcel.posterior.predict import apply_heads
from fedcel.torch_state import make_generator

CLIENTS, IMAGES = 3, 5


class Scaled(nn.Linear):
    """A linear layer that is more than one."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Smoothed(nn.Linear):
    """A head with a potential of its own."""

    def potential(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy, and a little of the weights."""
        return cross_entropy(logits, y) + 0.1 * self.weight.square().sum()


class Reversed(nn.Flatten):
    """A flattening that is more than one."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flip(1)


def hooked() -> nn.Module:
    """A linear layer whose outputs a hook cuts off."""
    layer = nn.Linear(16, 6)
    layer.register_forward_hook(lambda module, inputs, outputs: outputs.clamp(-0.1, 0.1))
    return nn.Sequential(nn.Flatten(), layer)


class Viewing(nn.Module):
    """A convolution whose outputs are seen as rows, which one memory layout refuses."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolution, self.outputs = nn.Conv2d(1, 4, 3, padding=1), nn.LazyLinear(outputs)
        self.inputs = inputs

    def forward(self, x: Tensor) -> Tensor:
        x = self.convolution(x.view(len(x), 1, self.inputs, self.inputs))
        result: Tensor = self.outputs(x.view(len(x), -1))
        return result


def test_layers_that_view_their_inputs() -> None:
    """An encoder in bfloat16, and a head of sampled nets, in the layout that they take."""
    encoder, head = Viewing(4, 9), Viewing(3, 5)
    images = torch.rand(6, 1, 4, 4)
    with torch.no_grad():
        logits = head(encoder(images))
    flat = FlatNet(SplitNet(encoder, head, Cut(0.1), 9), 1, torch.bfloat16)
    features = flat.encode(images[None])[0]
    torch.testing.assert_close(features, encoder(images), atol=0.05, rtol=0.05)
    sampled = apply_heads(flat, [flat.vector.clone()], encoder(images).detach())
    torch.testing.assert_close(sampled[0], logits.log_softmax(1), atol=1e-5, rtol=1e-5)


def repeated() -> nn.Module:
    """One activation in two places."""
    bend = nn.Tanh()
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), bend, nn.Linear(6, 6), bend)


HALVES: dict[str, Callable[[], nn.Module]] = {
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 9), nn.ReLU(), nn.Linear(9, 6)),
    "no bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 6, bias=False), nn.Sigmoid()),
    "subclass": lambda: nn.Sequential(nn.Flatten(), Scaled(16, 6)),
    "repeated": repeated,
    "flattened otherwise": lambda: nn.Sequential(Reversed(), nn.Linear(16, 6)),
    "hook": hooked,
    "rows": lambda: nn.Sequential(nn.Linear(4, 3), nn.GELU(), nn.Flatten(), nn.Linear(12, 6)),
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 6)
    ),
}


def make_net(half: str = "dense", head: type[nn.Linear] = nn.Linear) -> SplitNet:
    """Return a small net cut behind one of the encoders."""
    torch.manual_seed(0)
    return SplitNet(HALVES[half](), head(6, 4), Cut(0.1), 6)


def test_vector_and_gradient_are_the_nets_own() -> None:
    """A write to the vector is seen by the net, a backward pass by the gradient."""
    flat = FlatNet(build_net(Mlp(features=4, width=5), (1, 2, 2), 3, make_generator(0, "net")))
    flat.load(torch.zeros_like(flat.vector))
    x = torch.rand(2, 1, 2, 2)
    assert not flat.net.answer(flat.net.encode(x)).any()
    flat.load(torch.full_like(flat.vector, 0.1))
    loss = flat.net.answer(flat.net.encode(x)).square().sum()
    by_hand = torch.autograd.grad(loss, list(flat.net.parameters()), retain_graph=True)
    gradient = flat.gradient(loss.unsqueeze(0))[0]
    assert torch.equal(gradient, torch.cat([part.flatten() for part in by_hand]))
    assert gradient.any()
    assert flat.device_size == sum(p.numel() for p in flat.net.encoder.parameters())
    assert torch.equal(flat.vectors, flat.vector[None])


@pytest.mark.parametrize("count", [1, CLIENTS])
@pytest.mark.parametrize("head", [nn.Linear, Smoothed], ids=["cross-entropy", "own potential"])
@pytest.mark.parametrize("name", HALVES)
def test_each_row_computes_what_the_net_would(name: str, head: type[nn.Linear], count: int) -> None:
    """Features, logits, potential and gradient; a second pass does not add to the first."""
    net, nets = make_net(name, head), FlatNet(make_net(name, head), count)
    vectors = torch.randn(count, nets.vectors.shape[1]) / 3
    x, y = torch.rand(count, IMAGES, 1, 4, 4), torch.randint(0, 4, (count, IMAGES))
    nets.load(vectors)
    for _ in range(2):
        z = nets.encode(x)
        logits = nets.answer(z)
        potentials = nets.potential(z, y)
        gradients = nets.gradient(potentials)
    for k in range(count):
        nn.utils.vector_to_parameters(vectors[k], net.parameters())
        own_z = net.encode(x[k])
        own_logits = net.answer(own_z)
        potential = net.potential(own_logits, y[k])
        own_gradient = torch.autograd.grad(potential, list(net.parameters()))
        torch.testing.assert_close(z[k], own_z)
        torch.testing.assert_close(logits[k], own_logits)
        torch.testing.assert_close(potentials[k], potential)
        by_hand = torch.cat([part.flatten() for part in own_gradient])
        torch.testing.assert_close(gradients[k], by_hand)
        assert by_hand.abs().max() > 0


def test_copies_leave_the_net_as_it_is_and_one_takes_it_over() -> None:
    """Of one copy the parameters are views of its row; `load` gives a vector to every copy."""
    net = make_net()
    before = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
    nets = FlatNet(net, CLIENTS)
    nets.load(torch.ones_like(before))
    assert torch.equal(nets.vectors, torch.ones(CLIENTS, len(before)))
    assert torch.equal(nn.utils.parameters_to_vector(net.parameters()), before)
    flat = FlatNet(net)
    assert torch.equal(flat.vector, before)
    flat.load(torch.ones_like(before))
    assert nn.utils.parameters_to_vector(net.parameters()).eq(1).all()
    assert (nets.count, flat.count) == (CLIENTS, 1)


@pytest.mark.parametrize("count", [1, CLIENTS])
def test_a_copy_elsewhere_has_memory_of_its_own(count: int) -> None:
    """Of a single one the values, too; the first stays as it is."""
    flat = FlatNet(make_net())
    before = flat.vector.clone()
    copies = flat.copy_to(torch.device("cpu"), count)
    assert copies.vectors.shape == (count, len(before))
    if count == 1:
        assert torch.equal(copies.vector, before)
    copies.load(torch.zeros_like(before))
    losses = copies.answer(copies.encode(torch.ones(count, 2, 1, 4, 4))).sum((1, 2))
    assert copies.gradient(losses).any()
    assert torch.equal(flat.vector, before)
    assert all(
        parameter.grad is None or not parameter.grad.any() for parameter in flat.net.parameters()
    )


@pytest.mark.parametrize("count", [1, CLIENTS])
def test_a_head_alone_has_the_only_gradient(count: int) -> None:
    """Features that are given leave the encoder's gradient at 0, whatever it was before."""
    nets = FlatNet(make_net(), count)
    nets.load(torch.randn_like(nets.vector) / 3)
    y = torch.randint(0, 4, (count, IMAGES))
    encoded = nets.encode(torch.rand(count, IMAGES, 1, 4, 4))
    for z, has_encoder in ((encoded, True), (torch.rand(count, IMAGES, 6), False)):
        gradients = nets.gradient(nets.potential(z, y))
        assert gradients[:, : nets.device_size].any() == has_encoder
        assert gradients[:, nets.device_size :].any()


@pytest.mark.parametrize("count", [1, CLIENTS])
def test_what_is_frozen_gathers_no_gradient(count: int) -> None:
    """A parameter with `requires_grad=False` stays so in every copy."""
    net = make_net()
    next(net.encoder.parameters()).requires_grad_(False)
    nets = FlatNet(net, count)
    nets.load(torch.randn_like(nets.vector) / 3)
    answers = nets.answer(nets.encode(torch.rand(count, 2, 1, 4, 4)))
    gradients, frozen = nets.gradient(answers.sum((1, 2))), 16 * 9
    assert not gradients[:, :frozen].any()
    assert gradients[:, frozen : nets.device_size].any()


@pytest.mark.parametrize("is_within", [True, False], ids=["in a half", "of both halves"])
def test_layers_that_share_parameters_are_refused(is_within: bool) -> None:
    """Under a second name there is no row for them; a single copy has the net's own."""
    shared = nn.Linear(16, 16)
    layers = [shared, nn.ReLU(), shared] if is_within else [shared]
    head = nn.Linear(16, 4) if is_within else shared
    net = SplitNet(nn.Sequential(nn.Flatten(), *layers), head, Cut(0.1), 16)
    with pytest.raises(StackingError, match="share parameters"):
        FlatNet(net, CLIENTS)
    x = torch.rand(2, 1, 4, 4)
    expected = net.answer(net.encode(x)).detach().clone()
    flat = FlatNet(net)
    assert torch.equal(flat.answer(flat.encode(x[None]))[0], expected)


def test_arrays_round_trip_and_are_copies() -> None:
    """What travels does not change when the net does."""
    vector = torch.arange(10.0)
    arrays = to_arrays(vector, [(2, 3), (4,)])
    assert [array.shape for array in arrays] == [(2, 3), (4,)]
    vector.zero_()
    np.testing.assert_array_equal(arrays[1], [6, 7, 8, 9])
    assert torch.equal(to_vector(arrays), torch.arange(10.0))


def test_a_net_without_parameters_is_refused() -> None:
    """There is nothing to average; nor is there one vector of several dtypes."""
    with pytest.raises(NetError, match="needs parameters"):
        FlatNet(SplitNet(nn.Flatten(), nn.Identity(), Cut(0.1), 4))
    mixed = make_net()
    mixed.head.double()
    with pytest.raises(NetError, match="all of one dtype"):
        FlatNet(mixed)


@pytest.mark.parametrize("count", [1, CLIENTS])
def test_lower_precision(count: int) -> None:
    """Convolutions and products in bfloat16; features, answers and gradients in float32, near."""
    settings = NetSettings.model_validate({"name": "cnn", "features": 8})
    nets = [
        FlatNet(build_net(settings, (1, 8, 8), 3, make_generator(0, "net")), count, precision)
        for precision in (torch.float32, torch.bfloat16)
    ]
    start = FlatNet(build_net(settings, (1, 8, 8), 3, make_generator(1, "net"))).vector.clone()
    x = torch.rand(count, IMAGES, 1, 8, 8, generator=make_generator(2, "x"))
    y = torch.arange(IMAGES).expand(count, -1) % 3
    results = []
    for flat in nets:
        flat.load(start)
        z = flat.encode(x)
        gradients = flat.gradient(flat.potential(z, y))
        assert z.dtype == flat.answer(z).dtype == gradients.dtype == torch.float32
        results.append((z.detach(), gradients.clone()))
    (full, full_gradients), (half, half_gradients) = results
    assert not torch.equal(full, half)
    torch.testing.assert_close(full, half, atol=0.02, rtol=0.02)
    assert (full_gradients - half_gradients).norm() < 0.3 * full_gradients.norm()


class Shifting(nn.Module):
    """A layer that works in place."""

    def forward(self, x: Tensor) -> Tensor:
        return x.sub_(0.5)


@pytest.mark.parametrize("count", [1, CLIENTS])
def test_an_encoder_that_works_in_place_changes_no_image(count: int) -> None:
    """A client's images are read again in every round."""
    encoder = nn.Sequential(Shifting(), nn.Flatten(), nn.Linear(16, 6))
    flat = FlatNet(SplitNet(encoder, nn.Linear(6, 3), Cut(0.0), 6), count)
    if count > 1:
        flat.load(torch.zeros(flat.vectors.shape[1]))
    images = torch.rand(count, IMAGES, 1, 4, 4)
    before = images.clone()
    flat.encode(images)
    assert torch.equal(images, before)
