"""The memory of earlier smashed data, around every kind of loss."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedcel.errors import SettingsError
from fedcel.losses.cel.gated import Gated
from fedcel.losses.cel.memory_bank import Bank
from fedcel.losses.cel.mutual_information import MutualInformation
from fedcel.losses.cel.penalties import channel_penalty, linear_penalty
from fedcel.losses.cel.plain import Plain
from fedcel.losses.cel.protocol import ConditionalEntropy, State, split_pieces
from fedcel.testing import CELContract

PLAIN = Plain(linear_penalty, "batch-share", 3)


def bank(size: int, inner: ConditionalEntropy = PLAIN, features: int = 4) -> Bank:
    """Return a bank for 3 classes."""
    return Bank(inner, size, 3, features)


class TestBankOfPlain(CELContract):
    """The contract, around a loss without a state."""

    def build(self) -> ConditionalEntropy:
        """Return the bank."""
        return bank(5)


class TestBankOfGated(CELContract):
    """The contract, around a loss that learns."""

    def build(self) -> ConditionalEntropy:
        """Return the bank."""
        return bank(3, Gated(linear_penalty, "batch-share", 3, 4, "ascend", 0.5, 5, 0.1))


class TestBankOfInformation(CELContract):
    """The contract, around the bound that a small batch caps."""

    def build(self) -> ConditionalEntropy:
        """Return the bank."""
        return bank(8, MutualInformation(1.0, "batch-share", 3))


def filled(mine: Bank, batches: list[tuple[Tensor, Tensor]]) -> State:
    """Return the state after these batches."""
    state = mine.refresh(None, split_pieces(*batches[0]), torch.Generator().manual_seed(0))
    for z, y in batches:
        state = mine.step(state, z, y)
    return state


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32 - 1),
    st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=5),
    st.integers(1, 4),
)
def test_holds_the_last_of_each_class(seed: int, batches: list[list[int]], size: int) -> None:
    """Against a list for each class, cut to its last `size`."""
    generator = torch.Generator().manual_seed(seed)
    pairs = [(torch.randn(len(b), 4, generator=generator), torch.tensor(b)) for b in batches]
    begun = bank(size).refresh(None, split_pieces(*pairs[0]), torch.Generator().manual_seed(0))
    state = filled(bank(size), pairs)
    for c in range(3):
        own = [z[y == c] for z, y in pairs]
        last = torch.cat([begun["codes"][c, : int(begun["seen"][c])], *own])[-size:]
        held = state["codes"][c][: len(last)]
        assert int(state["seen"][c]) == int(begun["seen"][c]) + sum(map(len, own))
        assert sorted(held.tolist()) == sorted(last.tolist())


def test_loss_is_the_inner_one_with_the_bank_as_constants() -> None:
    """Value and gradient at the batch; classes that the batch lacks are left out."""
    generator = torch.Generator().manual_seed(1)
    old, new = torch.randn(9, 4, generator=generator), torch.randn(4, 4, generator=generator)
    y, own = torch.arange(9) % 3, torch.tensor([0, 0, 2, 0])
    inner = Plain(partial(channel_penalty, features=4, sigma=0.5), "batch-share", 3)
    mine = bank(2, inner)
    state = filled(mine, [(old, y)])
    kept = torch.tensor([3, 6, 5, 8])  # the last two of classes 0 and 2
    new.requires_grad_()
    term = mine.loss(state, new, own)
    hand = inner.loss({}, torch.cat([new, old[kept]]), torch.cat([own, y[kept]]))
    torch.testing.assert_close(term.loss, hand.loss)
    torch.testing.assert_close(term.metrics, hand.metrics)
    ours, theirs = (torch.autograd.grad(t.loss, new)[0] for t in (term, hand))
    torch.testing.assert_close(ours, theirs)


def test_a_refresh_leaves_nothing_of_another_encoder() -> None:
    """The ring holds the client's own codes of now: all of a small class, a few of a large one."""
    mine, y = bank(2), torch.tensor([0, 1, 1, 1])
    state = filled(mine, [(torch.full((4, 4), 9.0), y)])
    now = torch.arange(4.0)[:, None].expand(4, 4)
    after = mine.refresh(state, split_pieces(now, y), torch.Generator().manual_seed(1))
    assert after["seen"].tolist() == [1, 2, 0]
    assert after["codes"][0, 0].tolist() == [0.0] * 4
    kept = {float(row[0]) for row in after["codes"][1]}
    assert len(kept) == 2 and kept <= {1.0, 2.0, 3.0}


def test_a_lone_member_meets_its_class_in_the_bank() -> None:
    """A code 2 from an earlier one of its class: a spread of 1 where the batch alone has none."""
    y = torch.tensor([1])
    state = bank(3).refresh(None, split_pieces(torch.zeros(1, 4), y), torch.Generator())
    z = torch.tensor([[2.0, 0, 0, 0]])
    assert PLAIN.loss({}, z, y).loss == 0
    assert bank(3).loss(state, z, y).loss == 1


def test_gradcheck() -> None:
    """Through an attention that sees batch and bank."""
    generator = torch.Generator().manual_seed(2)
    mine = bank(3, Gated(linear_penalty, "batch-share", 3, 4, "minimise", 0.5, 5, 0.1, 0.0, True))
    z, y = torch.randn(9, 4, generator=generator).double(), torch.arange(9) % 3
    state = filled(mine, [(z, y)])
    later = (z + 0.3).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: mine.loss(state, z, y).loss, later)


def test_the_inner_attention_learns() -> None:
    """Its gradient arrives through the bank's loss and its step is taken."""
    mine = bank(3, Gated(linear_penalty, "batch-share", 3, 4, "ascend", 0.5, 5, 0.1))
    z, y = torch.randn(9, 4, generator=torch.Generator().manual_seed(3)), torch.arange(9) % 3
    state = filled(mine, [(z, y)])
    torch.autograd.backward(mine.loss(state, z, y).loss)
    after = mine.step(state, z, y)
    assert not torch.equal(after["inner.theta"], state["inner.theta"])


def test_step_leaves_the_old_state_alone() -> None:
    """The ring is copied, not written into."""
    z, y = torch.ones(2, 4), torch.tensor([0, 1])
    state = filled(bank(2), [(z, y)])
    before = state["codes"].clone()
    bank(2).step(state, 2 * z, y)
    assert torch.equal(state["codes"], before)


def test_another_shape_is_refused() -> None:
    """Both shapes are named."""
    z, y = torch.zeros(2, 4), torch.tensor([0, 1])
    state = filled(bank(2), [(z, y)])
    for other in (bank(3), bank(2, features=6)):
        with pytest.raises(SettingsError, match=r"\(3, 2, 4\), must be \(3, (3, 4|2, 6)\)"):
            other.refresh(state, split_pieces(z, y), torch.Generator())
