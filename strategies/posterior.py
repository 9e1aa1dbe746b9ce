"""FedAvg over deltas: check every reply, average what is sound, slide, step."""

import time
from collections.abc import Iterable
from logging import WARNING

import numpy as np
import torch
from flwr.app import (
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedcel import schedule, wire
from fedcel.aggregation import (
    ServerState,
    join,
    mean_metrics,
    slide,
    topped_up,
    weighted_sum,
)
from fedcel.arrays import to_arrays, to_vector
from fedcel.cel import shared
from fedcel.errors import RoundError, SettingsError
from fedcel.settings import Settings

WAIT_SECONDS = 60.0  # for all nodes to connect before round 1


class PosteriorStrategy(FedAvg):
    """Sliding-average aggregation of deltas; override `fault` and `step`, nothing else.

    `state` is where the run stands (a resumed run goes on from its round), `shapes` are those of
    the model's arrays, `cut` is the number of encoder parameters.
    """

    def __init__(
        self, settings: Settings, state: ServerState, shapes: list[tuple[int, ...]], cut: int
    ) -> None:
        # Scoring happens on the server's validation set; nodes are asked to evaluate by request.
        super().__init__(min_train_nodes=1, min_evaluate_nodes=1, min_available_nodes=1)
        self.settings = settings
        self.state = state
        self.shapes = shapes
        self.cut = cut
        self.first = state.round
        self.partition: dict[int, int] = {}  # node id -> partition
        self.examples: dict[int, int] = {}  # partition -> N_k
        self.weights: dict[int, float] = {}  # partition -> w_k of this round
        self.kept: list[int] = []  # partitions whose update was used in this round
        self.rejected: list[dict[str, object]] = []
        self.reported: dict[str, float] = {}

    def fault(self, reply: Message) -> str | None:
        """Say why to leave this reply out, or None when it is sound."""
        if reply.has_error():
            return f"the client failed: {' '.join(str(reply.error.reason).split())}"
        if self.partition.get(reply.metadata.src_node_id) not in self.weights:
            return "it is from a node that was not asked"
        records = reply.content
        delta = records.array_records.get(wire.DELTA)
        metrics = records.metric_records.get(wire.METRICS)
        if delta is None or metrics is None:
            return f"records {sorted(records)}, must be {[wire.DELTA, wire.METRICS]}"
        held = self.examples[self.partition[reply.metadata.src_node_id]]
        said = metrics.get(wire.EXAMPLES)
        if said != held:
            return f"it claims {said} examples and held {held} before round 1"
        return self.delta_fault(delta) or self.statistics_fault(records, held)

    def delta_fault(self, record: ArrayRecord) -> str | None:
        """Say what is wrong with the arrays of a delta, or None."""
        try:
            arrays = record.to_numpy_ndarrays()
        except Exception as error:  # whatever a hostile sender's bytes make of the decoder
            return f"its arrays cannot be read: {error}"
        if [array.shape for array in arrays] != self.shapes:
            return f"shapes {[array.shape for array in arrays]}, must be {self.shapes}"
        if any(array.dtype != np.float32 for array in arrays):
            return f"dtypes {sorted({str(array.dtype) for array in arrays})}, must be float32"
        norm = float(torch.linalg.vector_norm(to_vector(arrays).double()))
        if not np.isfinite(norm):
            return "it holds NaN or infinity"
        limit = self.settings.strategy.max_norm
        if limit != "none" and norm > limit:
            return f"its norm is {norm:.4g}, at most {limit:g} is accepted"
        return None

    @property
    def centres_due(self) -> bool:
        """Say whether a sound reply of this round brings its class centres."""
        total = sum(self.examples.values())
        plan = schedule.plan(self.settings, self.state.round + 1, 1.0, total)
        return self.state.shared is not None and plan.cel_acts

    def statistics_fault(self, records: RecordDict, held: int) -> str | None:
        """Say what is wrong with the class centres of a client of `held` images, or None."""
        record = records.array_records.get(wire.STATISTICS)
        if not (self.state.shared and self.centres_due):
            return None
        if record is None:
            return f"records {sorted(records)}, must have {wire.STATISTICS!r}"
        try:
            arrays = record.to_numpy_ndarrays()
        except Exception as error:  # whatever a hostile sender's bytes make of the decoder
            return f"its statistics cannot be read: {error}"
        net = self.settings.net
        bounded = net.bound != "none" and ":" not in net.name  # a user's net bounds as it likes
        return shared.fault(arrays, self.state.shared, held, bounded)

    def step(self, delta: ArrayRecord) -> ArrayRecord:
        """Turn the mean delta into the next model."""
        plan = schedule.plan(self.settings, self.state.round + 1, 1.0, sum(self.examples.values()))
        self.state = slide(
            self.state,
            to_vector(delta.to_numpy_ndarrays()),
            self.settings.strategy.momentum,
            self.settings.strategy.gain,
            self.cut if plan.freeze else 0,
        )
        return ArrayRecord(to_arrays(self.state.model, self.shapes))

    def meet(self, grid: Grid) -> None:
        """Ask every node which partition it holds and how many examples; needs all of them."""
        waited = time.monotonic() + WAIT_SECONDS
        while len(nodes := list(grid.get_node_ids())) < self.settings.clients:
            if time.monotonic() > waited:
                raise SettingsError(
                    f"{len(nodes)} nodes are connected after {WAIT_SECONDS:.0f} s, clients is "
                    f"{self.settings.clients}; start that many nodes or set clients"
                )
            time.sleep(0.1)
        questions = [
            Message(RecordDict(), dst_node_id=node, message_type=f"query.{wire.COUNT_QUERY}")
            for node in nodes
        ]
        for reply in grid.send_and_receive(questions, timeout=WAIT_SECONDS):
            if reply.has_error():
                log(WARNING, "A node cannot take part: %s", reply.error.reason)
                continue
            told = reply.content.metric_records.get(wire.METRICS, MetricRecord())
            held, holder = told.get(wire.EXAMPLES), told.get(wire.PARTITION)
            if not (isinstance(held, int) and isinstance(holder, int)) or held < 1:
                log(WARNING, "A node cannot take part: partition %s, %s examples", holder, held)
                continue
            if holder in self.examples:
                log(WARNING, "A node cannot take part: partition %s is another's", holder)
                continue
            self.partition[reply.metadata.src_node_id] = holder
            self.examples[holder] = held
        if len(self.examples) != self.settings.clients:
            raise SettingsError(
                f"{len(self.examples)} partitions answered, clients is {self.settings.clients}; "
                "see the log for the nodes' errors, or set clients"
            )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to the drawn clients, each with its own weight."""
        if not self.examples:
            self.meet(grid)
        number = server_round + self.first
        taking_part = schedule.chosen(self.settings, number)
        self.weights = schedule.shares(self.settings, self.examples, taking_part)
        node = {holder: node for node, holder in self.partition.items()}
        total = sum(self.examples.values())
        for holder in taking_part:
            asked = ConfigRecord(dict(config))
            asked[wire.ROUND] = number
            asked[wire.SHARE] = self.weights[holder]
            asked[wire.TOTAL] = total
            if self.state.control:
                asked[wire.THRESHOLD] = self.state.control.threshold
            content = RecordDict({wire.ARRAYS: arrays, wire.CONFIG: asked})
            if self.state.shared:
                merged = [tensor.numpy() for tensor in self.state.shared]
                content[wire.CENTRES] = ArrayRecord(merged)
            yield Message(content, dst_node_id=node[holder], message_type=MessageType.TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Step on the sound replies, added up in the order of their partitions."""
        sound: dict[int, RecordDict] = {}
        self.rejected = []
        for reply in replies:
            holder = self.partition.get(reply.metadata.src_node_id, -1)
            reason = "a second reply" if holder in sound else self.fault(reply)
            if reason is None:
                sound[holder] = reply.content
            else:
                self.rejected.append({"client": holder, "reason": reason})
        silent = self.weights.keys() - sound.keys() - {r["client"] for r in self.rejected}
        self.rejected += [{"client": c, "reason": "no reply"} for c in sorted(silent)]
        for left_out in self.rejected:
            log(WARNING, "Left out client %(client)s: %(reason)s", left_out)
        kept = sorted(sound)
        self.kept = kept
        if not kept:
            raise RoundError(
                f"no client of {len(self.weights)} gave an update that could be used in this "
                f"round; the first: {self.rejected[0]['reason']}"
            )
        weights = topped_up(self.weights, kept)
        deltas = [to_vector(sound[c].array_records[wire.DELTA].to_numpy_ndarrays()) for c in kept]
        mean = to_arrays(weighted_sum(deltas, weights), self.shapes)
        centres = [statistics(sound[c]) for c in kept] if self.centres_due else []
        model = self.step(ArrayRecord(mean))
        self.state, spread = join(self.state, centres, self.settings.cel.clusters)
        told = [numbers(sound[c].metric_records[wire.METRICS]) for c in kept]
        self.reported = mean_metrics(told, weights) | spread
        if self.rejected:
            # Their noise was drawn for smaller weights: the step is this much hotter.
            self.reported["temperature-ratio"] = weights[0] / self.weights[kept[0]]
        return model, MetricRecord(dict(self.reported))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the nodes to score the last model, once; every round has the server's own scores."""
        if server_round + self.first < self.settings.rounds:
            return []
        return super().configure_evaluate(server_round, arrays, config, grid)


def statistics(records: RecordDict) -> shared.Statistics:
    """Return the class centres of a sound reply."""
    arrays = records.array_records[wire.STATISTICS].to_numpy_ndarrays()
    return shared.Statistics(*(torch.from_numpy(array.copy()) for array in arrays))


def numbers(record: MetricRecord) -> dict[str, float]:
    """Return the metrics of a reply that are single numbers."""
    return {key: float(v) for key, v in record.items() if isinstance(v, int | float)}
