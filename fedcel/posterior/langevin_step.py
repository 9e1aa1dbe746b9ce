"""One step of a client's chain: gradient and noise, and the sampler that moves the parameters."""

from collections.abc import Iterable, Sequence
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
from fedcel.nets import FlatNet, StackedNet
from fedcel.posterior.protocol import NoiseAdder, Sampler
from fedcel.posterior.round_plan import RoundPlan
from fedcel.posterior.sampler_contract import SAMPLER_CHECKS, SamplerCase
from fedcel.posterior.update_information import has_information_bound, step_information
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


@final
class OwnSampler:
    """A user's sampler as training calls it: FailedError names it where it raises.

    Args:
        part: How errors name the sampler.
        sampler: The sampler.
    """

    def __init__(self, part: plugins.PartName, sampler: Sampler) -> None:
        self._part, self._sampler = part, sampler

    def start(self, w: Float[Tensor, " M"], plan: RoundPlan) -> State:
        """Return the sampler's state; see `Sampler.start`."""
        with plugins.blame_part(self._part):
            return require_state(self._sampler.start(w, plan), "start")

    def step(
        self,
        state: State,
        w: Float[Tensor, " M"],
        gradient: Float[Tensor, " M"],
        add_noise: NoiseAdder,
        plan: RoundPlan,
    ) -> State:
        """Return the sampler's next state; see `Sampler.step`."""
        with plugins.blame_part(self._part):
            moved = self._sampler.step(state, w, gradient, add_noise, plan)
            return require_state(moved, "step")


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
    return OwnSampler(part, _make_own_sampler(part, local))


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


class LangevinContext(NamedTuple):
    """What the Langevin steps of a client's round share, of the M parameters that move.

    Of K clients at once `control_variate` is (K, M), and `rows` holds what each has for itself.
    """

    plan: RoundPlan
    moving: slice | Int[Tensor, " M"]
    """The part of the net's vector that moves."""
    received: Float[Tensor, " M"]
    """The model that the round starts from."""
    control_variate: Float[Tensor, "*k M"] | None
    """Against the drift of clients (Karimireddy et al., ICML 2020, eq. 3)."""
    client_stream: torch.Generator
    """Draws the client's own noise."""
    noise_buffer: Float[Tensor, " M"]
    """On the processor. Writing a step's noise into fresh memory would cost half as much again."""
    sampler: Sampler
    rows: "Sequence[LangevinContext]" = ()
    """Of several clients at once: the context of each."""

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)

    @property
    def plans(self) -> list[RoundPlan]:
        """The plan of each client of the context."""
        return [row.plan for row in self.rows] or [self.plan]

    @property
    def has_information_bound(self) -> bool:
        """Say whether every client's noise bounds what its update tells."""
        if self.rows:
            return all(row.has_information_bound for row in self.rows)
        return has_information_bound(self.plan, is_plain_sampler=isinstance(self.sampler, Langevin))


class LangevinMeasures(NamedTuple):
    """What is measured in a Langevin step; what does not apply is None."""

    was_clipped: Float[Tensor, "*k"] | None
    """1 or 0: whether the gradient was clipped."""
    information: Float[Tensor, "*k"] | None
    """Nats; see `step_information`."""

    def __repr__(self) -> str:
        """Show shapes in the place of numbers."""
        return summarise_record(self)


@final
class RowSampler:
    """A sampler of one client's parameters for the rows of several clients at once.

    Args:
        rows: The context of each client.
    """

    def __init__(self, rows: Sequence[LangevinContext]) -> None:
        self._rows = rows

    def start(self, w: Float[Tensor, "K M"], plan: RoundPlan) -> State:
        """Return the states of all rows; see `Sampler.start`."""
        states = (row.sampler.start(w[k], row.plan) for k, row in enumerate(self._rows))
        return _join_rows(states)

    def step(
        self,
        state: State,
        w: Float[Tensor, "K M"],
        gradient: Float[Tensor, "K M"],
        add_noise: NoiseAdder,
        plan: RoundPlan,
    ) -> State:
        """Move each row with its own noise; see `Sampler.step`."""
        states = []
        for k, row in enumerate(self._rows):
            before, noise_adder = select_prefix(state, f"{k}."), partial(add_row_noise, row)
            states.append(row.sampler.step(before, w[k], gradient[k], noise_adder, row.plan))
        return _join_rows(states)


def _join_rows(states: Iterable[State]) -> State:
    """Return the tensors of all rows as one state."""
    joined = State()
    for k, state in enumerate(states):
        joined |= add_prefix(f"{k}.", state)
    return joined


def stack_contexts(rows: Sequence[LangevinContext]) -> LangevinContext:
    """Join what the steps of several clients of a round share.

    Args:
        rows: The context of each client; they differ in noise and control variate alone.

    Returns:
        Their context at once.
    """
    first = rows[0]
    variates = [row.control_variate for row in rows if row.control_variate is not None]
    is_rowwise = not isinstance(first.sampler, Langevin)
    return first._replace(
        control_variate=torch.stack(variates) if variates else None,
        sampler=RowSampler(rows) if is_rowwise else first.sampler,
        rows=rows,
    )


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


def moving_parameters(flat: FlatNet, is_encoder_frozen: bool) -> slice | Int[Tensor, " M"]:
    """Select the parameters that move: those of the head alone once the encoder is frozen.

    Whatever has `requires_grad=False` never moves.

    Args:
        flat: The net.
        is_encoder_frozen: Whether the encoder is frozen.

    Returns:
        Their part of the net's vector; positions, where single parameters are frozen.
    """
    first = flat.cut if is_encoder_frozen else 0
    trained = list_trained_parameters(flat.net)
    return slice(first, None) if trained is None else trained[trained >= first]


def langevin_step(
    flat: FlatNet | StackedNet, context: LangevinContext, state: State
) -> tuple[State, LangevinMeasures]:
    """Move: w <- w - eta (g + decay w + kappa (w - received) + variate) + noise.

    Of another sampler than the plain one this is what it gets: the gradient with all that is added
    to it, and the noise as `add_noise`.

    Args:
        flat: Holds the parameters, which move, and the loss's gradient g, which is overwritten; of
            one client, or of several at once.
        context: What the round's steps share.
        state: The sampler's state.

    Returns:
        The sampler's next state, whether g was clipped, and the step's share of what bounds the
        information in the update.
    """
    plan = context.plan
    vector, gradient = flat.vector[..., context.moving], flat.gradient[..., context.moving]
    was_clipped = clip_gradient(gradient, plan.clip) if plan.clip else None
    information = None
    if context.has_information_bound:
        information = step_information(gradient, context.plans)
    if plan.decay or plan.pull:
        gradient.add_(vector, alpha=plan.decay + plan.pull)
    if plan.pull:
        gradient.add_(context.received, alpha=-plan.pull)
    if context.control_variate is not None:
        gradient.add_(context.control_variate)
    noise_adder = partial(add_noise, context)
    next_state = context.sampler.step(state, vector, gradient, noise_adder, plan)
    if isinstance(context.moving, Tensor):  # the vector above is a copy, no view
        flat.vector[..., context.moving] = vector
    return next_state, LangevinMeasures(was_clipped, information)


def add_noise(context: LangevinContext, target: Float[Tensor, "*k M"], scale: float) -> None:
    """Add `scale` times a fresh draw of a step's noise, each client's own."""
    if not context.rows:
        add_row_noise(context, target, scale)
        return
    for k, row in enumerate(context.rows):
        if row.plan.noise:
            add_row_noise(row, target[k], scale)


def add_row_noise(context: LangevinContext, target: Float[Tensor, " M"], scale: float) -> None:
    """Add `scale` times a fresh draw of a step's noise, the client's own."""
    if context.plan.noise:
        xi = context.noise_buffer.normal_(generator=context.client_stream).to(target.device)
        target.add_(xi, alpha=context.plan.noise * scale)


def clip_gradient(gradient: Float[Tensor, "*k M"], limit: float) -> Float[Tensor, "*k"]:
    """Scale gradients to at most `limit` in L2 norm, in place; return 1 where one was longer."""
    norm = torch.linalg.vector_norm(gradient, dim=-1)
    gradient.mul_((limit / norm).clamp_max(1.0)[..., None])
    return torch.gt(norm, limit).to(gradient.dtype)
