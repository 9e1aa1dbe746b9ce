"""Attack a live service from outside, within a client's budget."""

from collections.abc import Callable
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
    load_device_key,
)
from clients.service import load_served
from clients.service_messages import ModelCard
from fedcel.attacks import REPEAT_MARK, compute_anchors, parse_attacks, run_attacks
from fedcel.data import Images
from fedcel.errors import RunError, SettingsError
from fedcel.files import lock_file, write_json
from fedcel.nets import SplitNet
from fedcel.runs import run_folder
from fedcel.settings import AttackSettings
from sims.attacking.attacked_run import select_auxiliary
from sims.progress import print_line, show_attacks, throttle_lines
from sims.results.records import LIVE_FILE, LiveRow, read_records

PRIVATE_LOGITS = "private-logits"
MIN_ANSWERS = 20  # that an attack is worth trying with
DAMAGED = "remove it, attack again"
LIVE_LOCK = f".{LIVE_FILE}.lock"
Ask = Callable[[Float[Tensor, "C H W"]], PrivatePrediction]


class ServiceAddress(NamedTuple):
    """Address of the service, and the key of the asking client."""

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
            card=card,
            net=net,
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
    remaining_epsilon: float
    """The epsilon that the asking client has left."""
    name: str = PRIVATE_LOGITS
    grants: frozenset[str] = frozenset()
    answers: dict[bytes, Tensor] = field(default_factory=dict)

    @property
    def paid(self) -> int:
        """Return the number of images that were asked about."""
        return len(self.answers)

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B K"]:
        """Return one answer per image; ServiceError where the service says no."""
        rows = []
        for image in images:
            name = image.contiguous().numpy().tobytes()
            if name not in self.answers:
                answer = self.ask(image)
                self.answers[name], self.remaining_epsilon = (
                    answer.values.float(),
                    answer.remaining_epsilon,
                )
                self.progress(f"{len(self.answers)} answers")
            rows.append(self.answers[name])
        return torch.stack(rows)


def attack_service(
    folder: Path, service: ServiceAddress, attack_settings: AttackSettings | None = None
) -> list[LiveRow]:
    """Attack the service of a finished run, and add rows of the result to the run's live.json.

    All answers are paid by the same client; see `split_budget`. A row's `queries` are the new ones
    that it asked for, besides those to the targets, which come first. Where the service says no
    later on, what was rebuilt till then is kept.

    Raises:
        RunError: Another model is served, or live.json is damaged.
        SettingsError: There is no key, or too few answers can be paid.
        ServiceError: The service says no at once.
    """
    if not service.key:
        raise SettingsError("there is no key; set FEDCEL_KEY to one of `fedcel ledger keys`")
    run = run_folder.read_run(folder)
    read_records(folder / LIVE_FILE, LiveRow, DAMAGED)  # named before anything is paid
    attack_settings = attack_settings or run.settings.attack
    with SplitClient(service.url, service.key, Unguarded(), service.authority or True) as client:
        card = client.card
        if card.model != load_served(run).version:
            raise RunError(f"{service.url} serves {card.model}, which is not {folder}")
        before = client.budget().remaining
        affordable = int(before / card.price.answer)
        targets, auxiliary = split_budget(run, attack_settings, affordable)
        live = LiveAnswers(client.ask, throttle_lines("asking the service"), before)
        answers = live.sample(targets.x, torch.Generator())
        attack_settings = attack_settings.model_copy(update={"targets": 0})
        with show_attacks("attacking the service", attack_settings.seeds) as listener:
            outcome = run_attacks(
                [live],
                attack_settings,
                auxiliary,
                targets,
                seed=run.settings.seed,
                anchors=compute_anchors(run.splits.clients),
                listener=listener,
            )
    facts: dict[str, object] = {
        "service": card.model,
        "mechanism": card.mechanism,
        "epsilon": card.epsilon,
        "delta": card.delta,
        "answers": live.paid,
        "spent": before - live.remaining_epsilon,
        "accuracy": float((answers.argmax(1) == targets.y).double().mean()),
        "candidates": min(attack_settings.candidates, len(targets.y)),
    }
    for row in outcome.rows:
        if row.skipped:
            print_line(f"{row.attack}: {row.skipped}")
    new = [LiveRow.model_validate(facts | row.to_json()) for row in outcome.rows if not row.skipped]
    replaced = {row_identity(row) for row in new}
    with lock_file(folder / LIVE_LOCK):  # another attack may have ended meanwhile
        earlier = read_records(folder / LIVE_FILE, LiveRow, DAMAGED)
        rows = [*(row for row in earlier if row_identity(row) not in replaced), *new]
        write_json(folder / LIVE_FILE, [row.to_json() for row in rows])
    return new


def split_budget(
    run: run_folder.Run, attack_settings: AttackSettings, affordable: int
) -> tuple[Images, Images]:
    """Return the targets, and the attacker's own images.

    At most half of what can be paid goes to targets. The rest goes to own images, and no attack has
    more of them. SettingsError when too few answers are left, or no named attack is on answers.
    """
    if affordable < MIN_ANSWERS:
        raise SettingsError(
            f"the client can pay {affordable} answers, an attack needs {MIN_ANSWERS} or more: "
            "`fedcel ledger top-up`"
        )
    named_attacks = parse_attacks(attack_settings.names)
    for named in named_attacks:
        if named.attack and named.repeats > 1:
            raise SettingsError(
                f"attack.names has {named.name}: a service answers a repeated question from "
                f"memory; name {named.name.partition(REPEAT_MARK)[0]}"
            )
    if not any(named.attack and named.attack.observes == PRIVATE_LOGITS for named in named_attacks):
        raise SettingsError(
            f"attack.names is {attack_settings.names}: none of them attacks answers; "
            "add logit-inversion"
        )
    test = run.splits.test
    count = min(attack_settings.targets or len(test.y), affordable // 2, len(test.y))
    auxiliary = select_auxiliary(run, attack_settings)
    auxiliary = type(auxiliary)(*(part[: affordable - count] for part in auxiliary))
    print_line(f"{affordable} answers can be paid: {count} targets, {len(auxiliary.y)} own images")
    return Images(test.x[:count], test.y[:count]), auxiliary


def row_identity(row: LiveRow) -> tuple[object, ...]:
    """Key by which a newer row replaces an older one."""
    price = row.service, row.mechanism, row.epsilon, row.answers
    return *price, row.attack, row.seed, row.knowledge
