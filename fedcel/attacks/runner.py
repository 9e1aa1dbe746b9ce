"""Run attacks on observations and score them: one row per attack and attack seed."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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
class AttackTask:
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
    tell = tell_attack or (lambda done, total, name: None)
    total = Attacked([], anchors, {})
    entries = zip(settings.names.split(","), attacks, strict=True)
    for number, (entry, (attack, repeats)) in enumerate(entries):
        name = OPTIMAL if attack is None else attack.name

        def begin_seed(attack_seed: int, done: int = number, name: str = name) -> None:
            tell(done + attack_seed / settings.seeds, len(attacks), f"{name}, seed {attack_seed}")

        task = AttackTask(settings, auxiliary, targets, population, seed, progress, begin_seed)
        surfaces = observations
        if repeats > 1:
            surfaces = [RepeatedObservation(observation, repeats) for observation in observations]
        if attack is None:
            attacked = Attacked(run_optimal_attack(surfaces, task), {}, {})
        else:
            attacked = run_reconstruction(attack, surfaces, task)
        if keep:
            keep(entry.strip(), attacked._replace(pictures=anchors | attacked.pictures))
        total = Attacked(
            total.rows + attacked.rows,
            total.pictures | attacked.pictures,
            total.per_image | attacked.per_image,
        )
    tell(len(attacks), len(attacks), "writing")
    return total


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


def run_optimal_attack(observations: Sequence[Observation], task: AttackTask) -> list[AttackRow]:
    """Return the optimal attacker's rows on each observation whose law it is granted."""
    settings, rows = task.settings, list[AttackRow]()
    identity = AttackRow(attack=OPTIMAL, observation="", knowledge="white-box")
    lawful = [surface for surface in observations if surface.grants & {LOG_PROB, NOISELESS}]
    if not lawful:
        return [identity.with_results(skipped=f"needs {LOG_PROB}, granted nowhere")]
    for observation in lawful:
        for attack_seed in range(settings.seeds):
            row = identity.with_results(observation=observation.name, seed=attack_seed)
            task.begin_seed(attack_seed)
            with record_failure(rows, row):
                begin, purpose = time.monotonic(), f"attack/{OPTIMAL}/{observation.name}"
                stream = make_generator(task.seed, purpose, attack_seed)
                leak = optimal_leak(
                    observation, *task.targets, stream, candidates=settings.candidates
                )
                task.progress(
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
                    candidates=leak.candidates,
                    seconds=time.monotonic() - begin,
                )
                rows.append(row)
    return rows


def run_reconstruction(
    attack: Attack, observations: Sequence[Observation], task: AttackTask
) -> Attacked:
    """Return one attack's rows and the first reconstructions of its best seed."""
    settings, name, kind = task.settings, attack.name, attack.observes
    identity = AttackRow(attack=name, observation=kind, knowledge=settings.knowledge)
    observation = next((surface for surface in observations if surface.name == kind), None)
    if observation is None or not attack.needs <= observation.grants:
        return Attacked(
            [identity.with_results(skipped=explain_refusal(attack, observation))], {}, {}
        )
    targets = Images(*(part[: settings.targets or None] for part in task.targets))
    rows, vectors = list[AttackRow](), per_image.Vectors()
    pictures, lowest = Pictures(), torch.inf
    for attack_seed in range(settings.seeds):
        row = identity.with_results(seed=attack_seed)
        task.begin_seed(attack_seed)
        with record_failure(rows, row):
            begin, paid = time.monotonic(), count_paid(observation)
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
            auxiliary, population, among = task.auxiliary, task.population, settings.candidates
            scores = score_reconstructions(images, targets, auxiliary, among, population=population)
            image_scores = {
                "mse": squared_errors(images, targets.x),
                "identification-1": identification_chances(images, targets.x, among, 1),
            }
            rows.append(row.with_results(**asdict(scores)))
            for measure, vector in image_scores.items():
                vectors[per_image.vector_name(row.to_json(), measure)] = vector
            if scores.mse < lowest:
                lowest, pictures = scores.mse, {name: images[:MAX_PICTURES]}
    return Attacked(rows, pictures, vectors)


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
    name, shape = attack.name, tuple(targets.x.shape)
    noise = make_generator(task.seed, f"targets/{observation.name}", attack_seed)
    images = attack.reconstruct(
        observation,
        task.auxiliary,
        observation.sample(targets.x, noise),
        task.settings.budget,
        make_generator(task.seed, f"attack/{name}", attack_seed),
        lambda line: task.progress(f"{name}, seed {attack_seed}: {line}"),
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
