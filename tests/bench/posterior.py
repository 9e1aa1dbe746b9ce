"""The chain's costs: `python -m tests.bench.posterior` prints a table.

The Langevin step beside that of `posteriors` (optional: pip install posteriors) for the same
update, rounds of the local engine beside bare loops.
"""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedcel.data import Images
from fedcel.nets.cut import Cut
from fedcel.nets.flat_net import FlatNet
from fedcel.nets.split_net import SplitNet
from fedcel.posterior.langevin_step import Langevin, LangevinContext, StepNoise, langevin_step
from fedcel.posterior.schedule import RoundPlan
from fedcel.settings import parse_settings
from tests.bench.ratios import line, rows

STEPS = 20
RATE, TEMPERATURE, EXAMPLES, SCALE = 0.01, 1.0, 1000, 1.0
CONVOLUTIONS: dict[str, object] = {
    "data.source": "tests.bench.posterior:colours",
    "net.name": "strided",
    "prior.mode": "none",
    "strategy.momentum": 0.0,
    "rounds": 100,
    "clients": 4,
    "local.steps": 10,
}


def main() -> None:
    """Time every pair and print."""
    torch.set_num_threads(1)
    print("| what | against | ratio | quartiles | seconds |\n|---|---|---|---|---|")
    try:
        other = theirs()
    except ImportError:
        print("| (pip install posteriors for its row) | | | | |")
    else:
        line(f"{STEPS} Langevin steps, 1 M parameters", "posteriors.sgmcmc.sgld", ours(), other)
    for name, width in (("0.1 M", 64), ("1 M", 600)):
        s = parse_settings({**CONVOLUTIONS, "engine": "local", "net.width": width})
        rows(f"a round of 4 clients, CNN, {name} parameters", s, 9)


def colours(data: object) -> tuple[Images, None]:
    """Return 6 000 random images 3x32x32 and labels: a load, not a task."""
    stream = torch.Generator().manual_seed(0)
    return Images(torch.rand(6000, 3, 32, 32, generator=stream), torch.arange(6000) % 10), None


def wide() -> SplitNet:
    """Return a net of 1 M parameters."""
    head = nn.Sequential(nn.Linear(1000, 990), nn.ReLU(), nn.Linear(990, 10))
    return SplitNet(nn.Flatten(), head, Cut(0.0), 1000)


def ours() -> Callable[[], None]:
    """Return our steps: a gradient by autograd, a pull to 0, the posterior's noise."""
    flat = FlatNet(wide())
    noise = (2 * RATE * TEMPERATURE / EXAMPLES) ** 0.5
    plan = RoundPlan(RATE, 0.0, 1 / (EXAMPLES * SCALE**2), noise**2, False, TEMPERATURE)
    stream = torch.Generator().manual_seed(0)
    context = LangevinContext(
        plan,
        slice(None),
        received=flat.vector.clone(),
        noise=StepNoise([noise], [stream], torch.empty_like(flat.vector)),
        sampler=Langevin(),
    )
    slopes = [torch.randn_like(p) for p in flat.net.parameters()]

    def work() -> None:
        for _ in range(STEPS):
            pairs = zip(flat.net.parameters(), slopes, strict=True)
            loss = torch.stack([(p * slope).sum() for p, slope in pairs]).sum()
            langevin_step(flat.vectors, flat.gradient(loss.unsqueeze(0)), context, {})

    return work


def theirs() -> Callable[[], None]:
    """Return the same update by `posteriors`, in place; ImportError where it is missing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # tensordict on its own defaults, many times
        from posteriors.sgmcmc import sgld

    parameters = {name: p.detach().clone() for name, p in wide().named_parameters()}
    slopes = {name: torch.randn_like(p) for name, p in parameters.items()}

    def log_posterior(p: dict[str, Tensor], batch: None) -> tuple[Tensor, Tensor]:
        terms = [(p[k] * slopes[k]).sum() + p[k].square().sum() / (2 * EXAMPLES) for k in p]
        return -torch.stack(terms).sum(), torch.zeros(())

    transform = sgld.build(log_posterior, lr=RATE, temperature=TEMPERATURE / EXAMPLES)
    state = transform.init(parameters)

    def work() -> None:
        for _ in range(STEPS):
            transform.update(state, None, inplace=True)

    return work


if __name__ == "__main__":
    main()
