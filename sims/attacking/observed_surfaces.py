"""Surfaces of a finished run that attackers observe."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clients import EvaluationClient
from fedcel.attacks import parse_attacks, set_trap_weights
from fedcel.data import Images, to_floats
from fedcel.errors import SettingsError
from fedcel.leakage import LOG_PROB, UPDATE, Law, Observation, SmashedData
from fedcel.nets import FlatNet, SplitNet, apply_noise, copy_module
from fedcel.posterior import Prediction, RoundOrder, build_device_net, noise_variance, predict
from fedcel.privacy import KnownLaw, Laplace, Mechanism
from fedcel.run_parts import build_schedule, init_net
from fedcel.runs import Run, posterior_samples
from fedcel.settings import AttackSettings, burn_in_rounds
from fedcel.torch_state import make_generator as stream
from sims.attacking.client_updates import Uploads

LAW_DRAWS = 256  # messages over which an answer's likelihood is averaged
MAX_DENSITIES = 300_000  # densities computed together: as many as stay in a processor's cache
LAPLACE_SHARE = 1.25
"""Of 16 sums of Laplace and normal noise median and mean vary alike where the sums vary by this."""


@dataclass(frozen=True)
class PrivateLogits:
    """Answers of the evaluation client: encode, noise at the cut, heads, clip, mechanism.

    Without a `mechanism` whose law is known there is no likelihood.
    """

    client: EvaluationClient
    net: SplitNet
    heads: Sequence[nn.Module]
    mechanism: Mechanism | None
    name: str = "private-logits"
    _known_rows: list[tuple[Tensor, Tensor]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )
    """Last images whose law was asked for, and their answers without noise."""

    @property
    def grants(self) -> frozenset[str]:
        """Return the likelihood where the mechanism's is known."""
        return frozenset({LOG_PROB} if isinstance(self.mechanism, KnownLaw) else ())

    def sample(
        self, images: Float[Tensor, "B C H W"], generator: torch.Generator
    ) -> Float[Tensor, "B K"]:
        """Return one fresh private answer per image, through the client's query path."""
        with torch.no_grad():
            message = self.net.add_noise(self.net.encode(images), generator)
        return torch.from_numpy(self.client.query(message.numpy()))

    def answer(self, message: Float[Tensor, "B D"]) -> Float[Tensor, "B K"]:
        """Return the log of the heads' averaged probabilities for messages, with a gradient."""
        return Prediction(torch.stack([head(message).log_softmax(1) for head in self.heads])).logits

    def pooled(self, parts: Float[Tensor, "B m K"]) -> Float[Tensor, "B K"]:
        """Return the usual one of m answers: of Laplace noise the median, else the mean.

        The median is the most likely place of Laplace noise. Where answers vary by more than
        `LAPLACE_SHARE` its variance, the noise at the cut has its say, and the mean has less of it.
        """
        if not isinstance(self.mechanism, Laplace) or parts.shape[1] < 2:
            return parts.mean(1)
        scale = self.mechanism.sensitivity / self.mechanism.epsilon
        laplace = parts.var(1).mean() < LAPLACE_SHARE * 2 * scale**2
        return parts.quantile(0.5, 1) if laplace else parts.mean(1)

    def law_of(self, images: Float[Tensor, "M C H W"]) -> Law:
        """Return log p(answer_q | image_j) in nats, the noise at the cut integrated over.

        The mean of the mechanism's density over `LAW_DRAWS` messages of each image, which are held
        in memory and the same in every call. Monte Carlo makes the law a little wrong, and an
        attacker with a wrong law identifies less and gains less in expectation (Barber and Agakov,
        NIPS 2003): what is computed from it is a lower estimate. Exact at sigma 0.
        """
        mechanism = self.mechanism
        assert isinstance(mechanism, KnownLaw)  # else no law is granted
        rows = self._compute_rows(images, mechanism)
        return lambda observed: mixture_log_prob(mechanism, observed, rows)

    def _compute_rows(
        self, images: Float[Tensor, "M C H W"], mechanism: KnownLaw
    ) -> Float[Tensor, "L M K"]:
        """Compute answers without noise to the same messages in every call, once for an image."""
        draws = LAW_DRAWS if self.net.cut.is_random else 1
        for last_images, rows in self._known_rows:
            if len(rows) == draws and torch.equal(last_images, images):
                return rows
        noise = stream(self.client.settings.seed, "answer-law")
        with torch.no_grad():
            sent = sample_messages(self.net, self.net.encode(images), draws, noise)
            rows = torch.stack([mechanism.answer_without_noise(self.answer(part)) for part in sent])
        self._known_rows[:] = [(images, rows)]
        return rows


def sample_messages(
    net: SplitNet, z: Float[Tensor, "M D"], draws: int, generator: torch.Generator
) -> Iterator[Float[Tensor, "M D"]]:
    """Yield messages over which the law of what is computed from one is averaged.

    All images share the noise of a draw, and every second draw has that of the one before with the
    sign turned (Hammersley and Morton, 1956). Each single message follows the law of the cut, so
    every image's average is right; but its error is nearly that of an image like it, and what
    tells the two apart is their ratio.
    """
    cut, scale = net.cut, net.scale_noise(z)
    shape = (1, z.shape[1])
    xi = None
    for number in range(draws):
        mask = cut.draw_mask(shape, generator)
        if number % 2 == 0:
            xi = cut.draw_noise(shape, generator)
        elif xi is not None:
            xi = -xi
        expanded = None if mask is None else mask.expand_as(z)
        yield apply_noise(z, expanded, None if xi is None else xi.expand_as(z), scale)


def mixture_log_prob(
    mechanism: KnownLaw,
    observed: Float[Tensor, "Q K"],
    rows: Float[Tensor, "L M K"],
) -> Float[Tensor, "Q M"]:
    """Return the log of the mean over L of the density of each answer given row l of image j.

    An answer that comes several times, such as a class, is computed once.
    """
    distinct, positions = torch.unique(observed, dim=0, return_inverse=True)
    if len(distinct) < len(observed):
        return mixture_log_prob(mechanism, distinct, rows)[positions]
    draws, count, classes = rows.shape
    flat = rows.view(draws * count, classes)
    # Into one tensor: small results between large ones that are freed tear memory to pieces.
    log_probs = torch.empty(len(observed), count, dtype=torch.float64)
    step = max(1, MAX_DENSITIES // len(flat))
    for part, place in zip(torch.split(observed, step), torch.split(log_probs, step), strict=True):
        density = mechanism.log_density(part, flat).view(len(part), draws, count)
        torch.logsumexp(density, 1, out=place)
    return log_probs.sub_(math.log(draws))


def list_observations(run: Run, attack_settings: AttackSettings | None = None) -> list[Observation]:
    """Return the surfaces of a run: smashed data, private logits, and uploads if they are attacked.

    In scope `full` a single message fits one encoder only, so only the last sample answers.
    """
    samples = posterior_samples(run)
    scope = run.settings.chain.scope
    served = samples if scope == "head" else samples[-1:]
    client = EvaluationClient(run.settings, run.flat, run.splits.test, served)
    message = build_device_net(run.flat, served, "head")
    private = run.settings.privacy
    mechanism = private.build(run.splits.classes) if private.is_private else None
    heads = []
    for vector in served:
        run.flat.load(vector)
        heads.append(copy_module(run.flat.net.head))
    answers = PrivateLogits(client, message, heads, mechanism)
    sent = send_messages(run.flat, samples, scope)
    settings = attack_settings or run.settings.attack
    attacks = [named.attack for named in parse_attacks(settings.names)]
    if not any(attack is not None and UPDATE in attack.needs for attack in attacks):
        return [sent, answers]
    return [sent, answers, client_uploads(run, settings)]


def send_messages(flat: FlatNet, samples: Sequence[Float[Tensor, " P"]], scope: str) -> SmashedData:
    """Return all that a device sends for one image.

    Several messages in a row, as in scope `full`, are more than any head takes.
    """
    net = build_device_net(flat, samples, scope)
    return SmashedData(net, fits_head=net.features == flat.net.features)


def client_uploads(run: Run, attack_settings: AttackSettings) -> Uploads:
    """Return what clients upload after `attack.local-steps` steps on `attack.batch` images.

    They start from the model that `attack.received` names, and their prior pulls as in a round of
    so many steps. `heated` ones add the noise of the full temperature, which as a
    rule they add after burn-in only, for a client with an equal share of all images.
    """
    s, splits = run.settings, run.splits
    total = sum(splits.client_sizes)
    is_first = attack_settings.received in ("first", "heated")
    number = 1 if is_first else max(1, burn_in_rounds(s))
    local = s.local.model_copy(update={"steps": attack_settings.local_steps, "epochs": 0.0})
    plan = build_schedule(s)._replace(local=local).plan(RoundOrder(number, total))
    noise = 0.0
    if attack_settings.received == "heated":
        variance = noise_variance(plan.rate, s.temperature, total)
        noise = math.sqrt(variance / (1 / s.clients))
    flat = init_net(s, splits)
    parts = [splits.auxiliary, splits.test]
    if attack_settings.knowledge != "held-out" or not len(splits.auxiliary.y):
        parts.append(splits.training)  # whose images the attacker sends, too
    book = Images(
        torch.cat([to_floats(part.x) for part in parts]), torch.cat([part.y for part in parts])
    )
    if not is_first:
        flat.load(run.model)
    if attack_settings.received == "trapped":
        if not len(splits.auxiliary.y):
            raise SettingsError(
                "attack.received is 'trapped', for which the server needs images of its own; raise "
                "data.auxiliary"
            )
        generator = stream(s.seed, "attack/trapped")
        own_x, batch = splits.auxiliary.x, attack_settings.batch
        flat = FlatNet(set_trap_weights(flat.net, own_x, batch, generator))
    received = flat.vector.clone()
    attacker_x = (splits.auxiliary if len(splits.auxiliary.y) else book).x
    answers = predict(flat, [received], attacker_x, stream(s.seed, "expected")).probabilities
    return Uploads(
        *(flat, received, plan, s.update, book, answers.mean(0)),
        batch=attack_settings.batch,
        steps=attack_settings.local_steps,
        noise=noise,
    )
