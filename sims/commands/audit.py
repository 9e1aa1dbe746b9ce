"""The command `audit`: what an encoder leaks that was trained anywhere."""

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedcel.errors import SettingsError
from fedcel.extras import require_extra
from sims.commands.interruption import explain_interruption, explain_kept
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

if TYPE_CHECKING:
    from fedcel.leakage import LeakTarget

RELATIVE = "sd"
"""Ends a standard deviation of noise in units of that of the features."""
EXAMPLES = (
    "fedcel audit mypackage.nets:encoder --data photos --noise 0.3",
    "fedcel audit mypackage.nets:model --at layer2 --data photos --target-bits 25",
    "fedcel audit encoder.onnx --data digits --noise 0.3 --attacks none",
    "fedcel audit torchvision:resnet18 --at layer2 --weights FILE --data photos --noise 0.5sd",
    "fedcel audit runs/mine --data digits --out runs/mine-audit",
)


def audit_command(
    model: Annotated[
        str,
        argument(
            metavar="MODEL",
            help="package.module:object (a module, or a function that makes one), "
            "torchvision:NAME or timm:NAME, a .onnx file, a .pt2 file of torch.export, or a"
            " run folder.",
        ),
    ],
    data: ImageSource,
    at: Annotated[
        str,
        option(
            metavar="LAYER",
            help="Layer of a module whose output is sent; default: all of it is the encoder.",
        ),
    ] = "",
    weights: Weights = "",
    noise: Annotated[
        str,
        option(
            metavar="SIGMA",
            help="Standard deviation of the Gaussian noise that is added to the features; 0.5sd:"
            " half that of the features. Default: what the file or the run states.",
        ),
    ] = "",
    target_bits: Annotated[
        float | None,
        option(
            metavar="BITS",
            help="Choose the least noise at which one message tells at most this many bits of the "
            "picture, by the linearised estimate; instead of --noise.",
        ),
    ] = None,
    target_mse: Annotated[
        float | None,
        option(
            metavar="ERROR",
            help="The same for the least squared error per pixel of the best reconstruction.",
        ),
    ] = None,
    per_feature: Annotated[
        bool,
        typer.Option(
            "--per-feature",
            help="Choose noise of its own for each feature: that which harms the answer least.",
        ),
    ] = False,
    dropout: Annotated[
        float | None,
        option(
            min=0.0,
            max=0.999,
            help="Probability that a feature is set to 0; default: as stated, else 0.",
        ),
    ] = None,
    attacks: Annotated[
        str,
        typer.Option(help="Attacks that rebuild images, comma-separated; none: only the bits."),
    ] = "decoder,kernel-ridge",
    images: Annotated[
        int, typer.Option(min=4, help="Number of images to measure, at most.")
    ] = 1000,
    targets: Annotated[
        int, typer.Option(min=1, help="Number of images to rebuild, at most.")
    ] = 100,
    size: ImageSize = 0,
    grey: Grey = False,
    mean: Mean = "",
    std: Deviation = "",
    label_column: LabelColumn = "none",
    output: Annotated[
        str,
        option(
            metavar="NAMES",
            help="Outputs of the encoder that leave the device, by name or index from 0, comma-"
            "separated; default: all.",
        ),
    ] = "",
    budget: Annotated[float, typer.Option(help="Multiple of each attack's default effort.")] = 1.0,
    seconds: Annotated[float, typer.Option(help="Most seconds of each attack; 0: no limit.")] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of images, noise and attacks.")] = 0,
    out: Annotated[Path | None, option(help="Folder for audit.json and report.html.")] = None,
) -> None:
    """Measure what an encoder trained elsewhere leaks, and rebuild images from its features."""
    if attacks != "none":
        require_extra("attacks")
    if out is not None:
        require_extra("report")
        check_folder(out)
    from sims.auditing import Audit, AuditPlan, audit_encoder, write_audit, write_record
    from sims.report.table import format_columns
    from sims.report.tables import tabulate_sequences

    plan = AuditPlan(
        model=model,
        at=at,
        weights=weights,
        data=data,
        noise=parse_noise(noise),
        is_noise_relative=noise.endswith(RELATIVE),
        target=parse_target(target_bits, target_mse),
        is_noise_per_feature=per_feature,
        dropout=dropout,
        attacks=() if attacks == "none" else tuple(name.strip() for name in attacks.split(",")),
        images=images,
        targets=targets,
        size=size,
        grey=grey,
        mean=parse_numbers("--mean", mean),
        deviation=parse_numbers("--std", std),
        label_column=label_column,
        outputs=tuple(name.strip() for name in output.split(",") if name.strip()),
        budget=budget,
        seconds=seconds,
        seed=seed,
    )
    begin = time.time()
    shown: list[str] = []

    def keep(audit: Audit) -> None:
        if audit.inversion is None:
            lines = [*str(audit).splitlines(), f"Encoder: {audit.description}.", audit.note]
            if audit.maps is not None and (picture := audit.leak.linearised) is not None:
                lines += ["", format_columns(tabulate_sequences({"": [picture.sequences]})), ""]
            print(*(line for line in lines if line not in shown), sep="\n", flush=True)
            shown.extend(lines)
        if out is not None:
            write_record(audit, out)

    with explain_interruption(partial(explain_kept, out and out / "audit.json", begin)):
        audit = audit_encoder(plan, keep)
        if audit.inversion is not None:
            print(audit.inversion)
        if out is not None:
            print(f"report: {write_audit(audit, out)}")


def parse_target(bits: float | None, mse: float | None) -> "LeakTarget | None":
    """Return the leak that is allowed; None where none is given."""
    from fedcel.leakage import LeakTarget

    if bits is None and mse is None:
        return None
    try:
        return LeakTarget(bits=bits, mse=mse)
    except ValueError as error:
        names = {"target bits": "--target-bits", "target MSE": "--target-mse"}
        message = str(error)
        for name, option in names.items():
            message = message.replace(name, option)
        raise SettingsError(message) from error


def parse_noise(text: str) -> float | None:
    """Read a standard deviation, with or without `RELATIVE`; None where none is given."""
    if not text:
        return None
    try:
        return float(text.removesuffix(RELATIVE))
    except ValueError:
        raise SettingsError(
            f"--noise is {text!r}, must be a number, or one with {RELATIVE!r}, such as 0.5sd"
        ) from None
