"""The command `export`: write an encoder, or the heads, as ONNX."""

from pathlib import Path
from typing import Annotated

import typer

from fedcel.extras import require_extra
from sims.commands.options import (
    RunFolder,
)

EXAMPLES = (
    "fedcel export RUN --out encoder.onnx",
    "fedcel export RUN --head --out head.onnx",
)


def export_command(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="File to write.", show_default=False)],
    head: Annotated[
        bool, typer.Option("--head", help="Write all sampled heads, not the encoder.")
    ] = False,
) -> None:
    """Write a run's encoder as ONNX, for devices without torch, or the heads for the service."""
    require_extra("export")
    from fedcel.files import check_writable
    from sims.commands.onnx_export import export_encoder, export_heads
    from sims.progress import show_steps

    check_writable(out)
    with show_steps("converting the heads" if head else "converting the encoder"):
        text = (export_heads if head else export_encoder)(run, out)
    print(text)
