"""Split networks: encoder, cut and head; their parameters as one vector; what they cost."""

from fedcel.nets.cut import Cut, apply_noise
from fedcel.nets.device import CPU, fastest_device, place_state, use_full_precision
from fedcel.nets.flat_parameters import FlatNet, to_arrays, to_vector
from fedcel.nets.inference_cost import Cost, measure_cost
from fedcel.nets.split_net import BUILDERS, SplitNet, build_net, initialise_parameters

__all__ = [
    "BUILDERS",
    "CPU",
    "Cost",
    "Cut",
    "FlatNet",
    "SplitNet",
    "apply_noise",
    "build_net",
    "fastest_device",
    "initialise_parameters",
    "measure_cost",
    "place_state",
    "to_arrays",
    "to_vector",
    "use_full_precision",
]
