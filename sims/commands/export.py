"""The command `export`: an encoder as ONNX."""

from pathlib import Path
from typing import Annotated

from fedcel.errors import SettingsError
from fedcel.extras import require_extra
from sims.commands.options import RunFolder, option

EXAMPLES = ("fedcel export RUN --out encoder.onnx",)


def export_command(
    run: RunFolder, out: Annotated[Path, option(help="ONNX file to write.")]
) -> None:
    """Write a run's encoder as ONNX."""
    if out.suffix != ".onnx":  # `audit` tells kinds of files apart by their names
        raise SettingsError(f"--out is '{out}', must end in .onnx")
    require_extra("export")
    from fedcel.files import check_writable
    from sims.commands.onnx_export import export_encoder
    from sims.progress import show_steps

    check_writable(out)
    with show_steps("converting the encoder"):
        text = export_encoder(run, out)
    print(text)
