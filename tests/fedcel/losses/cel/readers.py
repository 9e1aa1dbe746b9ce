"""Features in memory, read as those of clients are."""

from collections.abc import Iterator

from torch import Tensor, cat, full_like

from fedcel.losses.protocol import FeatureReader, StackedFeatures


def read_clients(*clients: tuple[Tensor, Tensor], size: int = 1024) -> FeatureReader:
    """Return what yields `size` examples (z, y) of each client at a time, as far as it has any."""

    def read(*_: object) -> Iterator[StackedFeatures]:
        most = max(len(y) for _, y in clients)
        for first in range(0, max(1, most), size):
            parts = [(z[first : first + size], y[first : first + size]) for z, y in clients]
            labels = [y for _, y in parts]
            client = cat([full_like(y, k) for k, y in enumerate(labels)])
            yield StackedFeatures(cat([z for z, _ in parts]), cat(labels), client)

    return read
