"""The command `cuts`: where to cut a model between a device and a server."""

import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from fedcel.errors import NoCutError
from fedcel.extras import require_extra
from sims.commands.interruption import explain_interruption, explain_kept, report_crash
from sims.commands.options import (
    Deviation,
    Grey,
    ImageSize,
    ImageSource,
    LabelColumn,
    Mean,
    Weights,
    argument,
    check_folder,
    option,
    parse_numbers,
)

EXAMPLES = (
    "fedcel cuts torchvision:resnet18 --weights FILE --data photos --size 224 --out cuts",
    "fedcel cuts mypackage.nets:make --data digits --max-bits 5 --max-macs 2e6",
    "fedcel cuts model.pt2 --data images.npz --at layer2,layer3 --min-mse 0.02",
)


def cuts_command(
    model: Annotated[
        str,
        argument(
            metavar="MODEL",
            help="package.module:object (a module, or a function that makes one), torchvision:NAME "
            "or timm:NAME, or a .pt2 file of torch.export.",
        ),
    ],
    data: ImageSource,
    at: Annotated[
        str,
        option(
            metavar="LAYERS", help="Layers to compare, comma-separated; default: at most 12 of all."
        ),
    ] = "",
    all_layers: Annotated[
        bool, typer.Option("--all", help="Compare all layers at which the model can be cut.")
    ] = False,
    max_loss: Annotated[
        float, typer.Option(metavar="POINTS", help="Points of accuracy that the noise may cost.")
    ] = 1.0,
    max_bits: Annotated[
        float | None,
        option(
            metavar="BITS",
            help="Most bits that one message may tell about the image, beyond its label.",
        ),
    ] = None,
    min_mse: Annotated[
        float | None,
        option(
            metavar="ERROR",
            help="Least squared error per pixel of the best reconstruction; instead of --max-bits.",
        ),
    ] = None,
    max_macs: Annotated[
        float | None,
        option(
            metavar="N", help="Most multiplications with an addition on the device, such as 5e8."
        ),
    ] = None,
    max_bytes: Annotated[
        float | None,
        option(metavar="N", help="Most bytes of one message in float32."),
    ] = None,
    values: Annotated[
        int,
        option(
            min=0,
            metavar="N",
            help="Most values of a message, those that the rest of the model reads; 0: a layer's "
            "own.",
        ),
    ] = 0,
    weights: Weights = "",
    images: Annotated[
        int, typer.Option(min=20, help="Number of images to measure, at most.")
    ] = 200,
    attack: Annotated[
        str, typer.Option(help="Attack that rebuilds images at each cut; none: no attack.")
    ] = "kernel-ridge",
    size: ImageSize = 0,
    grey: Grey = False,
    mean: Mean = "",
    std: Deviation = "",
    label_column: LabelColumn = "none",
    seed: Annotated[int, typer.Option(min=0, help="Seed of images, noise and attack.")] = 0,
    out: Annotated[
        Path | None,
        option(help="Folder for cuts.json and report.html."),
    ] = None,
) -> None:
    """Compare the layers at which a model can be cut by cost, noise and leak; recommend one."""
    if attack != "none":
        require_extra("attacks")
    if out is not None:
        require_extra("report")
        check_folder(out)
    from fedcel.leakage import CutLimits
    from sims.auditing.cuts import (
        ComparedCuts,
        CutsPlan,
        compare_model_cuts,
        write_cuts,
        write_record,
    )

    plan = CutsPlan(
        model=model,
        data=data,
        at=tuple(name.strip() for name in at.split(",") if name.strip()),
        is_all=all_layers,
        limits=CutLimits(
            max_loss=max_loss,
            max_bits=max_bits,
            min_mse=min_mse,
            max_macs=max_macs,
            max_bytes=max_bytes,
        ),
        attack="" if attack == "none" else attack,
        values=values,
        weights=weights,
        images=images,
        size=size,
        grey=grey,
        mean=parse_numbers("--mean", mean),
        deviation=parse_numbers("--std", std),
        label_column=label_column,
        seed=seed,
    )
    begin = time.time()

    def keep(result: ComparedCuts) -> None:
        if out is not None:
            write_record(result, out)

    explain = partial(explain_kept, out and out / "cuts.json", begin)
    with report_crash(), explain_interruption(explain):
        result = compare_model_cuts(plan, keep)
        comparison = result.comparison
        print(f"{result.description}, on {comparison.images} images of {data}. ", end="")
        print(f"{comparison.accuracy_sentence}\n")
        print(f"{result.format_table()}\n")
        if out is not None:
            print(f"report: {write_cuts(result, out)}")
    if comparison.recommended is None:
        raise NoCutError(comparison.sentence)
    print(comparison.sentence)
