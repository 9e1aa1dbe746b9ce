"""What every defence that acts in training must hold."""

from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.losses import evaluate_term, store_state
from fedcel.losses.cel import State
from fedcel.losses.defences import DEFENCE_CHECKS, Defence, DefenceCase, SentBatch
from fedcel.testing.check_names import name_check

SHAPE, FEATURES = (1, 4, 4), 4


def make_batch(seed: int, count: int = 12) -> SentBatch:
    """Return images (count, 1, 4, 4) in [0, 1], normal features (count, 4), noise of sd 0.1."""
    generator = torch.Generator().manual_seed(seed)
    z, xi = torch.randn(2, count, FEATURES, generator=generator)
    return SentBatch(torch.rand(count, *SHAPE, generator=generator), z, 0.1 * xi)


class DefenceContract:
    """Tests that a defence with a loss must pass; see `fedcel.losses.defences.Defence`.

    Name your subclass `TestMine`, define `build`; pytest runs the rest.
    """

    def build(self) -> Defence:
        """Make your defence.

        Returns:
            A defence of images (1, 4, 4) with 4 features.
        """
        raise NotImplementedError

    def init_state(self) -> State:
        """Make the state that a client would start with.

        Returns:
            The state after the first `refresh`.
        """
        return self.build().refresh(None, torch.Generator().manual_seed(3))

    def evaluate(
        self, state: State, batch: SentBatch
    ) -> tuple[Float[Tensor, ""], Float[Tensor, "B D"]]:
        """Compute the loss after checking all that holds for any batch.

        Args:
            state: The client's state.
            batch: What is sent.

        Returns:
            The loss, and its gradient at the features.
        """
        return evaluate_term(
            lambda z, measure: self.build().loss(state, batch.x, z, z + batch.xi, measure), batch.z
        )

    @pytest.mark.parametrize("check", DEFENCE_CHECKS, ids=name_check)
    def test_it_passes_what_every_run_checks(self, check: Callable[[DefenceCase], None]) -> None:
        """The short form of the contract, to which every run holds a defence of your own."""
        check(DefenceCase(self.build, SHAPE, FEATURES))

    def test_every_image_has_a_gradient(self) -> None:
        """The features of each."""
        _, gradient = self.evaluate(self.init_state(), make_batch(7))
        assert gradient.any(1).all()

    def test_the_order_of_a_batch_does_not_matter(self) -> None:
        """Shuffling changes neither loss nor gradient by more than 1e-5, relatively."""
        batch, state = make_batch(8), self.init_state()
        order = torch.randperm(12, generator=torch.Generator().manual_seed(1))
        loss, gradient = self.evaluate(state, batch)
        shuffled = self.evaluate(state, SentBatch(*(part[order] for part in batch)))
        torch.testing.assert_close(shuffled[0], loss, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(shuffled[1], gradient[order], rtol=1e-4, atol=1e-6)

    def test_batches_without_differences_are_finite(self) -> None:
        """One image, two equal ones, equal features of different images."""
        single, batch = make_batch(9, 1), make_batch(10)
        pair = SentBatch(*(part.expand(2, *part.shape[1:]) for part in single))
        equal = batch._replace(z=batch.z[:1].expand(12, -1))
        for sent in (single, pair, equal):
            self.evaluate(self.init_state(), sent)

    def test_a_state_of_another_defence_is_refused_or_replaced(self) -> None:
        """SettingsError, or a state that the defence can use."""
        foreign = {"foreign": torch.ones(3)}
        with suppress(SettingsError):
            state = self.build().refresh(foreign, torch.Generator().manual_seed(3))
            self.evaluate(state, make_batch(22))

    def _run_backward(self, state: State, batch: SentBatch) -> None:
        """Let the state's tensors that learn gather their gradient."""
        z = batch.z.detach().clone().requires_grad_()
        torch.autograd.backward(self.build().loss(state, batch.x, z, z + batch.xi).loss)

    def _run_rounds(self, stored: bool) -> Iterator[State]:
        """Yield the state after each of three rounds of two steps, `stored` between rounds."""
        defence, state = self.build(), None
        for seed in range(3):
            last = store_state(state) if stored and state is not None else state
            state = defence.refresh(last, torch.Generator().manual_seed(seed))
            for step in range(2):
                self._run_backward(state, make_batch(12 + step))
                state = defence.step(state)
            yield state

    def test_step_takes_the_gradient_once(self) -> None:
        """Without another backward pass a second step changes nothing."""
        for state in self._run_rounds(stored=False):
            again = self.build().step(state)
            assert again.keys() == state.keys()
            assert all(torch.equal(again[name], state[name]) for name in state)

    def test_a_stored_state_gives_the_same_bits(self) -> None:
        """Its tensors can be stored; rounds from what is read again end in the same bits."""
        rounds = zip(self._run_rounds(stored=False), self._run_rounds(stored=True), strict=True)
        for state, restored in rounds:
            assert state.keys() == restored.keys()
            assert all(torch.equal(restored[name], state[name]) for name in state)
            loss, gradient = self.evaluate(state, make_batch(20))
            again = self.evaluate(store_state(state), make_batch(20))
            assert torch.equal(loss, again[0])
            assert torch.equal(gradient, again[1])
