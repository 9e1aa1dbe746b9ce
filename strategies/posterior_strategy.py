"""The posterior strategy: Flower's messages around the server's round."""

import time
from collections import ChainMap
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from logging import INFO, WARNING

import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedcel.errors import RoundError, describe_module_origin, describe_unforeseen
from fedcel.federation import (
    Rejection,
    RoundReport,
    RoundRequest,
    ServerState,
    advance_model,
    begin_round,
    finish_round,
    record_names,
)
from fedcel.nets import to_arrays, to_vector
from fedcel.run_parts import build_server_parts
from fedcel.settings import Settings
from strategies.flower_log import log
from strategies.node_incarnations import NodeIncarnations, SharedKey
from strategies.node_registry import (
    ANSWER_SECONDS,
    WAIT_SECONDS,
    NodeRegistry,
    register_nodes,
    reregister_nodes,
)
from strategies.read_model import read_model
from strategies.validate_reply import (
    LOST_STATE,
    Expectation,
    describe_failure,
    find_reply_fault,
    find_sender,
    is_node_lost,
    read_update,
    to_printable,
)

_LOOK_SECONDS = 1.0
"""Between two looks for nodes that are lost."""


class PosteriorStrategy(FedAvg):
    """Federated posterior sampling: averages clients' deltas with momentum.

    Subclasses override `fault` and `step`, nothing else.

    A round is the same as in every engine: `begin_round` and `finish_round` of
    `fedcel.federation`; here are the messages between them.
    """

    def __init__(
        self,
        settings: Settings,
        state: ServerState,
        shapes: list[tuple[int, ...]],
        device_size: int,
    ) -> None:
        """Begin, or go on from a state.

        Args:
            settings: The run's settings.
            state: Where the run stands; a resumed run goes on from its round.
            shapes: The shapes of the model's arrays.
            device_size: Number of parameters of the device's half, which come first.
        """
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.settings = settings
        self.state = state
        self.shapes = shapes
        self.device_size = device_size
        self.first_round = state.round  # Flower's numbers begin after it
        self.note_repeat: Callable[[], None] = lambda: None
        """Called before clients are asked for the updates of a round again."""
        self.recount = False  # whether nodes of a resumed run may hold other numbers of images
        self.registry = NodeRegistry({}, {}, state.has_node_data)
        self.request: RoundRequest | None = None
        self.rejected: list[Rejection] = []
        self.report = RoundReport()
        self._incarnations = NodeIncarnations()
        self._shared_keys: dict[int, SharedKey] = {}
        self.parts = build_server_parts(settings)  # classes are as the ServerApp's config says
        self._sent: list[tuple[Metadata, int]] = []
        self._asked: dict[int, int] = {}
        """Partitions of the nodes that were asked in this round, those too that are replaced."""
        self._send_again: Callable[[list[int], float], list[Message]] | None = None
        self._patience = min(ANSWER_SECONDS, settings.strategy.timeout)  # seconds, for queries

    def summary(self) -> None:
        """Log who trains and what travels; Flower's summary is of a draw that is not made here."""
        clients = self.settings.clients
        per_round = self.settings.clients_per_round or clients
        log(INFO, "\t├──> Clients: %d of %d in a round", per_round, clients)
        megabytes = self.state.model.nbytes / 1e6
        log(
            INFO,
            "\t├──> A round sends a node %.2g MB and gets as much back: %.2g s at 1 Mbit/s",
            *(megabytes, 2 * 8 * megabytes),
        )
        log(INFO, "\t└──> Least share that is kept: %g", self.settings.strategy.least_share)

    def fault(self, reply: Message) -> str | None:
        """Judge a reply: a reason to leave it out, or None. Subclasses may override it.

        Args:
            reply: A client's reply to this round's request.

        Returns:
            The reason, or None when it is valid.
        """
        if reason := describe_failure(reply):
            return reason
        partition = self._partitions.get(reply.metadata.src_node_id)
        if self.request is None or partition is None or partition not in self.request.weights:
            return "it is from a node that was not asked"
        return find_reply_fault(reply, self._expected_reply(self.request, partition))

    def step(self, delta: ArrayRecord) -> ArrayRecord:
        """Turn the mean delta into the next model. Subclasses may override it.

        What it returns is the next model; what else it changes in `state` stays.

        Args:
            delta: The mean of the clients' deltas, one array a layer.

        Returns:
            The next global model, one array a layer.
        """
        mean = to_vector(delta.to_numpy_ndarrays())
        plan = self._current_request().plan
        frozen = self.device_size if plan.is_encoder_frozen else 0
        self.state = advance_model(self.parts, self.state, mean, frozen=frozen)
        return ArrayRecord(to_arrays(self.state.model, self.shapes))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Make the messages that send the model to the selected clients, each with its weight.

        Flower's `server_round` counts from this call of `start`; `state` has the run's round.
        """
        classes = config.get(record_names.CLASSES)
        self.parts = build_server_parts(
            self.settings, classes if isinstance(classes, int) else None
        )
        self._update_registry(grid, ConfigRecord({**config, record_names.ROUND: self.state.round}))
        request = begin_round(self.parts, self.state, self.registry.examples)
        absent = request.weights.keys() - self.registry.nodes.keys()
        if lost := self._find_indispensable(absent, request):  # since the run was stopped
            self._await_nodes(grid, config, lost, self._find_deadline())
        nodes = self.registry.nodes
        clients = [k for k in request.weights if k in nodes]
        self.rejected = [
            Rejection(k, "no node holds it any more") for k in request.weights if k not in nodes
        ]
        self.request = request
        contents = {}
        for k in clients:
            numbers = ConfigRecord({**config, **_describe_request(request, k)})
            contents[k] = RecordDict({record_names.ARRAYS: arrays, record_names.CONFIG: numbers})
        self._asked = {}
        messages, self._sent = self._address(contents)

        def send_again(lost: list[int], deadline: float) -> list[Message]:
            returned = self._await_nodes(grid, config, lost, deadline)
            again, sent = self._address({k: contents[k] for k in returned})
            self._sent += sent
            if again:
                self.note_repeat()
            return [*grid.send_and_receive(again, timeout=self.settings.strategy.timeout)]

        self._send_again = send_again
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Finish the round with the valid replies, in the order of their partitions.

        Raises:
            RoundError: No reply is valid, or too few for a robust rule.
        """
        request = self._current_request()
        self._shared_keys = {}
        replies = self._recover_lost([*replies], request)
        valid, rejected = self._sort_replies(replies, request.weights)
        rejected = [r for r in self.rejected if r.client not in valid] + rejected
        silent = request.weights.keys() - valid.keys() - {r.client for r in rejected}
        self.rejected = rejected + [Rejection(k, "no reply") for k in sorted(silent)]
        for rejection in self.rejected:
            log(WARNING, "Left out client %s: %s", rejection.client, rejection.reason)
        used = sorted(valid)
        updates = (  # decoded one by one
            read_update(valid[k], state_round=request.state_rounds.get(k)) for k in used
        )
        self.state, self.report = finish_round(
            self.parts,
            self.state,
            request,
            updates,
            device_size=self.device_size,
            used=used,
            rejected=self.rejected,
            advance=self._advance,
        )
        self.report = self.report._replace(shared_keys=self._shared_keys)
        for client, reason in self.report.unused_metrics:
            log(WARNING, "Left out metrics of client %s: %s", client, to_printable(reason))
        for client in self.report.lost_states:
            log(WARNING, LOST_STATE, client, request.state_rounds[client])
        model = ArrayRecord(to_arrays(self.state.model, self.shapes))
        return model, MetricRecord(dict(self.report.metrics))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody: the server scores each round on its validation images."""
        return []

    def _update_registry(self, grid: Grid, requirements: ConfigRecord) -> None:
        """Learn who holds what; in rounds after the first, who is new or back."""
        if self.registry.examples:
            self.registry = reregister_nodes(grid, self.registry, requirements, self._patience)
        else:
            clients, before = self.settings.clients, self.registry.has_node_data
            registry = register_nodes(
                grid, clients, requirements, self.state.examples, recount=self.recount
            )
            self.registry = registry._replace(has_node_data=before or registry.has_node_data)
        self.state = self.state._replace(
            examples=self.registry.examples, has_node_data=self.registry.has_node_data
        )

    def _recover_lost(self, replies: list[Message], request: RoundRequest) -> list[Message]:
        """Return a round's replies; later ones of lost nodes that the round cannot do without."""
        deadline = self._find_deadline()
        while self._send_again and time.monotonic() < deadline:
            clients = {self._find_client(reply) for reply in replies if is_node_lost(reply)}
            if not (lost := self._find_indispensable(clients, request)):
                break
            if not (later := self._send_again(lost, deadline)):
                break
            renewed = {self._find_client(reply) for reply in later}
            replies = [
                reply for reply in replies if self._find_client(reply) not in renewed
            ] + later
        return replies

    @property
    def _partitions(self) -> Mapping[int, int]:
        """Partitions by node, of those too that were asked in this round and are replaced now."""
        return ChainMap(self.registry.partitions, self._asked)

    def _find_client(self, reply: Message) -> int:
        return find_sender(reply, self._partitions, self._sent)

    def _find_deadline(self) -> float:
        """Monotonic time until which a round that begins now waits for nodes."""
        return time.monotonic() + self.settings.strategy.timeout

    def _find_indispensable(self, clients: AbstractSet[int], request: RoundRequest) -> list[int]:
        """Sorted clients whose nodes are lost, where the others are below the least share."""
        lost = sorted(clients & request.weights.keys())
        weight = sum(w for k, w in request.weights.items() if k not in lost)
        share = weight / sum(request.weights.values())
        return [] if 0 < share >= self.parts.least_share else lost

    def _await_nodes(
        self, grid: Grid, config: ConfigRecord, clients: list[int], deadline: float
    ) -> list[int]:
        """Wait for lost nodes until a monotonic time; return the clients whose nodes are back.

        Once one is back, the others have a minute more: what cut them off is over.
        """
        log(
            WARNING,
            "Round %d waits for the nodes of clients %s, which are lost: at most %.0f s "
            "(strategy.timeout)",
            *(self.state.round + 1, ", ".join(map(str, clients)), deadline - time.monotonic()),
        )
        requirements = ConfigRecord({**config, record_names.ROUND: self.state.round})
        while True:
            self._update_registry(grid, requirements)
            nodes, connected = self.registry.nodes, set(grid.get_node_ids())
            returned = [k for k in clients if nodes.get(k) in connected]
            now = time.monotonic()
            if len(returned) == len(clients) or now >= deadline:
                log(WARNING, "Asked again: clients %s", ", ".join(map(str, returned)) or "none")
                return returned
            if returned:
                deadline = min(deadline, now + WAIT_SECONDS)
            time.sleep(_LOOK_SECONDS)

    def _address(
        self, contents: Mapping[int, RecordDict]
    ) -> tuple[list[Message], list[tuple[Metadata, int]]]:
        """Make a message to the node of each partition, and what `find_sender` needs of them."""
        nodes = self.registry.nodes
        self._asked |= {nodes[k]: k for k in contents}
        # A list: the deployed grid goes through it twice.
        messages = [
            Message(content, nodes[k], MessageType.TRAIN) for k, content in contents.items()
        ]
        return messages, [(m.metadata, k) for m, k in zip(messages, contents, strict=True)]

    def _sort_replies(
        self,
        replies: Iterable[Message],
        selected: Collection[int],
    ) -> tuple[dict[int, RecordDict], list[Rejection]]:
        """Return the contents of valid replies by partition, and why others are left out.

        Of a client whose reply is valid its other replies are logged and ignored.
        """
        valid: dict[int, RecordDict] = {}
        rejected: list[Rejection] = []
        for reply in replies:
            partition = self._find_client(reply)
            reason = "a second reply" if partition in valid else describe_failure(reply)
            if reason is None and partition not in selected:
                reason = "it is from a node that was not asked"
            reason = reason or self._examine(reply)
            if reason is None:
                valid[partition] = reply.content
            else:
                rejected.append(Rejection(partition, reason))
        for client, reason in rejected:
            if client in valid:
                log(WARNING, "Ignored a reply of client %s: %s", client, reason)
        return valid, [r for r in rejected if r.client not in valid]

    def _examine(self, reply: Message) -> str | None:
        """Describe in short what is wrong with a reply; bytes that break its reading are wrong."""
        try:
            reason = self._judge(reply)
        except RoundError:  # of a subclass, whose judgements are none
            raise
        except Exception as error:  # of an archive, say, which np.load makes of one
            reason = f"it cannot be examined: {error}"
        return reason and to_printable(reason)  # names and shapes in it are the sender's

    def _judge(self, reply: Message) -> str | None:
        """Return the `fault` that a subclass may have overridden; RoundError if it is no text."""
        name = f"{type(self).__name__}.fault"
        try:
            reason = self.fault(reply)
        except Exception as error:
            origin = describe_module_origin(error, type(self).__module__)
            if type(self).fault is PosteriorStrategy.fault or not origin:
                raise
            return f"{name} failed at it: {describe_unforeseen(error)} ({origin})"
        if not (reason is None or (isinstance(reason, str) and reason)):
            raise RoundError(
                f"{name} returned {reason!r:.60}, must return a reason in words or None"
            )
        if reason is None and (shared := self._incarnations.find_shared_key(reply)):
            self._shared_keys[self._find_client(reply)] = shared
            return shared.describe()
        return reason

    def _advance(self, state: ServerState, delta: torch.Tensor) -> ServerState:
        """Take the `step` that a subclass may have overridden."""
        self.state = state
        model = self.step(ArrayRecord(to_arrays(delta, self.shapes)))
        if type(self).step is not PosteriorStrategy.step:
            read_model(f"{type(self).__name__}.step", model, self.shapes)
        # A subclass may return a model of its own and leave `state` as it was.
        vector = to_vector(model.to_numpy_ndarrays()).to(state.model.dtype)
        return self.state._replace(round=state.round + 1, model=vector)

    def _current_request(self) -> RoundRequest:
        if self.request is None:
            raise RoundError("no round has begun: `configure_train` comes first")
        return self.request

    def _expected_reply(self, request: RoundRequest, partition: int) -> Expectation:
        return Expectation(
            number=request.plan.number,
            partition=partition,
            shapes=self.shapes,
            model=self.state.model,
            examples=self.registry.examples.get(partition, 0),
            trained=self.state.trained,
        )


def _describe_request(request: RoundRequest, client: int) -> dict[str, float]:
    order = request.plan.order
    numbers = {
        record_names.ROUND: order.number,
        record_names.WEIGHT: request.weights[client],
        record_names.TOTAL: order.total,
        record_names.THRESHOLD: order.threshold,
        record_names.STATE_ROUND: request.state_rounds.get(client),
        record_names.GAMMA: order.gamma,
    }
    return {name: number for name, number in numbers.items() if number is not None}
