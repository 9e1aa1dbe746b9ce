"""Private answers: each protects the INPUT of one query against whoever reads the answer."""

from fedcel.privacy.mechanism import clip, perturb, private_logits, sensitivity
from fedcel.privacy.utility import utility

__all__ = ["clip", "perturb", "private_logits", "sensitivity", "utility"]
