"""A run is a folder: made once, written whole, read back with everything in it."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from fedcel.data import Splits, load_splits
from fedcel.errors import RunError
from fedcel.federation import ServerState
from fedcel.files import (
    digest_file,
    read_json,
    read_tensors,
    read_toml,
    write_json,
    write_tensors,
    write_toml,
)
from fedcel.losses.cel import GoalControl
from fedcel.nets import CutNet, FlatNet
from fedcel.posterior import Chain, Trace
from fedcel.run_parts import init_net
from fedcel.runs.folder_lock import LOCK, hold_folder
from fedcel.settings import SELECTORS, Settings, dump_settings, flatten_settings, parse_settings
from fedcel.short_repr import show_shapes

FORMAT = 1
MODEL = "model.safetensors"
RESULT = "result.json"
UPLOADS = "uploads.json"
"""In a run folder: the rounds in which noisy updates were requested, once for each time."""
_CONTROL_KEYS = {"threshold": ("threshold", "error"), "weight": ("gamma", "gamma-error")}


@show_shapes
class Run(NamedTuple):
    """A finished or interrupted run, in memory."""

    folder: Path
    settings: Settings
    splits: Splits
    flat: FlatNet
    model: Float[Tensor, " P"]
    samples: list[Float[Tensor, " P"]]


def create_run(folder: str | Path, settings: Settings) -> None:
    """Make a run folder with its settings.

    Args:
        folder: Where; it must not exist, be empty, or hold settings only, which are replaced.
        settings: The run's settings.

    Raises:
        RunError: Something is there.
    """
    folder = Path(folder)
    refuse_occupied(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_toml(folder / "settings.toml", {"format": FORMAT, **dump_settings(settings)})


@contextmanager
def open_run(folder: str | Path, settings: Settings, *, resume: bool = False) -> Iterator[bool]:
    """Make a run folder or take up the one that is there, and be its only writer meanwhile.

    Args:
        folder: Where.
        settings: The run's settings.
        resume: Go on with the run that is there; else there must be none.

    Yields:
        Whether there is a complete round to go on from.

    Raises:
        RunError: Something is there, or cannot go on, or another process writes into it.
    """
    folder = Path(folder)
    if resume:
        read_settings(folder)  # before a folder is made where there is none
    else:
        refuse_occupied(folder)
    with hold_folder(folder):
        if not resume:
            create_run(folder, settings)
        yield resume and has_begun(settings, folder)


def refuse_occupied(folder: str | Path) -> None:
    """Refuse a place for a new run where something is.

    Args:
        folder: The place.

    Raises:
        RunError: A round of a run, or something else, is there.
    """
    if is_run(Path(folder)):
        raise RunError(
            f"{folder} exists and is not empty; choose another --out, remove it, "
            "or continue an interrupted run with --resume"
        )


def is_run(folder: Path) -> bool:
    """Whether a run was begun in a folder: one that ended before left its settings at most."""
    if not folder.is_dir():
        return folder.exists()
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".settings.toml.")}
    return not names <= {LOCK, "settings.toml"}


def has_begun(settings: Settings, folder: Path) -> bool:
    """Whether a run that goes on has a complete round; RunError where it cannot go on."""
    written = read_settings(folder)
    # None changes what is trained: only who carries it, when it is given up, what is measured.
    least = {"least_share": settings.strategy.least_share}
    allowed = {
        "engine": settings.engine,
        "bits_every": settings.bits_every,
        "strategy": written.strategy.model_copy(update=least),
        "local": written.local.model_copy(update={"at_once": settings.local.at_once}),
    }
    if written.model_copy(update=allowed) != settings:
        raise RunError(f"{folder} was made with other settings; resume it with its own")
    if (folder / RESULT).exists():
        raise RunError(f"{folder} is finished; there is nothing to resume")
    return (folder / "state" / "server.safetensors").exists()


def read_requested_rounds(folder: Path) -> list[int]:
    """Return the rounds that were begun where updates have noise; RunError on a damaged file."""
    path = folder / UPLOADS
    rounds = read_json(path) if path.exists() else []
    if not isinstance(rounds, list) or not all(isinstance(number, int) for number in rounds):
        raise RunError(
            f"{path} is damaged: it holds no list of rounds; what was spent is not known"
        )
    return rounds


def write_requested_round(folder: Path, number: int) -> None:
    """Note, before they are requested, that clients send noisy updates in this round.

    What a run that was stopped had requested stays: a round begun again is paid for again.
    """
    write_json(folder / UPLOADS, [*read_requested_rounds(folder), number])


def read_settings(folder: str | Path) -> Settings:
    """Read a run's settings.

    Args:
        folder: As `fedcel simulate` wrote it.

    Returns:
        The settings.

    Raises:
        RunError: The folder is no run, or of another format.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; give the folder of a run")
    path = folder / "settings.toml"
    if not path.exists():
        if (folder / "runs").is_dir():
            raise RunError(f"{folder} is a bench, not a run; give one of the folders in its runs/")
        raise RunError(f"{path} is missing; give a folder that `fedcel simulate` wrote")
    return parse_run_settings(read_toml(path), path)


def parse_run_settings(table: dict[str, object], path: str | Path) -> Settings:
    """Parse the settings of a run's settings.toml.

    Args:
        table: What is in the file; its `format` is taken out.
        path: The file, for the message.

    Returns:
        The settings.

    Raises:
        RunError: It is of another format.
        SettingsError: A setting is wrong.
    """
    version = table.pop("format", None)
    if version != FORMAT:
        raise RunError(f"{path}: format is {version!r}, this version reads {FORMAT}")
    flat = flatten_settings(table)
    kinds = {key: flat[key] for key in SELECTORS if key in flat}
    return parse_settings(flat, kinds)  # older runs hold the keys of all kinds


def open_chain(folder: Path, settings: Settings) -> Chain:
    """Open the run's chain of posterior samples."""
    return Chain(folder / "chain", settings.chain.samples)


def open_trace(folder: Path, last: int | None = None) -> Trace:
    """Read what the run's chain is judged by, up to round `last`."""
    return Trace(folder / "chain" / "trace.safetensors", last)


def read_run(folder: str | Path) -> Run:
    """Read a run with its data, last model and posterior samples.

    Args:
        folder: As `fedcel simulate` wrote it.

    Returns:
        The run. At temperature 0 it has no posterior samples.

    Raises:
        RunError: The folder is not a run, or incomplete.
    """
    folder = Path(folder)
    settings = read_settings(folder)
    splits = load_splits(settings.data, settings.clients, settings.seed)
    path = folder / MODEL
    flat = init_net(settings, splits)
    result = read_json(folder / RESULT) if (folder / RESULT).exists() else None
    for key, digest in digest_weights(settings).items():  # a frozen half stands nowhere else
        if isinstance(result, dict) and result.get(key, digest) != digest:
            raise RunError(
                f"net.weights of {folder} is another file than it was trained with: {digest}, "
                f"{RESULT} has {result[key]}; put the first one back"
            )
    model = check_vector(read_tensors(path)[0].get("model"), flat, path)
    chain = open_chain(folder, settings)
    vectors = chain.read_samples() if settings.temperature > 0 else []
    samples = [check_vector(vector, flat, chain.folder) for vector in vectors]
    return Run(folder, settings, splits, flat, model, samples)


def digest_weights(settings: Settings) -> dict[str, str]:
    """Return the digest of the file of a net's weights by its key in result.json, if it has one."""
    path = settings.net.weights if isinstance(settings.net, CutNet) else "none"
    return {} if path == "none" else {"weights": digest_file(path)}


def write_model(folder: Path, state: ServerState) -> None:
    """Write the last global model."""
    write_tensors(folder / MODEL, {"model": state.model}, {"round": str(state.round)})


def check_vector(vector: Tensor | None, flat: FlatNet, path: Path) -> Float[Tensor, " P"]:
    """Return a model vector read from a file; RunError unless it is one of this net."""
    if vector is None or vector.shape != flat.vector.shape:
        size = "no model" if vector is None else f"{vector.numel()} parameters"
        raise RunError(
            f"{path} holds {size}, the net of settings.toml has {flat.vector.numel()}; it is "
            "damaged or of another run"
        )
    return vector


def write_state(folder: Path, state: ServerState) -> None:
    """Write all that the server needs to go on after this round."""
    tensors = {"model": state.model, "average": state.average}
    metadata = {
        "round": str(state.round),
        "own": str(int(state.has_node_data)),
        "state-rounds": json.dumps(state.state_rounds),
    }
    if state.control:
        value_key, error_key = _CONTROL_KEYS[state.control.steered]
        metadata |= {value_key: repr(state.control.value), error_key: repr(state.control.error)}
    if state.examples is not None:
        metadata["examples"] = json.dumps(state.examples)
    write_tensors(folder / "state" / "server.safetensors", tensors, metadata)


def read_state(folder: Path, initial: ServerState) -> ServerState:
    """Read the state after the last complete round; RunError when there is none.

    `initial` is the state before round 1: where that has an adaptive threshold or gamma, the file
    must have it, too.
    """
    path = folder / "state" / "server.safetensors"
    tensors, metadata = read_tensors(path)
    try:
        return ServerState(
            int(metadata["round"]),
            tensors["model"],
            tensors["average"],
            initial.control and _read_control(metadata, initial.control),
            _read_counts(metadata.get("examples", "{}")) or None,
            bool(int(metadata["own"])),
            initial.trained,
            _read_counts(metadata["state-rounds"]),
        )
    except KeyError as error:
        raise RunError(f"{path} is damaged: it holds no {error}; start the run anew") from None
    except (ValueError, TypeError, AttributeError) as error:
        raise RunError(f"{path} is damaged: {error}; start the run anew") from None


def _read_control(metadata: Mapping[str, str], initial: GoalControl) -> GoalControl:
    value_key, error_key = _CONTROL_KEYS[initial.steered]
    value, error = float(metadata[value_key]), float(metadata[error_key])
    return initial._replace(value=value, error=error)


def _read_counts(text: str) -> dict[int, int]:
    return {int(client): int(number) for client, number in json.loads(text).items()}
