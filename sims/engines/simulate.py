"""Train one federation into a run folder."""

from collections.abc import Iterable
from pathlib import Path

from fedcel import attacks, privacy
from fedcel.data import load_splits
from fedcel.federation import init_net, init_server_state
from fedcel.losses import cel, defences
from fedcel.posterior import build_sampler
from fedcel.runs import EventCallback, create_run, has_begun
from fedcel.settings import OWN_STRATEGY, Settings
from sims import progress
from sims.engines import local


def simulate(
    settings: Settings,
    folder: Path,
    *,
    resume: bool = False,
    title: str = "training",
    shows_data: bool = True,
) -> None:
    """Train a federation of simulated clients into a run folder, and measure the result.

    Args:
        settings: The run's settings; `engine` says what carries the clients: `loop` (this process),
            `processes` (one a core) or `ray` (Flower's simulation).
        folder: Where; it must not exist, or be empty. A run that is refused leaves no folder.
        resume: Go on after the last complete round of the run that is there.
        title: Is shown beside the progress.
        shows_data: Whether to print what was done to the images.

    Raises:
        RunError: The folder is there already or, with `resume`, has other settings.
        FedcelError: A part that the settings name cannot be built, or the training failed.
    """
    if resume:
        resume = has_begun(settings, folder)
    else:
        with progress.show_waiting("reading the images"):
            check_parts(settings)
        create_run(folder, settings)
    progress.print_line(f"run: {folder}")
    if shows_data:
        print_data_notes([settings])
    with progress.show_rounds(title, settings.rounds) as show_round:
        train_on_engine(settings, folder, show_round, resume=resume)


def print_data_notes(runs: Iterable[Settings]) -> None:
    """Print what was done to the images of runs, once where they share them; nothing if nothing.

    Args:
        runs: The settings of each run.

    Raises:
        DataError: There are no such images.
    """
    for settings in {settings.data: settings for settings in runs}.values():
        with progress.show_waiting("reading the images"):
            splits = load_splits(settings.data, settings.clients, settings.seed)
        for note in splits.notes:
            progress.print_line(f"images: {note}")


def train_on_engine(
    settings: Settings, folder: Path, show_round: EventCallback, *, resume: bool = False
) -> None:
    """Train into a run folder by the engine of the settings.

    Args:
        settings: The run's settings.
        folder: Made by `create_run`.
        show_round: Is called with every round's event.
        resume: Go on with the last complete round.
    """
    if settings.engine == "ray":
        from sims.engines.ray import train_on_ray  # needs Flower, which the others do not

        train_on_ray(settings, folder, show_round, resume=resume)
    else:
        local.train_locally(settings, folder, show_round, resume=resume)


def check_parts(settings: Settings) -> None:
    """Build every part that the settings name, and forget it: what cannot be built is refused now.

    Raises:
        FedcelError: A part is wrong: DataError, NetError, PluginError, SettingsError.
    """
    splits = load_splits(settings.data, settings.clients, settings.seed)
    flat = init_net(settings, splits)
    cel.build_cel(settings.cel, flat.net.cut.sigma, flat.net.features, splits.classes)
    defences.build_defence(settings, splits.shape)
    build_sampler(settings.local)
    if settings.strategy.name != OWN_STRATEGY:
        from strategies.build_strategy import build_strategy  # needs Flower, as its strategy

        build_strategy(settings, init_server_state(flat.vector), flat.shapes, flat.cut)
    attacks.parse_attacks(settings.attack.names)
    if settings.privacy.mechanism != "none":
        privacy.build_mechanism(settings.privacy, splits.classes)
