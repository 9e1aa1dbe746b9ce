"""What each client holds, as parts of one tensor: a million clients are no million tensors."""

from collections.abc import Sequence
from typing import final, overload

from jaxtyping import Int
from torch import Tensor

from fedcel.data.images import Images

Positions = Int[Tensor, " _"]


@final
class Shares(Sequence[Positions]):
    """Each client's positions in a source, in the order of the clients.

    Args:
        positions: All positions, (N,), one client's after the other's.
        sizes: How many each client has, 0 or more; they add up to N.
    """

    def __init__(self, positions: Positions, sizes: Int[Tensor, " K"]) -> None:
        self.positions, self.sizes = positions, sizes
        self._ends: list[int] = [0, *sizes.cumsum(0).tolist()]

    def __len__(self) -> int:
        """Return how many clients there are."""
        return len(self._ends) - 1

    @overload
    def __getitem__(self, client: int) -> Positions: ...
    @overload
    def __getitem__(self, client: slice) -> Sequence[Positions]: ...
    def __getitem__(self, client: int | slice) -> Positions | Sequence[Positions]:
        """Return one client's positions, or those of several."""
        if isinstance(client, slice):
            return [self[k] for k in range(*client.indices(len(self)))]
        start, end = self.span(client)
        return self.positions[start:end]

    def span(self, client: int) -> tuple[int, int]:
        """Return where a client's part of all positions begins and ends.

        Args:
            client: Its number, from 0; a negative one counts from the end.

        Returns:
            The first place, and the one after the last.

        Raises:
            IndexError: There is no such client.
        """
        count = len(self)
        if not -count <= client < count:
            raise IndexError(f"client {client} of {count}")
        return self._ends[client % count], self._ends[client % count + 1]


@final
class ClientImages(Sequence[Images]):
    """Each client's images, views of all clients' in one tensor.

    Args:
        images: All clients' images, one client's after the other's.
        shares: Whose they are.
    """

    def __init__(self, images: Images, shares: Shares) -> None:
        self.images, self.shares = images, shares

    def __len__(self) -> int:
        """Return how many clients there are."""
        return len(self.shares)

    @overload
    def __getitem__(self, client: int) -> Images: ...
    @overload
    def __getitem__(self, client: slice) -> Sequence[Images]: ...
    def __getitem__(self, client: int | slice) -> Images | Sequence[Images]:
        """Return one client's images, or those of several."""
        if isinstance(client, slice):
            return [self[k] for k in range(*client.indices(len(self)))]
        start, end = self.shares.span(client)
        return Images(self.images.x[start:end], self.images.y[start:end])
