"""Sources of images, and who gets which of them."""

from fedcel.data.images import Images
from fedcel.data.node_data import Own, class_names
from fedcel.data.partition import partition
from fedcel.data.sources import Source
from fedcel.data.splits import Indices, Splits, load

__all__ = [
    "Images",
    "Indices",
    "Own",
    "Source",
    "Splits",
    "class_names",
    "load",
    "partition",
]
