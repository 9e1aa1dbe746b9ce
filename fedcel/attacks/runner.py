"""Run attacks on observations and score them: one row per attack and attack seed."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import NamedTuple
from warnings import warn

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel import per_image
from fedcel.attacks.attack import Attack, Progress, TrainingProgress
from fedcel.attacks.attack_clock import AttackClock
from fedcel.attacks.attack_row import AttackRow, thin_curve
from fedcel.attacks.attack_settings import AttackSettings
from fedcel.attacks.averaging import observe_repeatedly
from fedcel.attacks.registry import OPTIMAL, NamedAttack, parse_attacks
from fedcel.attacks.score_card import (
    Anchors,
    find_anchors,
    order_batches,
    score_images,
    score_reconstructions,
)
from fedcel.attacks.update_inversion import check_batch_size
from fedcel.data import Images, match_pixels
from fedcel.errors import (
    DataError,
    FedcelError,
    ServiceError,
    SizeError,
    describe_origin,
    describe_unforeseen,
)
from fedcel.leakage import (
    LOG_PROB,
    NOISELESS,
    UPDATE,
    Observation,
    ObservationPaid,
    ObservationUpdate,
    optimal_leak,
)
from fedcel.short_repr import show_shapes
from fedcel.torch_state import make_generator

COPY_DISTANCE = 1.5 / 255  # root mean square of pixels' differences below which two images are one
TARGETS_AT_ONCE = 256  # compared with the attacker's images
MAX_PICTURES = 12  # reconstructions that are kept of each attack
FAILURE_PREFIX = "failed with"
"""Beginning of `skipped` in the row of an attack that failed unexpectedly."""

Pictures = dict[str, Tensor]


@show_shapes
class AttackOutcome(NamedTuple):
    """Result of attacks: rows, pictures, and the scores of each target."""

    rows: list[AttackRow]
    """One for each attack and attack seed."""
    pictures: Pictures
    """(n, C, H, W) in [0, 1], n at most 12: `targets`, `class-mean` (a guess from the label),
    and under each attack's name the first reconstructions of its best seed."""
    per_image: per_image.Vectors
    """Scores of each target, named by `fedcel.per_image.vector_name`."""


def ignore(*news: object) -> None:
    """Take news and do nothing."""


@dataclass(frozen=True)
class AttackListener:
    """Callbacks for the progress of attacks; by default they do nothing.

    Args:
        show_line: Takes a line of an attack's progress.
        begin_seed: Called before each attack seed, and at the end, with the number of attacks done
            (seeds of the current one as a fraction), their number, and the next step in words.
        keep_outcome: Takes each name of `settings.names` with its outcome as soon as it has ended.
    """

    show_line: Progress = ignore
    begin_seed: Callable[[float, int, str], None] = ignore
    keep_outcome: Callable[[str, AttackOutcome], None] = ignore


def run_attacks(
    observations: Sequence[Observation],
    settings: AttackSettings,
    auxiliary: Images,
    targets: Images,
    *,
    seed: int,
    anchors: Anchors | None = None,
    listener: AttackListener | None = None,
) -> AttackOutcome:
    """Carry out all attacks that settings name and score their reconstructions.

    An attack without an observation of its kind, or without the grants it needs, or that fails
    unexpectedly, leaves a row with the reason in `skipped`. Any other FedcelError is raised: it
    says what the user has to mend.

    Args:
        observations: What can be attacked.
        settings: Attacks, budget and knowledge. The first `settings.targets` are reconstructed;
            the optimal attacker sees all, which are cheap to score.
        auxiliary: The attacker's own images.
        targets: Images that the attacker wants to see.
        seed: The run's seed; each attack seed 0, 1, ... has its own streams.
        anchors: Means of all training images; None: of `auxiliary`.
        listener: Callbacks for progress and the outcome of each attack.

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
    uploads = {
        named.attack.observes for named in attacks if named.attack and UPDATE in named.attack.needs
    }
    for observation in observations:
        if observation.name in uploads and isinstance(observation, ObservationUpdate):
            check_batch_size(observation.batch, len(auxiliary.y))
    pictured = slice(min(MAX_PICTURES, settings.targets or MAX_PICTURES))  # all rebuild these
    anchors = anchors or find_anchors(auxiliary)
    shown: Pictures = {
        "targets": targets.x[pictured],
        "class-mean": anchors.guess(targets.y[pictured]),
    }
    listener = listener or AttackListener()
    total = AttackOutcome([], shown, {})
    for number, named in enumerate(attacks):
        outcome = AttackOutcome([], {}, {})
        run = _AttackRun(settings, auxiliary, targets, anchors, seed, listener, outcome)
        surfaces = [observe_repeatedly(observation, named.repeats) for observation in observations]
        row, chosen, attack = run.plan(named, surfaces)
        for surface, attack_seed in product(chosen, range(settings.seeds)):
            attacks_done = number + attack_seed / settings.seeds
            listener.begin_seed(attacks_done, len(attacks), f"{named.name}, seed {attack_seed}")
            attack(
                row.with_results(observation=surface.name, seed=attack_seed), surface, attack_seed
            )
        listener.keep_outcome(named.entry, outcome._replace(pictures=shown | outcome.pictures))
        total = AttackOutcome(
            total.rows + outcome.rows,
            total.pictures | outcome.pictures,
            total.per_image | outcome.per_image,
        )
    listener.begin_seed(len(attacks), len(attacks), "writing")
    return total


@dataclass(frozen=True)
class _AttackRun:
    """One attack of a call, and the outcome that each of its attack seeds adds to."""

    settings: AttackSettings
    auxiliary: Images
    targets: Images
    anchors: Anchors
    seed: int
    listener: AttackListener
    outcome: AttackOutcome

    def plan(
        self, named: NamedAttack, surfaces: Sequence[Observation]
    ) -> tuple[AttackRow, list[Observation], Callable[[AttackRow, Observation, int], None]]:
        """Return how rows of an attack begin, the surfaces it is tried on, and what tries it.

        Where there is no surface, a row says why it is skipped.
        """
        reason = None
        attack: Callable[[AttackRow, Observation, int], None]
        if named.attack is not None:
            attack = partial(self.rebuild_images, named.attack)
            row = AttackRow(
                attack=named.name,
                observation=named.attack.observes,
                knowledge=self.settings.knowledge,
            )
            if row.observation == UPDATE:
                row = row.with_results(upload=self.settings.upload)
            try:
                chosen = [find_surface(named.attack, surfaces)]
            except ValueError as error:
                chosen, reason = [], str(error)
        else:
            attack = self.identify
            row = AttackRow(attack=OPTIMAL, observation="", knowledge="white-box")
            chosen = [surface for surface in surfaces if surface.grants & {LOG_PROB, NOISELESS}]
            reason = None if chosen else f"needs {LOG_PROB}, granted nowhere"
        if reason is not None:
            self.outcome.rows.append(row.with_results(skipped=reason))
        return row, chosen, attack

    def identify(self, row: AttackRow, surface: Observation, attack_seed: int) -> None:
        """Let the optimal attacker tell images apart by the surface's law."""
        stream = make_generator(self.seed, f"attack/{OPTIMAL}/{surface.name}", attack_seed)
        with self._adding(row) as results:
            leak = optimal_leak(
                surface,
                *self.targets,
                stream,
                identification_candidates=self.settings.candidates,
            )
            summary = (
                f"{leak.bits_beyond_label:.2f} of {leak.cap_beyond_label:.2f} bits beyond the label"
                if leak.cap_beyond_label
                else f"{leak.information_bits:.2f} of {leak.cap_bits:.2f} bits with the label, "
                "which names the image"
            )
            self.listener.show_line(f"{OPTIMAL} on {surface.name}, seed {attack_seed}: {summary}")
            results |= {
                "budget": self.settings.budget,
                "identification_optimal": leak.identification,
                "identification_candidates": leak.identification_candidates,
                "identification_half_width": leak.identification_half_width,
                "information_bits": leak.information_bits,
                "information_cap": leak.cap_bits,
                "bits_beyond_label": leak.bits_beyond_label,
                "bits_cap": leak.cap_beyond_label,
                "candidates": leak.image_count,
            }

    def rebuild_images(
        self, attack: Attack, row: AttackRow, surface: Observation, attack_seed: int
    ) -> None:
        """Rebuild the targets; keep scores of each, and pictures of the best seed."""
        settings, outcome, candidates = self.settings, self.outcome, self.settings.candidates
        targets = Images(*(part[: settings.targets or None] for part in self.targets))
        lowest_mse = min((r.mse for r in outcome.rows if r.mse is not None), default=torch.inf)
        with self._adding(row) as results:
            begin = time.monotonic()
            paid = surface.paid if isinstance(surface, ObservationPaid) else 0
            images, curve, share_of_steps = reconstruct_targets(
                attack,
                surface,
                targets,
                self.auxiliary,
                budget=settings.budget,
                seconds=settings.seconds,
                seed=self.seed,
                attack_seed=attack_seed,
                progress=self.listener.show_line,
            )
            results |= {
                "budget": settings.budget,
                "targets": len(targets.y),
                "identification_candidates": min(candidates, len(targets.y)),
                "queries": surface.paid - paid if isinstance(surface, ObservationPaid) else None,
                "seconds": time.monotonic() - begin,  # the scores are not the attack's
                "seconds_limit": settings.seconds or None,
                "share_of_steps": share_of_steps,
                "learning_curve": thin_curve(curve) or None,
            }
            rebuilt = f"{len(images)}/{len(images)} images rebuilt"
            self.listener.show_line(f"{attack.name}, seed {attack_seed}: {rebuilt}, scoring them")
            image_scores = score_images(images, targets.x, candidates)
            scores = score_reconstructions(
                *(images, targets, self.auxiliary, candidates),
                anchors=self.anchors,
                image_scores=image_scores,
            )
            results |= asdict(scores)
            vectors = {"mse": image_scores.mse, "identification-1": image_scores.identification_1}
            for measure, vector in vectors.items():
                outcome.per_image[per_image.vector_name(row.to_json(), measure)] = vector
            if scores.mse < lowest_mse:
                outcome.pictures[row.attack] = images[:MAX_PICTURES]

    @contextmanager
    def _adding(self, row: AttackRow) -> Iterator[dict[str, object]]:
        """Take one attack seed's results and add its row, `skipped` on an unexpected error.

        A ServiceError counts as one: earlier answers were paid for. Where the attack cannot work at
        this size the row says so. Other FedcelErrors are raised.
        """
        begin = time.monotonic()
        results: dict[str, object] = {}
        try:
            yield results
        except SizeError as error:
            self.outcome.rows.append(row.with_results(skipped=str(error)))
        except Exception as error:
            if isinstance(error, FedcelError) and not isinstance(error, ServiceError):
                raise
            failure = f"{FAILURE_PREFIX} {describe_unforeseen(error)}"
            self.outcome.rows.append(row.with_results(skipped=failure))
            place = f"{row.attack} on {row.observation}, seed {row.seed}"
            warn(f"{place} {failure} ({describe_origin(error)})", stacklevel=5)
        else:
            seconds = time.monotonic() - begin
            self.outcome.rows.append(row.with_results(**{"seconds": seconds} | results))


def refuse_known_targets(targets: Images, auxiliary: Images) -> None:
    """Refuse targets that the attacker holds already; DataError says how many.

    Warn of those held to a grey level or two: two pictures of one burst may be.
    """
    equal = int(match_pixels(targets.x, auxiliary.x).sum())
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


def find_surface(attack: Attack, surfaces: Sequence[Observation]) -> Observation:
    """Return what an attack sees; ValueError where it cannot run on any surface."""
    surface = next((surface for surface in surfaces if surface.name == attack.observes), None)
    if surface is None:
        raise ValueError(f"nothing here is observed as {attack.observes!r}")
    if missing := sorted(attack.needs - surface.grants):
        raise ValueError(f"needs {', '.join(missing)}, which is not granted")
    return surface


def reconstruct_targets(
    attack: Attack,
    observation: Observation,
    targets: Images,
    auxiliary: Images,
    *,
    budget: float,
    seconds: float,
    seed: int,
    attack_seed: int,
    progress: Progress,
) -> tuple[Float[Tensor, "T C H W"], list[float], float | None]:
    """Observe the targets and return what the attack makes of them, a batch in the best order.

    Beside the images: the error of its training after each epoch, where it trains, and the share of
    its steps that it took, where its time was up, else None.

    ValueError unless there is one image in [0, 1] for each target; SizeError where the attack
    cannot work at this size.
    """
    name = attack.name
    noise = make_generator(seed, f"targets/{observation.name}", attack_seed)

    def show_line(line: str) -> None:
        progress(f"{name}, seed {attack_seed}: {line}")

    training = TrainingProgress(show_line, AttackClock(seconds, show_line))
    images = attack.reconstruct(
        observation,
        auxiliary,
        observation.sample(targets.x, noise),
        budget,
        make_generator(seed, f"attack/{name}", attack_seed),
        training,
    )
    if images.shape != targets.x.shape:
        shapes = f"{tuple(images.shape)}, must be {tuple(targets.x.shape)}"
        raise ValueError(f"attack {name!r} returned {shapes}")
    low, high = images.min().item(), images.max().item()  # NaN comes through both
    if not 0 <= low <= high <= 1:
        raise ValueError(f"attack {name!r} returned pixels in [{low}, {high}], must be in [0, 1]")
    if isinstance(observation, ObservationUpdate):
        images = order_batches(images, targets.x, observation.batch)
    return images, training.curve, training.clock.share_of_steps
