"""Run attacks on observations and score them: one row per attack and attack seed."""

import time
from collections.abc import Callable, Sequence
from difflib import get_close_matches

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel import plugins
from fedcel.attacks.base import Attack
from fedcel.attacks.decoder import Decoder
from fedcel.attacks.logits import LogitInversion
from fedcel.attacks.observation import LOG_PROB, NOISELESS, Observation
from fedcel.attacks.optimal import optimal
from fedcel.attacks.scorecard import score
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
    progress: Callable[[str], None],
) -> tuple[list[Row], Pictures]:
    """Return the rows of attacks.json, and pictures (12, C, H, W) in [0, 1].

    Pictures: `targets`, and under each attack's name the first reconstructions of its best seed.
    An attack that finds no observation of its kind, or is not granted what it needs, gives a row
    with `skipped`. `seed` is the run's; each attack seed 0, 1, ... has its own streams.
    SettingsError on an unknown name, DataError when a target is among the attacker's images.
    """
    names = [name.strip() for name in how.names.split(",")]
    attacks = {name: find(name) for name in names if name != OPTIMAL}  # before any work is done
    refuse_known(targets, auxiliary)
    rows: list[Row] = []
    pictures: Pictures = {"targets": targets.x[:PICTURES]}
    for name in names:
        if name == OPTIMAL:
            rows += identify(observations, how, targets, seed, progress)
            continue
        found, images = reconstruct(
            attacks[name], observations, how, auxiliary, targets, seed, progress
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
    progress: Callable[[str], None],
) -> list[Row]:
    """Return the optimal attacker's rows on each observation whose law it is granted."""
    rows: list[Row] = []
    for observation in observations:
        common: Row = {"attack": OPTIMAL, "observation": observation.name, "knowledge": "law"}
        if not observation.grants & {LOG_PROB, NOISELESS}:
            rows.append(common | {"skipped": f"needs {LOG_PROB}, which is not granted"})
            continue
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
    progress: Callable[[str], None],
) -> tuple[list[Row], Pictures]:
    """Return one attack's rows and the first reconstructions of its best seed."""
    common: Row = {
        "attack": attack.name,
        "observation": attack.observes,
        "knowledge": how.knowledge,
    }
    observation = next((o for o in observations if o.name == attack.observes), None)
    if observation is None:
        return [common | {"skipped": f"nothing here is observed as {attack.observes!r}"}], {}
    missing = sorted(attack.needs - observation.grants)
    if missing:
        return [common | {"skipped": f"needs {', '.join(missing)}, which is not granted"}], {}
    rows: list[Row] = []
    pictures: Pictures = {}
    lowest = torch.inf
    for attack_seed in range(how.seeds):
        begin = time.monotonic()
        label = f"{attack.name}, seed {attack_seed}"
        observed = observation.sample(
            targets.x, generator(seed, f"targets/{observation.name}", attack_seed)
        )
        images = checked(
            attack.reconstruct(
                observation,
                auxiliary.x,
                observed,
                how.budget,
                generator(seed, f"attack/{attack.name}", attack_seed),
                lambda line, label=label: progress(f"{label}: {line}"),  # type: ignore[misc]
            ),
            targets,
            attack.name,
        )
        seconds = time.monotonic() - begin
        scores = score(images, targets, auxiliary, how.candidates)
        rows.append(
            common | {"seed": attack_seed, "budget": how.budget, **scores, "seconds": seconds}
        )
        if scores["mse"] < lowest:
            lowest, pictures = scores["mse"], {attack.name: images[:PICTURES]}
    return rows, pictures


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
