"""Train shadow federations and tell from each which images it was trained on."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from fedcel.attacks import (
    MIN_SHADOWS,
    MembershipScores,
    likelihood_ratios,
    scale_confidence,
    score_membership,
)
from fedcel.data import Images, load_splits, read_source
from fedcel.errors import RunError, SettingsError
from fedcel.federation import (
    HEAVIEST,
    ClientUpdate,
    RoundRequest,
    compute_client_gradient,
    init_net,
    init_server_state,
    play_round,
    update_clients,
)
from fedcel.files import read_tensors, write_json, write_tensors
from fedcel.leakage import SmashedData
from fedcel.losses.cel import State
from fedcel.nets import FlatNet
from fedcel.posterior import (
    apply_heads,
    build_device_net,
    is_sample_candidate,
    plan_round,
    select_clients,
)
from fedcel.privacy import NoisyRound, account_updates
from fedcel.seeding import make_generator
from fedcel.settings import Scalar, Settings
from sims.attacking.client_updates import Uploads
from sims.bench import scenario
from sims.engines.process_pool import run_items, time_call
from sims.progress import estimate_left, print_line
from sims.report.table import format_markdown, make_table
from sims.results import MEMBERSHIP_FILE, MembershipRow

SURFACES = ("message", "answer", "update")
"""What is observed of a federation: messages, answers of the posterior, uploads."""
OBSERVED_ROUNDS = 3
"""Last rounds whose uploads are looked at."""
FEWEST_SHADOWS = 8
"""With fewer, half of the images have too few shadows with or without them."""
FEWEST_TARGETS = 2
SPARE_SHARE = 0.05
"""Of the images: neither trained on nor test images, for copies that are left out."""


class TrainedFederation(NamedTuple):
    """What a federation's training leaves behind."""

    flat: FlatNet
    samples: list[Float[Tensor, " P"]]
    """The models behind an answer."""
    uploads: list[tuple[Float[Tensor, " P"], Float[Tensor, "k P"]]]
    """The model that was sent out, and the deltas that came back, of the last rounds."""
    heaviest: list[float]
    """The largest weight of a client, of each round."""


class RecordingTrainer:
    """Trains the clients of a round at once, with all states in memory, and keeps the deltas."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._states: dict[int, State] = {}
        self.deltas: list[Float[Tensor, " P"]] = []

    def compute_gradients(self, request: RoundRequest) -> Iterator[tuple[int, Tensor]]:
        """Yield each client and its mean gradient at the model."""
        for client in request.weights:
            yield (
                client,
                compute_client_gradient(
                    self._settings, client, request.inputs.model, request.inputs.round_number
                ),
            )

    def train(self, request: RoundRequest) -> Iterator[ClientUpdate]:
        """Yield each client's update."""
        updates = update_clients(
            self._settings,
            request.weights,
            request.inputs,
            read_state=self._states.get,
            fall_back=lambda reason: None,
        )
        self.deltas = []
        for client, update in zip(request.weights, updates, strict=True):
            self._states[client] = update.state
            self.deltas.append(update.delta.clone())
            yield update


def halve_images(settings: Settings, number: int) -> Settings:
    """Return settings of a federation that is trained on a random half of all training images."""
    count = len(read_source(settings.data).train.y)
    few = {"validation": 2, "auxiliary": 2, "train": count // 2, "seed": number}
    if read_source(settings.data).test is None:
        few["test"] = count - count // 2 - 4 - int(SPARE_SHARE * count)
    data = settings.data.model_copy(update=few)
    return settings.model_copy(update={"data": data, "seed": number})


def train_federation(settings: Settings) -> TrainedFederation:
    """Train a federation in memory, the clients of a round at once."""
    splits = load_splits(settings.data, settings.clients, settings.seed)
    flat = init_net(settings, splits)
    state = init_server_state(flat.vector, settings, flat.net)
    examples = dict(enumerate(splits.client_sizes))
    trainer = RecordingTrainer(settings)
    samples: list[Tensor] = []
    uploads: list[tuple[Tensor, Tensor]] = []
    heaviest = []
    for number in range(1, settings.rounds + 1):
        received = state.model.clone()
        state, report = play_round(
            settings, state, examples, trainer, cut=flat.cut, classes=splits.classes
        )
        heaviest.append(report.metrics.get(HEAVIEST, 1.0))
        if number > settings.rounds - OBSERVED_ROUNDS:
            uploads.append((received, torch.stack(trainer.deltas)))
        if is_sample_candidate(settings, number):
            samples.append(state.model.clone())
    samples = samples[-settings.chain.samples :] or [state.model.clone()]
    return TrainedFederation(flat, samples, uploads, heaviest)


def observe_federation(settings: Settings) -> dict[str, Tensor]:
    """Train a federation and compute of each training image of the source what an attacker sees.

    The attacker knows the model, the image and its class. Of one message: what the head makes of
    it, and how far it is from the others of its class; of an answer: its confidence; of uploads:
    the largest confidence of a client's own model, and the largest cosine between an upload and
    what the image itself would make of the model.

    Args:
        settings: As `halve_images` makes them.

    Returns:
        Statistics (N, S) by surface, `member` (N,), and `accuracy` of members and others.
    """
    trained = train_federation(settings)
    images = read_source(settings.data).train
    splits = load_splits(settings.data, settings.clients, settings.seed)
    is_member = torch.zeros(len(images.y), dtype=torch.bool)
    for positions in splits.indices.clients:
        is_member[positions] = True
    stream = make_generator(settings.seed, "membership")
    flat, samples = trained.flat, trained.samples
    net = build_device_net(flat, samples[-1:], "head")
    smashed = SmashedData(net)
    message = smashed.sample(images.x, stream)
    logs = apply_heads(flat, samples, message)
    confidence = scale_confidence(logs[-1].double(), images.y)
    z = smashed.encode(images.x)
    centres = torch.stack([z[images.y == label].mean(0) for label in range(splits.classes)])
    distance = (message - centres[images.y]).square().sum(1).clamp_min(1e-12).log()
    answer = (logs.double().logsumexp(0)).log_softmax(1)
    is_right = torch.eq(answer.argmax(1), images.y).double()
    return {
        "message": torch.stack([confidence, distance.double()], 1),
        "answer": scale_confidence(answer, images.y)[:, None],
        "update": observe_uploads(settings, trained, images),
        "member": is_member,
        "accuracy": torch.stack([is_right[is_member].mean(), is_right[~is_member].mean()]),
        "heaviest": torch.tensor(trained.heaviest, dtype=torch.float64),
    }


def observe_uploads(
    settings: Settings, trained: TrainedFederation, images: Images
) -> Float[Tensor, "N 2"]:
    """Return the statistics of uploads, means over the rounds that are looked at."""
    flat = trained.flat
    rounds = []
    first = settings.rounds - len(trained.uploads) + 1
    for number, (received, deltas) in enumerate(trained.uploads, first):
        confidences = []
        for delta in deltas:
            flat.load(received + delta)
            with torch.no_grad():
                logs = flat.net.answer(flat.net.encode(images.x)).double().log_softmax(1)
            confidences.append(scale_confidence(logs, images.y))
        flat.load(received)
        expected = received.new_zeros(flat.net.answer(flat.net.encode(images.x[:1])).shape[1])
        plan = plan_round(settings, number, 1.0, len(images.y))
        uploads = Uploads(
            flat, received, plan, settings.local, settings.update, images, expected, batch=1
        )
        width = flat.net.features
        alone = uploads.update(
            images.x[:, None],
            images.y[:, None],
            torch.Generator(),
            noise=torch.zeros(len(images.y), 1, width),
            mask=torch.ones(len(images.y), 1, width),
        )
        lengths = alone.norm(dim=1)[:, None] * deltas.norm(dim=1)
        cosine = (alone @ deltas.T / lengths.clamp_min(1e-12)).amax(1)
        rounds.append(torch.stack([torch.stack(confidences).amax(0), cosine.double()], 1))
    return torch.stack(rounds).mean(0)


def attack_membership(
    name: str, out: Path, *, shadows: int, targets: int, jobs: int, overrides: dict[str, Scalar]
) -> str:
    """Train the federations that are missing of each variant; attack some with the others.

    Args:
        name: The scenario's name or path.
        out: The folder of statistics, in which a call goes on.
        shadows: Federations of each variant that the attacker trains, 8 or more.
        targets: Federations that are attacked, 2 or more.
        jobs: Federations that are trained at the same time.
        overrides: Settings in the place of the scenario's, by their keys.

    Returns:
        A table in Markdown; the rows are written beside the statistics.

    Raises:
        SettingsError: There are too few shadows, or the images are divided by holder.
        FedcelError: As scenarios, data and runs raise it.
    """
    if shadows < FEWEST_SHADOWS:
        raise SettingsError(
            f"--shadows is {shadows}, must be {FEWEST_SHADOWS} or more; 64 give sharp ratios"
        )
    if targets < FEWEST_TARGETS:
        raise SettingsError(f"--targets is {targets}, must be {FEWEST_TARGETS} or more; try 16")
    cells = scenario.list_cells(scenario.read_scenario(name), overrides)
    tasks = [(cell, number) for cell in cells for number in range(shadows + targets)]
    seconds: list[float] = []
    work = partial(time_call, partial(observe_task, folder=out))
    with closing(run_items(work, tasks, jobs)) as running:
        for number, (is_new, spent) in enumerate(running, 1):
            if is_new:
                seconds.append(spent)
            remaining = estimate_left(seconds, len(tasks) - number, jobs)
            if number % 8 == 0 or number == len(tasks):
                print_line(f"trained {number} of {len(tasks)} federations{remaining}")
    rows = [row for cell in cells for row in score_cell(cell, out, shadows, targets)]
    write_json(out / MEMBERSHIP_FILE, [row.to_json() for row in rows])
    return format_membership(rows)


def observe_task(task: tuple[scenario.Cell, int], folder: Path) -> bool:
    """Train and observe one federation unless it is there; say whether it was not."""
    torch.set_num_threads(1)
    cell, number = task
    path = federation_path(folder, cell, number)
    settings = halve_images(cell.settings, number)
    made_with = settings.model_dump_json()
    if path.exists():
        if read_tensors(path)[1].get("settings") != made_with:
            raise RunError(f"{path} was made with other settings; choose another --out")
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, observe_federation(settings), {"settings": made_with})
    return True


def federation_path(folder: Path, cell: scenario.Cell, number: int) -> Path:
    """Return where a federation's statistics are."""
    return folder / cell.name / f"federation-{number}.safetensors"


def score_cell(
    cell: scenario.Cell, folder: Path, shadows: int, targets: int
) -> Iterable[MembershipRow]:
    """Yield the rows of one variant: each surface by likelihood ratios and without shadows."""
    total = shadows + targets
    tensors = [read_tensors(federation_path(folder, cell, k))[0] for k in range(total)]
    all_members = torch.stack([part["member"] for part in tensors])
    counts = all_members[:shadows].sum(0)
    is_shadowed = torch.minimum(counts, shadows - counts) >= MIN_SHADOWS  # of few, some are not
    shadow_members, is_member = torch.split(all_members[:, is_shadowed], [shadows, targets])
    accuracy = torch.stack([part["accuracy"] for part in tensors]).mean(0).tolist()
    rounds = [
        NoisyRound(select_clients(cell.settings, number), weight)
        for number, weight in enumerate(tensors[0]["heaviest"].tolist(), 1)
    ]
    noise, delta = cell.settings.update.noise, cell.settings.update.delta
    spent = account_updates(noise, rounds, delta) if noise else None
    attacks: dict[str, Callable[[Tensor], Tensor]] = {
        "likelihood-ratio": lambda values: likelihood_ratios(
            values[shadows:], values[:shadows], shadow_members
        ),
        "threshold": lambda values: values[shadows:, :, 0].double(),
    }
    for surface in SURFACES:
        values = torch.stack([part[surface][is_shadowed] for part in tensors])
        for attack, make_scores in attacks.items():
            stream = make_generator(cell.settings.seed, f"membership/{surface}/{attack}")
            scores = score_membership(make_scores(values), is_member, stream)
            yield make_row(
                cell,
                scores,
                attack=attack,
                observation=surface,
                shadows=shadows,
                targets=targets,
                images=is_member.shape[1],
                member_accuracy=accuracy[0],
                accuracy=accuracy[1],
                update_epsilon=None if spent is None else spent.server,
                update_epsilon_of_models=None if spent is None else spent.models,
            )


def make_row(cell: scenario.Cell, scores: MembershipScores, **more: object) -> MembershipRow:
    """Return the row of one attack on one surface of one variant."""
    numbers = {
        f"{key}{end}": value
        for key, interval in zip(("auc", "tpr_1", "tpr_01"), scores[:3], strict=True)
        for end, value in zip(("", "_low", "_high"), interval, strict=True)
    }
    identity = {"variant": cell.variant.name, "title": cell.variant.title, "seed": 0}
    return MembershipRow.model_validate(
        identity | {"strength": cell.strength, "epsilon_shown": scores.epsilon} | numbers | more
    )


def format_membership(rows: Iterable[MembershipRow]) -> str:
    """Return the Markdown of the rows."""
    head = ("variant", "sees", "attack", "accuracy, %", "AUC", "TPR at 1 %", "TPR at 0.1 %")
    lines = [
        [
            row.title or row.variant,
            row.observation,
            row.attack,
            f"{100 * row.accuracy:.1f}",
            f"{row.auc:.3f} ({row.auc_low:.3f} to {row.auc_high:.3f})",
            f"{100 * row.tpr_1:.2f} ({100 * row.tpr_1_low:.2f} to {100 * row.tpr_1_high:.2f})",
            f"{100 * row.tpr_01:.2f} ({100 * row.tpr_01_low:.2f} to {100 * row.tpr_01_high:.2f})",
        ]
        for row in rows
    ]
    return format_markdown(make_table("Membership", head, lines)) + "\n"
