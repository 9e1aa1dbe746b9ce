"""Split networks: encoder, cut and head; their parameters as one vector; what they cost."""

from fedcel.nets.cut import Cut
from fedcel.nets.flat_parameters import FlatNet, to_arrays, to_vector
from fedcel.nets.inference_cost import Cost, measure_cost
from fedcel.nets.split_net import SplitNet, build_net

__all__ = [
    "Cost",
    "Cut",
    "FlatNet",
    "SplitNet",
    "build_net",
    "measure_cost",
    "to_arrays",
    "to_vector",
]
