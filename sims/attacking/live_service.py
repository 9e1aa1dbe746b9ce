"""Attack a live service from outside, within a client's budget."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clients import Leak, SplitClient
from clients.device import (
    Device,
    PrivatePrediction,
    SentMessages,
    describe_law,
    load_device_key,
)
from clients.service import load_served
from clients.wire import ModelCard
from fedcel.attacks import BlackBoxSearch, parse_attacks, run_attacks
from fedcel.data import Images
from fedcel.errors import RunError, SettingsError
from fedcel.files import read_json, write_json
from fedcel.nets import SplitNet
from fedcel.runs import run_folder
from fedcel.settings import AttackSettings
from sims.attacking.attack_run import select_auxiliary
from sims.commands.progress import print_line, show_attacks, throttle_lines
from sims.results.worst_attack import REPEATS

FILE = "live.json"
NAME = "private-logits"
LEAST = 20  # answers that an attack is worth trying with
QUERIES = 50  # for each target and attack seed that a search is worth trying with
SAME = ("service", "mechanism", "epsilon", "attack", "seed", "knowledge", "answers")
Row = dict[str, object]
Ask = Callable[[Float[Tensor, "C H W"]], PrivatePrediction]


class Place(NamedTuple):
    """Where the service is, and who asks."""

    url: str
    key: str
    authority: Path | None = None
    """The file of the authority that signed the service's certificate; None: the system's own."""


@final
@dataclass(frozen=True)
class Unguarded:
    """An attacker's device: it sends anything, and adds the noise that a device adds."""

    encoder: nn.Module | None = None

    def build_device(self, card: ModelCard, net: SplitNet) -> Device:
        """Return a device without any limit."""
        return Device(
            net=net,
            shape=tuple(card.shape),
            law=describe_law(card, net),
            max_value=card.largest,
            leak=Leak(0.0, 0.0, 0.0, 0),
            limit=torch.inf,
            key=load_device_key(None),
            sent=SentMessages(),
        )


@final
@dataclass
class LiveAnswers:
    """A service's answers; an image asked about before has the same one, and costs nothing.

    Only what a client sees is granted: neither the network nor a law.
    """

    ask: Ask
    progress: Callable[[str], None]
    left: float
    """Epsilon that the asker has left."""
    allowance: int
    """Answers about made-up images that one search may pay."""
    name: str = NAME
    grants: frozenset[str] = frozenset()
    known: dict[bytes, Tensor] = field(default_factory=dict)

    @property
    def paid(self) -> int:
        """Return the number of images that were asked about."""
        return len(self.known)

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B K"]:
        """Return one answer per image; ServiceError where the service says no."""
        rows = []
        for image in images:
            name = image.contiguous().numpy().tobytes()
            if name not in self.known:
                answer = self.ask(image)
                self.known[name], self.left = answer.values.float(), answer.remaining_epsilon
                self.progress(f"{len(self.known)} answers")
            rows.append(self.known[name])
        return torch.stack(rows)


def attack_service(folder: Path, place: Place, how: AttackSettings | None = None) -> list[Row]:
    """Attack the service of a finished run; return the rows that were added to its live.json.

    All answers are paid by the same client; see `split_budget`. A row's `queries` are the new ones
    that it asked for, besides those to the targets, which come first. Where the service says no
    later on, what was found till then is kept. RunError when another model is served or live.json
    is damaged, SettingsError without a key and when too few answers can be paid; ServiceError where
    the service says no at once.
    """
    if not place.key:
        raise SettingsError("there is no key; set FEDCEL_KEY to one of `fedcel ledger keys`")
    run, old = (
        run_folder.read_run(folder),
        read_rows(folder / FILE),
    )  # damage is named before anything is paid
    how = how or run.settings.attack
    with SplitClient(place.url, place.key, Unguarded(), place.authority or True) as client:
        card = client.card
        if card.model != load_served(run).version:
            raise RunError(f"{place.url} serves {card.model}, which is not {folder}")
        before = client.budget().remaining
        targets, own, allowance = split_budget(run, how, int(before / card.price.answer))
        live = LiveAnswers(client.ask, throttle_lines("asking the service"), before, allowance)
        told = live.sample(targets.x, torch.Generator())
        few = max(2, min(how.candidates, len(targets.y)))
        how = how.model_copy(update={"targets": 0, "candidates": few})
        with show_attacks("attacking the service") as (progress, tell_attack):
            found = run_attacks(
                [live],
                how,
                own,
                targets,
                seed=run.settings.seed,
                progress=progress,
                population=run.splits.training,
                tell_attack=tell_attack,
            ).rows
    facts: Row = {
        "service": card.model,
        "mechanism": card.mechanism,
        "epsilon": card.epsilon,
        "delta": card.delta,
        "answers": live.paid,
        "spent": before - live.left,
        "accuracy": float((told.argmax(1) == targets.y).double().mean()),
        "candidates": few,
    }
    return write_rows(folder / FILE, old, facts, [row.to_dict() for row in found])


def write_rows(path: Path, old: Sequence[Row], facts: Row, found: Sequence[Row]) -> list[Row]:
    """Write rows beside the old ones, or in their place, and return them; say what was skipped."""
    rows = [facts | row for row in found if "skipped" not in row]
    for row in found:
        if "skipped" in row:
            print_line(f"{row['attack']}: {row['skipped']}")
    new = {row_identity(row) for row in rows}
    write_json(path, [*(row for row in old if row_identity(row) not in new), *rows])
    return rows


def split_budget(
    run: run_folder.Run, how: AttackSettings, affordable: int
) -> tuple[Images, Images, int]:
    """Return the targets, the attacker's own images, and the answers for one search.

    At most half of what can be paid goes to targets. A search that makes its images up shares the
    rest among its attack seeds: all of it when it is alone, because it asks about few own images,
    else half; the other attacks then ask about own images with the other half, and no attack has
    more of them. SettingsError when too few answers are left.
    """
    if affordable < LEAST:
        raise SettingsError(
            f"the client can pay {affordable} answers, an attack needs {LEAST} or more: "
            "`fedcel ledger top-up`"
        )
    for attack, repeats in parse_attacks(how.names):
        if attack and repeats > 1:
            raise SettingsError(
                f"attack.names has {attack.name}: a service answers a repeated question from "
                f"memory; name {attack.name.partition(REPEATS)[0]}"
            )
    test, own = run.splits.test, select_auxiliary(run, how)
    count = min(how.targets or len(test.y), affordable // 2, len(test.y))
    left, (searches, others) = affordable - count, count_query_attacks(how.names)
    paid = min(len(own.y), left // 2 if searches else left) if others or not searches else 0
    each = (left - paid) // (how.seeds * max(1, searches))
    if searches and each < QUERIES * count:
        raise SettingsError(
            f"{each // count} queries are left for a target of a search, must be at least "
            f"{QUERIES}: lower attack.targets ({count}) or attack.seeds ({how.seeds}), name no "
            "other attack beside it, or `fedcel ledger top-up`"
        )
    known = paid or len(own.y)
    searched = f", {each} for a search" if searches else ""
    print_line(f"{affordable} answers can be paid: {count} targets, {paid} own images{searched}")
    parts = Images(test.x[:count], test.y[:count]), Images(own.x[:known], own.y[:known])
    return *parts, each


def count_query_attacks(names: str) -> tuple[int, int]:
    """Return how many attacks on answers make their images up, and how many do not."""
    found = [attack for attack, _ in parse_attacks(names) if attack]
    asks = [attack for attack in found if attack.observes.partition("*")[0] == NAME]
    searches = sum(isinstance(attack, BlackBoxSearch) for attack in asks)
    return searches, len(asks) - searches


def read_rows(path: Path) -> list[Row]:
    """Return the rows of earlier attacks; RunError when they are damaged."""
    found = read_json(path) if path.exists() else []
    if isinstance(found, list) and all(isinstance(row, dict) for row in found):
        return found
    raise RunError(f"{path} is damaged: it must be a list of objects; remove it, attack again")


def row_identity(row: Row) -> tuple[object, ...]:
    """Return what two rows have in common of which the later replaces the earlier."""
    return tuple(row.get(key) for key in SAME)
