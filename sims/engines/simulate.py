"""Train one federation into a run folder."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from fedcel.check_parts import build_parts
from fedcel.data import load_splits
from fedcel.own_parts import blame_own_parts
from fedcel.runs import Event, EventCallback, open_run, read_last_event, refuse_occupied
from fedcel.settings import OWN_STRATEGY, DataSettings, Settings
from fedcel.torch_state import usual_torch_state
from sims import progress
from sims.engines import local
from sims.engines.choose_engine import choose_engine


@usual_torch_state()
def simulate(
    settings: Settings,
    folder: str | Path,
    *,
    resume: bool = False,
    title: str = "training",
    shows_notes: bool = True,
    listen: EventCallback | None = None,
) -> None:
    """Train a federation of simulated clients into a run folder, and measure the result.

    Args:
        settings: The run's settings; `engine` says what trains the clients: `ray` (Flower's
            simulation), `local` (this process) or `auto`.
        folder: Where; it must not exist, or hold no round. A run that is refused leaves no folder.
        resume: Go on after the last complete round of the run that is there.
        title: Is shown beside the progress.
        shows_notes: Whether to print the engine and what was done to the images.
        listen: Is called with every round's event, once the round is saved.

    Raises:
        RunError: The folder is there already or, with `resume`, has other settings; or another
            process writes into it.
        FedcelError: A part that the settings name cannot be built, or the training failed.
    """
    folder = Path(folder)
    if choose_engine(settings).name == "ray":
        from sims.engines.ray import check_ray_environment

        check_ray_environment()
    if not resume:
        refuse_occupied(folder)  # at once: reading the images may take a minute
        with progress.show_waiting("reading the images and building the net"):
            check_parts(settings)
    with open_run(folder, settings, resume=resume) as has_rounds:
        progress.print_line(f"run: {folder}")
        if shows_notes:
            print_notes([settings])
        with progress.show_rounds(title, settings.rounds) as show_round:
            last = read_last_event(folder) if has_rounds else None
            if last is not None and last["round"] == settings.rounds:
                show_round(last)  # only the measuring is left

            def pass_on(event: Event) -> None:
                show_round(event)
                if listen is not None:
                    listen(event)

            train_on_engine(settings, folder, pass_on, resume=has_rounds)


def print_notes(runs: Iterable[Settings]) -> None:
    """Print engines, what was done to images and how often they are seen; each line once."""
    lines = dict[str, None]()
    client_sizes: dict[tuple[DataSettings, int], Sequence[int]] = {}
    for settings in runs:
        engine, reason = choose_engine(settings)
        lines[f"engine: {engine} ({reason})"] = None
        partition = settings.data, settings.clients
        if partition not in client_sizes:
            with progress.show_waiting("reading the images"):
                splits = load_splits(settings.data, settings.clients, settings.seed)
            client_sizes[partition] = splits.client_sizes
            lines |= dict.fromkeys(f"images: {note}" for note in splits.notes)
        lines[f"passes: {describe_passes(settings, client_sizes[partition])}"] = None
    for line in lines:
        progress.print_line(line)


def describe_passes(settings: Settings, client_sizes: Sequence[int]) -> str:
    """Describe how often a run sees each training image, on average; a warning below once."""
    local = settings.local
    share = (settings.clients_per_round or settings.clients) / settings.clients
    counts = [local.count_steps(size) for size in client_sizes]
    steps_and_sizes = zip(counts, client_sizes, strict=True)
    images = sum(count * min(local.batch_size, size) for count, size in steps_and_sizes)
    a_round = share * images / sum(client_sizes)
    passes = settings.rounds * a_round
    steps = " to ".join(map(str, sorted({min(counts), max(counts)})))
    epochs = f"{a_round:.2g}"
    text = (
        f"{steps} steps of {local.batch_size} images a client are {epochs} "
        f"epoch{'' if epochs == '1' else 's'} a round, {passes:.2g} in {settings.rounds} rounds"
    )
    if local.epochs and len(set(counts)) > 1:
        text += "; a client with more steps moves the mean of the updates more"
    if passes >= 1:
        return text
    return f"{text}: the run sees each image less than once, and may learn little; raise rounds" + (
        " or local.epochs" if local.epochs else ", local.steps or local.batch-size"
    )


def train_on_engine(
    settings: Settings, folder: Path, show_round: EventCallback, *, resume: bool = False
) -> None:
    """Train by the engine of the settings; FailedError names a user's own part that failed."""
    with blame_own_parts(settings):
        if choose_engine(settings).name == "ray":
            from sims.engines.ray import train_on_ray  # needs Flower, which the others do not

            train_on_ray(settings, folder, show_round, resume=resume)
        else:
            local.train_locally(settings, folder, show_round, resume=resume)


def check_parts(settings: Settings) -> None:
    """Refuse now, with a FedcelError, what cannot be built of the parts that settings name."""
    flat = build_parts(settings)
    if settings.strategy.name != OWN_STRATEGY:
        from strategies.check_strategy import check_strategy  # needs Flower, which others do not

        check_strategy(settings, flat)
