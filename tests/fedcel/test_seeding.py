"""Random streams."""

import torch

from fedcel.seeding import make_generator, stream_seed


def test_every_part_of_the_name_counts() -> None:
    """Different purpose, round, client or seed: another stream; the same: the same."""
    names = [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1)]
    assert len({stream_seed(*name) for name in names}) == len(names)
    draws = [torch.rand(4, generator=make_generator(0, "a", 3, 2)) for _ in range(2)]
    assert torch.equal(*draws)


def test_global_state_is_left_alone() -> None:
    """The default generator gives the same number with a stream drawn in between."""
    torch.manual_seed(9)
    first = torch.rand(1)
    torch.manual_seed(9)
    torch.rand(5, generator=make_generator(0, "a"))
    assert torch.equal(first, torch.rand(1))
