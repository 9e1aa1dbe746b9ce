"""Run attacks on observations and score them: one row per attack and attack seed."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import NamedTuple
from warnings import warn

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.attacks.attack_row import AttackRow
from fedcel.attacks.attribute_inference import (
    ATTRIBUTE,
    score_attribute_reader,
    train_attribute_reader,
)
from fedcel.attacks.averaging import RepeatedObservation
from fedcel.attacks.gradient_inversion import check_batch_size
from fedcel.attacks.protocol import Attack, Progress
from fedcel.attacks.registry import OPTIMAL, list_entries, parse_attacks
from fedcel.attacks.score_card import (
    class_means,
    identification_chances,
    order_batches,
    score_reconstructions,
    squared_errors,
)
from fedcel.data import Images
from fedcel.errors import DataError, FedcelError, ServiceError, describe_origin, describe_unforeseen
from fedcel.leakage import (
    LOG_PROB,
    NOISELESS,
    UPDATE,
    Observation,
    ObservationPaid,
    ObservationUpdate,
    attribute_leak,
    optimal_leak,
)
from fedcel.runs import per_image
from fedcel.seeding import make_generator
from fedcel.settings.attack import AttackSettings
from fedcel.short_repr import summarise_record

COPY_DISTANCE = 1.5 / 255  # root mean square of pixels' differences below which two images are one
TARGETS_AT_ONCE = 256  # compared with the attacker's images
MAX_PICTURES = 12  # reconstructions that are kept of each attack
FAILURE_PREFIX = "failed with"
"""How `skipped` begins in the row of an attack that nobody foresaw would fail."""

Pictures = dict[str, Tensor]


class AttackOutcome(NamedTuple):
    """What attacks found: rows, pictures, and the scores of each target."""

    rows: list[AttackRow]
    """One for each attack and attack seed."""
    pictures: Pictures
    """(n, C, H, W) in [0, 1], n at most 12: `targets`, `class-mean` (what the label alone tells),
    and under each attack's name the first reconstructions of its best seed."""
    per_image: per_image.Vectors
    """Scores of each target, named by `fedcel.runs.per_image.vector_name`."""

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


def ignore(*news: object) -> None:
    """Take news and do nothing."""


@dataclass(frozen=True)
class AttackListener:
    """Functions that are told how attacks go on; by default they do nothing.

    Args:
        show_line: Takes a line that an attack says of its progress.
        begin_seed: Called before each attack seed, and at the end, with the number of attacks done,
            a part for the seeds of the one under way, their number, and what begins in words.
        keep_outcome: Takes each name of `settings.names` with what its attack found, as soon as it
            ended.
    """

    show_line: Progress = ignore
    begin_seed: Callable[[float, int, str], None] = ignore
    keep_outcome: Callable[[str, AttackOutcome], None] = ignore


SILENT = AttackListener()


class AttackedAttributes(NamedTuple):
    """What attacks on an attribute want to know, and know of the attacker's own images."""

    auxiliary: Int[Tensor, " A"]
    targets: Int[Tensor, " T"]

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


@dataclass(frozen=True)
class AttackTask:
    """What one attack is carried out with, and which of how many it is."""

    settings: AttackSettings
    auxiliary: Images
    targets: Images
    population: Images | None
    seed: int
    listener: AttackListener
    name: str
    attacks_done: int
    attack_count: int
    attributes: AttackedAttributes | None = None

    def begin_seed(self, attack_seed: int) -> None:
        """Tell the listener that an attack seed begins."""
        attacks_done = self.attacks_done + attack_seed / self.settings.seeds
        activity = f"{self.name}, seed {attack_seed}"
        self.listener.begin_seed(attacks_done, self.attack_count, activity)


def run_attacks(
    observations: Sequence[Observation],
    settings: AttackSettings,
    auxiliary: Images,
    targets: Images,
    *,
    seed: int,
    population: Images | None = None,
    attributes: AttackedAttributes | None = None,
    listener: AttackListener = SILENT,
) -> AttackOutcome:
    """Carry out all attacks that settings name and score what they find.

    An attack that finds no observation of its kind, or is not granted what it needs, or fails where
    nobody foresaw it, gives a row that says so in `skipped`. Any other FedcelError is raised: it
    says what the user has to mend.

    Args:
        observations: What can be attacked.
        settings: Which attacks, with what budget and knowledge. Reconstructed are the first
            `settings.targets`; the optimal attacker sees all, they are cheap to score.
        auxiliary: The attacker's own images.
        targets: Images that the attacker wants to see.
        seed: The run's seed; each attack seed 0, 1, ... has its own streams.
        population: Images that the anchors are taken from; see `score_reconstructions`.
        attributes: Attributes of the attacker's images and of the targets, for the attack
            `attribute`; None: it is skipped.
        listener: Told what goes on, and what each attack found.

    Returns:
        Rows, pictures and scores of each target.

    Raises:
        SettingsError: Before any work, on an unknown name, or a batch larger than the attacker's
            images.
        DataError: Before any work, when a target is among the attacker's images, or the anchors
            would be of other classes.
    """
    attacks = parse_attacks(settings.names)
    refuse_known_targets(targets, auxiliary)
    refuse_batches([attack for attack, _ in attacks if attack], observations, auxiliary)
    pictured = slice(
        min(MAX_PICTURES, settings.targets or MAX_PICTURES)
    )  # all attacks rebuild these
    guesses = class_means(targets.y, population or auxiliary)
    anchors: Pictures = {"targets": targets.x[pictured], "class-mean": guesses[pictured]}
    total = AttackOutcome([], anchors, {})
    entries = zip(list_entries(settings.names), attacks, strict=True)
    for number, ((entry, name), (attack, repeats)) in enumerate(entries):
        task = AttackTask(
            settings,
            auxiliary,
            targets,
            population,
            seed,
            listener,
            name=name,
            attacks_done=number,
            attack_count=len(attacks),
            attributes=attributes,
        )
        surfaces = observations
        if repeats > 1:
            surfaces = [RepeatedObservation(observation, repeats) for observation in observations]
        if attack is None:
            run_rows = run_attribute_attack if name == ATTRIBUTE else run_optimal_attack
            outcome = AttackOutcome(run_rows(surfaces, task), {}, {})
        else:
            outcome = run_reconstruction(attack, surfaces, task)
        listener.keep_outcome(entry, outcome._replace(pictures=anchors | outcome.pictures))
        total = AttackOutcome(
            total.rows + outcome.rows,
            total.pictures | outcome.pictures,
            total.per_image | outcome.per_image,
        )
    listener.begin_seed(len(attacks), len(attacks), "writing")
    return total


def refuse_known_targets(targets: Images, auxiliary: Images) -> None:
    """Refuse targets that the attacker holds already; DataError says how many.

    Warn of those held to a grey level or two: two pictures of one burst may be.
    """
    auxiliary_bytes = {image.numpy().tobytes() for image in auxiliary.x}
    equal = sum(image.numpy().tobytes() in auxiliary_bytes for image in targets.x)
    if equal:
        raise DataError(
            f"{equal} of {len(targets.y)} targets are among the attacker's own images; "
            "a target must be unseen: split the images anew"
        )
    auxiliary_pixels, target_pixels = auxiliary.x.flatten(1), targets.x.flatten(1)
    limit = COPY_DISTANCE * target_pixels.shape[1] ** 0.5
    parts = torch.split(target_pixels, TARGETS_AT_ONCE) if len(auxiliary_pixels) else []
    distances = (torch.cdist(part, auxiliary_pixels).amin(1) for part in parts)
    alike = sum(int((distance <= limit).sum()) for distance in distances)
    if alike:
        warn(
            f"{alike} of {len(targets.y)} targets are an own image of the attacker's to a grey "
            "level and a half of 256: attacks are scored on memory; look for copies in the data",
            stacklevel=3,
        )


def refuse_batches(
    attacks: Sequence[Attack], observations: Sequence[Observation], auxiliary: Images
) -> None:
    """Refuse uploads of more images than the attacker has to simulate one with; SettingsError."""
    attacked_names = {attack.observes for attack in attacks if UPDATE in attack.needs}
    for observation in observations:
        if observation.name in attacked_names and isinstance(observation, ObservationUpdate):
            check_batch_size(observation.batch, len(auxiliary.y))


@contextmanager
def record_failure(rows: list[AttackRow], row: AttackRow) -> Iterator[None]:
    """Add the row with `skipped`, and warn, on an error that nobody foresaw.

    Of a service that says no, too: what it answered before was paid for. Any other FedcelError is
    raised: it says what the user has to mend.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, FedcelError) and not isinstance(error, ServiceError):
            raise
        failure = f"{FAILURE_PREFIX} {describe_unforeseen(error)}"
        rows.append(row.with_results(skipped=failure))
        place = f"{row.attack} on {row.observation}, seed {row.seed}"
        warn(f"{place} {failure} ({describe_origin(error)})", stacklevel=4)


def run_optimal_attack(observations: Sequence[Observation], task: AttackTask) -> list[AttackRow]:
    """Return the optimal attacker's rows on each observation whose law it is granted."""
    settings = task.settings
    rows: list[AttackRow] = []
    identity = AttackRow(attack=OPTIMAL, observation="", knowledge="white-box")
    with_known_law = [surface for surface in observations if surface.grants & {LOG_PROB, NOISELESS}]
    if not with_known_law:
        return [identity.with_results(skipped=f"needs {LOG_PROB}, granted nowhere")]
    for observation in with_known_law:
        for attack_seed in range(settings.seeds):
            row = identity.with_results(observation=observation.name, seed=attack_seed)
            task.begin_seed(attack_seed)
            with record_failure(rows, row):
                begin = time.monotonic()
                purpose = f"attack/{OPTIMAL}/{observation.name}"
                stream = make_generator(task.seed, purpose, attack_seed)
                leak = optimal_leak(
                    observation,
                    *task.targets,
                    stream,
                    identification_candidates=settings.candidates,
                )
                task.listener.show_line(
                    f"{OPTIMAL} on {observation.name}, seed {attack_seed}: "
                    f"{leak.bits_beyond_label:.2f} of {leak.cap_beyond_label:.2f} bits beyond the "
                    "label"
                )
                row = row.with_results(
                    budget=settings.budget,
                    identification_optimal=leak.identification,
                    identification_candidates=leak.identification_candidates,
                    identification_half_width=leak.identification_half_width,
                    information_bits=leak.information_bits,
                    information_cap=leak.cap_bits,
                    bits_beyond_label=leak.bits_beyond_label,
                    bits_cap=leak.cap_beyond_label,
                    candidates=leak.image_count,
                    seconds=time.monotonic() - begin,
                )
                rows.append(row)
    return rows


def run_attribute_attack(observations: Sequence[Observation], task: AttackTask) -> list[AttackRow]:
    """Return rows of who reads an attribute off each observation: the optimal and a trained one.

    The optimal attacker knows the candidates and the law; the trained one has own images alone.
    """
    settings, attributes = task.settings, task.attributes
    identity = AttackRow(attack=ATTRIBUTE, budget=settings.budget)
    if attributes is None:
        skipped = "there is no attribute beside the label; set data.labels to a coarser task"
        return [identity.with_results(skipped=skipped)]
    rows: list[AttackRow] = []
    for observation in observations:
        if UPDATE in observation.grants or isinstance(observation, ObservationPaid):
            continue
        for attack_seed in range(settings.seeds):
            task.begin_seed(attack_seed)
            row = identity.with_results(observation=observation.name, seed=attack_seed)
            stream = make_generator(task.seed, f"attack/attribute/{observation.name}", attack_seed)
            if observation.grants & {LOG_PROB, NOISELESS}:
                exact = row.with_results(knowledge="white-box")
                with record_failure(rows, exact):
                    rows.append(
                        infer_optimally(observation, attributes, task, exact, generator=stream)
                    )
            trained = row.with_results(knowledge=settings.knowledge)
            with record_failure(rows, trained):
                rows.append(
                    infer_by_training(observation, attributes, task, trained, generator=stream)
                )
    return rows


def infer_optimally(
    observation: Observation,
    attributes: AttackedAttributes,
    task: AttackTask,
    row: AttackRow,
    *,
    generator: torch.Generator,
) -> AttackRow:
    """Return the row of the optimal attacker on an attribute."""
    begin = time.monotonic()
    leak = attribute_leak(observation, *task.targets, attributes.targets, generator=generator)
    task.listener.show_line(
        f"{ATTRIBUTE} on {observation.name}: {leak.bits:.2f} of {leak.cap_bits:.2f} bits, named in "
        f"{leak.accuracy:.1%} of cases, by the label alone in {leak.accuracy_by_label:.1%}"
    )
    return row.with_results(
        attribute_bits=leak.bits,
        attribute_cap=leak.cap_bits,
        attribute_accuracy=leak.accuracy,
        attribute_by_label=leak.accuracy_by_label,
        attribute_by_others=leak.accuracy_of_others,
        candidates=leak.image_count,
        seconds=time.monotonic() - begin,
    )


def infer_by_training(
    observation: Observation,
    attributes: AttackedAttributes,
    task: AttackTask,
    row: AttackRow,
    *,
    generator: torch.Generator,
) -> AttackRow:
    """Return the row of a classifier that was trained on the attacker's images."""
    begin = time.monotonic()
    reader = train_attribute_reader(
        observation,
        task.auxiliary,
        attributes.auxiliary,
        budget=task.settings.budget,
        generator=generator,
    )
    accuracy = score_attribute_reader(
        reader, observation, task.targets, attributes.targets, generator=generator
    )
    task.listener.show_line(f"{ATTRIBUTE} on {observation.name}, trained: {accuracy:.1%} of cases")
    return row.with_results(
        attribute_accuracy=accuracy,
        targets=len(task.targets.y),
        seconds=time.monotonic() - begin,
    )


def run_reconstruction(
    attack: Attack, observations: Sequence[Observation], task: AttackTask
) -> AttackOutcome:
    """Return one attack's rows and the first reconstructions of its best seed."""
    settings, name, kind = task.settings, attack.name, attack.observes
    identity = AttackRow(attack=name, observation=kind, knowledge=settings.knowledge)
    observation = next((surface for surface in observations if surface.name == kind), None)
    if observation is None or not attack.needs <= observation.grants:
        skipped = explain_refusal(attack, observation)
        return AttackOutcome([identity.with_results(skipped=skipped)], {}, {})
    targets = Images(*(part[: settings.targets or None] for part in task.targets))
    rows: list[AttackRow] = []
    vectors: per_image.Vectors = {}
    pictures: Pictures = {}
    lowest_mse = torch.inf
    for attack_seed in range(settings.seeds):
        row = identity.with_results(seed=attack_seed)
        task.begin_seed(attack_seed)
        with record_failure(rows, row):
            begin = time.monotonic()
            paid = count_paid(observation)
            images = reconstruct_targets(
                attack, observation, targets, task, attack_seed=attack_seed
            )
            is_paid = isinstance(observation, ObservationPaid)
            row = row.with_results(
                budget=settings.budget,
                targets=len(targets.y),
                identification_candidates=min(settings.candidates, len(targets.y)),
                queries=count_paid(observation) - paid if is_paid else None,
                seconds=time.monotonic() - begin,
            )
            candidates = settings.candidates
            scores = score_reconstructions(
                images, targets, task.auxiliary, candidates, population=task.population
            )
            image_scores = {
                "mse": squared_errors(images, targets.x),
                "identification-1": identification_chances(images, targets.x, candidates, 1),
            }
            rows.append(row.with_results(**asdict(scores)))
            for measure, vector in image_scores.items():
                vectors[per_image.vector_name(row.to_json(), measure)] = vector
            if scores.mse < lowest_mse:
                lowest_mse = scores.mse
                pictures = {name: images[:MAX_PICTURES]}
    return AttackOutcome(rows, pictures, vectors)


def explain_refusal(attack: Attack, observation: Observation | None) -> str:
    """Return why an attack cannot run on what there is."""
    if observation is None:
        return f"nothing here is observed as {attack.observes!r}"
    missing = sorted(attack.needs - observation.grants)
    return f"needs {', '.join(missing)}, which is not granted"


def reconstruct_targets(
    attack: Attack,
    observation: Observation,
    targets: Images,
    task: AttackTask,
    *,
    attack_seed: int,
) -> Float[Tensor, "T C H W"]:
    """Observe the targets and return what the attack makes of them, a batch in the best order.

    ValueError unless there is one image in [0, 1] for each target.
    """
    name = attack.name
    shape = tuple(targets.x.shape)
    noise = make_generator(task.seed, f"targets/{observation.name}", attack_seed)
    images = attack.reconstruct(
        observation,
        task.auxiliary,
        observation.sample(targets.x, noise),
        task.settings.budget,
        make_generator(task.seed, f"attack/{name}", attack_seed),
        lambda line: task.listener.show_line(f"{name}, seed {attack_seed}: {line}"),
    )
    if images.shape != targets.x.shape:
        raise ValueError(f"attack {name!r} returned {tuple(images.shape)}, must be {shape}")
    low, high = images.min().item(), images.max().item()  # NaN comes through both
    if not 0 <= low <= high <= 1:
        raise ValueError(f"attack {name!r} returned pixels in [{low}, {high}], must be in [0, 1]")
    if isinstance(observation, ObservationUpdate):
        return order_batches(images, targets.x, observation.batch)
    return images


def count_paid(observation: Observation) -> int:
    """Return how many observations were paid so far, 0 where they are free."""
    return observation.paid if isinstance(observation, ObservationPaid) else 0
