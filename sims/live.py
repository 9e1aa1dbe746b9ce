"""Attack a live service from outside, within a client's budget."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clients import Leak, SplitClient
from clients.service.model import served
from clients.service.schema import ModelCard
from clients.split.device import Device, Sent, law_of
from clients.split.noise import KEY_BYTES
from fedcel import runs
from fedcel.attacks import run as run_attacks
from fedcel.data import Images
from fedcel.errors import RunError, SettingsError
from fedcel.files import read_json, write_json
from fedcel.nets import SplitNet
from fedcel.settings_groups import Attack
from sims.attack import auxiliary
from sims.progress import say, throttled

FILE = "live.json"
LEAST = 20  # answers that an attack is worth trying with
SAME = ("service", "mechanism", "epsilon", "attack", "seed", "knowledge", "answers")
Row = dict[str, object]
Ask = Callable[[Float[Tensor, "C H W"]], Float[Tensor, " K"]]


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

    def device(self, card: ModelCard, net: SplitNet) -> Device:
        """Return a device without any limit."""
        law, none = law_of(card, net), Leak(0.0, 0.0, 0.0, 0)
        key = secrets.token_bytes(KEY_BYTES)
        return Device(net, tuple(card.shape), law, card.largest, none, torch.inf, key, Sent())


@final
@dataclass
class LiveAnswers:
    """A service's answers; an image asked about before has the same one, and costs nothing.

    Only what a client sees is granted: neither the network nor a law.
    """

    ask: Ask
    progress: Callable[[str], None]
    name: str = "private-logits"
    grants: frozenset[str] = frozenset()
    known: dict[bytes, Tensor] = field(default_factory=dict)

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B K"]:
        """Return one answer per image; ServiceError where the service says no."""
        rows = []
        for image in images:
            name = image.contiguous().numpy().tobytes()
            if name not in self.known:
                self.known[name] = self.ask(image).float()
                self.progress(f"{len(self.known)} answers")
            rows.append(self.known[name])
        return torch.stack(rows)


def attack(folder: Path, place: Place, how: Attack | None = None) -> list[Row]:
    """Attack the service of a finished run; return the rows that were added to its live.json.

    The targets' answers and those to the attacker's own images are paid by the same client. At
    most half of what it can pay goes to targets. RunError when another model is served or live.json
    is damaged, SettingsError without a key and when fewer than 20 answers can be paid; ServiceError
    where the service says no.
    """
    if not place.key:
        raise SettingsError("there is no key; set FEDCEL_KEY to one of `fedcel ledger keys`")
    run, old = runs.read(folder), kept(folder / FILE)  # damage is named before anything is paid
    how = how or run.settings.attack
    with SplitClient(place.url, place.key, Unguarded(), place.authority or True) as client:
        if client.card.model != served(run).version:
            raise RunError(f"{place.url} serves {client.card.model}, which is not {folder}")
        before = client.budget()
        targets, own = shares(run, how, int(before.left / client.card.price.answer))
        live = LiveAnswers(lambda image: client.ask(image).values, throttled("asking"))
        few = min(how.candidates, len(targets.y))
        limited = how.model_copy(update={"targets": 0, "candidates": max(2, few)})
        found, _ = run_attacks(
            [live],
            limited,
            own,
            targets,
            run.settings.seed,
            throttled("attack"),
            run.splits.training,
        )
        told = live.sample(targets.x, torch.Generator())
        facts: Row = {
            "service": client.card.model,
            "mechanism": client.card.mechanism,
            "epsilon": client.card.epsilon,
            "delta": client.card.delta,
            "answers": len(live.known),
            "spent": before.left - client.budget().left,
            "accuracy": float((told.argmax(1) == targets.y).double().mean()),
            "candidates": limited.candidates,
        }
    rows = [facts | row for row in found if "skipped" not in row]
    for row in found:
        if "skipped" in row:
            say(f"{row['attack']}: {row['skipped']}")
    new = {same(row) for row in rows}
    write_json(folder / FILE, [*(row for row in old if same(row) not in new), *rows])
    return rows


def shares(run: runs.Run, how: Attack, affordable: int) -> tuple[Images, Images]:
    """Return the targets and the attacker's own images that can be asked about."""
    if affordable < LEAST:
        raise SettingsError(
            f"the client can pay {affordable} answers, an attack needs {LEAST} or more: "
            "`fedcel ledger top-up`"
        )
    test, own = run.splits.test, auxiliary(run, how)
    count = min(how.targets or len(test.y), affordable // 2, len(test.y))
    rest = min(len(own.y), affordable - count)
    say(f"{affordable} answers can be paid: {count} targets, {rest} own images")
    return Images(test.x[:count], test.y[:count]), Images(own.x[:rest], own.y[:rest])


def kept(path: Path) -> list[Row]:
    """Return the rows of earlier attacks; RunError when they are damaged."""
    found = read_json(path) if path.exists() else []
    if isinstance(found, list) and all(isinstance(row, dict) for row in found):
        return found
    raise RunError(f"{path} is damaged: it must be a list of objects; remove it, attack again")


def same(row: Row) -> tuple[object, ...]:
    """Return what two rows have in common of which the later replaces the earlier."""
    return tuple(row.get(key) for key in SAME)
