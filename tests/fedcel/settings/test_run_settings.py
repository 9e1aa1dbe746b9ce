"""Rules of settings: what does not fit together is refused, what is unwise warns."""

import pytest

from fedcel.errors import SettingsError
from fedcel.settings import dump_settings, parse_settings

STOCK = {
    "strategy.name": "flwr.serverapp.strategy:FedAvg",
    "strategy.upload": "weights",
    "temperature": 0,
    "chain.scope": "full",
}


MUTUAL = {"cel.kind": "mutual-information"}
STEERED = {"cel.kind": "plain", "cel.penalty": "log", "cel.target": "spread"}
NOPEEK = {"defence.name": "nopeek", "defence.strength": 3}


def test_unwise_settings_warn() -> None:
    """Without noise."""
    with pytest.warns(UserWarning, match="every image leaks completely"):
        parse_settings({"cel.kind": "plain", "cel.penalty": "linear", "net.noise": 0})


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"clients-per-round": 9}, r"clients-per-round is 9, must be at most clients \(8\)"),
        ({"cel.kind": "plain", "chain.burn-in": 0.5}, "must have its full weight by then"),
        ({"cel.kind": "plain", "cel.warm-up": 5, "rounds": 5}, "must have its full weight by then"),
        ({"cel.kind": "plain", "cel.warm-up": 4, "rounds": 5}, "would never act"),
        (NOPEEK | {"rounds": 5}, "defence.name is 'nopeek', .* must have its full weight by then"),
        (
            NOPEEK | {"cel.ramp": 1.0, "chain.burn-in": 0.3},
            "defence.name is 'nopeek', .*full weight",
        ),
        (
            {"cel.kind": "hybrid", "cel.clusters": 1},
            "cel.clusters is 1, .* the class mean wherever it starts",
        ),
        (
            {"cel.kind": "plain", "cel.refresh": 2},
            "cel.refresh is of cel.kind 'cluster'",
        ),
        (STEERED | {"cel.target": "accuracy", "cel.ramp": 0.8}, "0 rounds lie between"),
        ({"strategy.upload": "weights"}, "'posterior' aggregates 'delta'"),
        ({"local.balance": True, "chain.scope": "full"}, "sample another posterior"),
        (
            {"cel.kind": "plain", "cel.momentum": 0.5, "chain.scope": "full"},
            "cel.momentum is 0.5 and chain.scope 'full' above temperature 0",
        ),
        ({"chain.stop": True}, "needs 100 effective samples"),
        (
            {"chain.stop": True, "temperature": 0, "rounds": 999},
            "no chain to check for convergence",
        ),
        ({"temperature": float("inf")}, "must be finite"),
        ({**STOCK, "temperature": 1}, "set temperature to 0"),
        ({**STOCK, "chain.scope": "head"}, "set chain.scope to 'full'"),
        ({**STOCK, "prior.scale": 1.0}, "total number of examples"),
        ({"defence.strength": 0.1}, "defence.strength is 0.1, defence.name 'none': name one"),
        (
            {"defence.name": "noise", "defence.strength": 0.0},
            "defence.strength is 0.0, must be above 0 for 'noise'",
        ),
        ({"defence.name": "a:b", "defence.strength": 0.0}, "must be above 0 for 'a:b'"),
        ({"defence.name": "bottleneck", "defence.strength": 2.5}, "number of values sent, 1 or"),
        ({"defence.name": "bottleneck", "defence.strength": 0}, "number of values sent, 1 or"),
        ({"defence.name": "dropout", "defence.strength": 1}, r"chance .* dropped, in \(0, 1\)"),
        (
            {"defence.name": "dropout", "defence.strength": 0.0},
            r"chance that a value is dropped, in \(0, 1\)",
        ),
        ({"strategy.name": "fedavg"}, "must be 'posterior' or 'package.module:object'"),
    ],
)
def test_refusals_name_value_limit_and_remedy(raw: dict[str, object], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse_settings(raw)


@pytest.mark.parametrize(
    ("name", "strength"),
    [("noise", 0.5), ("bottleneck", 3), ("dropout", 0.5), ("nopeek", 9.0), ("mine:Own", 0.1)],
)
def test_strengths_that_mean_something(name: str, strength: float) -> None:
    """Each in its own unit."""
    assert (
        parse_settings({"defence.name": name, "defence.strength": strength}).defence.strength
        == strength
    )


def test_momentum_of_a_loss_is_allowed_where_no_whole_net_is_sampled() -> None:
    """Of a head on a frozen encoder, which the loss never moves, or without a chain."""
    raw = {"cel.kind": "plain", "cel.momentum": 0.5}
    assert parse_settings(raw | {"chain.scope": "head"}).cel.momentum == 0.5
    assert parse_settings(raw | {"chain.scope": "full", "temperature": 0}).cel.momentum == 0.5


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (STEERED | {"cel.penalty": "channel"}, "only the penalty 'log' has a threshold"),
        (MUTUAL | {"cel.target": "spread"}, "uses no penalty"),
    ],
    ids=str,
)
def test_what_the_server_cannot_steer_is_refused(raw: dict[str, object], message: str) -> None:
    """Each refusal has its reason; without a loss the settings mean nothing and pass."""
    with pytest.raises(SettingsError, match=message):
        parse_settings(raw)
    parse_settings(raw, {"cel.kind": "none"})


@pytest.mark.parametrize("goal", [{"cel.target": "spread"}, {"cel.goal": 0.5}])
def test_without_a_loss_a_goal_is_refused(goal: dict[str, object]) -> None:
    """In the layer that has no loss, and in later ones; an earlier one's is dropped."""
    for layers in ([{"cel.kind": "none"} | goal], [{"cel.kind": "none"}, goal], [goal]):
        with pytest.raises(SettingsError, match="cel.kind 'none': a goal is of a conditional"):
            parse_settings(*layers)
    settings = parse_settings(STEERED | goal, {"cel.kind": "none"})
    assert parse_settings(dump_settings(settings)) == settings


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ({"chain.burn-in": 0.0}, "would never be trained"),
        ({"rounds": 40, "chain.burn-in": 0.6, "chain.thin": 0}, "needs 20 rounds"),
    ],
)
def test_a_chain_that_cannot_be_one_is_refused(raw: dict[str, object], reason: str) -> None:
    """An encoder frozen before it learnt anything; a thinning that is never known."""
    with pytest.raises(SettingsError, match=reason):
        parse_settings(raw)


def test_the_noise_that_a_loss_is_measured_against_is_that_of_the_cut() -> None:
    """Noise as a defence takes the place of `net.noise`, which may then be 0."""
    raw = {"cel.kind": "plain", "cel.penalty": "channel", "net.noise": 0.0}
    with pytest.raises(SettingsError, match="measured against the noise"):
        parse_settings(raw)
    noisy = parse_settings(raw | {"defence.name": "noise", "defence.strength": 0.4})
    assert noisy.defence.build_cut(noisy.net).sigma == 0.4


def test_settings_print_what_was_set() -> None:
    """By the keys that users type; the defaults would fill a screen."""
    assert str(parse_settings({})) == "Settings()"
    shown = str(parse_settings({"rounds": 7, "data.size": 32, "chain.burn-in": 0.7}))
    assert shown == "Settings(rounds=7, data.size=32, chain.burn-in=0.7)"


@pytest.mark.parametrize("schedule", ["constant", "rate"])
def test_a_schedule_without_a_ramp_is_not_held_to_one(schedule: str) -> None:
    """Its weight is in full once the warm-up ends."""
    late = {"cel.kind": "plain", "cel.ramp": 0.9, "chain.burn-in": 0.5}
    assert parse_settings({**late, "cel.schedule": schedule}).cel.schedule == schedule
    with pytest.raises(SettingsError, match="the loss must have its full weight by then"):
        parse_settings(late)
