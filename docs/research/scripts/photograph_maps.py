"""Draw what messages expose of two photographs: `photograph_maps.py PHOTOGRAPHS [OUT]`.

The encoders are cuts of the pretrained EfficientNet-Lite0 with the noise of the kept rows of
`leakage_measures.py`. PHOTOGRAPHS is a Hugging Face folder: the attacker's images. The two
photographs that are drawn come with scikit-learn, under CC BY 2.0 by danielbuechele and vultilion.
It takes a quarter of an hour of one core.
"""

import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from matplotlib.figure import Figure
from sklearn.datasets import load_sample_image
from torch import Tensor, nn
from torch.nn.functional import interpolate

import fedcel
from fedcel.data import HuggingFace, read_source, to_floats
from fedcel.files import read_json
from fedcel.leakage import map_leak
from fedcel.nets import Normalise
from leakage_measures import LITE_DEVIATION, LITE_MEAN, LITE_SIZE, ROWS_FILE, load_lite
from sims.commands.main import main
from sims.progress import show_attacks
from sims.report.chart import INK
from sims.report.reconstruction_strips import DECADES

DOCS = Path(__file__).parents[2]
PHOTOGRAPHS = ("china.jpg", "flower.jpg")
CUTS = {"_blocks.2": "block 2", "_blocks.7": "block 7", "_blocks.14": "block 14"}
ROWS = ("rebuilt", "exposed")
COLOURS = "inferno"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Pictures(NamedTuple):
    """Images that a decoder rebuilt from the messages of a cut, and what these expose."""

    rebuilt: Tensor
    exposed: Tensor


def load_photographs() -> Tensor:
    """Return the middle squares of the photographs, (2, 3, size, size) in [0, 1]."""
    squares = []
    for name in PHOTOGRAPHS:
        image = torch.from_numpy(load_sample_image(name).copy()).permute(2, 0, 1) / 255
        side = min(image.shape[1:])
        top, left = ((length - side) // 2 for length in image.shape[1:])
        square = image[None, :, top : top + side, left : left + side]
        squares.append(interpolate(square, (LITE_SIZE, LITE_SIZE), mode="bilinear", antialias=True))
    return torch.cat(squares).clamp(0, 1)


def measure_cuts(targets: Tensor, auxiliary: Tensor) -> dict[str, Pictures]:
    """Return the pictures of each cut."""
    rows: Any = read_json(DOCS / "results" / ROWS_FILE)
    encoders = [row for row in rows if row["what"] == "encoder" and row["data"] == "photographs"]
    noises = {row["name"]: row["noise"] for row in encoders}
    lite, prior = load_lite(), fedcel.fit_image_prior(auxiliary)
    normalise = Normalise((LITE_MEAN,) * 3, (LITE_DEVIATION,) * 3)
    pictures = {}
    for cut in CUTS:
        encoder, _ = fedcel.split(lite, cut)
        sender, noise = nn.Sequential(normalise, encoder).eval(), noises[cut]
        maps = map_leak(sender, targets, noise=noise, prior=prior)
        with show_attacks(f"attacking {cut}") as listener:
            inversion = fedcel.invert(
                sender,
                targets,
                auxiliary=auxiliary,
                noise=noise,
                attacks=["decoder"],
                progress=listener.show_line,
            )
        pictures[cut] = Pictures(inversion.reconstructions["decoder"], maps.information.sum(1))
    return pictures


def draw_pictures(targets: Tensor, pictures: dict[str, Pictures]) -> Figure:
    """Draw two rows for each photograph, a column for each cut; what is exposed in one scale."""
    high = max(float(part.exposed.max()) for part in pictures.values())
    figure = Figure(figsize=(6.4, 6.8), layout="constrained")
    grid = figure.subplots(len(ROWS) * len(targets), 1 + len(CUTS), squeeze=False)
    for axes in grid.flat:
        axes.set_axis_off()
    for number, target in enumerate(targets):
        above, below = grid[len(ROWS) * number :][: len(ROWS)]
        above[0].imshow(target.permute(1, 2, 0))
        above[0].set_title("sent", color=INK, fontsize=10)
        for column, (cut, part) in enumerate(pictures.items(), 1):
            share = (part.exposed[number] / high).clamp_min(10.0**-DECADES).log10() / DECADES
            above[column].imshow(part.rebuilt[number].clamp(0, 1).permute(1, 2, 0))
            below[column].imshow(1 + share, cmap=COLOURS, vmin=0.0, vmax=1.0)
            for axes, name in zip((above[column], below[column]), ROWS, strict=True):
                axes.set_title(f"{CUTS[cut]}: {name}", color=INK, fontsize=10)
    return figure


@app.command()
def photograph_maps(
    photographs: Annotated[str, typer.Argument(help="Folder of the attacker's photographs.")],
    out: Annotated[Path, typer.Argument(help="Folder of the figure.")] = DOCS / "figures",
) -> None:
    """Draw what the messages of three cuts expose of two photographs."""
    torch.set_num_threads(1)
    source = HuggingFace.model_validate({"path": photographs, "size": LITE_SIZE})
    auxiliary = to_floats(read_source(source).train.x)
    targets = load_photographs()
    figure = draw_pictures(targets, measure_cuts(targets, auxiliary))
    figure.savefig(out / "photograph-maps.jpg", dpi=110, pil_kwargs={"quality": 88})


if __name__ == "__main__":
    sys.exit(main(app=app, name="photograph_maps.py"))
