"""What training minimises beside the task: conditional entropy losses, and rival defences."""

from fedcel.losses.composite import CEL_PREFIX, NO_LOSSES, Batch, Losses, Streams, select_state

__all__ = ["CEL_PREFIX", "NO_LOSSES", "Batch", "Losses", "Streams", "select_state"]
