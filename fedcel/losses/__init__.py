"""What training minimises beside the task: conditional entropy losses, and rival defences."""

from fedcel.losses.composite import CEL, NOTHING, Batch, Losses, Streams, select_state

__all__ = ["CEL", "NOTHING", "Batch", "Losses", "Streams", "select_state"]
