"""Run attacks on observations and score them: one row per attack and attack seed."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import NamedTuple
from warnings import warn

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.attack_row import AttackRow
from fedcel.attacks.averaging import RepeatedObservation
from fedcel.attacks.gradient_inversion import count_tuning_images
from fedcel.attacks.protocol import Attack, Progress, TellAttack
from fedcel.attacks.registry import OPTIMAL, parse_attacks
from fedcel.attacks.score_card import (
    class_means,
    order_batches,
    score_each_image,
    score_reconstructions,
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
    optimal_leak,
)
from fedcel.runs import per_image
from fedcel.seeding import make_generator
from fedcel.settings import AttackSettings

COPY_DISTANCE = 1.5 / 255  # root mean square of pixels' differences below which two images are one
TARGETS_AT_ONCE = 256  # compared with the attacker's images
MAX_PICTURES = 12  # reconstructions that are kept of each attack
FAILURE_PREFIX = "failed with"
"""How `skipped` begins in the row of an attack that nobody foresaw would fail."""

Pictures = dict[str, Tensor]


class Attacked(NamedTuple):
    """What attacks found: rows, pictures, and what the rows are means of."""

    rows: list[AttackRow]
    """One for each attack and attack seed."""
    pictures: Pictures
    """(n, C, H, W) in [0, 1], n at most 12: `targets`, `class-mean` (what the label alone tells),
    and under each attack's name the first reconstructions of its best seed."""
    per_image: per_image.Vectors
    """Scores of each target, named by `fedcel.runs.per_image.vector_name`."""


@dataclass(frozen=True)
class Assignment:
    """What one attack is carried out with: all but the attack itself and what it sees."""

    settings: AttackSettings
    auxiliary: Images
    targets: Images
    population: Images | None
    seed: int
    progress: Progress
    begin_seed: Callable[[int], None]
    """Told each attack seed before it begins."""


def run_attacks(
    observations: Sequence[Observation],
    settings: AttackSettings,
    auxiliary: Images,
    targets: Images,
    *,
    seed: int,
    progress: Progress,
    population: Images | None = None,
    tell_attack: TellAttack | None = None,
    keep: Callable[[str, Attacked], None] | None = None,
) -> Attacked:
    """Carry out all attacks that settings name and score what they find.

    An attack that finds no observation of its kind, or is not granted what it needs, or fails where
    nobody foresaw it, gives a row that says so in `skipped`. Any other FedcelError is raised: it
    says what the user has to mend.

    Args:
        observations: What can be attacked.
        settings: Which attacks, with what budget and knowledge. Reconstructed are the first
            `settings.targets`; the optimal attacker sees all, they are cheap to him.
        auxiliary: The attacker's own images.
        targets: Images that he wants to see.
        seed: That of the run; each attack seed 0, 1, ... has its own streams.
        progress: Told what goes on.
        population: Images that the anchors are taken from; see `score_reconstructions`.
        tell_attack: Told before each attack seed how many attacks are done.
        keep: Given each name of `settings.names` with what its attack found, as soon as it ended.

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
    shown = min(MAX_PICTURES, settings.targets or MAX_PICTURES)  # as many as every attack rebuilds
    guesses = class_means(targets.y, population or auxiliary)
    anchors: Pictures = {"targets": targets.x[:shown], "class-mean": guesses[:shown]}
    total = Attacked([], anchors, {})
    entries = zip(settings.names.split(","), attacks, strict=True)
    for number, (entry, (attack, repeats)) in enumerate(entries):
        name = OPTIMAL if attack is None else attack.name
        begin_seed = partial(
            _tell_seed, tell_attack, name, done=number, total=len(attacks), seeds=settings.seeds
        )
        assignment = Assignment(
            settings, auxiliary, targets, population, seed, progress, begin_seed
        )
        repeated = observations
        if repeats > 1:
            repeated = [RepeatedObservation(observation, repeats) for observation in observations]
        attacked = (
            run_optimal_attack(repeated, assignment)
            if attack is None
            else run_reconstruction(attack, repeated, assignment)
        )
        if keep:
            keep(entry.strip(), attacked._replace(pictures=anchors | attacked.pictures))
        total = Attacked(
            total.rows + attacked.rows,
            total.pictures | attacked.pictures,
            total.per_image | attacked.per_image,
        )
    if tell_attack:
        tell_attack(len(attacks), len(attacks), "writing")
    return total


def _tell_seed(
    tell_attack: TellAttack | None, name: str, seed: int, *, done: int, total: int, seeds: int
) -> None:
    """Tell that an attack begins with one of its seeds."""
    if tell_attack:
        tell_attack(done + seed / seeds, total, f"{name}, seed {seed}")


def refuse_known_targets(targets: Images, auxiliary: Images) -> None:
    """Refuse targets that the attacker holds already; DataError says how many.

    Warn of those that he holds all but a grey level or two of: two pictures of one burst may be.
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
            "level and a half of 256: he is scored on his memory; look for copies in the data",
            stacklevel=3,
        )


def refuse_batches(
    attacks: Sequence[Attack], observations: Sequence[Observation], auxiliary: Images
) -> None:
    """Refuse uploads of more images than the attacker has to simulate one with; SettingsError."""
    attacked = {attack.observes for attack in attacks if UPDATE in attack.needs}
    for observation in observations:
        if observation.name in attacked and isinstance(observation, ObservationUpdate):
            count_tuning_images(observation.batch, len(auxiliary.y))


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


def run_optimal_attack(observations: Sequence[Observation], assignment: Assignment) -> Attacked:
    """Return the optimal attacker's rows on each observation whose law it is granted."""
    settings, rows = assignment.settings, list[AttackRow]()
    identity = AttackRow(attack=OPTIMAL, knowledge="white-box")
    lawful = [surface for surface in observations if surface.grants & {LOG_PROB, NOISELESS}]
    if not lawful:
        skipped = f"needs {LOG_PROB}, granted nowhere"
        return Attacked([identity.with_results(observation="", skipped=skipped)], {}, {})
    for observation in lawful:
        for attack_seed in range(settings.seeds):
            row = identity.with_results(observation=observation.name, seed=attack_seed)
            assignment.begin_seed(attack_seed)
            with record_failure(rows, row):
                rows.append(measure_optimal(observation, row, assignment))
    return Attacked(rows, {}, {})


def measure_optimal(observation: Observation, row: AttackRow, assignment: Assignment) -> AttackRow:
    """Return the row with what the optimal attacker learns from one observation."""
    settings, begin = assignment.settings, time.monotonic()
    purpose = f"attack/{OPTIMAL}/{observation.name}"
    stream = make_generator(assignment.seed, purpose, row.seed or 0)
    leak = optimal_leak(observation, *assignment.targets, stream, candidates=settings.candidates)
    assignment.progress(
        f"{OPTIMAL} on {observation.name}, seed {row.seed}: "
        f"{leak.bits_beyond_label:.2f} of {leak.cap_beyond_label:.2f} bits beyond the label"
    )
    return row.with_results(
        budget=settings.budget,
        identification_optimal=leak.identification,
        identification_candidates=leak.identification_candidates,
        identification_half_width=leak.identification_half_width,
        information_bits=leak.information_bits,
        information_cap=leak.cap_bits,
        bits_beyond_label=leak.bits_beyond_label,
        bits_cap=leak.cap_beyond_label,
        candidates=leak.candidates,
        seconds=time.monotonic() - begin,
    )


def run_reconstruction(
    attack: Attack, observations: Sequence[Observation], assignment: Assignment
) -> Attacked:
    """Return one attack's rows and the first reconstructions of its best seed."""
    settings = assignment.settings
    identity = AttackRow(
        attack=attack.name, observation=attack.observes, knowledge=settings.knowledge
    )
    observation = next(
        (surface for surface in observations if surface.name == attack.observes), None
    )
    if observation is None:
        skipped = f"nothing here is observed as {attack.observes!r}"
        return Attacked([identity.with_results(skipped=skipped)], {}, {})
    if missing := sorted(attack.needs - observation.grants):
        skipped = f"needs {', '.join(missing)}, which is not granted"
        return Attacked([identity.with_results(skipped=skipped)], {}, {})
    targets = Images(*(part[: settings.targets or None] for part in assignment.targets))
    rows, vectors = list[AttackRow](), per_image.Vectors()
    pictures, lowest = Pictures(), torch.inf
    for attack_seed in range(settings.seeds):
        row = identity.with_results(seed=attack_seed)
        assignment.begin_seed(attack_seed)
        with record_failure(rows, row):
            begin, paid = time.monotonic(), count_paid(observation)
            images = reconstruct_targets(
                attack, observation, targets, assignment, attack_seed=attack_seed
            )
            queries = None if paid is None else (count_paid(observation) or 0) - paid
            seconds = time.monotonic() - begin
            scores = score_reconstructions(
                images,
                targets,
                assignment.auxiliary,
                settings.candidates,
                population=assignment.population,
            )
            image_scores = score_each_image(images, targets.x, settings.candidates)
            rows.append(
                row.with_results(
                    budget=settings.budget,
                    targets=len(targets.y),
                    identification_candidates=min(settings.candidates, len(targets.y)),
                    queries=queries,
                    **asdict(scores),
                    seconds=seconds,
                )
            )
            for measure, vector in image_scores.items():
                vectors[per_image.vector_name(rows[-1].to_dict(), measure)] = vector
            if scores.mse < lowest:
                lowest, pictures = scores.mse, {attack.name: images[:MAX_PICTURES]}
    return Attacked(rows, pictures, vectors)


def reconstruct_targets(
    attack: Attack,
    observation: Observation,
    targets: Images,
    assignment: Assignment,
    *,
    attack_seed: int,
) -> Float[Tensor, "T C H W"]:
    """Observe the targets and return what the attack makes of them, a batch in the best order.

    ValueError unless there is one image in [0, 1] for each target.
    """
    noise = make_generator(assignment.seed, f"targets/{observation.name}", attack_seed)
    images = attack.reconstruct(
        observation,
        assignment.auxiliary,
        observation.sample(targets.x, noise),
        assignment.settings.budget,
        make_generator(assignment.seed, f"attack/{attack.name}", attack_seed),
        lambda line: assignment.progress(f"{attack.name}, seed {attack_seed}: {line}"),
    )
    if images.shape != targets.x.shape:
        raise ValueError(
            f"attack {attack.name!r} returned {tuple(images.shape)}, "
            f"must be {tuple(targets.x.shape)}"
        )
    low, high = images.min().item(), images.max().item()  # NaN comes through both
    if not 0 <= low <= high <= 1:
        raise ValueError(
            f"attack {attack.name!r} returned pixels in [{low}, {high}], must be in [0, 1]"
        )
    if isinstance(observation, ObservationUpdate):
        return order_batches(images, targets.x, observation.batch)
    return images


def count_paid(observation: Observation) -> int | None:
    """Return how many observations were paid so far; None where they are free."""
    return observation.paid if isinstance(observation, ObservationPaid) else None
