"""Train shadow federations and tell from each which images it was trained on.

The rows, one for each variant, attack and surface, are written to membership.json.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import torch
import typer
from jaxtyping import Float
from torch import Tensor

from carry_out import carry_out
from fedcel.data import ClientImages, ClientSlices, Images, load_splits, read_source, to_floats
from fedcel.errors import RunError, SettingsError
from fedcel.federation import (
    HEAVIEST,
    ClientUpdate,
    RoundRequest,
    play_round,
)
from fedcel.files import read_tensors, write_json, write_tensors
from fedcel.json_records import Number, Record
from fedcel.leakage import SmashedData
from fedcel.nets import FlatNet
from fedcel.posterior import (
    RoundOrder,
    apply_heads,
    build_device_net,
)
from fedcel.privacy import UPDATE_DELTA, NoisyRound, account_updates
from fedcel.run_parts import (
    build_client_parts,
    build_schedule,
    build_server_parts,
    count_clients_at_once,
    init_net,
    init_run_state,
)
from fedcel.settings import Scalar, Settings
from fedcel.torch_state import make_generator, stream_seed
from membership_scores import (
    MIN_SHADOWS,
    MembershipScores,
    likelihood_ratios,
    scale_confidence,
    score_membership,
)
from sims.attacking.client_updates import Uploads
from sims.bench import Cell, list_cells, read_scenario
from sims.commands.main import main
from sims.commands.options import Assignments, Jobs, Scenario, check_folder, option
from sims.engines.local import LocalTrainer
from sims.overrides import parse_overrides
from sims.report.table import format_markdown, make_table

ROWS_FILE = "membership.json"
SURFACES = ("message", "answer", "update")
"""What is observed of a federation: messages, answers of the posterior, uploads."""
OBSERVED_ROUNDS = 3
"""Last rounds whose uploads are looked at."""
FEWEST_SHADOWS = 8
"""With fewer, half of the images have too few shadows with or without them."""
FEWEST_TARGETS = 2


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def membership_command(
    scenario: Scenario,
    out: Annotated[Path, option(help="Folder of what is observed; a call goes on there.")],
    assignments: Assignments = None,
    shadows: Annotated[
        int, typer.Option(help="Federations that the attacker trains, of each variant.")
    ] = 64,
    targets: Annotated[int, typer.Option(help="Federations that are attacked.")] = 16,
    jobs: Jobs = 1,
) -> None:
    """Tell members from other images: by messages, answers and uploads, with shadow federations."""
    check_folder(out)
    overrides = parse_overrides(assignments)
    print(
        attack_membership(
            scenario, out, shadows=shadows, targets=targets, jobs=jobs, overrides=overrides
        )
    )


class MembershipRow(Record):
    """Success of one attack on one surface of a variant; intervals are of 95 %."""

    variant: str
    title: str
    strength: float | None
    seed: int
    attack: str
    observation: str
    shadows: int
    """Federations of the attacker's own."""
    targets: int
    """Federations that are attacked."""
    images: int
    """Images that were members of half of the federations."""
    accuracy: float
    """On images that are no members."""
    member_accuracy: float
    auc: float
    auc_low: float
    auc_high: float
    tpr_1: float
    """Share of the members found where 1 % of the others are called members."""
    tpr_1_low: float
    tpr_1_high: float
    tpr_01: float
    """The same at 0.1 %."""
    tpr_01_low: float
    tpr_01_high: float
    epsilon_shown: float
    """Lower bound on the epsilon of one image that the attack shows."""
    update_epsilon: Number = None
    """Epsilon of all of a holder's images, against a reader of the uploads."""
    update_epsilon_of_models: Number = None


class TrainedFederation(NamedTuple):
    """Trained models, and uploads of the last rounds."""

    flat: FlatNet
    samples: list[Float[Tensor, " P"]]
    """The models behind an answer."""
    uploads: list[tuple[Float[Tensor, " P"], Float[Tensor, "k P"]]]
    """The model that was sent out, and the deltas that came back, of the last rounds."""
    heaviest: list[float]
    """The largest weight of a client, of each round."""


class RecordingTrainer(LocalTrainer):
    """Trains the clients of a round at once, and keeps their deltas."""

    deltas: list[Float[Tensor, " P"]]

    def train(self, request: RoundRequest) -> Iterator[ClientUpdate]:
        """Yield each client's update."""
        self.deltas = []
        for update in super().train(request):
            self.deltas.append(update.delta.clone())
            yield update


def deal_half(settings: Settings) -> ClientSlices:
    """Deal a random half of all training images to the clients, as positions; `seed` draws it."""
    source = read_source(settings.data.source)
    stream = make_generator(settings.seed, "membership-half")
    half = torch.randperm(len(source.train.y), generator=stream)[: len(source.train.y) // 2]
    holders = None if source.holders is None else source.holders[half]
    seed = stream_seed(settings.seed, "data-partition")
    dealt = settings.data.partition.deal(
        source.train.y[half], settings.clients, seed, holders=holders
    )
    return ClientSlices(half[dealt.whole], dealt.sizes)


def train_federation(settings: Settings, positions: ClientSlices) -> TrainedFederation:
    """Train a federation on these images of the source, the clients of a round at once."""
    splits = load_splits(settings.data, settings.clients, settings.seed)
    flat = init_net(settings, splits)
    parts = build_server_parts(settings, splits.classes)
    state = init_run_state(settings, flat)
    examples = dict(enumerate(positions.sizes.tolist()))
    images = ClientImages(read_source(settings.data.source).train, positions)
    client_parts = build_client_parts(settings)._replace(images=images.__getitem__)
    samples: list[Tensor] = []
    uploads: list[tuple[Tensor, Tensor]] = []
    heaviest = []
    with TemporaryDirectory() as folder:
        trainer = RecordingTrainer(client_parts, Path(folder), count_clients_at_once(settings))
        for number in range(1, settings.rounds + 1):
            received = state.model.clone()
            state, report = play_round(
                parts, state, examples, trainer, device_size=flat.device_size
            )
            heaviest.append(report.metrics.get(HEAVIEST, 1.0))
            if number > settings.rounds - OBSERVED_ROUNDS:
                uploads.append((received, torch.stack(trainer.deltas)))
            if parts.schedule.gives_sample(number):
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
        settings: Their seed draws the half of the images that is trained on.

    Returns:
        Statistics (N, S) by surface, `member` (N,), and `accuracy` of members and others.
    """
    positions = deal_half(settings)
    trained = train_federation(settings, positions)
    images = read_source(settings.data.source).train
    images = images._replace(x=to_floats(images.x))
    is_member = torch.zeros(len(images.y), dtype=torch.bool)
    is_member[positions.whole] = True
    stream = make_generator(settings.seed, "membership")
    flat, samples = trained.flat, trained.samples
    net = build_device_net(flat, samples[-1:], "head")
    smashed = SmashedData(net)
    message = smashed.sample(images.x, stream)
    logs = apply_heads(flat, samples, message)
    confidence = scale_confidence(logs[-1].double(), images.y)
    z = smashed.encode(images.x)
    centres = torch.stack(
        [z[images.y == label].mean(0) for label in range(int(images.y.max()) + 1)]
    )
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
        plan = build_schedule(settings).plan(RoundOrder(number, len(images.y)))
        uploads = Uploads(flat, received, plan, settings.update, images, expected, batch=1)
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
    cells = list_cells(read_scenario(name), overrides)
    tasks = [(cell, number) for cell in cells for number in range(shadows + targets)]
    carry_out(partial(observe_task, folder=out), tasks, jobs, "trained")
    rows = [row for cell in cells for row in score_cell(cell, out, shadows, targets)]
    write_json(out / ROWS_FILE, [row.to_json() for row in rows])
    return format_membership(rows)


def observe_task(task: tuple[Cell, int], folder: Path) -> str:
    """Train and observe one federation unless that was done; return its name."""
    torch.set_num_threads(1)
    cell, number = task
    path = federation_path(folder, cell, number)
    settings = cell.settings.model_copy(update={"seed": number})
    made_with = settings.model_dump_json(serialize_as_any=True)
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, observe_federation(settings), {"settings": made_with})
    elif read_tensors(path)[1].get("settings") != made_with:
        raise RunError(f"{path} was made with other settings; choose another --out")
    return f"{cell.name} {number}"


def federation_path(folder: Path, cell: Cell, number: int) -> Path:
    """Return the path of a federation's statistics."""
    return folder / cell.name / f"federation-{number}.safetensors"


def score_cell(cell: Cell, folder: Path, shadows: int, targets: int) -> Iterable[MembershipRow]:
    """Yield the rows of one variant: each surface by likelihood ratios and without shadows."""
    total = shadows + targets
    tensors = [read_tensors(federation_path(folder, cell, k))[0] for k in range(total)]
    all_members = torch.stack([part["member"] for part in tensors])
    counts = all_members[:shadows].sum(0)
    is_shadowed = torch.minimum(counts, shadows - counts) >= MIN_SHADOWS  # of few, some are not
    shadow_members, is_member = torch.split(all_members[:, is_shadowed], [shadows, targets])
    accuracy = torch.stack([part["accuracy"] for part in tensors]).mean(0).tolist()
    rounds = [
        NoisyRound(build_server_parts(cell.settings).select(number), weight)
        for number, weight in enumerate(tensors[0]["heaviest"].tolist(), 1)
    ]
    noise = cell.settings.update.noise
    spent = account_updates(noise, rounds, UPDATE_DELTA) if noise else None
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


def make_row(cell: Cell, scores: MembershipScores, **more: object) -> MembershipRow:
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
    return format_markdown(make_table("Membership", head, lines))


if __name__ == "__main__":
    sys.exit(main(app=app, name="membership.py"))
