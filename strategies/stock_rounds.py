"""The rounds of a stock strategy of Flower's: repeatable, and recorded."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from logging import WARNING
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    Strategy,
)
from flwr.supercore.run import Run
from numpy.typing import NDArray

from fedcel.errors import RoundError, SettingsError
from fedcel.federation import Rejection, RoundReport, record_names
from fedcel.settings import Settings
from strategies.node_registry import (
    ANSWER_SECONDS,
    NodeRegistry,
    register_nodes,
    reregister_nodes,
)
from strategies.seeded_draw import SeededDraw, read_generator_states
from strategies.validate_reply import (
    LOST_STATE,
    describe_failure,
    find_sender,
    pop_state_fence,
)

if TYPE_CHECKING:
    from flwr.proto.node_pb2 import NodeInfo

_CLIPPED_BY_CLIENTS = (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
)
_CLIP_TOLERANCE = 1e-3  # of the norm, by which a clipped update may exceed it
_ROUNDING = 1e-6  # of the model's norm: its weights have single precision


class OrderedGrid(Grid):
    """A grid that shows a strategy the nodes in the order of their partitions.

    Node ids are random in a simulation of Flower's and in a deployment: a seeded draw among them
    would not be the same twice.
    """

    def __init__(self, grid: Grid, list_nodes: Callable[[Grid], list[int]]) -> None:
        """Wrap a grid.

        Args:
            grid: Carries the messages.
            list_nodes: Returns the nodes that a strategy may choose from, in order.
        """
        self.grid = grid
        self._list_nodes = list_nodes

    def __getattr__(self, name: str) -> Any:
        """Return what only this kind of grid has."""
        return getattr(self.grid, name)

    def set_run(self, run: Run) -> None:
        """Set the run."""
        self.grid.set_run(run)

    @property
    def run(self) -> Run:
        """Return the run."""
        return self.grid.run

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Return a message; Flower calls this deprecated."""
        return self.grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes, by partition."""
        return self._list_nodes(self.grid)

    def get_nodes(self) -> "Iterable[NodeInfo]":
        """Return what is known of the nodes, by partition."""
        nodes = {node.node_id: node for node in self.grid.get_nodes()}
        return [nodes[node] for node in self._list_nodes(self.grid) if node in nodes]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Send messages; return their ids."""
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies that are there."""
        return self.grid.pull_messages(message_ids)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages and wait for the replies."""
        return self.grid.send_and_receive(messages, timeout=timeout)


class SentModel(NamedTuple):
    """What the clients of a round were sent, where they have to clip their updates."""

    arrays: list[NDArray[Any]]
    clipping_norm: float


class StockRounds:
    """Makes the rounds of a strategy repeatable, and records who took part in them.

    Clients are drawn by generators that the run's seed and the round set, among nodes in the order
    of their partitions; replies are aggregated in that order. What a strategy draws while it
    aggregates stays as Flower has it: noise from a known seed would protect nobody.
    """

    def __init__(
        self,
        strategy: Strategy,
        settings: Settings,
        requirements: ConfigRecord,
        frozen: Collection[int] = (),
    ) -> None:
        """Take a strategy in charge, from its first round on.

        Args:
            strategy: A strategy of Flower's, or derived from one.
            settings: The run's settings.
            requirements: What nodes' own images have to fit.
            frozen: Which of the model's arrays are not trained: they stay as they were sent,
                whatever an average rounds and a strategy adds.
        """
        self.registry = NodeRegistry({}, {})
        self.unrepeatable: str | None = None
        """Why the same seed may give another model; None: nothing is known that speaks for it."""
        self._strategy, self._settings = strategy, settings
        self._requirements = ConfigRecord({**requirements})  # a strategy adds to what it is given
        self._round, self._deadline = 0, math.inf
        self._draw: SeededDraw | None = None
        self._frozen, self._received = frozen, ArrayRecord()
        self._sent: list[tuple[Metadata, int]] = []
        self._model: SentModel | None = None
        self._trained: list[int] = []
        self._rejected: list[Rejection] = []
        self._lost_states: list[int] = []
        self._state_rounds: dict[int, int] = {}  # as `ServerState.state_rounds`
        self._has_made_model = self._is_round_used = False
        self._take_over(strategy)

    def order_grid(self, grid: Grid) -> Grid:
        """Return a grid that shows the nodes by partition.

        Args:
            grid: Carries the messages.
        """
        return grid if isinstance(grid, OrderedGrid) else OrderedGrid(grid, self._list_nodes)

    def report_round(self, number: int) -> RoundReport:
        """Report who trained and who did not in the round that has just ended.

        Args:
            number: The round.

        Returns:
            Partitions, and what was left out and why.

        Raises:
            RoundError: Nobody did, or no round so far made a model: it stood still.
        """
        name, rejected = type(self._strategy).__name__, self._rejected
        examples = sum(self.registry.examples.values())
        if not self._trained:
            first = rejected[0].reason if rejected else "no reply came in time"
            raise RoundError(f"no node trained in round {number}; the first: {first}")
        if self._is_round_used:
            return RoundReport(self._trained, rejected, {}, examples, lost_states=self._lost_states)
        reason = f"{name} made no model of the round"
        others = f"; left out: {rejected[0].reason}" if rejected else ""
        valid = f"{reason} {number}, which has {len(self._trained)} valid replies{others}"
        if not self._has_made_model:
            raise RoundError(f"{valid}; start more clients, or choose another strategy")
        if self._settings.strategy.least_share > 0:
            raise RoundError(
                f"{valid}; with strategy.least-share=0 the model stays as it was in such a round"
            )
        log(WARNING, "%s %d: the model stays as it was", reason, number)
        left_out = [Rejection(client, reason) for client in self._trained]
        return RoundReport([], [*rejected, *left_out], {}, examples)

    def _take_over(self, strategy: Strategy) -> None:
        """Put seeds, order and record around the four steps that Flower's loop takes."""
        configure_train, aggregate_train = strategy.configure_train, strategy.aggregate_train
        configure_evaluate = strategy.configure_evaluate
        aggregate_evaluate = strategy.aggregate_evaluate

        def configure_training(
            server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            self._begin_round(server_round, grid)
            self._received = arrays
            with self._seed_draw("clients") as draw:
                ordered = self.order_grid(grid)
                messages = list(configure_train(server_round, arrays, config, ordered))
                self._name_states(messages)
                self._note_messages(messages, arrays, has_drawn=draw.has_drawn)
            return messages

        def aggregate_training(
            server_round: int, replies: Iterable[Message]
        ) -> tuple[ArrayRecord | None, MetricRecord | None]:
            valid = self._record_replies(self._sort_replies(replies))
            before = read_generator_states()
            arrays, metrics = aggregate_train(server_round, valid)
            if read_generator_states()[1:] != before[1:]:
                self._note_unrepeatable("it draws random numbers while it aggregates")
            self._is_round_used = bool(arrays)
            self._has_made_model |= self._is_round_used
            if arrays:
                for k in self._frozen:
                    name = list(self._received)[k]
                    arrays[name] = self._received[name]
            return arrays, metrics

        def configure_evaluation(
            server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
        ) -> Iterable[Message]:
            with self._seed_draw("evaluation-clients"):
                ordered = self.order_grid(grid)
                return list(configure_evaluate(server_round, arrays, config, ordered))

        def aggregate_evaluation(
            server_round: int, replies: Iterable[Message]
        ) -> MetricRecord | None:
            return aggregate_evaluate(server_round, self._sort_replies(replies))

        strategy.configure_train = configure_training  # type: ignore[method-assign]
        strategy.aggregate_train = aggregate_training  # type: ignore[method-assign]
        strategy.configure_evaluate = configure_evaluation  # type: ignore[method-assign]
        strategy.aggregate_evaluate = aggregate_evaluation  # type: ignore[method-assign]

    def _begin_round(self, number: int, grid: Grid) -> None:
        """Learn who holds what before the first round; forget the last round's replies."""
        inner = grid.grid if isinstance(grid, OrderedGrid) else grid
        self._round = number
        self._trained, self._rejected, self._is_round_used = [], [], False
        self._lost_states = []
        if not self.registry.examples:
            requirements = self._describe_round()
            self.registry = register_nodes(inner, self._settings.clients, requirements)

    def _describe_round(self) -> ConfigRecord:
        """Return what a node is asked to fit; it forgets what it kept of later rounds."""
        return ConfigRecord({**self._requirements, record_names.ROUND: max(self._round - 1, 0)})

    def _list_nodes(self, grid: Grid) -> list[int]:
        """Return the connected nodes that hold a partition, by partition.

        Raises:
            RoundError: The strategy waits longer for nodes than a round may last.
        """
        if time.monotonic() > self._deadline:
            raise RoundError(
                f"round {self._round} waited {self._settings.strategy.timeout:g} s for nodes "
                "(strategy.timeout); start those that are missing"
            )
        if self.registry.examples:
            patience = min(ANSWER_SECONDS, self._settings.strategy.timeout)
            requirements = self._describe_round()
            self.registry = reregister_nodes(grid, self.registry, requirements, patience)
        connected = set(grid.get_node_ids())
        nodes = self.registry.nodes
        if self._draw:
            self._draw.reseed()
        return [nodes[k] for k in sorted(nodes) if nodes[k] in connected]

    @contextmanager
    def _seed_draw(self, purpose: str) -> Iterator[SeededDraw]:
        """Seed the global generators for a draw of clients, which may wait for nodes."""
        self._deadline = time.monotonic() + self._settings.strategy.timeout
        with SeededDraw(self._settings.seed, purpose, self._round) as draw:
            self._draw = draw
            try:
                yield draw
            finally:
                self._draw = None

    def _note_messages(
        self, messages: list[Message], arrays: ArrayRecord, *, has_drawn: bool
    ) -> None:
        """Note who is asked.

        Raises:
            SettingsError: The strategy asks another number of clients than is set.
        """
        partitions = self.registry.partitions
        self._sent = [(m.metadata, partitions.get(m.metadata.dst_node_id, -1)) for m in messages]
        per_round, name = self._settings.clients_per_round, self._settings.strategy.name
        if per_round and self._round == 1 and len(messages) != per_round:
            raise SettingsError(
                f"clients-per-round is {per_round}, and {name} asks {len(messages)} clients; let "
                "it take fraction_train and min_train_nodes, or set clients-per-round to 0"
            )
        if 0 < len(messages) < len(partitions) and not has_drawn:
            self._note_unrepeatable("it chose clients without the generators that the run seeds")
        if isinstance(self._strategy, _CLIPPED_BY_CLIENTS):
            self._model = SentModel(arrays.to_numpy_ndarrays(), self._strategy.clipping_norm)

    def _note_unrepeatable(self, reason: str) -> None:
        """Note why the same seed may give another model, and say it once."""
        if self.unrepeatable is None:
            self.unrepeatable = f"{type(self._strategy).__name__}: {reason}"
            log(WARNING, "The same seed may give another model. %s", self.unrepeatable)

    def _sort_replies(self, replies: Iterable[Message]) -> list[Message]:
        """Return replies by partition, those of unknown nodes last."""

        def key(reply: Message) -> tuple[bool, int]:
            partition = find_sender(reply, self.registry.partitions, self._sent)
            return partition < 0, partition

        return sorted(replies, key=key)

    def _record_replies(self, replies: list[Message]) -> list[Message]:
        """Record who trained and who did not; return the replies that the strategy is given."""
        passed, replied = [], set()
        for reply in replies:
            client = find_sender(reply, self.registry.partitions, self._sent)
            replied.add(client)
            unclipped = self._find_unclipped(reply)
            reason = describe_failure(reply) or unclipped
            if reason:
                self._rejected.append(Rejection(client, reason))
            else:
                self._trained.append(client)
                self._note_state(client, reply)
            if not unclipped:
                passed.append(reply)
        addressed = {client for _, client in self._sent}
        self._rejected += [Rejection(k, "no reply") for k in sorted(addressed - replied)]
        return passed

    def _name_states(self, messages: Iterable[Message]) -> None:
        """Tell each client of the round whose state it is to start from."""
        for message in messages:
            config = message.content.config_records.get(record_names.CONFIG)
            client = self.registry.partitions.get(message.metadata.dst_node_id, -1)
            if config is not None:
                numbers = {**config, record_names.STATE_ROUND: self._state_rounds.get(client, 0)}
                changed = {record_names.CONFIG: ConfigRecord(numbers)}
                message.content = RecordDict({**message.content, **changed})

    def _note_state(self, client: int, reply: Message) -> None:
        """Take from a reply what it says of the client's state, which no strategy averages."""
        expected = self._state_rounds.get(client, 0)
        for metrics in reply.content.metric_records.values():
            if record_names.STATE_ROUND in metrics:
                fence = pop_state_fence(metrics, expected)
                self._state_rounds[client] = fence.state_round
                if fence.is_lost:
                    self._lost_states.append(client)
                    log(WARNING, LOST_STATE, client, expected)

    def _find_unclipped(self, reply: Message) -> str | None:
        """Say that an update is longer than its ClientApp had to clip it to, or None."""
        if self._model is None or reply.has_error():
            return None
        received = [
            array
            for record in reply.content.array_records.values()
            for array in record.to_numpy_ndarrays()
        ]
        if [array.shape for array in received] != [array.shape for array in self._model.arrays]:
            return None  # the strategy refuses it
        gaps = [x - np.float64(y) for x, y in zip(received, self._model.arrays, strict=True)]
        norm, limit = _measure_norm(gaps), self._model.clipping_norm
        rounding = _ROUNDING * _measure_norm(self._model.arrays)
        if norm <= limit * (1 + _CLIP_TOLERANCE) + rounding:
            return None
        return (
            f"its update has norm {norm:.4g}, the clipping norm is {limit:.4g}: its ClientApp "
            "lacks a mod that clips, as flwr.clientapp.mod.fixedclipping_mod"
        )


def _measure_norm(arrays: Iterable[NDArray[Any]]) -> float:
    """Return the L2 norm of all arrays together."""
    return math.hypot(*(float(np.linalg.norm(array)) for array in arrays))
