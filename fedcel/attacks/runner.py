"""Run attacks on observations and score them: one row per attack and attack seed."""

import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel import plugins
from fedcel.attacks.base import Attack, Progress
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.logits import LogitInversion
from fedcel.attacks.observation import LOG_PROB, NOISELESS, Observation
from fedcel.attacks.optimal import optimal
from fedcel.attacks.scorecard import class_means, score
from fedcel.data.images import Images
from fedcel.errors import DataError, PluginError, SettingsError
from fedcel.seeding import generator
from fedcel.settings_groups import Attack as How

OPTIMAL = "optimal"
PICTURES = 12  # reconstructions that are kept of each attack
ATTACKS: dict[str, Callable[[], Attack]] = {
    "decoder": Decoder,
    "logit-inversion": LogitInversion,
}
"""Attacks by short name that reconstruct images."""

Row = dict[str, object]
Pictures = dict[str, Tensor]


def run(
    observations: Sequence[Observation],
    how: How,
    auxiliary: Images,
    targets: Images,
    seed: int,
    progress: Progress,
    population: Images | None = None,
) -> tuple[list[Row], Pictures]:
    """Return the rows of attacks.json, and pictures (12, C, H, W) in [0, 1].

    Pictures: `targets`, `class-mean` (what the label alone tells), and under each attack's name the
    first reconstructions of its best seed. The anchors come from `population`; see `score`.
    An attack that finds no observation of its kind, or is not granted what it needs, gives a row
    with `skipped`. `seed` is the run's; each attack seed 0, 1, ... has its own streams.
    SettingsError on an unknown name, DataError when a target is among the attacker's images.
    """
    names = [name.strip() for name in how.names.split(",")]
    attacks = {name: find(name) for name in names if name != OPTIMAL}  # before any work is done
    refuse_known(targets, auxiliary)
    rows: list[Row] = []
    known = class_means(targets.y, population or auxiliary)
    pictures: Pictures = {"targets": targets.x[:PICTURES], "class-mean": known[:PICTURES]}
    for name in names:
        if name == OPTIMAL:
            rows += identify(observations, how, targets, seed, progress)
            continue
        found, images = reconstruct(
            attacks[name], observations, how, auxiliary, targets, seed, progress, population
        )
        rows += found
        pictures |= images
    return rows, pictures


def find(name: str) -> Attack:
    """Return the attack that a name or import string means.

    SettingsError with the nearest right name; PluginError when the object is no attack.
    """
    if name in ATTACKS:
        return ATTACKS[name]()
    if ":" not in name:
        near = get_close_matches(name, [OPTIMAL, *ATTACKS], 1, cutoff=0)
        raise SettingsError(
            f"attack.names has {name!r}; did you mean {near[0]!r}? "
            "An own attack is 'package.module:object'"
        )
    found = plugins.load(name)
    made = found() if isinstance(found, type) else found
    if not isinstance(made, Attack):
        raise PluginError(f"{name!r} is no attack: it needs name, needs, observes, reconstruct()")
    return made


def refuse_known(targets: Images, auxiliary: Images) -> None:
    """Refuse targets that the attacker holds already; DataError says how many."""
    known = {image.numpy().tobytes() for image in auxiliary.x}
    seen = sum(image.numpy().tobytes() in known for image in targets.x)
    if seen:
        raise DataError(
            f"{seen} of {len(targets.y)} targets are among the attacker's own images; "
            "a target must be unseen: split the images anew"
        )


def identify(
    observations: Sequence[Observation],
    how: How,
    targets: Images,
    seed: int,
    progress: Progress,
) -> list[Row]:
    """Return the optimal attacker's rows on each observation whose law it is granted."""
    rows: list[Row] = []
    common: Row = {"attack": OPTIMAL, "knowledge": "white-box"}
    known = [o for o in observations if o.grants & {LOG_PROB, NOISELESS}]
    if not known:
        return [common | {"observation": "", "skipped": f"needs {LOG_PROB}, granted nowhere"}]
    for observation in known:
        for attack_seed in range(how.seeds):
            begin = time.monotonic()
            stream = generator(seed, f"attack/{OPTIMAL}/{observation.name}", attack_seed)
            leak = optimal(observation, *targets, stream, how.candidates)
            progress(
                f"{OPTIMAL} on {observation.name}, seed {attack_seed}: "
                f"{leak.bits_beyond_label:.2f} of {leak.cap_beyond_label:.2f} bits beyond the label"
            )
            rows.append(
                common
                | {
                    "observation": observation.name,
                    "seed": attack_seed,
                    "budget": how.budget,
                    "identification-optimal": leak.identification,
                    "information-bits": leak.information_bits,
                    "bits-beyond-label": leak.bits_beyond_label,
                    "candidates": leak.candidates,
                    "information-cap": leak.cap_bits,
                    "bits-cap": leak.cap_beyond_label,
                    "identification-candidates": leak.identification_candidates,
                    "seconds": time.monotonic() - begin,
                }
            )
    return rows


def reconstruct(
    attack: Attack,
    observations: Sequence[Observation],
    how: How,
    auxiliary: Images,
    targets: Images,
    seed: int,
    progress: Progress,
    population: Images | None,
) -> tuple[list[Row], Pictures]:
    """Return one attack's rows and the first reconstructions of its best seed."""
    what = {"attack": attack.name, "observation": attack.observes}
    common: Row = {**what, "knowledge": how.knowledge}
    observation = next((o for o in observations if o.name == attack.observes), None)
    if observation is None:
        return [common | {"skipped": f"nothing here is observed as {attack.observes!r}"}], {}
    if missing := sorted(attack.needs - observation.grants):
        return [common | {"skipped": f"needs {', '.join(missing)}, which is not granted"}], {}
    rows: list[Row] = []
    pictures, lowest = Pictures(), torch.inf
    for attack_seed in range(how.seeds):
        begin = time.monotonic()
        noise = generator(seed, f"targets/{observation.name}", attack_seed)
        made = attack.reconstruct(
            observation,
            auxiliary.x,
            observation.sample(targets.x, noise),
            how.budget,
            generator(seed, f"attack/{attack.name}", attack_seed),
            titled(progress, f"{attack.name}, seed {attack_seed}"),
        )
        images = checked(made, targets, attack.name)
        seconds = time.monotonic() - begin
        scores = score(images, targets, auxiliary, how.candidates, population)
        rows.append(
            common | {"seed": attack_seed, "budget": how.budget, **scores, "seconds": seconds}
        )
        if scores["mse"] < lowest:
            lowest, pictures = scores["mse"], {attack.name: images[:PICTURES]}
    return rows, pictures


def titled(progress: Progress, title: str) -> Progress:
    """Return a progress function that puts the title before each line."""
    return lambda line: progress(f"{title}: {line}")


def checked(images: Float[Tensor, "..."], targets: Images, name: str) -> Float[Tensor, "T C H W"]:
    """Return an attack's images; PluginError unless there is one in [0, 1] for each target."""
    if images.shape != targets.x.shape:
        raise PluginError(
            f"attack {name!r} returned {tuple(images.shape)}, must be {tuple(targets.x.shape)}"
        )
    low, high = images.min().item(), images.max().item()  # NaN comes through both
    if not 0 <= low <= high <= 1:
        raise PluginError(f"attack {name!r} returned pixels in [{low}, {high}], must be in [0, 1]")
    return images
