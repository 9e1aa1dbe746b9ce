"""A strategy: cautious at first, and wary of who pulls the other way."""

import torch
from flwr.app import ArrayRecord, Message

from fedcel.federation import record_names
from fedcel.nets import to_vector
from strategies import PosteriorStrategy

WARM_UP = 3  # rounds until the whole mean delta is taken
MIN_COSINE = -0.5  # with the sliding average


class Wary(PosteriorStrategy):
    """The first rounds take a growing share of the mean delta; opposing deltas are left out.

    Both only while no noise is added: a chain whose updates are picked by their direction, or
    shortened, would sample something else. A client with other data than most pulls the other way
    for a good reason, so MIN_COSINE is far below 0, and the reason given is in the log.
    """

    def fault(self, reply: Message) -> str | None:
        """Say why to leave a reply out, or None."""
        if reason := super().fault(reply):
            return reason
        if self._adds_noise():
            return None
        delta = to_vector(reply.content.array_records[record_names.DELTA].to_numpy_ndarrays())
        cosine = float(torch.cosine_similarity(delta, self.state.average, 0))
        if cosine < MIN_COSINE:
            return f"its cosine with the mean is {cosine:.2f}, must be {MIN_COSINE} or more"
        return None

    def _adds_noise(self) -> bool:
        """Whether clients add Langevin noise in this round."""
        return self.request is not None and self.request.plan.noise_variance > 0

    def step(self, delta: ArrayRecord) -> ArrayRecord:
        """Turn the mean delta into the next model."""
        share = 1.0 if self._adds_noise() else min(1.0, (self.state.round + 1) / WARM_UP)
        arrays = [(share * array).astype(array.dtype) for array in delta.to_numpy_ndarrays()]
        return super().step(ArrayRecord(arrays))
