"""Train one federation into a run folder."""

from pathlib import Path

from fedcel import aggregation, attacks, cel, defences, privacy, runs, sampler
from fedcel.data import load
from fedcel.settings import Settings
from sims import loop, progress, ray
from strategies.made import make

ENGINES = {"loop": loop.train, "processes": loop.train, "ray": ray.train}


def simulate(
    settings: Settings, folder: Path, *, resume: bool = False, title: str = "training"
) -> None:
    """Train on `settings.engine`; with `resume` go on after the last complete round.

    RunError when the folder is there already, or, with `resume`, is of other settings; whatever
    else `check` refuses. A run that is refused leaves no folder.
    """
    if resume:
        resume = runs.begun(settings, folder)
    else:
        check(settings)
        runs.create(folder, settings)
    progress.say(f"run: {folder}")
    with progress.rounds(title, settings.rounds) as tell:
        ENGINES[settings.engine](settings, folder, tell, resume)


def check(settings: Settings) -> None:
    """Make every part that the settings name, and forget it: what cannot be made is refused now.

    DataError, NetError, PluginError, SettingsError of the part that is wrong.
    """
    splits = load(settings.data, settings.clients, settings.seed)
    flat = runs.fresh_net(settings, splits)
    cel.build(settings.cel, flat.net.cut.sigma, flat.net.features, splits.classes)
    defences.build(settings, splits.shape)
    sampler.build(settings.local)
    make(settings, aggregation.start(flat.vector), flat.shapes, flat.cut)
    attacks.parse(settings.attack.names)
    if settings.privacy.mechanism != "none":
        privacy.build(settings.privacy, splits.classes)
