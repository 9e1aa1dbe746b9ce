"""The clients of a round in batches: their steps are computed at once, as far as that goes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

import torch

from fedcel.errors import DivergedError, StackingError, describe_unforeseen
from fedcel.federation.client_update import (
    ClientUpdate,
    RoundInputs,
    build_client_losses,
    build_stacked_nets,
    build_workspace_net,
    clip_and_perturb,
    count_refresh_epochs,
    prepare_client,
    select_client_images,
    update_client,
)
from fedcel.federation.local_update import ClientRound, count_batch_images, local_updates
from fedcel.losses.cel import State
from fedcel.nets import CPU
from fedcel.own_parts import blame_own_parts
from fedcel.posterior import is_encoder_frozen, list_trained_parameters
from fedcel.settings import Settings
from fedcel.torch_state import usual_torch_state

PARAMETERS_AT_ONCE = 2**20
"""Parameters of all clients of a batch on a processor: what is larger leaves its fast memory."""
DEVICE_PARAMETERS_AT_ONCE = 2**26
"""The same on a GPU, whose memory is the limit."""
MOST_CLIENTS = 64
"""Clients of a batch on a processor at most."""
DEVICE_MOST_CLIENTS = 1024
"""The same on a GPU, which takes a step of many in the time of a step of few."""
_BATCHES_AHEAD = 8
"""Batches of clients whose updates may wait for each other, so that equal sizes come together."""

Fallback = Callable[[str], None]
"""Is told why clients are trained one after the other."""


def update_clients(
    settings: Settings,
    weights: Mapping[int, float],
    inputs: RoundInputs,
    *,
    read_state: Callable[[int], State | None],
    fall_back: Fallback,
) -> Iterator[ClientUpdate]:
    """Train the clients of a round, as many at once as `count_clients_at_once` says.

    Clients are computed at once if their batches are equally large. What cannot be computed at once
    is trained by `update_client`; so is a client that diverges, for its error.

    Args:
        settings: The run's settings.
        weights: w_k of each client, by partition.
        inputs: What the server sends.
        read_state: Returns what a client kept of earlier rounds.
        fall_back: Is called with the reason where clients cannot be computed at once.

    Yields:
        Each client's update, in the order of `weights`: that of `update_client` up to the rounding
        of each step, see `local_updates`.

    Raises:
        FedcelError: As `update_client`.
    """
    size = count_clients_at_once(settings)
    local, is_frozen = settings.local, is_encoder_frozen(settings, inputs.round_number)
    remaining = iter(weights)
    while window := list(islice(remaining, _BATCHES_AHEAD * size)):
        groups: dict[int, list[int]] = {}
        for client in window:
            labels = select_client_images(settings, client).y
            count = count_batch_images(labels, local, is_encoder_frozen=is_frozen)
            groups.setdefault(count, []).append(client)
        updates: dict[int, ClientUpdate] = {}
        for group in groups.values():
            pieces = torch.tensor(group).tensor_split(-(-len(group) // size))
            for batch in (piece.tolist() for piece in pieces):
                states = [read_state(client) for client in batch]
                trained = _update_batch(
                    settings, batch, weights, inputs, states=states, fall_back=fall_back
                )
                updates.update(zip(batch, trained, strict=True))
        for client in window:
            yield updates.pop(client)


def find_obstacle(settings: Settings) -> str | None:
    """Name what is known to keep clients from being computed at once.

    Args:
        settings: The run's settings.

    Returns:
        A reason, None where nothing is known; a user's own part shows it when it is tried.
    """
    losses = build_client_losses(settings)
    for loss, source in ((losses.cel, losses.cel_source), (losses.defence, losses.defence_source)):
        if getattr(loss, "takes_stacks", True) is False:
            return f"{source.name} with these options takes one client's batch at a time"
    return None


def count_clients_at_once(settings: Settings) -> int:
    """Choose how many clients are computed at once: as many as their parameters leave room for.

    Args:
        settings: The run's settings.

    Returns:
        Their number, 1 or more.
    """
    parameters = build_stacked_nets(settings).flat.vector
    room, most = PARAMETERS_AT_ONCE, MOST_CLIENTS
    if parameters.device != CPU:
        room, most = DEVICE_PARAMETERS_AT_ONCE, DEVICE_MOST_CLIENTS
    return min(most, max(1, room // len(parameters)))


@usual_torch_state()
def _update_batch(
    settings: Settings,
    clients: Sequence[int],
    weights: Mapping[int, float],
    inputs: RoundInputs,
    *,
    states: Sequence[State | None],
    fall_back: Fallback,
) -> list[ClientUpdate]:
    """Train clients at once if there are several, one after the other where that fails."""

    def update_one(position: int) -> ClientUpdate:
        client = clients[position]
        return update_client(settings, client, weights[client], inputs, state=states[position])

    if len(clients) == 1:
        return [update_one(0)]
    losses = build_client_losses(settings, inputs.threshold)
    try:
        with blame_own_parts(settings):
            prepared = [
                prepare_client(
                    settings, client, weights[client], inputs, losses=losses, state=state
                )
                for client, state in zip(clients, states, strict=True)
            ]
            updates = _train_at_once(settings, prepared, inputs)
    except Exception as error:  # whatever it is, it is raised again where it is one client's
        updates = [update_one(position) for position in range(len(clients))]
        if not isinstance(error, DivergedError):
            is_known = isinstance(error, StackingError)
            fall_back(str(error) if is_known else describe_unforeseen(error))
        return updates
    trained = list_trained_parameters(build_workspace_net(settings).net)
    return [
        clip_and_perturb(settings.update, update, inputs.model, trained)
        if update.model.isfinite().all()
        else update_one(position)
        for position, update in enumerate(updates)
    ]


def _train_at_once(
    settings: Settings, clients: Sequence[ClientRound], inputs: RoundInputs
) -> list[ClientUpdate]:
    """Train clients at once, without a look at what may leave them."""
    nets = build_stacked_nets(settings)
    updates = local_updates(
        nets.flat,
        nets.stack(len(clients)),
        inputs.model,
        clients,
        local=settings.local,
        refresh_every=count_refresh_epochs(settings),
    )
    return [ClientUpdate(*update) for update in updates]
