"""Options of private answers: all listed, scored without the test images' help, one chosen."""

from math import exp, inf, log

import numpy as np
import pytest
import torch

from fedcel.privacy import (
    AnswerScore,
    GaussianAnswers,
    LabelledLogits,
    LabelOnlyAnswers,
    LaplaceAnswers,
)
from sims.answers import (
    AnswerOption,
    choose_cheapest,
    label_only_epsilon,
    list_options,
    score_options,
    split_images,
)

LABELS = torch.arange(120) % 4
IMAGES = LabelledLogits(9.0 * torch.nn.functional.one_hot(LABELS, 4).double(), LABELS)


def option(epsilon: float, validation: float, test: float) -> AnswerOption:
    score = AnswerScore(validation, 0.01, 1.0, 0.5, 0.0, 0.0)
    privacy = LabelOnlyAnswers(epsilon=epsilon)
    return AnswerOption(privacy, score, score._replace(accuracy=test))


def test_every_mechanism_clip_and_epsilon_is_listed() -> None:
    """Label-only without a clip, three noises with five clips each, two epsilons."""
    options = list_options(LabelOnlyAnswers(), [1.0, 4.0], [1.0, 8.0])
    assert len(options) == 2 * (1 + 3 * 5)
    assert len(set(options)) == len(options)
    assert GaussianAnswers(clip_kind="clamp", clip=8.0) in options
    assert LabelOnlyAnswers(epsilon=1.0) in options


def test_scores_say_what_answers_are_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Labels of a net that is always right: their chance, with its confidence."""
    # One guess in twenty is told from chance by a test at 95 %; these draws are always the same.
    monkeypatch.setattr("os.urandom", np.random.default_rng(0).bytes)
    options = list_options(LabelOnlyAnswers(), [30.0, 1e-6], [1.0])[:2]
    sure, guess = score_options(options, IMAGES, IMAGES)
    assert sure.test.accuracy == sure.validation.accuracy == 1
    assert sure.test.half_width == pytest.approx(-log(0.025) / len(IMAGES.labels))
    assert guess.test.is_at_chance(4) and not sure.test.is_at_chance(4)
    assert guess.test.confidence == pytest.approx(0.25, abs=1e-5)
    assert sure.test.seconds > 0


def test_validation_images_are_not_read_by_themselves() -> None:
    """Random logits and labels: references that know the images would seem to be right."""
    noise = torch.randn(120, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    images = LabelledLogits(0.3 * noise, LABELS)
    privacy = LaplaceAnswers(clip_kind="clamp", clip=1.0, epsilon=1e4, budget=1e4)
    (scored,) = score_options([privacy], images, images)
    assert scored.validation.accuracy < 0.45
    assert scored.test.accuracy > 0.9  # which here are the references themselves


def test_messages_about_an_image_stay_together() -> None:
    """Two halves of the images, each with both messages, and nothing lost."""
    logits = torch.arange(12.0).reshape(6, 2)
    halves = split_images(LabelledLogits(logits, torch.tensor([0, 1, 2, 0, 1, 2]), 2))
    assert [half.labels.tolist() for half in halves] == [[0, 2, 0, 2], [1, 1]]
    assert [half.logits[:, 0].tolist() for half in halves] == [[0, 4, 6, 10], [2, 8]]


def test_the_cheapest_is_chosen_on_validation_images() -> None:
    """The least epsilon that is good enough there, whatever the test images say."""
    options = [option(4, 0.8, 0.99), option(4, 0.9, 0.1), option(2, 0.7, 0.99), option(8, 1, 1)]
    assert choose_cheapest(options, 0.75) is options[1]
    assert choose_cheapest(options, 0.7) is options[2]
    assert choose_cheapest(options, 1.1) is None


def test_epsilon_of_labels_alone() -> None:
    """Put back in: the accuracy at that epsilon is the one asked for; no loss takes infinity."""
    epsilon = label_only_epsilon(0.9, 0.05, 10)
    p = exp(epsilon) / (exp(epsilon) + 9)
    assert 0.9 * p + 0.1 * (1 - p) / 9 == pytest.approx(0.85)
    assert label_only_epsilon(0.9, 0.0, 10) == inf
    assert label_only_epsilon(0.9, 0.85, 10) == 0
    for accuracy, classes in ((0.1, 10), (0.5, 2), (0.05, 10)):  # a guess, or worse
        assert label_only_epsilon(accuracy, 0.0, classes) == 0


def test_keeping_fewer_messages_and_answering_them_again() -> None:
    """As many of each image as give the rows, one at least; repeats are further messages."""
    images = LabelledLogits(torch.zeros(12, 2), torch.zeros(12, dtype=torch.long), 4)
    assert [images.keep_rows(rows).messages for rows in (1, 4, 6, 100)] == [1, 2, 2, 4]
    assert len(images.keep_rows(4).logits) == 6
    twice = LabelledLogits(torch.arange(4.0).reshape(2, 2), torch.tensor([0, 1])).repeat(2)
    assert twice.messages == 2 and twice.labels.tolist() == [0, 1, 0, 1]
    assert twice.logits[:, 0].tolist() == [0, 2, 0, 2]
