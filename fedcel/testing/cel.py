"""What every conditional entropy loss must hold."""

from collections.abc import Callable
from contextlib import suppress

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedcel.errors import DataError, DivergedError, SettingsError
from fedcel.losses import evaluate_term, store_state
from fedcel.losses.cel import CEL_CHECKS, CELCase, ConditionalEntropy, State, split_features
from fedcel.testing.check_names import name_check

FEATURES, CLASSES = 4, 3


def make_features(seed: int, count: int = 24) -> tuple[Float[Tensor, "N D"], Int[Tensor, " N"]]:
    """Return normal features (count, 4) and labels that go round the 3 classes."""
    z = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(seed))
    return z, torch.arange(count) % CLASSES


def make_stream(seed: int = 3) -> torch.Generator:
    """Return a generator."""
    return torch.Generator().manual_seed(seed)


class CELContract:
    """Tests that a conditional entropy loss must pass; see `ConditionalEntropy`.

    Name your subclass `TestMine`, define `build`; pytest runs the rest.

    Attributes:
        shift_invariant: False for a loss that changes when one number is added to all values.
    """

    shift_invariant = True

    def build(self) -> ConditionalEntropy:
        """Make your loss.

        Returns:
            A loss of 4 features and 3 classes; its penalty must not be flat at spread 4.
        """
        raise NotImplementedError

    def init_state(self, z: Float[Tensor, "N D"], y: Int[Tensor, " N"]) -> State:
        """Make the state that a client would start with.

        Args:
            z: All its features (N, 4).
            y: Its labels (N,).

        Returns:
            The state after the first `refresh`.
        """
        return self.build().refresh(None, split_features(z, y), make_stream())

    def evaluate(
        self, state: State, z: Float[Tensor, "B D"], y: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B D"]]:
        """Compute the loss after checking all that holds for any batch.

        Args:
            state: The client's state.
            z: Features of the batch (B, 4).
            y: Labels (B,).

        Returns:
            The loss, and its gradient at z.
        """
        loss, gradient = evaluate_term(
            lambda leaf, measure: self.build().loss(state, leaf, y, measure), z
        )
        assert loss >= 0
        return loss, gradient

    @pytest.mark.parametrize("check", CEL_CHECKS, ids=name_check)
    def test_it_passes_what_every_run_checks(self, check: Callable[[CELCase], None]) -> None:
        """The short form of the contract, to which every run holds a loss of your own."""
        check(CELCase(self.build, FEATURES, CLASSES))

    def test_every_image_has_a_gradient(self) -> None:
        """The features of each, in a batch of several members a class."""
        z, y = make_features(7)
        _, gradient = self.evaluate(self.init_state(z, y), z[:12], y[:12])
        assert gradient.any(1).all()

    def test_the_order_of_a_batch_does_not_matter(self) -> None:
        """Shuffling changes neither loss nor gradient by more than 1e-6, relatively."""
        z, y = make_features(8)
        state, order = self.init_state(z, y), torch.randperm(12, generator=torch.Generator())
        loss, gradient = self.evaluate(state, z[:12], y[:12])
        shuffled = self.evaluate(state, z[order], y[order])
        torch.testing.assert_close(shuffled[0], loss, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(shuffled[1], gradient[order], rtol=1e-5, atol=1e-6)

    def test_a_shift_of_all_features_changes_nothing(self) -> None:
        """One number added to all values, those of the state's examples included."""
        z, y = make_features(9)
        if self.shift_invariant:
            loss, _ = self.evaluate(self.init_state(z, y), z[:12], y[:12])
            shifted, _ = self.evaluate(self.init_state(z + 2, y), z[:12] + 2, y[:12])
            torch.testing.assert_close(shifted, loss, rtol=1e-4, atol=1e-5)

    def test_classes_may_be_absent_or_have_one_member(self) -> None:
        """In the batch, or in the client's data."""
        z, y = make_features(10)
        three_classes, two_classes = self.init_state(z, y), self.init_state(z[y < 2], y[y < 2])
        for chosen in (y == 1, y < 2, (y < 2) | (torch.arange(len(y)) == 2)):
            for state in (three_classes, two_classes):
                assert self.evaluate(state, z[chosen], y[chosen])[0] > 0

    def test_without_a_signal_the_loss_is_exactly_zero(self) -> None:
        """One lone member of a class that the client never had: 0, with a gradient of 0."""
        z, y = make_features(11)
        lone = torch.tensor([2])
        loss, gradient = self.evaluate(self.init_state(z[y < 2], y[y < 2]), z[lone], y[lone])
        assert loss == 0
        assert not gradient.any()

    def test_equal_features_cost_nothing(self) -> None:
        """They have no spread, and a finite gradient."""
        _, y = make_features(12)
        z = torch.full((len(y), FEATURES), 0.3)
        loss, _ = self.evaluate(self.init_state(z, y), z, y)
        assert loss < 1e-6

    def test_labels_that_are_no_class_are_refused(self) -> None:
        """DataError: a negative one would count from the end, the last class would be wrong."""
        z, y = make_features(17)
        state = self.init_state(z, y)
        for wrong in (-1, CLASSES):
            bad = torch.cat([y[:5], torch.tensor([wrong])])
            with pytest.raises(DataError):
                self.build().loss(state, z[:6], bad)
            with suppress(DataError):  # a loss that reads no statistics never sees it there
                self.build().refresh(None, split_features(z[:6], bad), torch.Generator())
            with suppress(DataError):
                self.build().step(state, z[:6], bad)

    def test_undefined_features_are_never_hidden(self) -> None:
        """Of NaN the loss is not finite, or DivergedError says so; a state stays finite."""
        z, y = make_features(18)
        state = self.init_state(z, y)
        for wrong in (torch.nan, torch.inf):
            bad = z.clone()
            bad[2, 1] = wrong
            with suppress(DivergedError):
                assert not self.build().loss(state, bad, y).loss.isfinite()
            with suppress(DivergedError):
                store_state(self.build().refresh(None, split_features(bad, y), torch.Generator()))
            with suppress(DivergedError):
                store_state(self.build().step(state, bad, y))

    def test_a_state_of_another_loss_is_refused_or_replaced(self) -> None:
        """SettingsError, or a state that the loss can use."""
        z, y = make_features(19)
        foreign = {"foreign": torch.ones(3)}
        with suppress(SettingsError):
            self.evaluate(self.build().refresh(foreign, split_features(z, y), make_stream()), z, y)

    def test_one_backward_pass_equals_two(self) -> None:
        """CE + w CEL at once, or the CEL for the encoder, then the CE, merged: 1e-12 apart."""
        images = torch.rand(12, 6, generator=make_stream(15)).double()
        y, weight = torch.arange(12) % CLASSES, 0.3
        encoder = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, FEATURES)).double()
        head, stream = nn.Linear(FEATURES, CLASSES).double(), make_stream(16)
        encoder_parameters = list(encoder.parameters())
        parameters = [*encoder_parameters, *head.parameters()]
        for parameter in parameters:
            nn.init.normal_(parameter, generator=stream)
        z = encoder(images)
        cross_entropy = nn.functional.cross_entropy(head(z), y)
        loss = weight * self.build().loss(self.init_state(z.detach(), y), z, y).loss
        of_cel = torch.autograd.grad(loss, encoder_parameters, retain_graph=True)
        of_task = torch.autograd.grad(cross_entropy, parameters, retain_graph=True)
        merged = [a + b for a, b in zip(of_cel, of_task, strict=False)]
        at_once = torch.autograd.grad(cross_entropy + loss, parameters)
        expected = [*merged, *of_task[len(merged) :]]
        torch.testing.assert_close(list(at_once), expected, rtol=1e-12, atol=1e-12)
