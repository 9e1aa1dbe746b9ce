"""Train one federation into a run folder."""

from pathlib import Path

from fedcel import attacks, privacy
from fedcel.data import load_splits
from fedcel.federation import init_net, init_server_state
from fedcel.losses import cel, defences
from fedcel.posterior import samplers
from fedcel.runs import run_folder
from fedcel.settings import Settings
from sims.commands import progress
from sims.engines import local, ray
from strategies.build_strategy import build_strategy

ENGINES = {"loop": local.train_locally, "processes": local.train_locally, "ray": ray.train_on_ray}


def simulate(
    settings: Settings, folder: Path, *, resume: bool = False, title: str = "training"
) -> None:
    """Train on `settings.engine`; with `resume` go on after the last complete round.

    RunError when the folder is there already, or, with `resume`, is of other settings; whatever
    else `check_parts` refuses. A run that is refused leaves no folder.
    """
    if resume:
        resume = run_folder.has_begun(settings, folder)
    else:
        check_parts(settings)
        run_folder.create_run(folder, settings)
    progress.print_line(f"run: {folder}")
    with progress.show_rounds(title, settings.rounds) as tell:
        ENGINES[settings.engine](settings, folder, tell, resume)


def check_parts(settings: Settings) -> None:
    """Make every part that the settings name, and forget it: what cannot be made is refused now.

    DataError, NetError, PluginError, SettingsError of the part that is wrong.
    """
    splits = load_splits(settings.data, settings.clients, settings.seed)
    flat = init_net(settings, splits)
    cel.build_cel(settings.cel, flat.net.cut.sigma, flat.net.features, splits.classes)
    defences.build_defence(settings, splits.shape)
    samplers.build_sampler(settings.local)
    build_strategy(settings, init_server_state(flat.vector), flat.shapes, flat.cut)
    attacks.parse_attacks(settings.attack.names)
    if settings.privacy.mechanism != "none":
        privacy.build_mechanism(settings.privacy, splits.classes)
