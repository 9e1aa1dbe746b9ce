"""One step of the chains of K clients: gradient and noise, and the sampler that moves them."""

from collections.abc import Sequence
from functools import lru_cache, partial
from typing import NamedTuple, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedcel import plugins
from fedcel.errors import PluginError
from fedcel.losses import require_state
from fedcel.losses.cel import State
from fedcel.named_tensors import add_prefix, select_prefix
from fedcel.nets import FlatNet
from fedcel.posterior.protocol import NoiseAdder, Sampler
from fedcel.posterior.round_plan import RoundPlan
from fedcel.posterior.sampler_contract import SAMPLER_CHECKS, SamplerCase
from fedcel.posterior.update_information import step_information
from fedcel.settings import SAMPLERS, LocalSettings
from fedcel.short_repr import summarise_record


@final
class Langevin:
    """w <- w - eta gradient + noise: Welling and Teh, ICML 2011, equation 4."""

    def start(self, w: Float[Tensor, "*k M"], plan: RoundPlan) -> State:
        """Return an empty state."""
        return {}

    def step(
        self,
        state: State,
        w: Float[Tensor, "*k M"],
        gradient: Float[Tensor, "*k M"],
        add_noise: NoiseAdder,
        plan: RoundPlan,
    ) -> State:
        """Move `w`; the state stays empty."""
        w.add_(gradient, alpha=-plan.rate)
        add_noise(w, 1.0)
        return state


def build_sampler(local: LocalSettings) -> Sampler:
    """Build the sampler that `local.sampler` names.

    Args:
        local: The settings; a user's sampler is made of them.

    Returns:
        Langevin's, or a user's.

    Raises:
        PluginError: The import string does not lead to a sampler, or to one that breaks its
            contract.
    """
    if local.sampler in SAMPLERS:
        return Langevin()
    part = plugins.PartName("local.sampler", local.sampler, "SamplerContract")
    _check_own_sampler(part, local)
    return guard_sampler(part, _make_own_sampler(part, local))


def guard_sampler(part: plugins.PartName, sampler: Sampler) -> Sampler:
    """Guard a user's sampler; see `guard_part`."""
    checks = {name: partial(require_state, method=name) for name in ("start", "step")}
    return plugins.guard_part(part, sampler, **checks)


def _make_own_sampler(part: plugins.PartName, local: LocalSettings) -> Sampler:
    """Return the sampler that the user's object makes."""
    sampler = plugins.make_part(part.setting, part.ref, local)
    if not isinstance(sampler, Sampler):
        raise PluginError(f"{part} made {sampler!r}, which lacks start or step")
    return sampler


@lru_cache(maxsize=16)
def _check_own_sampler(part: plugins.PartName, local: LocalSettings) -> None:
    """Hold a user's sampler to its contract."""
    case = SamplerCase(lambda: _make_own_sampler(part, local), local.steps)
    plugins.check_contract(part, SAMPLER_CHECKS, case)


@final
class RowSampler:
    """A sampler of one client's parameters for the rows of several clients at once.

    Args:
        sampler: The sampler.
        noise: Standard deviation of each client's noise per step.
        streams: Draw the noise of each client.
        buffer: Memory for one client's noise.
    """

    def __init__(
        self,
        sampler: Sampler,
        noise: Sequence[float],
        streams: Sequence[torch.Generator],
        buffer: Float[Tensor, " M"],
    ) -> None:
        self._sampler, self._noise, self._streams, self._buffer = sampler, noise, streams, buffer

    def start(self, w: Float[Tensor, "K M"], plan: RoundPlan) -> State:
        """Return the states of all rows; see `Sampler.start`."""
        joined = State()
        for k, deviation in enumerate(self._noise):
            state = self._sampler.start(w[k], plan._replace(noise=deviation))
            joined |= add_prefix(f"{k}.", state)
        return joined

    def step(
        self,
        state: State,
        w: Float[Tensor, "K M"],
        gradient: Float[Tensor, "K M"],
        add_noise: NoiseAdder,
        plan: RoundPlan,
    ) -> State:
        """Move each row with its own noise; see `Sampler.step`."""
        joined = State()
        for k, (deviation, stream) in enumerate(zip(self._noise, self._streams, strict=True)):

            def add_own(
                row: Tensor, scale: float, d: float = deviation, s: torch.Generator = stream
            ) -> None:
                add_row_noise(self._buffer, row, d * scale, s)

            before, own_plan = select_prefix(state, f"{k}."), plan._replace(noise=deviation)
            after = self._sampler.step(before, w[k], gradient[k], add_own, own_plan)
            joined |= add_prefix(f"{k}.", after)
        return joined


def share_sampler(
    sampler: Sampler,
    noise: Sequence[float],
    streams: Sequence[torch.Generator],
    buffer: Float[Tensor, " M"],
) -> Sampler:
    """Make a sampler move the parameters of K clients.

    Args:
        sampler: As `build_sampler` makes it.
        noise: Standard deviation of each client's noise per step.
        streams: Draw the noise of each client.
        buffer: Memory for one client's noise.

    Returns:
        Langevin's as it is, a user's row by row.
    """
    if isinstance(sampler, Langevin):
        return sampler
    return RowSampler(sampler, noise, streams, buffer)


class LangevinContext(NamedTuple):
    """What the Langevin steps of a round of K clients share, of the M parameters that move.

    Attributes:
        plan: The round's constants; clients differ in the noise only.
        moving: The part of a net's vector that moves; positions, where parameters are frozen.
        received: The model that the round starts from.
        control_variate: Against the drift of clients (Karimireddy et al., ICML 2020, eq. 3).
        noise: Standard deviation of each client's noise per step.
        streams: Draw the noise of each client.
        noise_buffer: On the processor. Writing a step's noise into fresh memory would cost half as
            much again.
        sampler: Moves the parameters.
    """

    plan: RoundPlan
    moving: slice | Int[Tensor, " M"]
    received: Float[Tensor, " M"]
    control_variate: Float[Tensor, "K M"] | None
    noise: Sequence[float]
    streams: Sequence[torch.Generator]
    noise_buffer: Float[Tensor, " M"]
    sampler: Sampler

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


class LangevinMeasures(NamedTuple):
    """Measurements of a Langevin step; None where they do not apply.

    Attributes:
        was_clipped: 1 or 0: whether the gradient was clipped.
        information: Nats; see `step_information`.
    """

    was_clipped: Float[Tensor, " K"] | None
    information: Float[Tensor, " K"] | None

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


def list_trained_parameters(net: nn.Module) -> Int[Tensor, " M"] | None:
    """List the positions of all parameters whose `requires_grad` is set, in the net's vector.

    Args:
        net: The net.

    Returns:
        The positions, ascending; None where all parameters are trained.
    """
    parameters = list(net.parameters())
    if all(parameter.requires_grad for parameter in parameters):
        return None
    marks = [torch.full((p.numel(),), p.requires_grad) for p in parameters]
    return torch.cat(marks).nonzero()[:, 0]


def moving_parameters(nets: FlatNet, is_encoder_frozen: bool) -> slice | Int[Tensor, " M"]:
    """Select the parameters that move: those of the head only once the encoder is frozen.

    Whatever has `requires_grad=False` never moves.

    Args:
        nets: The net.
        is_encoder_frozen: Whether the encoder is frozen.

    Returns:
        Their part of the net's vector; positions, where single parameters are frozen.
    """
    first = nets.cut if is_encoder_frozen else 0
    trained = list_trained_parameters(nets.net)
    return slice(first, None) if trained is None else trained[trained >= first]


def langevin_step(
    nets: FlatNet, context: LangevinContext, state: State
) -> tuple[State, LangevinMeasures]:
    """Move K clients: w <- w - eta (g + decay w + kappa (w - received) + variate) + noise.

    Of another sampler than the plain one this is what it gets: the gradient with all that is added
    to it, and the noise as `add_noise`.

    Args:
        nets: Hold the parameters, which move, and the gradients g of the losses, which are
            overwritten.
        context: What the round's steps share.
        state: The sampler's state.

    Returns:
        The sampler's next state, whether g was clipped, and the step's share of what bounds the
        information in the update.
    """
    plan = context.plan
    vectors, gradients = nets.vectors[:, context.moving], nets.gradients[:, context.moving]
    was_clipped = clip_gradient(gradients, plan.clip) if plan.clip else None
    information = None
    if has_information_bound(context):
        information = step_information(gradients, plan.rate, context.noise)
    if plan.decay or plan.pull:
        gradients.add_(vectors, alpha=plan.decay + plan.pull)
    if plan.pull:
        gradients.add_(context.received, alpha=-plan.pull)
    if context.control_variate is not None:
        gradients.add_(context.control_variate)
    noise_adder = partial(add_noise, context)
    next_state = context.sampler.step(state, vectors, gradients, noise_adder, plan)
    if isinstance(context.moving, Tensor):  # the vectors above are a copy, no view
        nets.vectors[:, context.moving] = vectors
    return next_state, LangevinMeasures(was_clipped, information)


def has_information_bound(context: LangevinContext) -> bool:
    """Whether every client's noise bounds what its update tells.

    Without noise nothing does. A control variate rests on gradients that are sent as they are, and
    what a user's sampler does with the noise is not known.
    """
    is_plain = isinstance(context.sampler, Langevin)
    return is_plain and context.plan.control == "none" and min(context.noise) > 0


def add_noise(context: LangevinContext, target: Float[Tensor, "K M"], scale: float) -> None:
    """Add `scale` times a fresh draw of a step's noise to the rows of all clients."""
    for k, deviation in enumerate(context.noise):
        if deviation:
            add_row_noise(context.noise_buffer, target[k], deviation * scale, context.streams[k])


def add_row_noise(
    buffer: Float[Tensor, " M"],
    row: Float[Tensor, " M"],
    deviation: float,
    stream: torch.Generator,
) -> None:
    """Add noise to one client's row; nothing is drawn at a deviation of 0."""
    if deviation:
        row.add_(buffer.normal_(generator=stream).to(row.device), alpha=deviation)


def clip_gradient(gradients: Float[Tensor, "K M"], limit: float) -> Float[Tensor, " K"]:
    """Scale gradients to at most `limit` in L2 norm, in place; return 1 where one was longer."""
    norm = torch.linalg.vector_norm(gradients, dim=-1)
    gradients.mul_((limit / norm).clamp_max(1.0)[..., None])
    return torch.gt(norm, limit).to(gradients.dtype)
