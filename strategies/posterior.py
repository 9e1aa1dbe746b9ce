"""FedAvg over deltas: check every reply, average what is sound, slide, step."""

from collections.abc import Callable, Iterable, Mapping
from logging import WARNING

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
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedcel.errors import RoundError
from fedcel.federation import record_names, robust_aggregation
from fedcel.federation import server_round as rounds
from fedcel.federation.aggregation import (
    ServerState,
    heaviest,
    join,
    mean_gradient,
    mean_metrics,
    realised,
)
from fedcel.nets.flat_parameters import to_arrays, to_vector
from fedcel.posterior import round_plan
from fedcel.settings.parsing import Settings
from strategies.node_registry import ANSWER_SECONDS, Met, meet, rejoined
from strategies.validate_reply import (
    LONGEST,
    addressed,
    centres_fault,
    failure,
    gradient_of,
    numbers,
    statistics,
    too_long,
    vector,
    whose,
)


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
        self.own_images = state.own  # whether a node trains on others than the server deals out
        self.owner: Mapping[int, int] = {}  # partition -> the node that was the first to hold it
        self.vain: Mapping[int, int] = {}  # nodes asked in vain, see `meeting.Met`
        self.patience = min(ANSWER_SECONDS, settings.strategy.timeout)  # for answers to questions
        self.sent: list[tuple[Metadata, int]] = []  # this round's messages, to which partition
        self.weights: dict[int, float] = {}  # partition -> w_k of this round
        self.kept: list[int] = []  # partitions whose update was used in this round
        self.rejected: list[dict[str, object]] = []
        self.reported: dict[str, float] = {}

    def fault(self, reply: Message) -> str | None:
        """Say why to leave this reply out, or None when it is sound."""
        if reason := failure(reply):
            return reason
        if self.partition.get(reply.metadata.src_node_id) not in self.weights:
            return "it is from a node that was not asked"
        records = reply.content
        delta = records.array_records.get(record_names.DELTA)
        metrics = records.metric_records.get(record_names.METRICS)
        if delta is None or metrics is None:
            return (
                f"records {sorted(records)}, must be {[record_names.DELTA, record_names.METRICS]}"
            )
        number = self.state.round + 1
        if (answered := metrics.get(record_names.ROUND, number)) != number:
            return f"it answers round {answered}, this is round {number}"
        held = self.examples[self.partition[reply.metadata.src_node_id]]
        said = metrics.get(record_names.EXAMPLES)
        if said != held:
            return f"it claims {said} examples and held {held} before round 1"
        stale = self.plan.control == "stale"
        return (
            self.delta_fault(delta)
            or self.statistics_fault(records, held)
            or (self.gradient_fault(records) if stale else None)
        )

    def examined(self, reply: Message, fault: Callable[[Message], str | None]) -> str | None:
        """Say in short what `fault` finds, or None; bytes that break its reading are a reason."""
        try:
            reason = fault(reply)
        except Exception as error:  # of an archive, say, which np.load makes of one
            reason = f"it cannot be examined: {error}"
        return reason and reason[:LONGEST]  # names and shapes in it are the sender's

    def delta_fault(self, record: ArrayRecord) -> str | None:
        """Say what is wrong with the arrays of a delta, or None."""
        delta = vector(record, self.shapes)
        if isinstance(delta, str):
            return delta
        return self.too_long(delta, "its norm is")

    def gradient_fault(self, records: RecordDict) -> str | None:
        """Say what is wrong with a client's mean gradient, or None."""
        record = records.array_records.get(record_names.GRADIENT)
        if record is None:
            return f"records {sorted(records)}, must have {record_names.GRADIENT!r}"
        gradient = vector(record, [tuple(self.state.model.shape)])
        if isinstance(gradient, str):
            return f"its gradient: {gradient}"
        moves = gradient.double() * (self.plan.rate * self.plan.steps)
        return self.too_long(moves, "its gradient moves the model by")

    def gradient_reply_fault(self, reply: Message) -> str | None:
        """Say why a client gave no gradient that can be used, or None."""
        return failure(reply) or self.gradient_fault(reply.content)

    def too_long(self, move: torch.Tensor, what: str) -> str | None:
        """Say that a move of the model is longer than `strategy.max-norm` allows, or None."""
        return too_long(move, self.state.model, self.settings.strategy.max_norm, what)

    @property
    def plan(self) -> round_plan.Plan:
        """Return what the coming round asks of a client that holds everything."""
        total = sum(self.examples.values())
        return round_plan.plan(self.settings, self.state.round + 1, 1.0, total)

    @property
    def centres_due(self) -> bool:
        """Say whether a sound reply of this round brings its class centres."""
        return self.state.shared is not None and self.plan.cel_acts

    def statistics_fault(self, records: RecordDict, held: int) -> str | None:
        """Say what is wrong with the class centres of a client of `held` images, or None."""
        if not (self.state.shared and self.centres_due):
            return None
        net = self.settings.net
        bounded = net.bound != "none" and ":" not in net.name  # a user's net bounds as it likes
        return centres_fault(records, self.state.shared, held, bounded)

    def step(self, delta: ArrayRecord) -> ArrayRecord:
        """Turn the mean delta into the next model."""
        mean, total = to_vector(delta.to_numpy_ndarrays()), sum(self.examples.values())
        self.state = rounds.advance(self.settings, self.state, mean, self.cut, total)
        return ArrayRecord(to_arrays(self.state.model, self.shapes))

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to the drawn clients, each with its own weight."""
        self.attend(grid, ConfigRecord({**config, record_names.ROUND: self.state.round}))
        number = server_round + self.first
        taking_part = round_plan.chosen(self.settings, number)
        self.weights = round_plan.shares(self.settings, self.examples, taking_part)
        node = {holder: node for node, holder in self.partition.items()}
        absent = [k for k in taking_part if k not in node]  # lost since the run was stopped
        self.rejected = [{"client": k, "reason": "no node holds it any more"} for k in absent]
        taking_part = [k for k in taking_part if k in node]
        if self.plan.control == "fresh":
            taking_part = self.ask_gradients(grid, arrays, number, taking_part, node, config)
        brought = self.brought(arrays)
        contents = {}
        for holder in taking_part:
            asked = ConfigRecord(
                {**config, record_names.ROUND: number, record_names.SHARE: self.weights[holder]}
            )
            asked[record_names.TOTAL] = sum(self.examples.values())
            if self.state.control:
                asked[record_names.THRESHOLD] = self.state.control.threshold
            contents[holder] = RecordDict({**brought, record_names.CONFIG: asked})
        messages, self.sent = addressed(MessageType.TRAIN, node, contents)
        return messages

    def attend(self, grid: Grid, said: ConfigRecord) -> None:
        """Learn who holds what; in rounds after the first, who is new or back."""
        if self.examples:
            met = Met(self.partition, self.examples, self.own_images, self.owner, self.vain)
            met = rejoined(grid, met, said, self.patience)
        else:
            met = meet(grid, self.settings.clients, said, self.state.examples)
        self.partition, self.examples, own, self.owner, self.vain = met
        self.own_images = self.own_images or own
        self.state = self.state._replace(examples=self.examples, own=self.own_images)

    def brought(self, arrays: ArrayRecord) -> dict[str, ArrayRecord]:
        """Return the arrays that the coming round brings to every client."""
        records = {record_names.ARRAYS: arrays}
        if self.state.shared:
            records[record_names.CENTRES] = ArrayRecord(
                [tensor.numpy() for tensor in self.state.shared]
            )
        if self.state.gradient is not None and self.plan.control != "none":
            records[record_names.GRADIENT] = ArrayRecord([self.state.gradient.numpy()])
        if (scale := rounds.step_sizes(self.state)) is not None:
            records[record_names.SCALE] = ArrayRecord([scale.numpy()])
        return records

    def ask_gradients(
        self,
        grid: Grid,
        arrays: ArrayRecord,
        number: int,
        taking_part: list[int],
        node: dict[int, int],
        said: ConfigRecord,
    ) -> list[int]:
        """Ask for the clients' gradients at this model; return those that gave a sound one.

        Their weighted mean goes down with the model (Johnson and Zhang, NIPS 2013, over clients).
        """
        config = ConfigRecord({**said, record_names.ROUND: number})
        content = RecordDict({record_names.ARRAYS: arrays, record_names.CONFIG: config})
        contents = dict.fromkeys(taking_part, content)
        questions, sent = addressed(f"query.{record_names.GRADIENT_QUERY}", node, contents)
        found: dict[int, torch.Tensor] = {}
        for reply in grid.send_and_receive(questions, timeout=self.patience):
            holder = whose(reply, self.partition, sent)
            reason = self.examined(reply, self.gradient_reply_fault)
            if reason:
                self.rejected.append({"client": holder, "reason": reason})
            elif holder in taking_part:
                found[holder] = gradient_of(reply.content)
        if not found:
            raise RoundError(f"no client gave a gradient in round {number}: {self.rejected}")
        self.state = self.state._replace(gradient=mean_gradient(found, self.weights))
        return sorted(found)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Step on the sound replies, added up in the order of their partitions."""
        sound: dict[int, RecordDict] = {}
        for reply in replies:
            holder = whose(reply, self.partition, self.sent)
            reason = "a second reply" if holder in sound else self.examined(reply, self.fault)
            if reason is None:
                sound[holder] = reply.content
            else:
                self.rejected.append({"client": holder, "reason": reason})
        silent = self.weights.keys() - sound.keys() - {r["client"] for r in self.rejected}
        self.rejected += [{"client": c, "reason": "no reply"} for c in sorted(silent)]
        for left_out in self.rejected:
            log(WARNING, "Left out client %(client)s: %(reason)s", left_out)
        kept = self.kept = sorted(sound)
        if not kept:
            raise RoundError(
                f"no client of {len(self.weights)} gave an update that could be used in this "
                f"round; the first: {self.rejected[0]['reason']}"
            )
        plan = self.plan
        weights = realised(self.weights, kept, plan.noise > 0)
        deltas = [
            to_vector(sound[c].array_records[record_names.DELTA].to_numpy_ndarrays()) for c in kept
        ]
        delta = robust_aggregation.combined(self.settings.strategy, deltas, weights)
        if self.rejected:
            total = sum(self.examples.values())
            delta = rounds.topped_up(self.settings, self.state, delta, sum(weights), total)
        mean = to_arrays(delta, self.shapes)
        centres = [statistics(sound[c]) for c in kept] if self.centres_due else []
        model = self.step(ArrayRecord(mean))
        self.state, spread = join(self.state, centres, self.settings.cel.clusters)
        if plan.control == "stale":
            # One left out, but not gone for good, remembers a gradient that the mean would lack.
            broken = any(one["client"] in self.partition.values() for one in self.rejected)
            told_all = {c: gradient_of(sound[c]) for c in kept}
            mean_of_all = None if broken else mean_gradient(told_all, self.weights)
            self.state = self.state._replace(gradient=mean_of_all)
        told = [numbers(sound[c].metric_records[record_names.METRICS]) for c in kept]
        self.reported = mean_metrics(told, weights) | spread | heaviest(self.settings, weights)
        if self.rejected:
            whole = sum(self.weights.values())
            self.reported["kept-share"] = sum(self.weights[c] for c in kept) / whole
        return model, MetricRecord(dict(self.reported))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the nodes' scores, weighted by their images; a reply that has none is left out."""
        told, counts = [], []
        for reply in replies:
            holder = self.partition.get(reply.metadata.src_node_id)
            if failure(reply) is None and holder in self.examples:
                told.append(
                    numbers(reply.content.metric_records.get(record_names.METRICS, MetricRecord()))
                )
                counts.append(float(self.examples[holder]))
        return MetricRecord(dict(mean_metrics(told, counts))) if told else None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask the nodes to score the last model, once; every round has the server's own scores.

        Nobody where updates have noise, which scores on images lack. Only those whose update is in
        the last round: a dead node would be waited for again, a stranger has no business with it.
        """
        if server_round + self.first < self.settings.rounds or self.settings.update.noise:
            return []
        asked = super().configure_evaluate(server_round, arrays, config, grid)
        return [m for m in asked if self.partition.get(m.metadata.dst_node_id) in self.kept]
