"""What every defence that acts in training must hold."""

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import DivergedError, SettingsError
from fedcel.losses.cel import State
from fedcel.losses.defences import Defence

SHAPE, FEATURES = (1, 4, 4), 4


class Sent(NamedTuple):
    """Images, their smashed data, and the noise between these and the messages."""

    x: Float[Tensor, "B C H W"]
    z: Float[Tensor, "B D"]
    xi: Float[Tensor, "B D"]


def make_sent(seed: int, count: int = 12) -> Sent:
    """Return images (count, 1, 4, 4) in [0, 1], normal codes (count, 4) and noise of sd 0.1."""
    generator = torch.Generator().manual_seed(seed)
    z, xi = torch.randn(2, count, FEATURES, generator=generator)
    return Sent(torch.rand(count, *SHAPE, generator=generator), z, 0.1 * xi)


def copy_state(state: State) -> State:
    """Return the state as it comes back from a file."""
    arrays = {name: tensor.detach().numpy().copy() for name, tensor in state.items()}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


class DefenceContract:
    """Name your subclass `TestMine`, define `build`; pytest runs the rest."""

    def build(self) -> Defence:
        """Return your defence of images (1, 4, 4) with 4 features."""
        raise NotImplementedError

    def state(self) -> State:
        """Return the state that a client would start with."""
        return self.build().refresh(None, torch.Generator().manual_seed(3))

    def evaluate(self, state: State, batch: Sent) -> tuple[Float[Tensor, ""], Float[Tensor, "B D"]]:
        """Return the loss and its gradient at z, after checking all that holds for any batch."""
        z = batch.z.detach().clone().requires_grad_()
        term = self.build().loss(state, batch.x, z, z + batch.xi)
        (slope,) = torch.autograd.grad(term.loss, z)
        assert term.loss.shape == ()
        assert term.loss.isfinite()
        assert slope.isfinite().all()
        for name, value in term.metrics.items():
            assert value.shape == (), name
            assert value.isfinite(), name
            assert not value.requires_grad, name
        bare = self.build().loss(state, batch.x, z, z + batch.xi, measure=False)
        assert torch.equal(bare.loss, term.loss)
        assert not bare.metrics
        return term.loss.detach(), slope

    def test_scalar_gradient_repeatable(self) -> None:
        """Scalar; every code has a gradient; the same bits twice, state included."""
        loss, slope = self.evaluate(self.state(), make_sent(7))
        again = self.evaluate(self.state(), make_sent(7))
        assert slope.any(1).all()
        assert torch.equal(loss, again[0])
        assert torch.equal(slope, again[1])

    def test_order_does_not_matter(self) -> None:
        """Shuffling a batch changes neither loss nor gradient by more than 1e-5, relatively."""
        batch, state = make_sent(8), self.state()
        order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
        loss, slope = self.evaluate(state, batch)
        moved = self.evaluate(state, Sent(*(part[order] for part in batch)))
        torch.testing.assert_close(moved[0], loss, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(moved[1], slope[order], rtol=1e-4, atol=1e-6)

    def test_batches_with_nothing_to_tell_apart(self) -> None:
        """One image, two equal ones, equal codes of different images: all finite."""
        one, many = make_sent(9, 1), make_sent(10)
        self.evaluate(self.state(), one)
        self.evaluate(self.state(), Sent(*(part.expand(2, *part.shape[1:]) for part in one)))
        self.evaluate(self.state(), many._replace(z=many.z[:1].expand(12, -1)))

    def test_codes_that_are_no_numbers_do_not_pass_for_some(self) -> None:
        """The loss of NaN codes is not finite, or DivergedError says so."""
        batch = make_sent(21)
        z = batch.z.clone()
        z[2, 1] = torch.nan
        with suppress(DivergedError):
            assert not self.build().loss(self.state(), batch.x, z, z + batch.xi).loss.isfinite()

    def test_a_state_of_another_defence_is_refused_or_replaced(self) -> None:
        """SettingsError, or a state that the defence can use."""
        with suppress(SettingsError):
            foreign = {"foreign": torch.ones(3)}
            self.evaluate(
                self.build().refresh(foreign, torch.Generator().manual_seed(3)), make_sent(22)
            )

    def test_loss_leaves_the_state_alone(self) -> None:
        """Neither values nor version of any tensor change, backward pass included."""
        batch, state = make_sent(11), self.state()
        before = {name: (t, t.detach().clone(), t._version) for name, t in state.items()}
        self.backward(state, batch)
        assert state.keys() == before.keys()
        for name, (tensor, value, version) in before.items():
            assert state[name] is tensor, name
            assert tensor._version == version, name
            assert torch.equal(tensor.detach(), value), name

    def backward(self, state: State, batch: Sent) -> None:
        """Let the state's tensors that learn gather their gradient."""
        z = batch.z.detach().clone().requires_grad_()
        torch.autograd.backward(self.build().loss(state, batch.x, z, z + batch.xi).loss)

    def rounds(self, packed: bool) -> Iterator[State]:
        """Yield the state after each of three rounds of two steps, `packed` between rounds."""
        mine, state = self.build(), None
        for seed in range(3):
            known = copy_state(state) if packed and state is not None else state
            state = mine.refresh(known, torch.Generator().manual_seed(seed))
            for step in range(2):
                self.backward(state, make_sent(12 + step))
                state = mine.step(state)
            yield state

    def test_step_takes_the_gradient_once(self) -> None:
        """Without another backward pass a second step changes nothing."""
        for state in self.rounds(packed=False):
            again = self.build().step(state)
            assert again.keys() == state.keys()
            assert all(torch.equal(again[name], state[name]) for name in state)

    def test_state_survives_packing(self) -> None:
        """Finite, contiguous tensors; rounds from arrays end in the same bits."""
        for kept, packed in zip(self.rounds(packed=False), self.rounds(packed=True), strict=True):
            assert kept.keys() == packed.keys()
            for name, tensor in kept.items():
                assert tensor.is_contiguous(), name
                assert tensor.isfinite().all(), name
                assert torch.equal(packed[name], tensor), name
            loss, slope = self.evaluate(kept, make_sent(20))
            again = self.evaluate(copy_state(kept), make_sent(20))
            assert torch.equal(loss, again[0])
            assert torch.equal(slope, again[1])
