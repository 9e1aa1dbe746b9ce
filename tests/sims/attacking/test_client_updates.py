"""Uploads as attacks see them: the real local update, its closed form, and what inverts it."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import pytest
import torch

from fedcel.attacks.runner import AttackListener, run_attacks
from fedcel.attacks.score_card import mse, order_batches
from fedcel.attacks.update_inversion import (
    FirstLayer,
    GradientInversion,
    fit_shrinkage,
    select_most_frequent,
)
from fedcel.data import Images
from fedcel.errors import DataError, SettingsError
from fedcel.leakage import FIRST_LAYER, ObservationFirstLayer, ObservationUpdate
from fedcel.nets.build_net import build_net
from fedcel.nets.cut import Cut
from fedcel.nets.flat_net import FlatNet
from fedcel.posterior import RoundOrder
from fedcel.run_parts import build_schedule
from fedcel.settings import (
    AttackSettings,
    NetSettings,
    UpdateSettings,
    parse_settings,
)
from fedcel.testing.attacks import LinearObservation, load_digit_targets
from fedcel.testing.attacks import make_stream as stream
from sims.attacking.client_updates import Uploads
from tests.fedcel.attacks.undefended import class_means, mean_image


@cache
def uploads(batch: int = 1, sigma: float = 0.0, noise: float = 0.0, name: str = "mlp") -> Uploads:
    """Return the uploads of clients of an untrained net."""
    known, targets = load_digit_targets()
    net = build_net(
        NetSettings.model_validate({"name": name, "width": 48, "features": 16, "noise": sigma}),
        (1, 8, 8),
        10,
        stream(3),
    )
    flat = FlatNet(net)
    received = flat.vector.clone()
    with torch.no_grad():
        expected = net.answer(net.encode(known.x)).softmax(1).mean(0)
    book = Images(torch.cat([known.x, targets.x]), torch.cat([known.y, targets.y]))
    asked = (
        build_schedule(parse_settings({})).plan(RoundOrder(1, 1000))._replace(rate=0.5, decay=0.01)
    )
    given = (flat, received, asked, UpdateSettings(), book, expected, batch)
    return Uploads(*given, noise=noise)


def clipped(seen: Uploads, limit: float | str) -> Uploads:
    """Return the uploads of clients that clip their gradients at this norm."""
    local = seen.plan.local.model_copy(update={"clip": limit})
    return replace(seen, plan=seen.plan._replace(local=local))


def first(count: int) -> Images:
    return Images(*(part[:count] for part in load_digit_targets()[1]))


@pytest.mark.parametrize("limit", [None, 0.1, 100.0])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("batch", [1, 3])
def test_update_is_that_of_training(batch: int, name: str, limit: float | None) -> None:
    """Without noise: the real local update to rounding, each row as often as its images."""
    seen, (x, y) = uploads(batch, name=name), first(6)
    seen = seen if limit is None else clipped(seen, limit)
    assert isinstance(seen, ObservationUpdate)
    real = seen.sample(x, stream())
    labels, images = y.view(-1, batch), x.view(-1, batch, 1, 8, 8)
    made = seen.update(images, labels, stream())
    torch.testing.assert_close(real, made.repeat_interleave(batch, 0), atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("limit", [None, 0.1])
def test_update_of_several_steps_is_that_of_training(limit: float | None) -> None:
    """Three steps on the same images, the priors' pulls in each; one step is another update."""
    seen, (x, y) = replace(uploads(2), steps=3), first(4)
    seen = clipped(replace(seen, plan=seen.plan._replace(pull=0.3)), limit or "none")
    real = seen.sample(x, stream())
    labels, images = y.view(-1, 2), x.view(-1, 2, 1, 8, 8)
    made = seen.update(images, labels, stream()).repeat_interleave(2, 0)
    torch.testing.assert_close(real, made, atol=2e-6, rtol=1e-3)
    loose = replace(seen, plan=seen.plan._replace(pull=0.0)).update(images, labels, stream())
    assert (loose.repeat_interleave(2, 0) - real).norm() > 0.01 * real.norm()
    assert replace(uploads(2, sigma=0.1), steps=3).noisy == 3 * 16


def test_several_steps_are_inverted() -> None:
    """One image behind three steps, each with noise of its own at the cut."""
    assert inverted(replace(uploads(sigma=0.3), steps=3), GradientInversion(), 0.1, 4) < 0.4


def test_noise_at_the_cut_is_drawn_afresh() -> None:
    """Two updates of the same image differ, on either side."""
    seen, (x, y) = uploads(sigma=0.3), first(2)
    assert not torch.equal(seen.sample(x, stream(1)), seen.sample(x, stream(2)))
    one, two = (seen.update(x[:, None], y[:, None], stream(seed)) for seed in (1, 2))
    assert not torch.equal(one, two)


def test_langevin_noise_has_its_size() -> None:
    """The difference to the noiseless update: sd as planned, 4 standard errors wide."""
    x = first(4).x
    gap = uploads(noise=0.02).sample(x, stream()) - uploads().sample(x, stream())
    assert gap.std().item() == pytest.approx(0.02, rel=4 / (2 * gap.numel()) ** 0.5)


@pytest.mark.parametrize(("batch", "right"), [(1, 1.0), (4, 0.9), (8, 0.85)])
def test_labels_are_read_off_the_bias(batch: int, right: float) -> None:
    """One image: always. Several: nearly all of the classes and their numbers."""
    seen, (x, y) = uploads(batch, sigma=0.1), first(56)
    assert read_right(seen, x, y) >= right


def read_right(seen: Uploads, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the share of labels that are read off the uploads, in any order within one."""
    found = seen.labels(seen.sample(x, stream())[:: seen.batch], seen.batch)
    same = sum(
        float(torch.minimum(a.bincount(minlength=10), b.bincount(minlength=10)).sum())
        for a, b in zip(found, y.view(-1, seen.batch), strict=True)
    )
    return same / len(y)


@pytest.mark.parametrize("limit", [0.02, 0.5, 100.0])
@pytest.mark.parametrize("batch", [1, 4, 8, 28])
def test_labels_are_read_off_a_clipped_bias(batch: int, limit: float) -> None:
    """The clip's factor is not told: strong, weak, none at all."""
    assert read_right(clipped(uploads(batch, sigma=0.1), limit), *first(56)) >= 0.95


def test_the_label_of_one_image_needs_no_expectation() -> None:
    """Its slope alone is below 0, however wrong the attacker is about the model's answers."""
    seen = uploads(sigma=0.1)
    wrong = torch.nn.functional.one_hot(torch.tensor(3), 10).float()
    for limit in (0.1, 100.0):
        assert read_right(clipped(replace(seen, expected=wrong), limit), *first(56)) == 1


def test_unknown_image() -> None:
    """A holder trains on labelled images only."""
    with pytest.raises(DataError, match="no label in the book"):
        uploads().sample(torch.full((1, 1, 8, 8), 0.123), stream())


def test_one_image_is_read_off_the_first_layer() -> None:
    """Exact though the cut is noisy; Langevin noise hides it."""
    known, targets = load_digit_targets()[0], first(20)
    errors = []
    for noise in (0.0, 0.5):
        seen = uploads(sigma=0.5, noise=noise)
        assert isinstance(seen, ObservationFirstLayer)
        assert FIRST_LAYER in seen.grants
        observed = seen.sample(targets.x, stream())
        found = FirstLayer().reconstruct(seen, known, observed, 1.0, stream())
        errors.append(mse(found, targets.x))
    assert errors[0] < 1e-6
    assert errors[1] > mse(class_means(targets.y, known), targets.x)
    assert FIRST_LAYER not in uploads(name="cnn").grants


def test_several_images_are_read_off_single_units() -> None:
    """Of batches of 3, in an order nobody knows, most are read; the last is of 2."""
    known, targets = load_digit_targets()[0], first(20)
    seen = uploads(3)
    observed = seen.sample(targets.x, stream())
    found = order_batches(
        FirstLayer().reconstruct(seen, known, observed, 1.0, stream()), targets.x, 3
    )
    exact = (found - targets.x).square().flatten(1).mean(1) < 1e-4
    assert exact.double().mean() > 0.4


def test_commonest_by_hand() -> None:
    """Three rows of one image, two of another, one mixture, one out of range, one undefined."""
    a, b = torch.tensor([0.1, 0.9]), torch.tensor([0.6, 0.2])
    rows = torch.stack([a, b, a, (a + b) / 2, b, a, 2 * a, a / 0])
    grey = torch.full((2,), 0.5)
    torch.testing.assert_close(select_most_frequent(rows, 2, grey), torch.stack([a, b]))
    torch.testing.assert_close(select_most_frequent(rows[:1], 2, grey), torch.stack([a, grey]))


def inverted(seen: Uploads, attack: GradientInversion, budget: float, count: int = 6) -> float:
    """Return the error of an attack in units of the class mean's."""
    known, targets = load_digit_targets()[0], first(count)
    observed = seen.sample(targets.x, stream())
    found = attack.reconstruct(seen, known, observed, budget, stream(1))
    found = order_batches(found, targets.x, seen.batch)
    return mse(found, targets.x) / mse(class_means(targets.y, known), targets.x)


def test_gradient_inversion_of_single_images() -> None:
    """Without noise far below the class mean; one that does not move finds the mean image."""
    assert inverted(uploads(), GradientInversion(), 0.1) < 0.4
    known, observed = load_digit_targets()[0], uploads().sample(first(2).x, stream())
    search = GradientInversion()
    search.rate = 0.0
    still = search.reconstruct(uploads(), known, observed, 0.002, stream(1))
    assert (still - known.x.mean(0)).abs().max() < 0.5


def test_noise_at_the_cut_hides_nothing_from_gradient_inversion() -> None:
    """It is found with the image; an attack that draws it afresh instead is far off."""
    seen = uploads(sigma=1.0)
    assert inverted(seen, GradientInversion(), 0.1) < 0.2
    assert inverted(Forgetful(**vars(seen)), GradientInversion(), 0.1) > 0.6
    x, y = (part[:1, None] for part in first(1))
    one, two = (seen.update(x, y, stream(n), torch.ones(1, 1, 16)) for n in (1, 2))
    assert torch.equal(one, two)


def test_dropout_at_the_cut_hides_nothing_from_gradient_inversion() -> None:
    """Half of the values dropped: the mask is found, and with it the image."""
    seen = uploads()
    net = deepcopy(seen.flat.net)
    net.cut = Cut(0.1, 0.5)
    seen = replace(seen, flat=FlatNet(net))
    assert inverted(seen, GradientInversion(), 0.1) < 0.2
    assert inverted(Forgetful(**vars(seen)), GradientInversion(), 0.1) > 0.6


class Forgetful(Uploads):
    """Uploads whose noise and masks an attacker draws afresh in every step."""

    noisy = 0
    masked = 0


def test_gradient_inversion_of_batches() -> None:
    """Two and two and one: still below the class mean."""
    assert inverted(uploads(2), GradientInversion(), 0.1, 5) < 0.8


def test_gradient_inversion_with_few_images_of_its_own() -> None:
    """Five, three behind an upload: it is tuned on one whole batch; two are too few."""
    known, targets = load_digit_targets()[0], first(3)
    seen, attack = uploads(3), GradientInversion()
    observed = seen.sample(targets.x, stream())
    few = Images(known.x[:5], known.y[:5])
    found = attack.reconstruct(seen, few, observed, 0.002, stream(1))
    assert found.shape == targets.x.shape
    with pytest.raises(SettingsError, match=r"attack.batch is 3, must be at most 2, .* lower it"):
        attack.reconstruct(seen, Images(known.x[:2], known.y[:2]), observed, 0.002, stream(1))


def test_gradient_inversion_ends_when_its_time_is_up() -> None:
    """Two batches of two and one of one, of which none is searched; the row says so."""
    (x, y), known = first(5), load_digit_targets()[0]
    how = AttackSettings(names="gradient-inversion", seeds=1, seconds=1e-9)
    (row,) = run_attacks([uploads(2)], how, known, Images(x, y), seed=1).rows
    assert row.mse is not None and row.share_of_steps == pytest.approx(0, abs=1e-9)
    assert row.stop_note == "stopped at 1e-09 s, 0% of its steps"


def test_too_large_batches_are_refused_before_any_work() -> None:
    """Nothing is lost: no attack has said a word."""
    lines: list[str] = []
    how = AttackSettings(names="optimal,gradient-inversion", seeds=1)
    seen = [LinearObservation("smashed-data"), uploads(300)]
    with pytest.raises(SettingsError, match="attack.batch is 300, must be at most 250"):
        run_attacks(seen, how, *load_digit_targets(), seed=1, listener=AttackListener(lines.append))
    assert lines == []


def test_langevin_noise_stops_it() -> None:
    """Noise as large as the update's largest entries leaves the mean image, and no worse guess."""
    known, targets = load_digit_targets()[0], first(6)
    guess = mse(mean_image(targets.y, known), targets.x) / mse(
        class_means(targets.y, known), targets.x
    )
    assert 1 < inverted(uploads(noise=0.5), GradientInversion(), 0.05) < 1.1 * guess


def test_a_share_by_hand() -> None:
    """Twice too far: half; the wrong way: nothing; not far enough: all of it."""
    true = torch.tensor([1.0, -1.0]).view(2, 1, 1, 1)
    assert fit_shrinkage(2 * true, true) == pytest.approx(0.5)
    assert fit_shrinkage(-true, true) == 0 and fit_shrinkage(0 * true, true) == 0
    assert fit_shrinkage(0.5 * true, true) == 1


def test_progress_and_repeatable() -> None:
    """Ends at n/n; the same generator, the same images; another budget, other steps."""
    lines: list[str] = []
    known, targets = load_digit_targets()[0], first(2)
    seen = uploads()
    observed = seen.sample(targets.x, stream())
    one, two = (
        GradientInversion().reconstruct(seen, known, observed, 0.02, stream(1), lines.append)
        for _ in range(2)
    )
    assert torch.equal(one, two)
    assert lines[-1].startswith("step 20/20, cosine ")
    assert one.shape == targets.x.shape
    assert 0 <= one.min() <= one.max() <= 1


def test_what_is_attacked_is_what_leaves_the_holder() -> None:
    """Clipped, and labels are read off all the same: of one image always, of four mostly."""
    (x, y), short = first(16), UpdateSettings(clip=0.02)
    for batch, fewest in ((1, 1.0), (4, 0.9)):
        seen = replace(uploads(batch), updates=short)
        assert seen.sample(x, stream()).norm(dim=1).max() <= 0.02 * (1 + 1e-6)
        assert read_right(seen, x, y) >= fewest
    noisy = replace(uploads(1), updates=UpdateSettings(clip=0.02, noise=1.0))
    assert not torch.equal(noisy.sample(x, stream()), noisy.sample(x, stream()))
