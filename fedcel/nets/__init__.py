"""Split networks: encoder, cut and head; their parameters as one vector; what they cost."""

from fedcel.nets.build_net import build_net, check_layers, initialise_parameters
from fedcel.nets.copy_module import copy_module
from fedcel.nets.cut import Cut, apply_noise
from fedcel.nets.device import CPU, fastest_device
from fedcel.nets.encode_images import (
    Encoder,
    as_module,
    call_encoder,
    encode_images,
    find_module,
    split_outputs,
    switch_to_evaluation,
)
from fedcel.nets.flat_net import FlatNet, to_arrays, to_vector
from fedcel.nets.inference_cost import InferenceCost, measure_cost
from fedcel.nets.net_contract import NET_TESTS, NetCase
from fedcel.nets.net_faults import find_batch_layers, name_layers
from fedcel.nets.net_settings import (
    Cnn,
    ImportedNet,
    Mlp,
    NetSettings,
    OwnNet,
    Strided,
    Vgg11,
)
from fedcel.nets.noise_scale import NOISE_LIMIT, NoiseScale, NoiseScales, whiten_features
from fedcel.nets.pretrained import fold_batch_norms, keep_parameters
from fedcel.nets.split_net import SplitNet

__all__ = [
    "CPU",
    "NET_TESTS",
    "NOISE_LIMIT",
    "Cnn",
    "Cut",
    "Encoder",
    "FlatNet",
    "ImportedNet",
    "InferenceCost",
    "Mlp",
    "NetCase",
    "NetSettings",
    "NoiseScale",
    "NoiseScales",
    "OwnNet",
    "SplitNet",
    "Strided",
    "Vgg11",
    "apply_noise",
    "as_module",
    "build_net",
    "call_encoder",
    "check_layers",
    "copy_module",
    "encode_images",
    "fastest_device",
    "find_batch_layers",
    "find_module",
    "fold_batch_norms",
    "initialise_parameters",
    "keep_parameters",
    "measure_cost",
    "name_layers",
    "split_outputs",
    "switch_to_evaluation",
    "to_arrays",
    "to_vector",
    "whiten_features",
]
