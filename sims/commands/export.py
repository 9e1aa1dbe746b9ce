"""The command `export`: an encoder as ONNX, or a folder for a model hub."""

from pathlib import Path
from typing import Annotated

from fedcel.extras import require_extra
from sims.commands.options import RunFolder, option

EXAMPLES = (
    "fedcel export RUN --out encoder.onnx",
    "fedcel export RUN --hub-folder digits-private",
)


def export_command(
    run: RunFolder,
    out: Annotated[Path | None, option(help="ONNX file to write.")] = None,
    hub_folder: Annotated[
        Path | None,
        option(metavar="FOLDER", help="Folder for a model hub: encoder, samples and a model card."),
    ] = None,
) -> None:
    """Write a run's encoder as ONNX, or a folder for a model hub."""
    from fedcel.errors import SettingsError

    if (out is None) == (hub_folder is None):
        raise SettingsError("export writes one thing: give --out or --hub-folder")
    if hub_folder is not None:
        require_extra("report")
        require_extra("service")
        from sims.commands.hub_export import export_hub_folder

        print(export_hub_folder(run, hub_folder))
        return
    assert out is not None
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
