"""Cost of a defence to a client: its training step against plain cross-entropy."""

import statistics
import time

from fedcel.data import load_splits
from fedcel.federation import RoundRequest, RoundTrainer
from fedcel.losses.cel import NoCEL
from fedcel.losses.defences import NoDefence
from fedcel.named_tensors import State
from fedcel.nets import CPU, fastest_device
from fedcel.posterior import RoundOrder
from fedcel.run_parts import build_client_parts
from fedcel.settings import Settings
from sims.bench.scenario import is_defended

REPETITIONS = range(3, 16)  # rounds of each, in turn, so that a drifting machine hits both alike
PATIENCE = 3.0
"""Seconds after which the fewest repeats are enough: long rounds scatter less."""


def measure_step_ratio(settings: Settings) -> float:
    """Return the median ratio of a round's time with the loss fully on to one without it.

    Of processor time, as other work may share the cores; on a GPU of the time that passes.
    """
    if not is_defended(settings):
        return 1.0
    off = {"cel": NoCEL(), "defence": NoDefence()}
    plain = settings.model_copy(update=off)
    _, state = time_round(settings, None)  # from then on, statistics are warm as in a real run
    ratios: list[float] = []
    begin = time.perf_counter()
    while len(ratios) < REPETITIONS.start or (
        len(ratios) < REPETITIONS.stop - 1 and time.perf_counter() - begin < PATIENCE
    ):
        without, _ = time_round(plain, None)
        with_loss, state = time_round(settings, state)
        ratios.append(with_loss / without)
    return statistics.median(ratios)


def time_round(settings: Settings, state: State | None) -> tuple[float, State | None]:
    """Return the time of one client's round after the ramp, and the loss's state after it."""
    number = max(1, round(settings.rounds * max(settings.cel.ramp, 0.01)))
    parts = load_splits(settings.data, settings.clients, settings.seed).clients
    total = sum(len(part.y) for part in parts)
    run_parts = build_client_parts(settings)
    flat = run_parts.workspace()
    plan = run_parts.schedule.plan(RoundOrder(number, total))
    request = RoundRequest(plan, flat.vector.clone(), {0: len(parts[0].y) / total})
    read_clock = time.process_time if fastest_device(flat.net) == CPU else time.perf_counter
    begin = read_clock()
    (update,) = RoundTrainer(run_parts, request, read_state=lambda client: state).train()
    return read_clock() - begin, update.state
