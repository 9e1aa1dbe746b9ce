"""Train one federation into a run folder."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from fedcel import attacks, privacy
from fedcel.data import load_splits
from fedcel.errors import FedcelError, PluginError
from fedcel.federation import init_net, init_server_state
from fedcel.losses import cel, defences
from fedcel.nets import FlatNet
from fedcel.own_parts import blame_own_parts
from fedcel.plugins import PartName, check_contract
from fedcel.posterior import build_sampler
from fedcel.runs import EventCallback, open_run
from fedcel.settings import OWN_STRATEGY, CelSettings, LocalSettings, Settings, UpdateSettings
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
            `batched` (many clients at once in it), `auto` (the faster of these), `processes` (one
            a core) or `ray` (Flower's simulation).
        folder: Where; it must not exist, or be empty. A run that is refused leaves no folder.
        resume: Go on after the last complete round of the run that is there.
        title: Is shown beside the progress.
        shows_data: Whether to print what was done to the images.

    Raises:
        RunError: The folder is there already or, with `resume`, has other settings; or another
            process writes into it.
        FedcelError: A part that the settings name cannot be built, or the training failed.
    """
    if not resume:
        with progress.show_waiting("reading the images"):
            check_parts(settings)
    with open_run(folder, settings, resume=resume) as has_rounds:
        progress.print_line(f"run: {folder}")
        if shows_data:
            print_data_notes([settings])
        with progress.show_rounds(title, settings.rounds) as show_round:
            train_on_engine(settings, folder, show_round, resume=has_rounds)


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

    Raises:
        FedcelError: The training failed; FailedError names a part of the user's own that did.
    """
    with blame_own_parts(settings):
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
        check_strategy(settings, flat)
    attacks.parse_attacks(settings.attack.names)
    if settings.privacy.mechanism != "none":
        privacy.build_mechanism(settings.privacy, splits.classes)


def check_strategy(settings: Settings, flat: FlatNet) -> None:
    """Build the strategy that the settings name; hold a user's own over deltas to its contract.

    Raises:
        FedcelError: It cannot be built, or breaks its contract.
    """
    from fedcel.testing import made_up_round  # both need Flower, as the strategy does
    from strategies import PosteriorStrategy
    from strategies.build_strategy import build_strategy

    part = PartName("strategy.name", settings.strategy.name, "StrategyContract")
    try:
        strategy = build_strategy(settings, init_server_state(flat.vector), flat.shapes, flat.cut)
    except FedcelError:
        raise
    except Exception as error:
        raise PluginError(part.describe_failure(error)) from error
    if not isinstance(strategy, PosteriorStrategy):
        return
    small = settings.model_copy(
        update={
            "clients": len(made_up_round.EXAMPLES),
            "clients_per_round": 0,
            "temperature": 0.0,
            "cel": CelSettings(),
            "local": LocalSettings(),
            "update": UpdateSettings(),
        }
    )

    def build() -> Any:
        state = init_server_state(torch.linspace(-1, 1, made_up_round.SIZE))
        return made_up_round.register_clients(
            build_strategy(small, state, made_up_round.SHAPES, made_up_round.CUT)
        )

    check_contract(part, made_up_round.STRATEGY_CHECKS, made_up_round.StrategyCase(build))
