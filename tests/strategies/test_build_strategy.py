"""What a strategy is made of: every setting reaches it, or is refused."""

import inspect
import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.serverapp import strategy as flower_strategies
from flwr.serverapp.strategy import (
    DifferentialPrivacyServerSideFixedClipping,
    FedAdam,
    FedAvg,
    Krum,
    QFedAvg,
    Strategy,
)

from fedcel.errors import FedcelError, SettingsError
from fedcel.federation import init_server_state
from fedcel.settings import Settings, StrategySettings, parse_settings
from strategies.build_strategy import build_strategy
from strategies.stock_strategy import StockStrategy
from tests.strategies.stock_matrix import REFUSED, STOCK, is_repeatable

FLOWER = "flwr.serverapp.strategy:"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "stock-strategies.md"
DECIDED = {
    *("fraction_train", "min_train_nodes", "num_sampled_clients", "min_available_nodes"),
    *("fraction_evaluate", "min_evaluate_nodes", "eta_l", "train_loss_key"),
    *("client_learning_rate", "strategy"),
    *("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn", "selection_rule", "accountant"),
}
"""Arguments that the run decides, or that no text can name."""
COMMON = {"weighted_by_key", "arrayrecord_key", "configrecord_key"}
READ_BY_THE_RUN = {"name", "upload", "timeout", "arguments", "least_share"}


FIXED_DP = "DifferentialPrivacyServerSideFixedClipping"
ADAPTIVE_DP = "DifferentialPrivacyClientSideAdaptiveClipping"


class Passing(FedAvg):
    """The usual form: whatever it is given, it hands on."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class Deep(Passing):
    """Hands on by position and by name, through another that hands on, with one of its own."""

    def __init__(self, *args: Any, depth: int = 1, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.depth = depth


class PassingAdam(FedAdam):
    """Hands on to a class that takes names only."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)


class Mine(FedAvg):
    """Gets clients-per-round and all else that FedAvg gets."""

    def __init__(self, sharpness: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)  # a value fixed here is refused: the run passes it too
        self.sharpness = sharpness  # strategy.arguments=sharpness=2


def cautious(settings: Settings, min_train_nodes: int) -> Strategy:
    """Return a Krum that expects more hostile clients the more there are."""
    return Krum(
        min_train_nodes=min_train_nodes,
        min_available_nodes=min_train_nodes,
        num_malicious_nodes=(settings.clients - 3) // 2,
    )


class Fixed(FedAvg):
    """Decides itself what a run decides."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(fraction_evaluate=0.0, **kwargs)


class Closed(FedAvg):
    """Takes nothing."""

    def __init__(self) -> None:
        super().__init__(fraction_evaluate=0.0)


def hand_on(**kwargs: Any) -> Strategy:
    return FedAvg(**kwargs)


def hand_on_krum(**kwargs: Any) -> Strategy:
    """Return a robust strategy made of whatever comes."""
    return Krum(**kwargs)


def build(name: str, **change: Any) -> Any:
    """Return the strategy of a small run, without the wrapper of its rounds."""
    named = name if ":" in name else f"{FLOWER}{name}"
    settings = parse_settings(STOCK | {"strategy.name": named} | change)
    made = build_strategy(settings, init_server_state(torch.zeros(9)), [(9,)], 6)
    assert isinstance(made, StockStrategy)
    return made.strategy


@pytest.mark.parametrize("name", ["FedAvg", *(f"{__name__}:{c}" for c in ("Passing", "Deep"))])
def test_a_class_that_hands_on_its_arguments_gets_what_its_parent_gets(name: str) -> None:
    """As many clients as train in a round, and no evaluation, through any number of `**kwargs`."""
    made = build(name, **{"clients-per-round": 3})
    assert (made.min_train_nodes, made.min_available_nodes) == (3, 3)
    assert made.fraction_evaluate == 0.0


def test_what_is_set_on_purpose_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Flower warns of a strategy that asks nobody to evaluate: the server does that."""
    with caplog.at_level("WARNING", "flwr"):
        logging.getLogger("flwr").addHandler(caplog.handler)
        try:
            build("FedAvg")
        finally:
            logging.getLogger("flwr").removeHandler(caplog.handler)
    assert "fraction_evaluate" not in caplog.text


def test_arguments_reach_the_class_that_takes_them() -> None:
    """Its own, its parent's, each by its annotation; a function that takes any name, too."""
    assert build(f"{__name__}:Deep", **{"strategy.arguments": "depth=3"}).depth == 3
    made = build(f"{__name__}:PassingAdam", **{"strategy.arguments": "eta=0.25, tau=1"})
    assert (made.eta, made.tau) == (0.25, 1.0)
    made = build("FedAdam", **{"strategy.arguments": "tau=1"})
    assert made.tau == 1.0 and isinstance(made.tau, float)
    assert (
        build("FedAvg", **{"strategy.arguments": "weighted_by_key=loss"}).weighted_by_key == "loss"
    )
    assert build(f"{__name__}:hand_on", **{"clients-per-round": 3}).min_train_nodes == 3
    krum = build(f"{__name__}:hand_on_krum", **{"strategy.arguments": "num_malicious_nodes=2"})
    assert krum.num_malicious_nodes == 2


def test_qfedavg_is_told_the_clients_rate_and_the_name_of_their_loss() -> None:
    """Its fairness q is an argument."""
    made = build("QFedAvg", **{"local.rate": 0.125, "strategy.arguments": "q=0.5"})
    assert isinstance(made, QFedAvg)
    assert (made.client_learning_rate, made.q, made.train_loss_key) == (0.125, 0.5, "loss")


def test_a_wrapper_wraps_fedavg() -> None:
    """Of as many clients as train in a round; another is refused with what to do instead."""
    arguments = "noise_multiplier=0.5,clipping_norm=2"
    made = build(FIXED_DP, **{"strategy.arguments": arguments, "clients-per-round": 3})
    assert isinstance(made, DifferentialPrivacyServerSideFixedClipping)
    assert type(made.strategy) is FedAvg and made.strategy.min_train_nodes == 3
    assert (made.num_sampled_clients, made.noise_multiplier, made.clipping_norm) == (3, 0.5, 2)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "FedAdam",
            {"strategy.arguments": "etta=1"},
            "'etta', which .*FedAdam does not take; .*'eta'",
        ),
        ("FedAdam", {"strategy.arguments": "eta=fast"}, "eta=fast: Input should be a valid number"),
        ("FedAdam", {"strategy.arguments": "eta=nan"}, "eta=nan: Input should be a finite number"),
        (f"{__name__}:Deep", {"strategy.arguments": "depth=1.5"}, "depth=1.5: .* valid integer"),
        (f"{__name__}:PassingAdam", {"strategy.arguments": "etta=1"}, "unexpected .* 'etta'"),
        ("FedAdam", {"strategy.arguments": "eta_l=1"}, "'eta_l', which the run decides"),
        ("FedAvg", {"strategy.arguments": "fraction_train=1"}, "which the run decides; take it"),
        ("FedAvg", {"strategy.arguments": "min_evaluate_nodes=2"}, "which the run decides"),
        ("FedAvg", {"strategy.arguments": "train_metrics_aggr_fn=f"}, "should be callable"),
        ("FedAvg", {"strategy.arguments": "q=0.2"}, "'q', which .*FedAvg does not take"),
        (FIXED_DP, {}, "missing .* 'noise_multiplier' and 'clipping_norm'; give what it needs by"),
        (FIXED_DP, {"strategy.arguments": "noise_multiplier=-1,clipping_norm=1"}, "non-negative"),
        (ADAPTIVE_DP, {"strategy.arguments": "noise_multiplier=5"}, "clipped_count_stddev"),
        (
            ADAPTIVE_DP,
            {"strategy.arguments": "strategy=FedMedian"},
            "'strategy', which the run decides; take it out, or name a function",
        ),
        (ADAPTIVE_DP, {"strategy.arguments": "noise_multiplier=0,eta=1"}, "'eta'"),
        (
            "Bulyan",
            {"clients": 6, "strategy.arguments": "num_malicious_nodes=1"},
            "6 clients train in a round, .*Bulyan needs 7 or more",
        ),
        (
            "MultiKrum",
            {"clients-per-round": 4, "strategy.arguments": "num_malicious_nodes=1"},
            "4 clients train in a round, .*needs 5 or more",
        ),
        ("FedTrimmedAvg", {"clients": 4}, "needs 5 or more: 1 / beta"),
        ("FedMedian", {"clients": 2}, "needs 3 or more"),
        (f"{__name__}:Closed", {"clients-per-round": 1}, "needs 2 or more: min_train_nodes"),
        (f"{__name__}:Fixed", {}, "multiple values for keyword argument 'fraction_evaluate'"),
        ("FedAvg", {"clients-per-round": 3, "chain.scope": "head"}, "chain.scope"),
        ("FedAvg", {"temperature": 1.0}, "temperature"),
        ("FedAvg", {"update.clip": 1.0}, "update.clip"),
        ("FedAvg", {"update.noise": 1.0}, "update.noise"),
        ("FedAvg", {"chain.stop": True}, "chain.stop"),
    ],
    ids=str,
)
def test_what_nobody_would_read_is_refused(name: str, change: dict[str, Any], message: str) -> None:
    """With the value and the remedy; nothing is dropped in silence."""
    with pytest.raises(SettingsError, match=message):
        build(name, **change)


def test_the_pages_examples_work() -> None:
    """A class that hands on, a function that reads settings: as the page shows them."""
    mine = build(
        f"{__name__}:Mine", **{"clients-per-round": 3, "strategy.arguments": "sharpness=2"}
    )
    assert (mine.sharpness, mine.min_train_nodes) == (2.0, 3)
    krum = build(f"{__name__}:cautious")
    assert (krum.num_malicious_nodes, krum.min_available_nodes) == (2, 8)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    assert all(block in Path(__file__).read_text() for block in blocks)


@pytest.mark.parametrize("name", flower_strategies.__all__)
def test_the_page_says_what_each_strategy_takes(name: str) -> None:
    """Its arguments, from its signature; every name of the installed Flower."""
    rows = [line for line in PAGE.read_text().splitlines() if re.match(rf"\|.*`{name}`", line)]
    if name in ("Result", "Strategy"):
        assert rows == []
        return
    cells = rows[0].split(" | ")
    if name in REFUSED:
        assert cells[1] == "refused"
        return
    arguments = set(re.findall(r"`([\w.-]+)`", cells[1]))
    taken = set(inspect.signature(getattr(flower_strategies, name)).parameters)
    assert arguments == taken - DECIDED - COMMON
    assert cells[4].startswith("yes" if is_repeatable(name) else "no")


def other_value(key: str) -> Any:
    """Return a value of a setting of the group `strategy` that is not its default."""
    values = {"aggregation": "geometric-median"}
    default = getattr(StrategySettings(), key)
    return values.get(key, 0.125 if isinstance(default, float | str) else default + 1)


@pytest.mark.parametrize("key", sorted(StrategySettings.model_fields.keys() - READ_BY_THE_RUN))
def test_every_setting_of_the_group_is_refused_by_a_strategy_that_does_not_read_it(
    key: str,
) -> None:
    """Those that are new as well: the list comes from the settings."""
    dotted = f"strategy.{key.replace('_', '-')}"
    with pytest.raises(FedcelError, match=dotted):
        build("FedAvg", **{dotted: other_value(key)})


@pytest.mark.parametrize("text", ["eta", "eta=", "=1", "eta=1,,tau=2", "eta=1,eta=2", "a b=1", ""])
def test_arguments_that_are_no_pairs_are_refused_with_the_settings(text: str) -> None:
    """When the settings are parsed, before anything is built."""
    with pytest.raises(SettingsError, match="strategy.arguments is"):
        parse_settings(STOCK | {"strategy.arguments": text})


@pytest.mark.parametrize("name", ["posterior", "strategies:PosteriorStrategy"])
def test_strategies_over_deltas_take_no_arguments(name: str) -> None:
    """Ours reads settings."""
    with pytest.raises(SettingsError, match="strategy.arguments is 'eta=1', which"):
        build_strategy(
            parse_settings({"strategy.name": name, "strategy.arguments": "eta=1"}),
            init_server_state(torch.zeros(9)),
            [(9,)],
            6,
        )
