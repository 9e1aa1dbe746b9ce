"""Groups of messages that show nearly the same: frames of a scene, pictures of a person.

What one message may tell is measured, and several of nearly the same image tell more: never more
than the sum, which is what is charged to their group. The caller names the group, or the nearest
earlier message decides, by the distance of features in units of the noise.
"""

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor

NearDuplicatePolicy = Literal["count", "refuse", "reuse"]
"""Policy for an image that is nearly an earlier one: it is charged to its group; nothing is
sent; the earlier message is sent again, whose answer is known and which tells nothing new."""
Basis = Literal["caller", "nearest", "alone", "repeat", "encoded-anew"]


class GroupCharge(NamedTuple):
    """Group that a message is charged to, and what that has told with it."""

    basis: Basis
    """Reason for its group: the caller named it; the nearest earlier message; none, so it is alone;
    it is the very message that was sent before; or its image was sent before, by the
    encoder of an earlier model version."""
    messages: int
    """Distinct messages of the group, this one included."""
    bits: float
    """Bits beyond the label that they may have told together, at most."""
    distance: float | None
    """To the nearest earlier message, in standard deviations of the noise; None: there is none, or
    no noise."""

    def __str__(self) -> str:
        """Return the assumption in words."""
        assumed = {
            "caller": "the caller named its group",
            "nearest": f"it is {self.distance or 0:.2f} sigma from an earlier message",
            "alone": "no message of this process is as near, and no group was named",
            "repeat": "it was sent before",
            "encoded-anew": "its image was sent before, by an earlier encoder",
        }[self.basis]
        return (
            f"message {self.messages} of its group, up to {self.bits:.2f} bits together: {assumed}"
        )


class EarlierMessage(NamedTuple):
    """A message that left, with the features behind it, which stay here."""

    features: Float[Tensor, " D"]
    """In units of the noise."""
    group: bytes
    content: bytes


@final
@dataclass
class MessageGroups:
    """The messages of this process; features are kept in memory only.

    They say more of an image than its message does, so they are not written down: after a restart
    near-duplicates of earlier images are known only by the group that the caller names.
    """

    radius: float
    """Messages at most so many standard deviations apart show nearly the same."""
    earlier: list[EarlierMessage] = field(default_factory=list, repr=False)
    _first_of_group: dict[bytes, EarlierMessage] = field(
        default_factory=dict, init=False, repr=False
    )

    def find_nearest(self, features: Float[Tensor, " D"]) -> tuple[EarlierMessage, float] | None:
        """Return the nearest earlier message and its distance, None before the first one."""
        if not self.earlier:
            return None
        distances = (torch.stack([m.features for m in self.earlier]) - features).norm(dim=1)
        place = int(distances.argmin())
        return self.earlier[place], float(distances[place])

    def find_group(self, group: bytes) -> EarlierMessage | None:
        """Return the first message of a group, None where this process sent none."""
        return self._first_of_group.get(group)

    def remember(self, message: EarlierMessage) -> None:
        """Keep a message that is about to leave."""
        self.earlier.append(message)
        self._first_of_group.setdefault(message.group, message)
