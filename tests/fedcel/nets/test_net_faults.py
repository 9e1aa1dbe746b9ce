"""All layers that cannot be trained in a federation are named, at once."""

import pytest
from torch import nn
from torchvision import models
from torchvision.ops import FrozenBatchNorm2d, StochasticDepth

from fedcel.nets.net_faults import find_batch_layers, find_layer_faults


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout(p=0),
        nn.TransformerEncoderLayer(8, 2, dropout=0.0),
        StochasticDepth(0.0, "row"),
        models.VisionTransformer(32, 16, 1, 2, 12, 8),
        models.SwinTransformer([4, 4], 12, [2], [2], [2, 2], stochastic_depth_prob=0.0),
        models.convnext_tiny(stochastic_depth_prob=0.0),
    ],
    ids=["dropout", "transformer", "stochastic depth", "vit", "swin", "convnext"],
)
def test_what_drops_nothing_is_no_fault(layer: nn.Module) -> None:
    """The layers of vision transformers, which hold dropout that is switched off."""
    assert find_layer_faults({"encoder": layer}) == []


@pytest.mark.parametrize(
    "layer",
    [
        nn.Dropout2d(0.1),
        nn.MultiheadAttention(4, 1, dropout=0.1),
        nn.GRU(4, 4, num_layers=2, dropout=0.1),
        nn.RReLU(),
        StochasticDepth(0.1, "row"),
    ],
)
def test_what_draws_in_training_is_a_fault(layer: nn.Module) -> None:
    """Dropout by any name, and a slope that is drawn."""
    (fault,) = find_layer_faults({"head": nn.Sequential(nn.Identity(), layer)})
    assert fault.startswith(f"layer 'head.1' ({type(layer).__name__}): draws from global")


def test_every_fault_is_named_by_its_path() -> None:
    """BatchNorm, a frozen one too, and dropout, of both halves; a number for many."""
    encoder = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 2, 3), nn.BatchNorm2d(2)), FrozenBatchNorm2d(2), nn.Dropout(0.2)
    )
    norms, drops = find_layer_faults({"encoder": encoder, "head": nn.BatchNorm1d(2)})
    assert "'encoder.0.1' (BatchNorm2d), 'encoder.1' (FrozenBatchNorm2d), 'head' (BatchN" in norms
    assert "'encoder.2' (Dropout)" in drops
    (many,) = find_layer_faults({"encoder": models.resnet18()})
    assert "'encoder.layer1.0.bn1' (BatchNorm2d)" in many and "and 15 more" in many


def test_layers_of_batch_statistics_are_found() -> None:
    """InstanceNorm has none either, and looks at each image by itself."""
    blind = nn.BatchNorm2d(2, track_running_stats=False)
    net = nn.Sequential(nn.BatchNorm2d(2), nn.InstanceNorm2d(2), nn.Sequential(blind))
    assert find_batch_layers(net) == {"2.0": blind}
