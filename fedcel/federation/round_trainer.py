"""Training of the clients of a round: request, kept states, batches, what may leave a client."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.data import Images
from fedcel.errors import DivergedError, FailedError, StackingError, describe_unforeseen
from fedcel.federation.local_steps import (
    ClientRound,
    ClientUpdate,
    count_batch_images,
    train_clients,
)
from fedcel.losses import Streams, select_state
from fedcel.nets import FlatNet
from fedcel.posterior import RoundPlan, RoundSchedule
from fedcel.privacy import UpdateSettings, add_update_noise, clip_update
from fedcel.short_repr import show_shapes
from fedcel.tensors import State
from fedcel.torch_state import make_generator, usual_torch_state

_BATCHES_AHEAD = 8
"""Batches of clients trained before their updates are handed out: more have batches of one size."""


@show_shapes
class RoundRequest(NamedTuple):
    """Request of a round, from the server to its clients.

    Attributes:
        plan: The round.
        model: The global parameters (P,).
        weights: w_k of every client that takes part, by partition, ascending.
        state_rounds: The round whose state each client starts from, 0: none; lacking: not known.
    """

    plan: RoundPlan
    model: Float[Tensor, " P"]
    weights: Mapping[int, float]
    state_rounds: Mapping[int, int] = {}


class ClientParts(NamedTuple):
    """Parts that the clients of a run train with, on any engine.

    Attributes:
        images: The training images of a client, by partition.
        workspace: This process's net, on the processor; its memory is shared.
        nets: Copies of the net for so many clients at once, where they are trained.
        schedule: Makes the plan of each round.
        update: Clip and noise of updates.
        seed: The run's.
        blame: Names a part of the user's own in what it raises.
    """

    images: Callable[[int], Images]
    workspace: Callable[[], FlatNet]
    nets: Callable[[int], FlatNet]
    schedule: RoundSchedule
    update: UpdateSettings
    seed: int
    blame: Callable[[], AbstractContextManager[None]]

    def streams(self, client: int, round_number: int) -> Streams:
        """Make the random streams of a client's round."""
        return lambda purpose: make_generator(self.seed, purpose, round_number, client)


@runtime_checkable
class ClientMemory(Protocol):
    """Keeps one client's states by round: a folder, or Flower's context."""

    def find_newest(self, number: int) -> int:
        """Return the newest round before `number` whose state is there, 0 where there is none."""
        ...

    def read_state(self, number: int) -> State | None:
        """Return the state after round `number`, None where it is not there."""
        ...

    def write_state(self, number: int, state: State, before: int) -> None:
        """Keep the state after round `number`, and of earlier ones that after round `before`."""
        ...


@show_shapes
class StoredState(NamedTuple):
    """The state that a client starts a round from."""

    round: int
    """After which it was written; 0: the client starts without one."""
    state: State | None


def load_state(memory: ClientMemory, number: int, expected: int | None) -> StoredState:
    """Load the state that a client is to start a round from, and no other.

    Args:
        memory: The client's.
        number: The round.
        expected: The round whose state it is to be, as the server knows it, 0: none; None: nobody
            knows, and it is the newest.

    Returns:
        The state; none where that of the expected round is not there.
    """
    before = memory.find_newest(number) if expected is None else expected
    state = memory.read_state(before) if before else None
    return StoredState(0 if state is None else before, state or None)


def keep_state(
    memory: ClientMemory, number: int, state: State, start: StoredState, *, is_noisy: bool
) -> StoredState:
    """Keep a client's state after a round, unless a diverged round left it.

    Args:
        memory: The client's.
        number: The round.
        state: After the round; nothing is written where it is empty: the losses keep nothing.
        start: What the round began with; it stays, for the round may be repeated.
        is_noisy: Whether updates have noise: something is always written then, since what is
            returned goes to the server and must not tell how the training went.

    Returns:
        The state that the client is to start from the next time, and its round; 0: none.
    """
    if not all(bool(tensor.isfinite().all()) for tensor in state.values()):
        if not is_noisy:
            return start
        state = start.state or {}
    if not (state or is_noisy):
        return StoredState(0, None)
    memory.write_state(number, state, start.round)
    return StoredState(number, state or None)


class RoundTrainer:
    """Trains the clients of a round: every engine and the Flower client do so by it.

    Clients are computed at once if their batches are equally large and they take as many steps.
    Others, and those whose update is not finite then, are trained one by one.
    """

    def __init__(
        self,
        parts: ClientParts,
        request: RoundRequest,
        *,
        read_state: Callable[[int], State | None] = lambda client: None,
        at_once: int = 1,
        report_obstacle: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Prepare to train.

        Args:
            parts: Images, nets, losses and schedules.
            request: What the server sends; a client's weight decides the size of its noise.
            read_state: Returns what a client kept of earlier rounds, None before its first.
            at_once: Clients computed at once, at most.
            report_obstacle: Is called with the reason where clients cannot be computed at once.

        Raises:
            FedcelError: The settings are wrong.
        """
        self.parts, self.request, self.at_once = parts, request, at_once
        self._trained = parts.workspace().trained
        self._read_state, self._report_obstacle = read_state, report_obstacle

    def train(self) -> Iterator[ClientUpdate]:
        """Train the clients.

        Yields:
            Each client's update, in the order of `request.weights`, clipped and perturbed; the same
            whatever `at_once` is, up to the order of sums.

        Raises:
            FedcelError: The training diverged, or a user's own part failed; never of a client with
                a noisy update, whose failure gives the update 0.
        """
        remaining = iter(self.request.weights)
        while window := list(islice(remaining, _BATCHES_AHEAD * self.at_once)):
            updates = self._train_window(window)
            for client in window:
                yield updates.pop(client)

    def prepare_client(self, client: int, state: State | None, plan: RoundPlan) -> ClientRound:
        """Gather what a client's local steps take."""
        streams = self.parts.streams(client, plan.number)
        noise = plan.noise(self.request.weights[client])
        return ClientRound(self.parts.images(client), streams, noise, state)

    @usual_torch_state()
    def _train_window(self, window: Sequence[int]) -> dict[int, ClientUpdate]:
        states = {client: self._read_state(client) for client in window}
        updates: dict[int, ClientUpdate] = {}
        for plan, clients in self._group_clients(states):
            batch = {client: states[client] for client in clients}
            if len(batch) > 1 and self.at_once > 1:
                updates |= self._train_together(plan, batch)
            for client, state in batch.items():
                if client not in updates:
                    updates[client] = self._train_alone(plan, client, state)
        return updates

    def _group_clients(
        self, states: Mapping[int, State | None]
    ) -> Iterator[tuple[RoundPlan, list[int]]]:
        """Yield clients with one plan and equally large batches, all or none with a state."""
        groups: dict[tuple[object, ...], tuple[RoundPlan, list[int]]] = {}
        for client, state in states.items():
            y = self.parts.images(client).y
            plan = self.parts.schedule.plan_client(self.request.plan, len(y))
            if self.at_once == 1:
                yield plan, [client]
                continue
            has_states = [select_state(state, term.name) is not None for term in plan.terms]
            key = (count_batch_images(y, plan.local), plan.steps, *has_states)
            groups.setdefault(key, (plan, []))[1].append(client)
        for plan, group in groups.values():
            for piece in torch.tensor(group).tensor_split(-(-len(group) // self.at_once)):
                yield plan, piece.tolist()

    def _train_together(
        self, plan: RoundPlan, states: Mapping[int, State | None]
    ) -> dict[int, ClientUpdate]:
        """Train several at once; return the updates of those that can be, and are finite."""
        try:
            updates = self._train(plan, states)
        except DivergedError:  # a client's own error is raised once it is trained alone
            return {}
        except Exception as error:  # of one client perhaps, which then raises it alone
            is_known = isinstance(error, StackingError)
            self.at_once = 1
            self._report_obstacle(str(error) if is_known else describe_unforeseen(error))
            return {}
        return {
            client: self._protect(update)
            for client, update in updates.items()
            if update.model.isfinite().all()
        }

    def _train_alone(self, plan: RoundPlan, client: int, state: State | None) -> ClientUpdate:
        """Train one client; with noisy updates, a training that fails gives the update 0.

        The server must not learn that a training failed, which may depend on the images. The client
        warns on its own side, and keeps its earlier state.
        """
        if not self.parts.update.noise:
            try:
                with self.parts.blame():
                    return self._protect(self._train(plan, {client: state})[client])
            except FailedError as error:
                raise type(error)(f"round {plan.number}, client {client}: {error}") from error
        try:
            update = self._train(plan, {client: state})[client]
        except Exception as error:
            warnings.warn(f"the update counts as 0, there is none: {error}", stacklevel=2)
            received = self.request.model
            update = ClientUpdate(torch.zeros_like(received), received, state or {}, {})
        return self._protect(update)

    def _train(
        self, plan: RoundPlan, states: Mapping[int, State | None]
    ) -> dict[int, ClientUpdate]:
        updates = train_clients(
            self.parts.nets(len(states)),
            self.request.model,
            [self.prepare_client(client, state, plan) for client, state in states.items()],
            plan,
        )
        return dict(zip(states, updates, strict=True))

    def _protect(self, update: ClientUpdate) -> ClientUpdate:
        return protect_update(self.parts.update, update, self.request.model, trained=self._trained)


def protect_update(
    protection: UpdateSettings,
    update: ClientUpdate,
    received: Float[Tensor, " P"],
    *,
    trained: Int[Tensor, " M"] | None = None,
) -> ClientUpdate:
    """Clip and perturb an update before it leaves the client; with noise, metrics are dropped.

    Args:
        protection: Clip and noise of the updates.
        update: The update.
        received: The model that the round started from, (P,).
        trained: Positions of the parameters that are trained, the only ones that get noise; None:
            all are.

    Returns:
        The update, clipped and perturbed as the settings say.
    """
    if not protection.noise:
        if protection.clip == "none":
            return update
        delta = clip_update(update.delta, protection.clip).to(update.delta.dtype)
        return update._replace(delta=delta, model=received + delta)
    assert protection.clip != "none"  # the settings refuse noise without a clip
    moving = slice(None) if trained is None else trained
    delta = torch.zeros_like(update.delta)
    delta[moving] = add_update_noise(update.delta[moving], protection.clip, protection.noise)
    return ClientUpdate(delta, received + delta, update.state, {})
