"""A run as a folder for a model hub: encoder, samples, and a card that says what leaks."""

import shutil
from pathlib import Path
from tempfile import mkdtemp

from clients.service import load_served
from fedcel.data import FileSource
from fedcel.errors import RunError, SettingsError
from fedcel.files import write_tensors, write_whole
from fedcel.nets import NetSettings, OwnNet
from fedcel.runs import Run, run_folder
from sims.report.templates import render_template
from sims.results.file_names import RESULT_FILE
from sims.results.records import RunResult

CARD = "README.md"
ENCODER = "encoder.safetensors"


def export_hub_folder(folder: Path, out: Path) -> str:
    """Write the folder `out` as `huggingface_hub` uploads it, of the finished run in `folder`.

    It has the run's settings without the place of its images, its model and samples,
    the device's half as a service sends it, and a model card. No image is in it.

    Raises:
        RunError: The folder is no finished run.
        SettingsError: `out` exists, or the run's samples have encoders of their own.
    """
    if out.exists():
        raise SettingsError(f"--hub-folder {out} exists, nothing is written over; name another")
    run = run_folder.read_run(folder)
    if not isinstance(run.settings.net, OwnNet):
        raise SettingsError(
            f"net.name is {run.settings.net.name!r}, must be one of "
            f"{', '.join(NetSettings.list_names())}: nobody else has a net of your own; "
            "share its module and the run instead"
        )
    path = folder / RESULT_FILE
    if not path.exists():
        raise RunError(f"{folder} has no {RESULT_FILE}: it is not finished; go on with it first")
    result = RunResult.model_validate_json(path.read_text())
    served = load_served(run)
    out.parent.mkdir(parents=True, exist_ok=True)
    place = Path(mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        write_models(run, place)
        write_whole(place / ENCODER, served.encoder)
        write_whole(place / CARD, make_model_card(run, result, out.name) + "\n")
        place.chmod(0o755)
        place.rename(out)
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise
    return f"model: {out}, {len(run.samples) or 1} samples, version {served.version}"


def write_models(run: Run, place: Path) -> None:
    """Write settings, model and samples, as `read_model` reads them, and not where images were."""
    source = run.settings.data.source
    if isinstance(source, FileSource):
        source = source.model_copy(update={"path": ""})
    data = run.settings.data.model_copy(update={"source": source})
    settings = run.settings.model_copy(update={"data": data})
    run_folder.create_run(place, settings)
    run_folder.write_image_form(place, run.splits)
    write_tensors(place / run_folder.MODEL, {"model": run.model})
    chain = run_folder.open_chain(place, settings)
    for number, sample in enumerate(run.samples):
        chain.write_sample(number, sample)


def make_model_card(run: Run, result: RunResult, name: str) -> str:
    """Return the model card: purpose, leak of messages, and the images that it holds for."""
    cut = run.flat.net.cut
    learned = run.settings.defence.find_noise_shape(run.settings.net) != "one"
    noise = "noise of learned size" if learned else f"noise of standard deviation {cut.sigma:g}"
    return render_template(
        "commands/model_card.md.jinja",
        title=name,
        run=run,
        result=result,
        cut=f"{noise}, dropout {cut.dropout:g}" if cut.dropout else noise,
        format=run_folder.FORMAT,
    )
