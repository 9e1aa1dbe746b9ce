"""Split networks: encoder, cut and head; their parameters as one vector; what they cost."""

from fedcel.lazy import list_names as _list_names
from fedcel.nets.build_net import build_net as build_net
from fedcel.nets.build_net import check_layers as check_layers
from fedcel.nets.build_net import initialise_parameters as initialise_parameters
from fedcel.nets.copy_module import copy_module as copy_module
from fedcel.nets.cut import Cut as Cut
from fedcel.nets.cut import apply_noise as apply_noise
from fedcel.nets.device import CPU as CPU
from fedcel.nets.device import fastest_device as fastest_device
from fedcel.nets.encode_images import Encoder as Encoder
from fedcel.nets.encode_images import as_module as as_module
from fedcel.nets.encode_images import call_encoder as call_encoder
from fedcel.nets.encode_images import encode_images as encode_images
from fedcel.nets.encode_images import find_module as find_module
from fedcel.nets.encode_images import split_outputs as split_outputs
from fedcel.nets.encode_images import switch_to_evaluation as switch_to_evaluation
from fedcel.nets.flat_net import FlatNet as FlatNet
from fedcel.nets.flat_net import to_arrays as to_arrays
from fedcel.nets.flat_net import to_vector as to_vector
from fedcel.nets.inference_cost import InferenceCost as InferenceCost
from fedcel.nets.inference_cost import measure_cost as measure_cost
from fedcel.nets.library_net import LibraryNet as LibraryNet
from fedcel.nets.net_contract import NET_TESTS as NET_TESTS
from fedcel.nets.net_contract import NetCase as NetCase
from fedcel.nets.net_faults import find_batch_layers as find_batch_layers
from fedcel.nets.net_faults import name_layers as name_layers
from fedcel.nets.net_settings import Cnn as Cnn
from fedcel.nets.net_settings import ImportedNet as ImportedNet
from fedcel.nets.net_settings import Mlp as Mlp
from fedcel.nets.net_settings import NetSettings as NetSettings
from fedcel.nets.net_settings import OwnNet as OwnNet
from fedcel.nets.net_settings import Strided as Strided
from fedcel.nets.net_settings import Vgg11 as Vgg11
from fedcel.nets.noise_scale import NOISE_LIMIT as NOISE_LIMIT
from fedcel.nets.noise_scale import NoiseScale as NoiseScale
from fedcel.nets.noise_scale import NoiseScales as NoiseScales
from fedcel.nets.noise_scale import whiten_features as whiten_features
from fedcel.nets.pretrained import fold_batch_norms as fold_batch_norms
from fedcel.nets.pretrained import keep_parameters as keep_parameters
from fedcel.nets.split_model import CutPoint as CutPoint
from fedcel.nets.split_model import list_cuts as list_cuts
from fedcel.nets.split_model import split as split
from fedcel.nets.split_net import SplitNet as SplitNet

__all__ = _list_names(globals())
