"""Leak of a sensitive attribute of an image that is not the task."""

from functools import partial
from math import log
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedcel.leakage.exact_bits import (
    LEAST_LOG,
    MIN_DRAWS,
    PAIRS_AT_ONCE,
    average_messages,
    bits_half_width,
    count_draws,
    expect_square,
    noise_half_width,
)
from fedcel.leakage.messages import Messages, observe_images
from fedcel.leakage.observation import Observation
from fedcel.tensors import number_labels


class AttributeLeak(NamedTuple):
    """Leak of an attribute by one message, to the best possible attacker, who knows the label.

    Half widths are of 95 % intervals over the noise drawn, for these images.
    """

    bits: float
    """I(attribute; message | label) for an image drawn uniformly from the candidates."""
    half_width: float
    cap_bits: float
    """H(attribute | label): all of it."""
    accuracy: float
    """Of the attacker, who knows the candidates, in naming the attribute: Bayes-optimal."""
    accuracy_half_width: float
    accuracy_by_label: float
    """Of a guess from the label only."""
    accuracy_of_others: float
    """Of an attacker who knows all candidates but the sender: by the law of the noise around the
    others' features. No bound, but nothing of the sender's own is known."""
    image_count: int


def attribute_leak(
    observation: Observation,
    images: Float[Tensor, "M C H W"],
    labels: Int[Tensor, " M"],
    attributes: Int[Tensor, " M"],
    *,
    generator: torch.Generator,
) -> AttributeLeak:
    """Measure what the best possible attacker learns of an attribute beyond the label.

    p(a | message, y) is the sum of Bayes' posterior over the candidates of label y with attribute
    a. Exact but for Monte Carlo over 3200 noise draws of all images together, 8 or more of each.

    Args:
        observation: What is seen of an image, and its law.
        images: (M, C, H, W) in [0, 1].
        labels: The task's labels, (M,), which the attacker knows.
        attributes: What the attacker wants to know, whole numbers from 0, (M,).
        generator: Draws the noise.

    Returns:
        Bits and accuracies.

    Raises:
        ValueError: The observation grants no likelihood.
        NetError: A likelihood is not finite.
    """
    messages = observe_images(observation, images)
    return measure_attribute(messages, labels, attributes, draws=None, generator=generator)


def measure_attribute(
    messages: Messages,
    labels: Int[Tensor, " M"],
    attributes: Int[Tensor, " M"],
    *,
    draws: int | None,
    generator: torch.Generator,
    least_draws: int = MIN_DRAWS,
    pairs_at_once: int = PAIRS_AT_ONCE,
) -> AttributeLeak:
    """Measure what messages of a known law tell of an attribute beyond the label.

    Without noise one message of each image tells all.
    """
    labels, attributes = (*number_labels(labels.cpu()), *number_labels(attributes.cpu()))
    count = len(labels)
    draws = count_draws(messages, count, draws, least_draws)
    shares = attribute_shares(labels, attributes)
    score = partial(score_attribute, labels=labels, attributes=attributes)
    means, squares = average_messages(
        messages, score, generator, count=count, draws=draws, pairs_at_once=pairs_at_once
    )
    own_share = shares.gather(1, attributes[:, None])[:, 0].log2()
    return AttributeLeak(
        bits=float((means[0] - own_share).mean()),
        half_width=bits_half_width(means[0], squares[0], draws, -own_share),
        cap_bits=-float(own_share.mean()),
        accuracy=float(means[1].mean()),
        accuracy_half_width=noise_half_width(means[1], squares[1], draws),
        accuracy_by_label=float(shares.amax(1).mean()),
        accuracy_of_others=float(means[2].mean()),
        image_count=count,
    )


def attribute_shares(
    labels: Int[Tensor, " M"], attributes: Int[Tensor, " M"]
) -> Float[Tensor, "M A"]:
    """Return each image's p(a | y): the shares of the attributes among images of its label."""
    one_hot = torch.nn.functional.one_hot(attributes).double()
    counts = one_hot.new_zeros(int(labels.max()) + 1, one_hot.shape[1])
    counts.index_add_(0, labels, one_hot)
    return (counts / counts.sum(1, keepdim=True))[labels]


def score_attribute(
    log_prob: Float[Tensor, "Q M"],
    senders: Int[Tensor, " Q"],
    labels: Int[Tensor, " M"],
    attributes: Int[Tensor, " M"],
) -> Float[Tensor, "2 3 Q"]:
    """Return three scores of each message, all of them given the label, and their squares.

    log2 of the own attribute's probability, the largest probability, and whether an attacker names
    it who knows all candidates but the sender.
    """
    device = log_prob.device
    labels, attributes, senders = (part.to(device) for part in (labels, attributes, senders))
    is_possible = labels[senders, None] == labels
    within = log_prob.double().masked_fill(~is_possible, -torch.inf)
    own_attribute = attributes[senders, None]
    log_posterior = sum_by_attribute(within, attributes).log_softmax(1)
    own_log = log_posterior.gather(1, own_attribute)[:, 0] / log(2)
    others = within.scatter(1, senders[:, None], -torch.inf)
    is_lost = others.isneginf().all(1)  # no other could have sent it: they are all as likely
    is_other = is_possible.scatter(1, senders[:, None], False)
    others[is_lost] = is_other[is_lost].double().log()
    # A mean over others and not a sum: without the sender its own attribute is too rare.
    counts = sum_by_attribute(is_other.double().log(), attributes)
    shares = attribute_shares(labels, attributes)[senders].log()
    guess = sum_by_attribute(others, attributes) - counts + shares
    guess = guess.masked_fill(counts.isneginf(), -torch.inf)
    ties = torch.eq(guess, guess.amax(1, keepdim=True)).double()
    hit = ties.gather(1, own_attribute)[:, 0] / ties.sum(1)
    scores = torch.stack([own_log, log_posterior.amax(1).exp(), hit])
    nats = log_posterior.clamp_min(LEAST_LOG)
    squares = torch.stack([expect_square(nats.exp(), nats), *scores[1:].square()])
    return torch.stack([scores, squares])


def sum_by_attribute(
    log_prob: Float[Tensor, "Q M"], attributes: Int[Tensor, " M"]
) -> Float[Tensor, "Q A"]:
    """Return the log of the sum of p(message | image) over the images of each attribute."""
    values = range(int(attributes.max()) + 1)
    return torch.stack([log_prob[:, attributes == value].logsumexp(1) for value in values], 1)
