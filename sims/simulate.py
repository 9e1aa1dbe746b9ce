"""Train one federation into a run folder."""

import time
from pathlib import Path

from fedcel import runs
from fedcel.errors import RunError
from fedcel.settings import Settings
from sims import loop, progress, ray

ENGINES = {"loop": loop.train, "ray": ray.train}


def simulate(
    settings: Settings, folder: Path, *, resume: bool = False, title: str = "training"
) -> None:
    """Train on `settings.engine`; with `resume` go on after the last complete round.

    RunError when the folder is there already, or, with `resume`, is of other settings.
    """
    if resume:
        kept = runs.read_settings(folder)
        if kept.model_copy(update={"engine": settings.engine}) != settings:
            raise RunError(f"{folder} was made with other settings; resume it with its own")
        if (folder / "result.json").exists():
            raise RunError(f"{folder} is finished; there is nothing to resume")
        resume = (folder / "state" / "server.safetensors").exists()
    else:
        runs.create(folder, settings)
    with progress.rounds(title, settings.rounds) as tell:
        ENGINES[settings.engine](settings, folder, tell, resume)


def default_folder(name: str) -> Path:
    """Return a new folder's path for a run that was given none."""
    return Path("runs") / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
