"""A strategy of Flower's in rounds that repeat, with a record of who took part."""

import time
from collections.abc import Iterable
from logging import WARNING
from typing import Any, cast

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedcel.errors import RoundError, SettingsError
from fedcel.federation import Rejection, RoundReport, ServerState, record_names
from fedcel.nets import to_arrays
from fedcel.posterior import RoundOrder
from fedcel.run_parts import build_server_parts
from fedcel.settings import Settings
from strategies.flower_log import log
from strategies.node_incarnations import NodeIncarnations, SharedKey
from strategies.node_registry import (
    ANSWER_SECONDS,
    NodeRegistry,
    register_nodes,
    reregister_nodes,
)
from strategies.read_model import read_model
from strategies.validate_reply import (
    LOST_STATE,
    describe_failure,
    find_sender,
    pop_state_fence,
)


class DrawnGrid:
    """A grid that shows a strategy no node but those that train in the round."""

    def __init__(self, grid: Grid, nodes: list[int]) -> None:
        self._grid, self._nodes = grid, nodes

    def __getattr__(self, name: str) -> Any:
        """Return whatever else the grid has."""
        return getattr(self._grid, name)

    def get_node_ids(self) -> list[int]:
        """Return the nodes of the round."""
        return self._nodes


class StockStrategy(Strategy):
    """Wrapper that makes the rounds of a strategy of Flower's repeatable, and reports them.

    Clients are drawn by the run's seed and the round. The strategy sees their nodes alone and gets
    their replies in the order of their partitions. Random numbers that it draws while it
    aggregates stay as Flower has them: noise from a known seed would protect nobody. The server
    scores every round; nodes are not asked to evaluate.

    Args:
        strategy: The strategy, which averages weights.
        settings: The run's settings.
        state: The server's state before round 1.
        shapes: The shapes of the model's arrays.
    """

    def __init__(
        self,
        strategy: Strategy,
        settings: Settings,
        state: ServerState,
        shapes: list[tuple[int, ...]],
    ) -> None:
        self.strategy, self.settings, self.state, self.shapes = strategy, settings, state, shapes
        self.registry = NodeRegistry({}, {})
        self.report = RoundReport()
        self.unrepeatable: str | None = None
        """Reason why the same seed may give another model; None where none is known."""
        self._sent: list[tuple[Metadata, int]] = []
        self._incarnations = NodeIncarnations()
        self._state_rounds: dict[int, int] = {}  # as `ServerState.state_rounds`
        self._has_made_model = False

    def summary(self) -> None:
        """Log the strategy's own summary."""
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the clients of the round by the strategy's messages, once all are connected."""
        config = ConfigRecord({**config})  # a strategy adds to what it is given
        nodes = self._await_nodes(server_round, config, grid)
        drawn_grid = cast(Grid, DrawnGrid(grid, [*nodes.values()]))
        messages = [*self.strategy.configure_train(server_round, arrays, config, drawn_grid)]
        partitions = {node: k for k, node in nodes.items()}
        clients = [partitions.get(message.metadata.dst_node_id, -1) for message in messages]
        if sorted(clients) != [*nodes]:
            raise SettingsError(
                f"clients-per-round lets {len(nodes)} clients train in round {server_round}, and "
                f"{self.settings.strategy.name} asks {len(messages)}; let it ask all nodes of its "
                "grid, and set clients-per-round to their number"
            )
        for message, client in zip(messages, clients, strict=True):
            records = message.content
            if config_record := records.config_records.get(record_names.CONFIG):
                start = {record_names.STATE_ROUND: self._state_rounds.get(client, 0)}
                changed = {record_names.CONFIG: ConfigRecord({**config_record, **start})}
                message.content = RecordDict({**records, **changed})
        self._sent = [(message.metadata, k) for message, k in zip(messages, clients, strict=True)]
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Make the next model by the strategy, and report who is in it."""
        replies = self._record_replies(server_round, sorted(replies, key=self._find_sender))
        if not self.report.clients:
            rejected = self.report.rejected
            first = rejected[0].reason if rejected else "no reply came in time"
            raise RoundError(f"no node trained in round {server_round}; the first: {first}")
        before = _read_generators()
        answer = self.strategy.aggregate_train(server_round, replies)
        name = type(self.strategy).__name__
        if _read_generators() != before and self.unrepeatable is None:
            self.unrepeatable = f"{name}: it draws random numbers while it aggregates"
            log(WARNING, "The same seed may give another model. %s", self.unrepeatable)
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise RoundError(
                f"{name}.aggregate_train must return (arrays, metrics), "
                f"returned {type(answer).__name__}; return what super().aggregate_train returns"
            )
        self.state = self.state._replace(round=server_round)
        if answer[0]:
            model = read_model(f"{name}.aggregate_train", answer[0], self.shapes)
            if (trained := self.state.trained) is not None:
                model = self.state.model.index_copy(0, trained, model[trained])
            self.state = self.state._replace(model=model)
            self._has_made_model = True
        else:
            self._keep_model(f"{name} made no model of the round")
        return ArrayRecord(to_arrays(self.state.model, self.shapes)), answer[1]

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask nobody."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return None."""
        return None

    def _await_nodes(self, number: int, config: ConfigRecord, grid: Grid) -> dict[int, int]:
        """Wait for the clients of a round; return the node of each, by partition."""
        # A node forgets what it kept of later rounds.
        requirements = ConfigRecord({**config, record_names.ROUND: number - 1})
        if not self.registry.examples:
            self.registry = register_nodes(grid, self.settings.clients, requirements)
        clients = build_server_parts(self.settings).select(number)
        timeout = self.settings.strategy.timeout
        begin, patience = time.monotonic(), min(ANSWER_SECONDS, timeout)
        while True:
            self.registry = reregister_nodes(grid, self.registry, requirements, patience)
            nodes, connected = self.registry.nodes, set(grid.get_node_ids())
            if all(nodes.get(k) in connected for k in clients):
                return {k: nodes[k] for k in clients}
            if time.monotonic() - begin > timeout:
                raise RoundError(
                    f"round {number} waited {timeout:g} s for nodes (strategy.timeout); start "
                    "those that are missing"
                )
            time.sleep(0.1)

    def _find_sender(self, reply: Message) -> int:
        return find_sender(reply, self.registry.partitions, self._sent)

    def _record_replies(self, number: int, replies: list[Message]) -> list[Message]:
        """Report who trained and who did not; return the replies with what a strategy averages."""
        trained, rejected, lost_states = [], list[Rejection](), []
        shared_keys, usable = dict[int, SharedKey](), list[Message]()
        for reply in replies:
            client = self._find_sender(reply)
            if reason := describe_failure(reply):
                rejected.append(Rejection(client, reason))
                usable.append(reply)
                continue
            if shared := self._incarnations.find_shared_key(reply):
                shared_keys[client] = shared
                rejected.append(Rejection(client, shared.describe()))
                log(WARNING, "Left out client %s: %s", *rejected[-1])
                continue
            trained.append(client)
            usable.append(reply)
            expected = self._state_rounds.get(client, 0)
            for metrics in reply.content.metric_records.values():
                if record_names.STATE_ROUND in metrics:
                    self._state_rounds[client], is_lost = pop_state_fence(metrics, expected)
                    if is_lost:
                        lost_states.append(client)
                        log(WARNING, LOST_STATE, client, expected)
        replied = {*trained, *(rejection.client for rejection in rejected)}
        silent = {client for _, client in self._sent} - replied
        rejected += [Rejection(client, "no reply") for client in sorted(silent)]
        schedule = build_server_parts(self.settings).schedule
        plan = schedule.plan(RoundOrder(number, sum(self.registry.examples.values())))
        self.report = RoundReport(
            trained, rejected, {}, plan, lost_states=lost_states, shared_keys=shared_keys
        )
        return usable

    def _keep_model(self, reason: str) -> None:
        """Report a round of which the strategy made no model, where `strategy.least-share` is 0."""
        clients, rejected = self.report.clients, self.report.rejected
        if not self._has_made_model or self.settings.strategy.least_share > 0:
            raise RoundError(
                f"{reason} {self.state.round}, which has {len(clients)} valid replies"
                + (f"; left out: {rejected[0].reason}" if rejected else "")
                + "; start more clients, or choose another strategy"
                + ("; with strategy.least-share=0 the model stays" * self._has_made_model)
            )
        log(WARNING, "%s %d: the model stays as it was", reason, self.state.round)
        rejected = [*rejected, *(Rejection(client, reason) for client in clients)]
        self.report = self.report._replace(clients=[], rejected=rejected, lost_states=())


def _read_generators() -> tuple[bytes, int, bytes]:
    """Read the global generators of NumPy and PyTorch; threads of others draw from Python's."""
    state: Any = np.random.get_state(legacy=False)["state"]  # noqa: NPY002  (others draw of it)
    return state["key"].tobytes(), int(state["pos"]), torch.get_rng_state().numpy().tobytes()
