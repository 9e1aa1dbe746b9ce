"""Run attacks on observations and score them: one row per attack and attack seed."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple
from warnings import warn

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks.averaging import RepeatedObservation
from fedcel.attacks.gradient_inversion import count_tuning_images
from fedcel.attacks.protocol import Attack, Progress, TellAttack
from fedcel.attacks.registry import OPTIMAL, parse_attacks
from fedcel.attacks.score_card import class_means, order_batches, score_reconstructions
from fedcel.attacks.score_card import score_each_image as scored
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

SAME = 1.5 / 255  # root mean square of pixels' differences below which two images are one
CHUNK = 256  # targets compared at once
PICTURES = 12  # reconstructions that are kept of each attack
FAILED = "failed with"
"""How `skipped` begins in the row of an attack that nobody foresaw would fail."""

Row = dict[str, object]
Pictures = dict[str, Tensor]


class Attacked(NamedTuple):
    """Rows of attacks, pictures, and what the rows are means of."""

    rows: list[Row]
    pictures: Pictures
    per_image: per_image.Vectors
    """Of each target, named by `fedcel.runs.per_image.vector_name`."""


def run_attacks(
    observations: Sequence[Observation],
    how: AttackSettings,
    auxiliary: Images,
    targets: Images,
    seed: int,
    progress: Progress,
    population: Images | None = None,
    tell_attack: TellAttack | None = None,
    keep: Callable[[str, Attacked], None] | None = None,
) -> Attacked:
    """Carry out each attack that `how` names; return one row per attack and attack seed.

    An attack that finds no observation of its kind, is not granted what it needs, or fails, see
    `record_failure`, gives a row with `skipped`: why.

    Args:
        observations: What can be attacked.
        how: Which attacks, with what budget and knowledge. Reconstructed are the first
            `how.targets`; the optimal attacker sees all, they are cheap to him.
        auxiliary: The attacker's own images.
        targets: Images that he wants to see.
        seed: That of the run; each attack seed 0, 1, ... has its own streams.
        progress: Told what goes on.
        population: Images that the anchors are taken from; see `score_reconstructions`.
        tell_attack: Told before each attack seed how many attacks are done.
        keep: Given each name of `how.names` with what its attack found, as soon as it ended.

    Returns:
        Rows; a row's `queries` are the observations that it paid for, where they are paid. Pictures
        (n, C, H, W) in [0, 1], n at most 12: `targets`, `class-mean` (what the label alone tells),
        and under each attack's name the first reconstructions of its best seed.

    Raises:
        SettingsError: Before any work, on an unknown name, or a batch larger than the attacker's
            images.
        DataError: Before any work, when a target is among these, or the anchors would be of other
            classes.
    """
    attacks = parse_attacks(how.names)
    refuse_known(targets, auxiliary)
    refuse_batches([attack for attack, _ in attacks if attack], observations, auxiliary)
    known = class_means(targets.y, population or auxiliary)
    shown = min(PICTURES, how.targets or PICTURES)  # as many as every attack rebuilds
    anchors: Pictures = {"targets": targets.x[:shown], "class-mean": known[:shown]}
    total = Attacked([], anchors, {})
    for number, (entry, (attack, repeats)) in enumerate(
        zip(how.names.split(","), attacks, strict=True)
    ):
        name = OPTIMAL if attack is None else attack.name
        begin = partial(_begin_seed, tell_attack, (number, len(attacks)), how.seeds, name)
        seen = observations
        if repeats > 1:
            seen = [RepeatedObservation(observation, repeats) for observation in observations]
        if attack is None:
            found = Attacked(run_optimal_attack(seen, how, targets, seed, progress, begin), {}, {})
        else:
            found = run_reconstruction(
                attack, seen, how, auxiliary, targets, seed, progress, population, begin
            )
        if keep:
            keep(entry.strip(), found._replace(pictures=anchors | found.pictures))
        total = Attacked(
            total.rows + found.rows,
            total.pictures | found.pictures,
            total.per_image | found.per_image,
        )
    if tell_attack:
        tell_attack(len(attacks), len(attacks), "writing")
    return total


def _begin_seed(
    tell_attack: TellAttack | None, place: tuple[int, int], seeds: int, name: str, seed: int
) -> None:
    """Tell that an attack begins with one of its seeds."""
    if tell_attack:
        tell_attack(place[0] + seed / seeds, place[1], f"{name}, seed {seed}")


def refuse_known(targets: Images, auxiliary: Images) -> None:
    """Refuse targets that the attacker holds already; DataError says how many.

    Warn of those that he holds all but a grey level or two of: two pictures of one burst may be.
    """
    known = {image.numpy().tobytes() for image in auxiliary.x}
    seen = sum(image.numpy().tobytes() in known for image in targets.x)
    if seen:
        raise DataError(
            f"{seen} of {len(targets.y)} targets are among the attacker's own images; "
            "a target must be unseen: split the images anew"
        )
    held, asked = auxiliary.x.flatten(1), targets.x.flatten(1)
    least = SAME * asked.shape[1] ** 0.5
    parts = torch.split(asked, CHUNK) if len(held) else []
    alike = sum(int((torch.cdist(part, held).amin(1) <= least).sum()) for part in parts)
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
    for observation in observations:
        asked = any(
            attack.observes == observation.name and UPDATE in attack.needs for attack in attacks
        )
        if asked and isinstance(observation, ObservationUpdate):
            count_tuning_images(observation.batch, len(auxiliary.y))


@contextmanager
def record_failure(rows: list[Row], who: Row) -> Iterator[None]:
    """Make a row with `skipped`, and a warning, of an error that nobody foresaw.

    Of a service that says no, too: what it answered before was paid for. Any other FedcelError is
    raised: it says what the user has to mend.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, FedcelError) and not isinstance(error, ServiceError):
            raise
        said = f"{FAILED} {describe_unforeseen(error)}"
        rows.append(who | {"skipped": said})
        where = f"{who['attack']} on {who['observation']}, seed {who['seed']}"
        warn(f"{where} {said} ({describe_origin(error)})", stacklevel=4)


def run_optimal_attack(
    observations: Sequence[Observation],
    how: AttackSettings,
    targets: Images,
    seed: int,
    progress: Progress,
    begin_seed: Callable[[int], None],
) -> list[Row]:
    """Return the optimal attacker's rows on each observation whose law it is granted."""
    rows: list[Row] = []
    common: Row = {"attack": OPTIMAL, "knowledge": "white-box"}
    known = [o for o in observations if o.grants & {LOG_PROB, NOISELESS}]
    if not known:
        return [common | {"observation": "", "skipped": f"needs {LOG_PROB}, granted nowhere"}]
    for observation in known:
        for attack_seed in range(how.seeds):
            who = common | {"observation": observation.name, "seed": attack_seed}
            begin_seed(attack_seed)
            with record_failure(rows, who):
                begin = time.monotonic()
                stream = make_generator(seed, f"attack/{OPTIMAL}/{observation.name}", attack_seed)
                leak = optimal_leak(observation, *targets, stream, candidates=how.candidates)
                bits, cap = leak.bits_beyond_label, leak.cap_beyond_label
                progress(
                    f"{OPTIMAL} on {observation.name}, seed {attack_seed}: "
                    f"{bits:.2f} of {cap:.2f} bits beyond the label"
                )
                found: Row = {
                    "budget": how.budget,
                    "identification-optimal": leak.identification,
                    "information-bits": leak.information_bits,
                    "bits-beyond-label": bits,
                    "candidates": leak.candidates,
                    "information-cap": leak.cap_bits,
                    "bits-cap": cap,
                    "identification-candidates": leak.identification_candidates,
                    "identification-half-width": leak.identification_half_width,
                    "seconds": time.monotonic() - begin,
                }
                rows.append(who | found)
    return rows


def run_reconstruction(
    attack: Attack,
    observations: Sequence[Observation],
    how: AttackSettings,
    auxiliary: Images,
    targets: Images,
    seed: int,
    progress: Progress,
    population: Images | None,
    begin_seed: Callable[[int], None],
) -> Attacked:
    """Return one attack's rows and the first reconstructions of its best seed."""
    who: Row = {"attack": attack.name, "observation": attack.observes, "knowledge": how.knowledge}
    observation = next((o for o in observations if o.name == attack.observes), None)
    if observation is None or not attack.needs <= observation.grants:
        return Attacked([who | {"skipped": explain_refusal(attack, observation)}], {}, {})
    targets = Images(*(part[: how.targets or None] for part in targets))
    rows, values = list[Row](), per_image.Vectors()
    pictures, lowest = Pictures(), torch.inf
    for attack_seed in range(how.seeds):
        begin_seed(attack_seed)
        own, begin, asked = (
            who | {"seed": attack_seed},
            time.monotonic(),
            track_payment(observation),
        )
        with record_failure(rows, own):
            noise = make_generator(seed, f"targets/{observation.name}", attack_seed)
            made = attack.reconstruct(
                observation,
                auxiliary,
                observation.sample(targets.x, noise),
                how.budget,
                make_generator(seed, f"attack/{attack.name}", attack_seed),
                prefix_title(progress, f"{attack.name}, seed {attack_seed}"),
            )
            images = check_reconstructions(made, targets, attack.name)
            if isinstance(observation, ObservationUpdate):
                images = order_batches(images, targets.x, observation.batch)
            among = min(how.candidates, len(targets.y))
            count = {"targets": len(targets.y), "identification-candidates": among}
            done = {"budget": how.budget} | count | asked()
            seconds = {"seconds": time.monotonic() - begin}
            scores = score_reconstructions(images, targets, auxiliary, how.candidates, population)
            each = scored(images, targets.x, how.candidates)
            rows.append(own | done | scores | seconds)
            values |= {per_image.vector_name(rows[-1], key): value for key, value in each.items()}
            if scores["mse"] < lowest:
                lowest, pictures = scores["mse"], {attack.name: images[:PICTURES]}
    return Attacked(rows, pictures, values)


def explain_refusal(attack: Attack, observation: Observation | None) -> str:
    """Return why an attack cannot run on what there is."""
    if observation is None:
        return f"nothing here is observed as {attack.observes!r}"
    missing = sorted(attack.needs - observation.grants)
    return f"needs {', '.join(missing)}, which is not granted"


def track_payment(observation: Observation) -> Callable[[], dict[str, int]]:
    """Return a function that tells what was paid since, as a part of a row; {} where it is free."""
    if not isinstance(observation, ObservationPaid):
        return dict
    before = observation.paid
    return lambda: {"queries": observation.paid - before}


def prefix_title(progress: Progress, title: str) -> Progress:
    """Return a progress function that puts the title before each line."""
    return lambda line: progress(f"{title}: {line}")


def check_reconstructions(
    images: Float[Tensor, "..."], targets: Images, name: str
) -> Float[Tensor, "T C H W"]:
    """Return an attack's images; ValueError unless there is one in [0, 1] for each target."""
    if images.shape != targets.x.shape:
        raise ValueError(
            f"attack {name!r} returned {tuple(images.shape)}, must be {tuple(targets.x.shape)}"
        )
    low, high = images.min().item(), images.max().item()  # NaN comes through both
    if not 0 <= low <= high <= 1:
        raise ValueError(f"attack {name!r} returned pixels in [{low}, {high}], must be in [0, 1]")
    return images
