"""A run is a folder: made once, written whole, read back with everything in it."""

import json
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from fedcel.data import Splits, load_splits
from fedcel.errors import RunError
from fedcel.federation import ServerState, init_net
from fedcel.files import read_json, read_tensors, read_toml, write_tensors, write_toml
from fedcel.losses.cel import SharedCentres, ThresholdControl
from fedcel.nets import FlatNet
from fedcel.posterior import Chain, Trace
from fedcel.settings import Settings, dump_settings, parse_settings

FORMAT = 1
ASKED = "uploads.json"
"""In a run folder: the rounds in which noisy updates were asked for, once for each time."""


class Run(NamedTuple):
    """A finished or interrupted run, in memory."""

    folder: Path
    settings: Settings
    splits: Splits
    flat: FlatNet
    model: Float[Tensor, " P"]
    samples: list[Float[Tensor, " P"]]


def create_run(folder: Path, settings: Settings) -> None:
    """Make a run folder with its settings; RunError when the folder is there and not empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(
            f"{folder} exists and is not empty; choose another --out, remove it, "
            "or continue an interrupted run with --resume"
        )
    folder.mkdir(parents=True, exist_ok=True)
    write_toml(folder / "settings.toml", {"format": FORMAT, **dump_settings(settings)})


def has_begun(settings: Settings, folder: Path) -> bool:
    """Say whether a run that goes on has a complete round; RunError when it cannot go on."""
    kept = read_settings(folder)
    if kept.model_copy(update={"engine": settings.engine}) != settings:
        raise RunError(f"{folder} was made with other settings; resume it with its own")
    if (folder / "result.json").exists():
        raise RunError(f"{folder} is finished; there is nothing to resume")
    return (folder / "state" / "server.safetensors").exists()


def read_asked_rounds(folder: Path) -> list[int]:
    """Return the rounds that were begun where updates have noise; RunError on a damaged file."""
    path = folder / ASKED
    found = read_json(path) if path.exists() else []
    if not isinstance(found, list) or not all(isinstance(number, int) for number in found):
        raise RunError(
            f"{path} is damaged: it holds no list of rounds; what was spent is not known"
        )
    return found


def read_settings(folder: Path) -> Settings:
    """Return a run's settings; RunError for a folder that is no run or of another format."""
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; give the folder of a run")
    if not (folder / "settings.toml").exists() and (folder / "runs").is_dir():
        raise RunError(f"{folder} is a bench, not a run; give one of the folders in its runs/")
    return parse_run_settings(read_toml(folder / "settings.toml"), folder / "settings.toml")


def parse_run_settings(table: dict[str, object], path: Path) -> Settings:
    """Return the settings of a settings.toml; RunError when it is of another format."""
    found = table.pop("format", None)
    if found != FORMAT:
        raise RunError(f"{path}: format is {found!r}, this version reads {FORMAT}")
    return parse_settings(table)


def open_chain(folder: Path, settings: Settings) -> Chain:
    """Return the run's chain of samples."""
    return Chain(folder / "chain", settings.chain.samples)


def trace_path(folder: Path) -> Path:
    """Return the file of what the run's chain is judged by."""
    return folder / "chain" / "trace.safetensors"


def open_trace(folder: Path, last: int | None = None) -> Trace:
    """Return what the run's chain is judged by, up to round `last`."""
    return Trace.read(trace_path(folder), last)


def read_run(folder: Path) -> Run:
    """Read a run with its data, last model and posterior samples.

    Args:
        folder: As `fedcel simulate` wrote it.

    Returns:
        The run. One at temperature 0 is a point: it has no samples, whatever models its folder
        holds.

    Raises:
        RunError: The folder is no run, or incomplete.
    """
    settings = read_settings(folder)
    splits = load_splits(settings.data, settings.clients, settings.seed)
    path = folder / "model.safetensors"
    flat = init_net(settings, splits)
    model = check_vector(read_tensors(path)[0].get("model"), flat, path)
    held = open_chain(folder, settings).read() if settings.temperature > 0 else []
    samples = [check_vector(sample, flat, folder / "chain") for sample in held]
    return Run(folder, settings, splits, flat, model, samples)


def check_vector(found: Tensor | None, flat: FlatNet, path: Path) -> Float[Tensor, " P"]:
    """Return a model vector read from a file; RunError unless it is one of this net."""
    if found is None or found.shape != flat.vector.shape:
        raise RunError(
            f"{path} holds {'no model' if found is None else f'{found.numel()} parameters'}, the "
            f"net of settings.toml has {flat.vector.numel()}; it is damaged or of another run"
        )
    return found


def save_state(folder: Path, state: ServerState) -> None:
    """Write all that the server needs to go on after this round."""
    tensors = {"model": state.model, "average": state.average}
    metadata = {"round": str(state.round)}
    if state.threshold:
        threshold = state.threshold
        metadata |= {"threshold": repr(threshold.threshold), "error": repr(threshold.error)}
    if state.centres:
        tensors |= {"centres": state.centres.centres, "weights": state.centres.weights}
    if state.gradient is not None:
        tensors["gradient"] = state.gradient
    if state.squared_speed is not None:
        tensors["squares"] = state.squared_speed
    if state.examples is not None:
        own = str(int(state.has_node_data))
        metadata |= {"examples": json.dumps(state.examples), "own": own}
    write_tensors(folder / "state" / "server.safetensors", tensors, metadata)


def read_state(folder: Path, begun: ServerState) -> ServerState:
    """Return the state after the last complete round; RunError when there is none.

    `has_begun` is the state before round 1: what it has, the file must have too (one that an
    earlier version wrote may lack the adaptive threshold).
    """
    path = folder / "state" / "server.safetensors"
    tensors, metadata = read_tensors(path)
    try:
        control = begun.threshold and ThresholdControl(
            float(metadata["threshold"]), float(metadata["error"])
        )
        shared = begun.centres and SharedCentres(tensors["centres"], tensors["weights"])
        number = int(metadata["round"])
        steer = tensors.get("gradient"), tensors.get("squares")
        told = {int(k): int(n) for k, n in json.loads(metadata.get("examples", "{}")).items()}
        own = bool(int(metadata.get("own", "0")))  # an earlier version did not write it
        models = tensors["model"], tensors["average"]
        return ServerState(number, *models, control, shared, *steer, told or None, own)
    except KeyError as error:
        raise RunError(f"{path} is damaged: it holds no {error}; start the run anew") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is damaged: {error}; start the run anew") from None
