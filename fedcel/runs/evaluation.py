"""Evaluation of a finished run: predictions, uncertainty, exact leakage, private utility."""

import json
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from math import ceil, log2, prod
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel import per_image
from fedcel.data import Images, load_attributes, to_floats
from fedcel.federation import HEAVIEST
from fedcel.files import write_json, write_tensors
from fedcel.leakage import (
    DROPPED,
    NOT_NOISY,
    ImagePrior,
    LinearisedLeak,
    OptimalLeak,
    SmashedData,
    answer_bits,
    attribute_leak,
    best_guesses,
    bound_population,
    certificate,
    choose_fitted,
    fit_to_some,
    identify_by_label,
    map_leak,
    measure_if_cheap,
    optimal_leak,
)
from fedcel.losses.cel import StackedFeatures
from fedcel.metrics import (
    between_group_spread,
    calibration,
    chance_accuracy,
    within_class_spread,
)
from fedcel.nets import OwnNet, SplitNet, count_operations, measure_cost, whiten_features
from fedcel.posterior import (
    Prediction,
    apply_heads,
    build_device_net,
    diagnose,
    predict,
)
from fedcel.privacy import (
    UPDATE_DELTA,
    USUAL_EPSILONS,
    AnswerCalibration,
    LabelledLogits,
    Mechanism,
    NoisyRound,
    account_updates,
    fit_calibration,
    measure_utility,
)
from fedcel.run_parts import build_server_parts
from fedcel.runs import run_folder
from fedcel.runs.measured_pieces import PIECES_FOLDER, Piece, PieceStore
from fedcel.runs.round_log import EVENTS, summarise_kept_shares
from fedcel.runs.run_folder import Run, digest_weights
from fedcel.settings import MIN_SAMPLED_ROUNDS
from fedcel.short_repr import show_shapes
from fedcel.torch_state import make_generator

TOO_FEW = "there are too few images to fit their covariance to"
TOO_LONG = "there are fewer than 6 test images, or it would take long"
NOISE_DRAWS = 8  # messages per image over which accuracy is averaged, at most
PRIVATE_ANSWERS = 2000  # private answers at each epsilon, or one for each image where they are more
ANSWER_DRAWS = 128  # messages per image whose answers are counted, at most
ANSWERS_AT_ONCE = 1000  # messages that heads answer at once, or one of each image
LEAST_OPERATIONS, MOST_OPERATIONS = 2 * 10**10, 10**12
"""Operations of heads above which fewer messages of each image are drawn, after short trainings and
after long ones: less than ten seconds, and some minutes of slow heads."""
LEAST_REFERENCES = 1000
"""Training images that the law of messages is fitted to after any training, or all of them."""
ENCODED_AT_ONCE = 256
"""Training images that are taken from their source at once."""
PICTURE_OPERATIONS = 6e10
"""The same of encoders for the leak of the picture after short trainings: some seconds."""
GUESSED_IMAGES = 8  # whose messages the optimal attacker's guesses are shown of
GUESSES_FILE = "guesses.safetensors"
"""The first test images, the likeliest senders of a message of each, and their probabilities."""


@show_shapes
class Evaluation(NamedTuple):
    """Evaluation of a finished run on its test images."""

    result: dict[str, object]
    """The content of result.json."""
    per_image: per_image.Vectors
    """Values of each image, which the means are of."""
    guesses: dict[str, Tensor]
    """Some test images (T, C, H, W), guesses at them (T, G, C, H, W), probabilities (T, G); labels
    of all test images (M,), of the guesses (T, G)."""


def write_evaluation(folder: str | Path, evaluation: Evaluation) -> None:
    """Write an evaluation into a run's folder, which says that the run is finished.

    Args:
        folder: The run's folder.
        evaluation: The run's evaluation.
    """
    folder = Path(folder)
    per_image.write_vectors(folder, evaluation.per_image)
    write_tensors(folder / GUESSES_FILE, evaluation.guesses)
    write_json(folder / "result.json", evaluation.result)  # says that all is there
    rmtree(folder / PIECES_FOLDER, ignore_errors=True)


def posterior_samples(run: Run) -> list[Float[Tensor, " P"]]:
    """Return what a run predicts with: its posterior samples, or the last model alone.

    Args:
        run: As `read_run` returns it.

    Returns:
        Parameters, (P,) each.
    """
    return run.samples or [run.model]


def build_sent_net(run: Run) -> SplitNet:
    """Build the net whose smashed data are everything that a device of a run sends for one image.

    Args:
        run: As `read_run` returns it.

    Returns:
        A net of its own memory; in scope `full` its smashed data are those of the encoders of all
        samples in a row, (N, S*D).
    """
    return build_device_net(run.flat, posterior_samples(run), run.settings.chain.scope)


def evaluate_run(run: Run, seconds: float) -> Evaluation:
    """Measure what a run is worth on its test set: accuracy, calibration, leakage, private answers.

    Each piece is kept in the run's folder once it is done, until `write_evaluation` has written the
    whole: an interrupted evaluation goes on where it was.

    Args:
        run: As `read_run` returns it.
        seconds: How long the training took; noted as it is.

    Returns:
        What result.json says, and the values of each test image.
    """
    s, versions = run.settings, list_versions()
    pieces = PieceStore.open(run, versions)
    predicted = pieces.take("predictions", lambda: score_predictions(run))
    net = build_sent_net(run)
    smashed = SmashedData(net)  # one, which encodes each image once
    leak = take_leak(pieces, run, smashed)
    prior = fit_run_prior(run)

    def measure_picture() -> Piece:
        picture = estimate_picture(run, smashed, prior)
        if isinstance(picture, str):
            return Piece({"linearised-obstacle": picture}, {})
        return Piece(picture.to_measures(), {})

    def draw_pictures() -> Piece:
        pictures = guess_test_images(run, smashed)
        if "linearised-bits" in picture.measures and prior is not None:
            pictures |= map_test_images(smashed, pictures["targets"], prior)
        return Piece({}, pictures)

    picture = pieces.take("picture", measure_picture)
    leakage = pieces.take("leakage", lambda: Piece(measure_run_leakage(run, smashed, leak), {}))
    pictures = pieces.take("pictures", draw_pictures)
    private = predicted.measures.pop("private")
    result = {
        **predicted.measures,
        "chance-accuracy": chance_accuracy(run.splits.test.y),
        **summarise_kept_shares(run.folder),
        "samples": len(run.samples),
        "convergence": describe_convergence(run),
        **leakage.measures,
        **picture.measures,
        "private": private,
        **measure_device(run, net),
        **account_update_privacy(run),
        # The steps of a round see at most steps x batch size of a client's images.
        "smallest-update-images": min(
            min(s.local.count_steps(n) * s.local.batch_size, n) for n in run.splits.client_sizes
        ),
        **({"data-notes": list(run.splits.notes)} if run.splits.notes else {}),
        **({"class-names": list(run.splits.class_names)} if run.splits.class_names else {}),
        **digest_weights(s),
        "versions": versions,
        "seconds": seconds,
    }
    vectors = {
        **predicted.tensors,
        "bits-beyond-label": leak.beyond,
        "identification-optimal": leak.identified,
    }
    return Evaluation(result, vectors, pictures.tensors)


def score_predictions(run: Run) -> Piece:
    """Score predictions of test images, and the private answers made of them."""
    x, y = run.splits.test
    s = run.settings
    draws = count_messages(run, len(y), NOISE_DRAWS)
    labels = y.repeat(draws)

    def predict_test(samples: list[Float[Tensor, " P"]]) -> Prediction:
        noise = make_generator(s.seed, "test-noise")
        return predict(run.flat, samples, x, noise, scope=s.chain.scope, draws=draws)

    posterior, point = predict_test(posterior_samples(run)), predict_test([run.model])
    measures = {
        **calibration.score_probabilities(posterior.probabilities, labels),
        "messages-per-image": draws,
        "entropy": float(calibration.predictive_entropy(posterior.samples).mean()),
        "bald": float(calibration.bald(posterior.samples).mean()),
        "point": calibration.score_probabilities(point.probabilities, labels),
        "reliability": {
            "posterior": calibration.reliability(posterior.probabilities, labels),
            "point": calibration.reliability(point.probabilities, labels),
        },
        "private": measure_private_utility(run, LabelledLogits(posterior.logits, labels, draws)),
    }
    is_right = (posterior.probabilities.argmax(1) == labels).double().view(draws, len(y))
    return Piece(measures, {"accuracy": is_right.mean(0)})


def take_leak(pieces: PieceStore, run: Run, smashed: SmashedData) -> OptimalLeak:
    """Return what the optimal attacker learns of the test images, which may have been kept."""

    def measure() -> Piece:
        fields = attack_test_images(run, smashed)._asdict()
        tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
        return Piece({n: value for n, value in fields.items() if n not in tensors}, tensors)

    piece = pieces.take("optimal-leak", measure)
    return OptimalLeak(**{**piece.measures, **piece.tensors})


def account_update_privacy(run: Run) -> dict[str, object]:
    """Account epsilon of all uploaded updates together; nothing where they have no noise."""
    protection = run.settings.update
    if not protection.noise:
        return {}
    lines = map(json.loads, (run.folder / EVENTS).read_text().splitlines())
    heaviest = {event["round"]: float(event[HEAVIEST]) for event in lines}
    # Once each round was taken into the model; an upload of a round begun again stands alone.
    select = build_server_parts(run.settings).select
    rounds = [
        NoisyRound(select(number), heaviest.pop(number, 1.0))
        for number in run_folder.read_requested_rounds(run.folder)
    ]
    spent = account_updates(protection.noise, rounds, UPDATE_DELTA)
    return {
        "update-epsilon": spent.server,
        "update-epsilon-of-models": spent.models,
        "update-rounds": spent.rounds,
    }


def measure_device(run: Run, net: SplitNet) -> dict[str, int]:
    """Measure the size of one net and of its encoder, and what one inference costs the device.

    In scope `full` the device runs each sampled encoder, and FLOPs and bytes are those of all.
    """
    cost = measure_cost(net, run.splits.test.x[0])
    encoders = net.features // run.flat.net.features
    return {
        "parameters": run.flat.vector.numel(),
        "encoder-parameters": cost.parameters // encoders,
        "flops-per-inference": cost.flops,
        "bytes-per-inference": cost.bytes,
    }


def describe_convergence(run: Run) -> str:
    """Describe whether anything speaks against the chain's convergence."""
    rows = run_folder.open_trace(run.folder).rows
    diagnosis = diagnose(torch.stack(rows)) if rows and run.settings.temperature > 0 else None
    if diagnosis:
        return str(diagnosis)
    if len(rows) < MIN_SAMPLED_ROUNDS:
        return f"not judged: {len(rows)} sampled rounds, {MIN_SAMPLED_ROUNDS} are needed"
    return "not judged: nothing moves that it could be judged by, or in one half of its rounds only"


def attack_test_images(run: Run, smashed: SmashedData) -> OptimalLeak:
    """Compute what the optimal attacker learns of the test images from the device's net."""
    stream = make_generator(run.settings.seed, "optimal")
    candidates = run.settings.attack.candidates
    return optimal_leak(smashed, *run.splits.test, stream, identification_candidates=candidates)


def guess_test_images(run: Run, smashed: SmashedData) -> dict[str, Tensor]:
    """Let the optimal attacker guess which test image sent one message, for the first of them."""
    x, y = run.splits.test
    senders = torch.arange(min(GUESSED_IMAGES, len(x)))
    stream = make_generator(run.settings.seed, "guesses")
    positions, probabilities = best_guesses(smashed, x, senders, stream)
    return {
        "targets": x[senders],
        "guesses": x[positions],
        "probabilities": probabilities,
        "labels": y,
        "guess-labels": y[positions],
    }


def fit_run_prior(run: Run) -> ImagePrior | None:
    """Fit the law of images within classes to images that are no test images.

    Args:
        run: As `read_run` returns it.

    Returns:
        The prior; None where there are too few images.
    """
    clients, validation = run.splits.clients, run.splits.validation
    trained = sum(run.splits.client_sizes)
    count, pixels = trained + len(validation.y), prod(run.splits.shape)
    places = choose_fitted(count, pixels, run.settings.seed)
    is_trained = places < trained
    trained_on = clients.take(places[is_trained])
    others = places[~is_trained] - trained
    x = torch.cat([to_floats(trained_on.x), validation.x[others]])
    return fit_to_some(x, torch.cat([trained_on.y, validation.y[others]]), run.settings.seed)


def estimate_picture(
    run: Run, smashed: SmashedData, prior: ImagePrior | None
) -> LinearisedLeak | str:
    """Estimate how much of the picture a message tells, or say in a phrase why not."""
    noise, net = smashed.describe_noise(), smashed.net
    if noise is None:
        return DROPPED if net.cut.dropout > 0 else NOT_NOISY
    if prior is None:
        return TOO_FEW
    leak = measure_if_cheap(
        net.encode,
        run.splits.test.x,
        net.features,
        noise=noise,
        prior=prior,
        seed=run.settings.seed,
        most_operations=max(PICTURE_OPERATIONS, float(bound_operations(run))),
    )
    return leak or TOO_LONG


def map_test_images(
    smashed: SmashedData, images: Float[Tensor, "T C H W"], prior: ImagePrior
) -> dict[str, Tensor]:
    """Map which pixels the messages of some images expose, and what stays unknown."""
    noise = smashed.describe_noise()
    assert noise is not None
    maps = map_leak(smashed.net.encode, images, noise=noise, prior=prior)
    return {
        "leak-information": maps.information.float(),
        "leak-deviation": maps.deviation.float(),
        "prior-deviation": maps.prior_deviation.float(),
    }


def measure_run_leakage(run: Run, smashed: SmashedData, leak: OptimalLeak) -> dict[str, object]:
    """Measure what the optimal attacker learns from one inference, and bounds on either side.

    `smashed` are the device's data. Half widths are of 95 % intervals over the noise drawn, for
    these images: what is above a certificate by more is a mistake, see
    `fedcel.attacks.contradictions`.
    """
    x, y = run.splits.test
    s, net = run.settings, smashed.net
    z = smashed.encode(x)
    with torch.no_grad():
        scale = net.scale_noise(z)
    whitened = whiten_features(z, scale)
    bound = certificate(z, y, net.cut.sigma, s.attack.candidates, scale=scale)
    candidates = min(s.attack.candidates, len(y))
    trained = encode_training(run, smashed)
    return {
        "bits-beyond-label": leak.bits_beyond_label,
        "bits-half-width": leak.beyond_noise_half_width,
        "answer-bits": answer_bits(sample_answers(run, net, z), y, run.splits.classes),
        "information-bits": leak.information_bits,
        "information-half-width": leak.information_noise_half_width,
        "identification-optimal": leak.identification,
        "candidates": leak.image_count,
        "bits-cap": leak.cap_beyond_label,
        "information-cap": log2(leak.image_count),
        "identification-candidates": candidates,
        "label-only-identification": identify_by_label(y, candidates),
        "certificate-bits": bound.bits,
        "certificate-bits-within-class": bound.bits_within_class,
        "fano-identification": bound.identification,
        **bound_unseen_images(run, smashed, trained),
        **measure_attribute(run, smashed),
        "within-class-spread": float(within_class_spread(whitened, y)),
        "between-client-spread": measure_client_spread(smashed, trained),
    }


def bound_unseen_images(
    run: Run, smashed: SmashedData, trained: StackedFeatures
) -> dict[str, object]:
    """Bound what a message tells about images that nobody has seen; nothing without noise.

    The law is fitted to training, validation and auxiliary images, its form chosen on the latter;
    test images are independent of the encoder and of it.
    """
    splits = run.splits
    others = [splits.validation, splits.auxiliary]
    if run.settings.data.held_out_classes:
        others.pop()  # of other classes, numbered anew
    choosing = Images(*(torch.cat(parts) for parts in zip(*others, strict=True)))
    fitted = smashed.describe_features(trained.z, trained.y)
    chosen, evaluated = (
        smashed.describe_features(smashed.encode(part.x), part.y)
        for part in (choosing, splits.test)
    )
    if fitted is None or chosen is None or evaluated is None:
        return {}
    bound = bound_population(
        evaluated,
        fitted,
        choosing=chosen,
        feature_range=(0.0, 1.0) if isinstance(run.settings.net, OwnNet) else None,
        seed=run.settings.seed,
    )
    return {
        "population-bits": bound.information.student,
        "population-bits-bernstein": bound.information.bernstein,
        "population-beyond-label": bound.beyond_label.student,
        "population-beyond-label-bernstein": bound.beyond_label.bernstein,
        "population-confidence": bound.confidence,
        "population-images": bound.image_count,
        "population-reference-images": bound.reference_count,
    }


def measure_attribute(run: Run, smashed: SmashedData) -> dict[str, object]:
    """Measure what a message tells of the images' own classes where the task is coarser."""
    s = run.settings
    attributes = load_attributes(s.data, s.clients, s.seed)
    if attributes is None:
        return {}
    stream = make_generator(s.seed, "attribute")
    leak = attribute_leak(smashed, *run.splits.test, attributes, generator=stream)
    return {
        "attribute-bits": leak.bits,
        "attribute-half-width": leak.half_width,
        "attribute-cap": leak.cap_bits,
        "attribute-accuracy": leak.accuracy,
        "attribute-by-label": leak.accuracy_by_label,
        "attribute-by-others": leak.accuracy_of_others,
    }


def count_messages(run: Run, images: int, most: int, least: int = 1) -> int:
    """Count the messages of each image that the sampled heads answer, fewer of costly heads."""
    net = run.flat.net
    message = torch.zeros(1, net.features)
    operations = count_operations(lambda: net.answer(message)) * len(posterior_samples(run))
    return max(least, min(most, bound_operations(run) // max(1, operations * images)))


def bound_operations(run: Run) -> int:
    """Bound the operations of a measure by a quarter of the training's, within fixed limits."""
    settings, net = run.settings, run.flat.net
    image = torch.zeros(1, *run.splits.shape)
    forward = count_operations(lambda: net.answer(net.encode(image)))
    local, sizes = settings.local, run.splits.client_sizes
    images = sum(local.count_steps(size) * min(local.batch_size, size) for size in sizes)
    share = (settings.clients_per_round or settings.clients) / settings.clients
    training = 3 * forward * images * settings.rounds * share  # backward costs two passes forward
    return int(min(MOST_OPERATIONS, max(LEAST_OPERATIONS, training / 4)))


def sample_answers(run: Run, net: SplitNet, z: Float[Tensor, "N M"]) -> Int[Tensor, "R N"]:
    """Draw the most probable class for R fresh messages about each image, z what `net` encodes.

    In scope `full` z holds each sampled encoder's features in a row.
    """
    noise = make_generator(run.settings.seed, "answers")
    samples = posterior_samples(run)
    count = count_messages(run, len(z), ANSWER_DRAWS, least=2)
    at_once = max(1, ANSWERS_AT_ONCE // len(z))
    answers = []
    for first in range(0, count, at_once):
        draws = min(at_once, count - first)
        with torch.no_grad():
            message = torch.cat([net.add_noise(z, noise) for _ in range(draws)])
        if run.settings.chain.scope == "full":
            parts = zip(samples, torch.chunk(message, len(samples), 1), strict=True)
            logs = torch.cat([apply_heads(run.flat, [vector], part) for vector, part in parts])
        else:
            logs = apply_heads(run.flat, samples, message)
        answers.append(Prediction(logs).probabilities.argmax(1).view(draws, len(z)))
    return torch.cat(answers)


def measure_client_spread(smashed: SmashedData, trained: StackedFeatures) -> float:
    """Measure how far clients' class means lie apart, of training images, in units of z squared."""
    with torch.no_grad():
        whitened = whiten_features(trained.z, smashed.net.scale_noise(trained.z))
    return float(between_group_spread(whitened, trained.y, trained.client))


def encode_training(run: Run, smashed: SmashedData) -> StackedFeatures:
    """Encode training images, of a short training with a slow encoder some that are drawn."""
    sizes = torch.tensor(run.splits.client_sizes)
    count = int(sizes.sum())
    image = torch.zeros(1, *run.splits.shape)
    operations = count_operations(lambda: smashed.net.encode(image))
    affordable = bound_operations(run) // max(1, operations)  # none are counted of a mere reshape
    rows = torch.arange(count)
    if (most := max(LEAST_REFERENCES, affordable)) < count:
        stream = make_generator(run.settings.seed, "references")
        rows = torch.randperm(count, generator=stream)[:most].sort().values
    features, labels = [], []
    for part in torch.split(rows, ENCODED_AT_ONCE):
        x, y = run.splits.clients.take(part)
        features.append(smashed.encode(x))
        labels.append(y)
    client = torch.arange(len(sizes)).repeat_interleave(sizes)
    return StackedFeatures(torch.cat(features), torch.cat(labels), client[rows])


def predict_labelled(
    run: Run, images: Images, purpose: str, rows: int = PRIVATE_ANSWERS
) -> LabelledLogits:
    """Compute a run's logits about images, of several messages each where they are few.

    Args:
        run: As `read_run` returns it.
        images: The images, with their classes.
        purpose: Names the stream of the noise at the cut.
        rows: Messages that are enough in all; each image has one at least, `NOISE_DRAWS` at most.

    Returns:
        The logits, with the right classes.
    """
    count = max(len(images.y), 1)
    messages = min(count_messages(run, count, NOISE_DRAWS), max(1, ceil(rows / count)))
    noise = make_generator(run.settings.seed, purpose)
    prediction = predict(
        run.flat,
        posterior_samples(run),
        images.x,
        noise,
        scope=run.settings.chain.scope,
        draws=messages,
    )
    return LabelledLogits(prediction.logits, images.y.repeat(messages), messages)


def predict_references(run: Run) -> LabelledLogits:
    """Compute a run's logits about its validation images, by which private answers are read.

    Args:
        run: As `read_run` returns it.

    Returns:
        The logits of one message about each image, with the right classes; without images to which
        the model has no finite answer.
    """
    logits, labels, _ = predict_labelled(run, run.splits.validation, "answer-references", 1)
    is_finite = logits.isfinite().all(1)
    return LabelledLogits(logits[is_finite], labels[is_finite])


def calibrate_answers(run: Run, mechanism: Mechanism) -> AnswerCalibration:
    """Learn from a run's validation images to read private answers as probabilities.

    Args:
        run: As `read_run` returns it. The validation images are the server's own, and nothing is
            promised to them.
        mechanism: What gives the answers.

    Returns:
        What makes probabilities of answers.
    """
    logits, labels, _ = predict_references(run)
    return fit_calibration(mechanism, logits, labels)


def measure_private_utility(run: Run, test: LabelledLogits) -> dict[str, dict[str, float]]:
    """Measure the utility of the private answers at usual epsilons and at `privacy.epsilon`.

    They are read by the server's validation images, which tests never saw.
    """
    privacy = run.settings.privacy
    references = predict_references(run)
    images = test.keep_rows(PRIVATE_ANSWERS)
    return {
        f"{epsilon:g}": measure_utility(
            images, privacy.model_copy(update={"epsilon": epsilon}), references
        )
        for epsilon in sorted({*USUAL_EPSILONS, privacy.epsilon})
    }


def list_versions() -> dict[str, str]:
    """List the versions that the numbers depend on, of what is installed.

    Returns:
        Version by package, that of Python among them.
    """
    versions = {"python": platform.python_version()}
    for name in ("fedcel", "flwr", "numpy", "opendp", "ray", "scikit-learn", "torch"):
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions
