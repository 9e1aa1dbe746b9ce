"""The server's state between rounds."""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.losses.cel import GoalControl
from fedcel.short_repr import show_shapes


@show_shapes
class ServerState(NamedTuple):
    """All that the next round needs of the server."""

    round: int
    model: Float[Tensor, " P"]
    average: Float[Tensor, " P"]
    """m, the sliding average of deltas."""
    control: GoalControl | None = None
    """The threshold or weight of a loss that follows a goal."""
    examples: Mapping[int, int] | None = None
    """Partition -> N_k, once nodes have told."""
    has_node_data: bool = False
    """Whether a node trained on images that are not the server's to deal."""
    trained: Int[Tensor, " M"] | None = None
    """Positions of the parameters that are trained; None: all are."""
    state_rounds: Mapping[int, int] | None = {}
    """Partition -> the round whose state it starts from, if it keeps one; None: not known, in a
    run that an earlier version began."""

    def find_state_round(self, client: int) -> int | None:
        """Find the round whose state a client starts from: 0: none; None: not known."""
        return None if self.state_rounds is None else self.state_rounds.get(client, 0)

    @property
    def threshold(self) -> float | None:
        """Threshold of the next round; None where it follows no goal."""
        control = self.control
        return control.value if control and control.steered == "threshold" else None

    @property
    def gamma(self) -> float | None:
        """Largest gamma of the next round; None where only the schedule limits it."""
        control = self.control
        return control.value if control and control.steered == "weight" else None


def init_server_state(model: Float[Tensor, " P"]) -> ServerState:
    """Make the state before round 1, where nothing follows a goal.

    Args:
        model: The first parameters, (P,).

    Returns:
        The state.
    """
    return ServerState(0, model.clone(), torch.zeros_like(model))
