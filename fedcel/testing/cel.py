"""What every conditional entropy loss must hold."""

from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedcel.errors import DataError, DivergedError, SettingsError
from fedcel.losses.cel import ConditionalEntropy, State, split_features

FEATURES, CLASSES = 4, 3


def make_features(seed: int, count: int = 24) -> tuple[Float[Tensor, "N D"], Int[Tensor, " N"]]:
    """Return normal codes (count, 4) and labels that go round the 3 classes."""
    z = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return z, torch.arange(count) % CLASSES


class CELContract:
    """Name your subclass `TestMine`, define `build`; pytest runs the rest.

    Set `shift_invariant` to False for a loss that changes when one number is added to all values.
    """

    shift_invariant = True

    def build(self) -> ConditionalEntropy:
        """Return your loss for 4 features, 3 classes; its penalty must not be flat at spread 4."""
        raise NotImplementedError

    def state(self, z: Float[Tensor, "N D"], y: Int[Tensor, " N"]) -> State:
        """Return the state that a client of these examples would start with."""
        return self.build().refresh(None, split_features(z, y), torch.Generator().manual_seed(3))

    def evaluate(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B D"]]:
        """Return the loss and its gradient at z, after checking all that holds for any batch."""
        z = z.detach().clone().requires_grad_()
        term = self.build().loss(state, z, y)
        (slope,) = torch.autograd.grad(term.loss, z)
        assert term.loss.shape == ()
        assert 0 <= term.loss < torch.inf
        assert slope.isfinite().all()
        for name, value in term.metrics.items():
            assert value.shape == (), name
            assert value.isfinite(), name
            assert not value.requires_grad, name
        bare = self.build().loss(state, z, y, measure=False)
        assert torch.equal(bare.loss, term.loss)
        assert not bare.metrics
        return term.loss.detach(), slope

    def test_scalar_gradient_repeatable(self) -> None:
        """Scalar >= 0; every code has a gradient; the same bits twice, state included."""
        z, y = make_features(7)
        loss, slope = self.evaluate(self.state(z, y), z[:12], y[:12])
        again = self.evaluate(self.state(z, y), z[:12], y[:12])
        assert slope.any(1).all()
        assert torch.equal(loss, again[0])
        assert torch.equal(slope, again[1])

    def test_order_does_not_matter(self) -> None:
        """Shuffling a batch changes neither loss nor gradient by more than 1e-6, relatively."""
        z, y = make_features(8)
        state, order = self.state(z, y), torch.randperm(12, generator=torch.Generator())
        loss, slope = self.evaluate(state, z[:12], y[:12])
        moved = self.evaluate(state, z[order], y[order])
        torch.testing.assert_close(moved[0], loss, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(moved[1], slope[order], rtol=1e-5, atol=1e-6)

    def test_shift_changes_nothing(self) -> None:
        """One number added to all values, those of the state's examples included."""
        z, y = make_features(9)
        if self.shift_invariant:
            loss, _ = self.evaluate(self.state(z, y), z[:12], y[:12])
            moved, _ = self.evaluate(self.state(z + 2, y), z[:12] + 2, y[:12])
            torch.testing.assert_close(moved, loss, rtol=1e-4, atol=1e-5)

    def test_absent_and_single_classes(self) -> None:
        """Classes may be missing in the batch, in the client's data, or have one member."""
        z, y = make_features(10)
        everything, two = self.state(z, y), self.state(z[y < 2], y[y < 2])
        for chosen in (y == 1, y < 2, (y < 2) | (torch.arange(len(y)) == 2)):
            loss, _ = self.evaluate(everything, z[chosen], y[chosen])
            partial, _ = self.evaluate(two, z[chosen], y[chosen])
            assert min(loss, partial) > 0

    def test_empty_signal_is_exactly_zero(self) -> None:
        """One lone member of a class that the client never had: 0, with a gradient of 0."""
        z, y = make_features(11)
        lone = torch.tensor([2])
        loss, slope = self.evaluate(self.state(z[y < 2], y[y < 2]), z[lone], y[lone])
        assert loss == 0
        assert not slope.any()

    def test_no_variance(self) -> None:
        """Equal codes have no spread and a finite gradient."""
        _, y = make_features(12)
        z = torch.full((len(y), FEATURES), 0.3)
        loss, _ = self.evaluate(self.state(z, y), z, y)
        assert loss < 1e-6

    def test_labels_that_are_no_class_are_refused(self) -> None:
        """DataError: a negative one would count from the end, the last class would be wrong."""
        z, y = make_features(17)
        state = self.state(z, y)
        for wrong in (-1, CLASSES):
            bad = torch.cat([y[:5], torch.tensor([wrong])])
            with pytest.raises(DataError):
                self.build().loss(state, z[:6], bad)
            with suppress(DataError):  # a loss that reads no statistics never sees it there
                self.build().refresh(None, split_features(z[:6], bad), torch.Generator())
            with suppress(DataError):
                self.build().step(state, z[:6], bad)

    def test_codes_that_are_no_numbers_do_not_pass_for_some(self) -> None:
        """The loss is not finite or DivergedError; a state, if there is one, stays finite."""
        z, y = make_features(18)
        state = self.state(z, y)
        for wrong in (torch.nan, torch.inf):
            bad = z.clone()
            bad[2, 1] = wrong
            with suppress(DivergedError):
                assert not self.build().loss(state, bad, y).loss.isfinite()
            with suppress(DivergedError):
                fresh = self.build().refresh(None, split_features(bad, y), torch.Generator())
                assert all(tensor.isfinite().all() for tensor in fresh.values())
            with suppress(DivergedError):
                stepped = self.build().step(state, bad, y)
                assert all(tensor.isfinite().all() for tensor in stepped.values())

    def test_a_state_of_another_loss_is_refused_or_replaced(self) -> None:
        """SettingsError, or a state that the loss can use."""
        z, y = make_features(19)
        foreign = {"foreign": torch.ones(3)}
        with suppress(SettingsError):
            state = self.build().refresh(
                foreign, split_features(z, y), torch.Generator().manual_seed(3)
            )
            self.evaluate(state, z, y)

    def test_loss_leaves_the_state_alone(self) -> None:
        """Neither values nor version of any tensor change, backward pass included."""
        z, y = make_features(13)
        state = self.state(z, y)
        before = {name: (t, t.detach().clone(), t._version) for name, t in state.items()}
        torch.autograd.backward(self.build().loss(state, z.requires_grad_(), y).loss)
        assert state.keys() == before.keys()
        for name, (tensor, value, version) in before.items():
            assert state[name] is tensor, name
            assert tensor._version == version, name
            assert torch.equal(tensor.detach(), value), name

    def test_state_survives_packing(self) -> None:
        """Finite, contiguous tensors; from arrays the same bits, and refresh and step go on."""
        z, y = make_features(14)
        for state in self.rounds(z, y):
            for name, tensor in state.items():
                assert tensor.is_contiguous(), name
                assert tensor.isfinite().all(), name
            arrays = {name: tensor.detach().numpy().copy() for name, tensor in state.items()}
            packed = {name: torch.from_numpy(array) for name, array in arrays.items()}
            loss, slope = self.evaluate(state, z, y)
            again = self.evaluate(packed, z, y)
            assert torch.equal(loss, again[0])
            assert torch.equal(slope, again[1])
            names = self.build().refresh(packed, split_features(z, y), torch.Generator()).keys()
            assert names == state.keys()

    def rounds(self, z: Float[Tensor, "N D"], y: Int[Tensor, " N"]) -> Iterator[State]:
        """Yield the state of three rounds: refresh, loss, backward, step."""
        mine, state = self.build(), None
        for seed in range(3):
            state = mine.refresh(state, split_features(z, y), torch.Generator().manual_seed(seed))
            torch.autograd.backward(mine.loss(state, z.clone().requires_grad_(), y).loss)
            state = mine.step(state, z, y)
            yield state

    def test_one_backward_is_the_two_pass_recipe(self) -> None:
        """CE + w CEL at once, or the CEL for the encoder, then the CE, merged: 1e-12 apart."""
        images = torch.rand(12, 6, generator=torch.Generator().manual_seed(15)).double()
        y, weight = torch.arange(12) % CLASSES, 0.3
        encoder = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, FEATURES)).double()
        head = nn.Linear(FEATURES, CLASSES).double()
        seeded = torch.Generator().manual_seed(16)
        for parameter in [*encoder.parameters(), *head.parameters()]:
            nn.init.normal_(parameter, generator=seeded)
        own, both = list(encoder.parameters()), [*encoder.parameters(), *head.parameters()]
        z = encoder(images)
        cross_entropy = nn.functional.cross_entropy(head(z), y)
        loss = weight * self.build().loss(self.state(z.detach(), y), z, y).loss
        first = torch.autograd.grad(loss, own, retain_graph=True)
        second = torch.autograd.grad(cross_entropy, both, retain_graph=True)
        merged = [a + b for a, b in zip(first, second[: len(own)], strict=True)]
        for one, two in zip(
            torch.autograd.grad(cross_entropy + loss, both),
            [*merged, *second[len(own) :]],
            strict=True,
        ):
            torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)
