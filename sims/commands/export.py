"""The command `export`: write an encoder as ONNX."""

from pathlib import Path
from typing import Annotated

import typer

from fedcel.extras import require_extra
from sims.commands.options import (
    RunFolder,
)

EXAMPLES = ("fedcel export RUN --out encoder.onnx",)


def export_command(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="File to write.", show_default=False)],
) -> None:
    """Write a run's encoder as ONNX, for devices without torch."""
    require_extra("export")
    from fedcel.files import check_writable
    from sims.commands.onnx_export import export_encoder
    from sims.progress import show_steps

    check_writable(out)
    with show_steps("converting the encoder"):
        text = export_encoder(run, out)
    print(text)
