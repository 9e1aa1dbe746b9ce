"""What a label alone gives away, in closed form, and how a run's leak hangs together."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fedcel.data import load_splits
from fedcel.leakage import DROPPED, SmashedData, measure_leakage
from fedcel.metrics import between_group_spread, within_class_spread
from fedcel.nets import copy_module, count_operations
from fedcel.posterior import build_device_net, predict
from fedcel.run_parts import init_net
from fedcel.runs import evaluation
from fedcel.runs.evaluation import (
    attack_test_images,
    measure_device,
    measure_run_leakage,
    sample_answers,
)
from fedcel.runs.run_folder import Run
from fedcel.settings import parse_settings
from fedcel.torch_state import make_generator


def trained(folder: Path, **more: object) -> Run:
    """Return a run of one client trained centrally for a moment, two samples kept."""
    settings = parse_settings({"clients": 2, "net.width": 32, "net.features": 8, **more})
    splits = load_splits(settings.data, settings.clients, settings.seed)
    flat = init_net(settings, splits)
    x, y = splits.training
    stream = make_generator(0, "batch")
    for _ in range(150):
        rows = torch.randint(len(y), (64,), generator=stream)
        message = flat.net.add_noise(flat.net.encode(x[rows]), stream)
        loss = torch.nn.functional.cross_entropy(flat.net.answer(message), y[rows])
        flat.vector.sub_(flat.gradient(loss.unsqueeze(0))[0])
    last = flat.vector.clone()
    second = last + 0.01 * torch.randn(len(last), generator=stream)
    return Run(folder, settings, splits, flat, last, [last, second])


@pytest.mark.parametrize("defence", ["none", "learned-noise", "vib"])
def test_the_picture_is_estimated_with_the_cuts_own_noise(tmp_path: Path, defence: str) -> None:
    """Less noise tells more of the picture; under dropout the reason stands in its place."""
    run = trained(tmp_path, **{"defence.name": defence})
    smashed = SmashedData(build_device_net(run.flat, run.samples, "head"))
    prior = evaluation.fit_run_prior(run)
    assert prior is not None
    picture = evaluation.estimate_picture(run, smashed, prior)
    assert not isinstance(picture, str)
    assert picture.images == 200
    assert picture.is_beyond_label
    assert 0 < picture.bound <= picture.mmse + picture.bound_half_width
    assert picture.mmse < prior.variance
    louder = replace(smashed, net=copy_module(smashed.net))
    louder.net.cut = replace(louder.net.cut, sigma=2 * louder.net.cut.sigma)
    less = evaluation.estimate_picture(run, louder, prior)
    assert not isinstance(less, str)
    assert less.bits < picture.bits
    maps = evaluation.map_test_images(smashed, run.splits.test.x[:3], prior)
    assert maps["leak-information"].shape == run.splits.test.x[:3].shape
    known = maps["leak-deviation"] <= maps["prior-deviation"] + 1e-6
    assert bool(known.all())
    louder.net.cut = replace(louder.net.cut, dropout=0.1)
    assert evaluation.estimate_picture(run, louder, prior) == DROPPED
    assert evaluation.estimate_picture(run, smashed, None) == evaluation.TOO_FEW


@pytest.mark.parametrize("scope", ["head", "full"])
def test_leak_lies_between_its_bounds(tmp_path: Path, scope: str) -> None:
    """answer-bits <= bits beyond the label <= certificate."""
    run = trained(tmp_path, **{"chain.scope": scope})
    smashed = SmashedData(build_device_net(run.flat, run.samples, scope))
    measured = measure_run_leakage(run, smashed, attack_test_images(run, smashed))
    leakage = {key: float(str(value)) for key, value in measured.items()}
    assert 0.1 < leakage["answer-bits"] <= leakage["bits-beyond-label"] + 0.02
    assert leakage["bits-beyond-label"] <= leakage["certificate-bits-within-class"] + 0.02
    # What unseen images tell at most is above what these few tell: more candidates tell more.
    assert leakage["bits-beyond-label"] < leakage["population-beyond-label"]
    assert leakage["population-beyond-label"] < leakage["population-beyond-label-bernstein"]
    assert leakage["population-bits"] < leakage["population-bits-bernstein"]
    assert leakage["population-images"] == len(run.splits.test.y)
    assert all(0 < leakage[f"{key}-half-width"] < 0.05 for key in ("bits", "information"))
    if scope == "head":
        run.flat.load(run.samples[0])
        z, y = run.flat.net.encode(run.splits.test.x).detach(), run.splits.test.y
        assert leakage["within-class-spread"] == pytest.approx(float(within_class_spread(z, y)))
        x, labels = run.splits.training
        clients = torch.tensor([c for c, part in enumerate(run.splits.clients) for _ in part.y])
        spread = between_group_spread(run.flat.net.encode(x).detach(), labels, clients)
        assert leakage["between-client-spread"] == pytest.approx(float(spread), rel=1e-4)


@pytest.mark.parametrize(("scope", "encoders"), [("head", 1), ("full", 2)])
def test_cost_on_the_device_by_hand(tmp_path: Path, scope: str, encoders: int) -> None:
    """64 -> 32 -> 8 -> 10: sizes of one net, operations and bytes of every encoder that runs."""
    weights = 64 * 32 + 32 * 8
    run = trained(tmp_path, **{"chain.scope": scope})
    assert measure_device(run, build_device_net(run.flat, run.samples, scope)) == {
        "parameters": weights + 32 + 8 + 8 * 10 + 10,
        "encoder-parameters": weights + 32 + 8,
        "flops-per-inference": 2 * weights * encoders,
        "bytes-per-inference": 4 * 8 * encoders,
    }


@pytest.mark.parametrize("scope", ["head", "full"])
def test_answers_are_the_predictions(tmp_path: Path, scope: str) -> None:
    """Without noise, each draw is the most probable class of the samples' average."""
    run = trained(tmp_path, **{"chain.scope": scope, "net.noise": 0.0})
    x = run.splits.test.x
    codes = []
    for vector in run.samples if scope == "full" else run.samples[:1]:
        run.flat.load(vector)
        codes.append(run.flat.net.encode(x).detach())
    want = predict(
        run.flat, run.samples, x, make_generator(0, "any"), scope=scope
    ).probabilities.argmax(1)
    net = build_device_net(run.flat, run.samples, scope)
    answers = sample_answers(run, net, torch.cat(codes, 1))
    assert torch.equal(answers, want.expand_as(answers))


@pytest.mark.parametrize("defence", ["learned-noise", "vib"])
@pytest.mark.parametrize("scope", ["head", "full"])
def test_a_run_whose_noise_is_learned_is_measured(tmp_path: Path, scope: str, defence: str) -> None:
    """Bits below the certificate, and those of the law itself, one encoder or several."""
    run = trained(tmp_path, **{"chain.scope": scope, "defence.name": defence, "net.noise": 0.5})
    start = run.flat.device_size - sum(
        part.numel() for part in run.flat.net.noise_scale.parameters()
    )
    for number, vector in enumerate(run.samples):
        stream = make_generator(number, "scale")
        vector[start : run.flat.device_size] = torch.randn(
            run.flat.device_size - start, generator=stream
        )
    net = build_device_net(run.flat, run.samples, scope)
    smashed = SmashedData(net)
    leak = attack_test_images(run, smashed)
    measures = measure_run_leakage(run, smashed, leak)
    assert measures["bits-beyond-label"] <= measures["certificate-bits-within-class"] + 0.05
    x, y = run.splits.test
    with torch.no_grad():
        z = net.encode(x)
    again = measure_leakage(features=z, labels=y, noise=lambda z: 0.5 * net.scale_noise(z))
    assert again.bits_beyond_label == pytest.approx(leak.bits_beyond_label, abs=0.1)
    plain = measure_leakage(features=z, labels=y, noise=0.5)
    assert abs(plain.bits_beyond_label - leak.bits_beyond_label) > 0.1


def test_costly_heads_answer_fewer_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two heads, 8 features and 10 classes: 320 operations a message, for so many images."""
    run = trained(tmp_path)
    assert evaluation.count_messages(run, 400, 128) == 128
    for limit in ("LEAST_OPERATIONS", "MOST_OPERATIONS"):
        monkeypatch.setattr(evaluation, limit, 5 * 320 * 400)
    assert evaluation.count_messages(run, 400, 128) == 5
    assert evaluation.count_messages(run, 4000, 128) == 1
    assert evaluation.count_messages(run, 4000, 128, least=2) == 2


def test_a_measure_takes_a_quarter_of_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three passes of each image of each step of each round."""
    run = trained(tmp_path)
    monkeypatch.setattr(evaluation, "LEAST_OPERATIONS", 0)
    net, local = run.flat.net, run.settings.local
    image = torch.zeros(1, *run.splits.shape)
    forward = count_operations(lambda: net.answer(net.encode(image)))
    seen = sum(local.steps * min(local.batch_size, size) for size in run.splits.client_sizes)
    assert evaluation.bound_operations(run) == 3 * forward * seen * run.settings.rounds // 4


def test_a_short_training_is_judged_by_some_of_its_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where encoding all takes too long; labels, clients and features belong together."""
    run = trained(tmp_path)
    smashed = SmashedData(build_device_net(run.flat, run.samples, "head"))
    whole = evaluation.encode_training(run, smashed)
    assert len(whole.y) == sum(run.splits.client_sizes) > 300
    assert whole.client.bincount().tolist() == run.splits.client_sizes
    monkeypatch.setattr(evaluation, "bound_operations", lambda _: 0)
    monkeypatch.setattr(evaluation, "LEAST_REFERENCES", 300)
    some = evaluation.encode_training(run, smashed)
    assert len(some.y) == 300 and bool((some.client.diff() >= 0).all())
    order = {tuple(z): row for row, z in enumerate(whole.z.tolist())}
    rows = torch.tensor([order[tuple(z)] for z in some.z.tolist()])
    assert torch.equal(whole.y[rows], some.y) and torch.equal(whole.client[rows], some.client)
