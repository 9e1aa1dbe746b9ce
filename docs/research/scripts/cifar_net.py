"""A residual net of CIFAR-10 whose messages have 8 192, 512 and 64 values at three layers.

`cifar_net.py CIFAR` trains the nets from which the cells of `cifar-full.toml` start, on the
scenario's training images, and writes them to its two files. CIFAR is a Hugging Face folder of the
data set. In the second net the same encoder ends in a message of 16 values, which is fitted with a
head of its own.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, cast

import torch
import typer
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedcel.data import Images, augment_images, load_splits, to_floats
from fedcel.files import read_tensors, write_tensors
from fedcel.nets import encode_images, fast_precision, initialise_parameters
from fedcel.nets.device import CPU
from fedcel.nets.library_net import spread_outputs
from fedcel.settings import parse_settings
from fedcel.torch_state import compute_in, make_generator
from sims.bench import read_scenario
from sims.commands.main import main
from sims.commands.options import option
from sims.progress import print_line, show_steps

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
SCENARIO = Path(__file__).with_name("cifar-full.toml")
NOISE = 0.025
"""Standard deviation of the noise on the middle cut."""
MIDDLE = 3
CUTS = {"shallow": "0", "middle": str(MIDDLE), "deep": "4"}
"""Layers whose outputs are 32 x 16 x 16, 32 x 4 x 4 and 64 values an image."""
LIMITS = {"shallow": 2.0, "deep": 1.0}
"""Largest values of these two, which end in a ReLU: limited so, the net is as often right."""
EPOCHS, BATCH, RATE, DECAY, SMOOTHING = 24, 128, 0.1, 5e-4, 0.1
WARM_UP = 0.2  # of the steps
VALUES, NARROW_NOISE = 16, 0.3
FIT_EPOCHS, FIT_RATE = 8, 5e-3


class Residual(nn.Module):
    """Layers whose output is added to their input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        """Return x + layers(x), of the shape of x."""
        changed: Tensor = self.layers(x)
        return x + changed


class Shares(nn.Module):
    """Values as shares of a limit, cut off at 1."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.limit = limit

    def forward(self, x: Tensor) -> Tensor:
        """Return values in [0, 1], of the shape of x."""
        return (x / self.limit).clamp(0, 1)


class Restored(Shares):
    """Values of which shares were sent."""

    def forward(self, x: Tensor) -> Tensor:
        """Return x times the limit, of the shape of x."""
        return x * self.limit


def make_cifar_net() -> nn.Sequential:
    """Return an untrained net of eleven convolutions and two linear layers."""

    def convolve(inputs: int, outputs: int, *, side: int = 3, pool: bool = False) -> nn.Sequential:
        convolution = nn.Conv2d(inputs, outputs, side, padding=side // 2, bias=False)
        pooling = [nn.MaxPool2d(2)] if pool else []
        return nn.Sequential(convolution, *pooling, nn.BatchNorm2d(outputs), nn.ReLU())

    def repeat(channels: int) -> Residual:
        return Residual(convolve(channels, channels), convolve(channels, channels))

    return nn.Sequential(
        nn.Sequential(convolve(3, 32), convolve(32, 32, pool=True)),
        repeat(32),
        nn.Sequential(convolve(32, 64, pool=True), repeat(64)),
        nn.Sequential(convolve(64, 128, pool=True), repeat(128), convolve(128, 32, side=1)),
        nn.Sequential(
            convolve(32, 128),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(128, 64),
            nn.ReLU(),
        ),
        nn.Linear(64, 10),
    )


def make_bounded_net() -> nn.Sequential:
    """Return the untrained net with a middle cut whose values are in [0, 1]."""
    net = make_cifar_net()
    last = cast(nn.Sequential, cast(nn.Sequential, net[MIDDLE])[-1])
    last[-1] = nn.Sigmoid()
    return net


def make_shallow_net() -> nn.Sequential:
    """Return the untrained bounded net; values of its shallow cut are in [0, 1], too."""
    return bound_cut(make_bounded_net(), "shallow")


def make_deep_net() -> nn.Sequential:
    """Return the untrained bounded net; values of its deep cut are in [0, 1], too."""
    return bound_cut(make_bounded_net(), "deep")


def bound_cut(net: nn.Sequential, depth: str) -> nn.Sequential:
    """Return the net with one cut limited; its parameters keep their names.

    Args:
        net: The net.
        depth: Key of `LIMITS`.
    """
    parts: dict[str, nn.Module] = {}
    for name, part in net.named_children():
        parts[name] = part
        if name == CUTS[depth]:
            parts[name] = nn.Sequential(*cast(nn.Sequential, part), Shares(LIMITS[depth]))
            parts["restored"] = Restored(LIMITS[depth])
    return nn.Sequential(OrderedDict(parts))


def make_narrow_net() -> nn.Sequential:
    """Return the untrained net whose message at the middle cut is of few values in [0, 1]."""
    net = make_bounded_net()
    net[MIDDLE] = nn.Sequential(
        *cast(nn.Sequential, net[MIDDLE]), nn.Flatten(), nn.Linear(512, VALUES), nn.Sigmoid()
    )
    return nn.Sequential(
        *net[: MIDDLE + 1], nn.Sequential(nn.Linear(VALUES, 64), nn.ReLU()), nn.Linear(64, 10)
    )


def fit_narrow_net(wide: nn.Sequential, training: Images) -> nn.Sequential:
    """Return the narrow net with the wide one's encoder, and all behind it fitted to its features.

    The noise rises from nothing to that of the cells within the first half of the steps.

    Args:
        wide: The trained net with 512 values.
        training: Images.
    """
    net = make_narrow_net()
    initialise_parameters(net, stream := make_generator(0, "narrow-net"))
    encoder, message = wide[: MIDDLE + 1], cast(nn.Sequential, net[MIDDLE])
    net[:MIDDLE].load_state_dict(wide[:MIDDLE].state_dict())
    message[:-3].load_state_dict(cast(nn.Sequential, wide[MIDDLE]).state_dict())
    features, y = encode_images(encoder, to_floats(training.x)), training.y
    spread_outputs(message[-2], features)
    fitted = nn.Sequential(*message[-2:], *net[MIDDLE + 1 :])
    steps = FIT_EPOCHS * (len(y) // BATCH)
    adam = torch.optim.Adam(fitted.parameters(), FIT_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(adam, FIT_RATE, steps)
    for step in range(steps):
        rows = torch.randint(len(y), (BATCH,), generator=stream)
        sent = fitted[:2](features[rows])
        sent = sent + min(1, 2 * step / steps) * NARROW_NOISE * torch.randn(
            sent.shape, generator=stream
        )
        adam.zero_grad()
        torch.autograd.backward(cross_entropy(fitted[2:](sent), y[rows]))
        adam.step()
        schedule.step()
    return net


def train_cifar_net(
    path: Path,
    training: Images,
    *,
    make_net: Callable[[], nn.Sequential] = make_cifar_net,
    noise: float = 0.0,
) -> nn.Sequential:
    """Return the trained net: read from a file, else trained and written.

    Training stops at no image but the training images: there is no choice among epochs.

    Args:
        path: File of the net.
        training: Images.
        make_net: Makes the untrained net.
        noise: Standard deviation of Gaussian noise on the values of the middle cut.
    """
    net = make_net()
    if path.exists():
        net.load_state_dict(read_tensors(path)[0])
        return net.eval()
    x, y = to_floats(training.x), training.y
    stream = make_generator(0, "cifar-net")
    initialise_parameters(net, stream)
    net.to(memory_format=torch.channels_last).train()
    sgd = torch.optim.SGD(net.parameters(), RATE, momentum=0.9, nesterov=True, weight_decay=DECAY)
    steps = EPOCHS * (len(y) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(sgd, 2 * RATE, steps, pct_start=WARM_UP)
    precision = fast_precision(net, CPU)
    with show_steps("training the CIFAR-10 net") as show_step:
        for step in range(steps):
            if step % (len(y) // BATCH) == 0:
                order = torch.randperm(len(y), generator=stream)
            rows = order[step % (len(y) // BATCH) * BATCH :][:BATCH]
            images = augment_images(x[rows], "crop,flip", stream)
            with compute_in(precision, CPU):
                sent = net[: MIDDLE + 1](images.to(memory_format=torch.channels_last))
                if noise:
                    sent = sent + noise * torch.randn(sent.shape, generator=stream)
                answers = net[MIDDLE + 1 :](sent)
            loss = cross_entropy(answers.float(), y[rows], label_smoothing=SMOOTHING)
            sgd.zero_grad()
            torch.autograd.backward(loss)
            sgd.step()
            schedule.step()
            show_step(step + 1, steps, f"{step + 1} of {steps} steps")
    write_tensors(path, net.state_dict())
    return net.eval()


@app.command()
def train_start(
    path: Annotated[str, typer.Argument(help="Folder of CIFAR-10.")],
    out: Annotated[Path, option(help="File of the net; one that is there stays.")] = Path(
        "net.safetensors"
    ),
    narrow: Annotated[Path, option(help="File of the net with few values.")] = Path(
        "narrow.safetensors"
    ),
) -> None:
    """Train the nets from which all defences start."""
    torch.set_num_threads(1)
    settings = parse_settings(read_scenario(str(SCENARIO)).settings | {"data.path": path})
    splits = load_splits(settings.data, settings.clients, settings.seed)
    net = train_cifar_net(out, splits.training, make_net=make_bounded_net, noise=NOISE)
    print_line(f"net: {out}")
    write_tensors(narrow, fit_narrow_net(net, splits.training).state_dict())
    print_line(f"net with few values: {narrow}")


if __name__ == "__main__":
    sys.exit(main(app=app, name="cifar_net.py"))
