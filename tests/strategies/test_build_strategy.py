"""What a strategy is made of: every setting reaches it, or is refused."""

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
    FedTrimmedAvg,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)

from fedcel.errors import FedcelError, SettingsError
from fedcel.federation import init_server_state
from fedcel.settings import Settings, StrategySettings, parse_settings
from strategies.build_strategy import build_strategy
from strategies.strategy_arguments import read_signature
from tests.strategies.stock_matrix import REFUSED, STOCK, is_repeatable

FLOWER = "flwr.serverapp.strategy:"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "stock-strategies.md"
SETTINGS = {
    "server_learning_rate": "strategy.gain",
    "server_momentum": "strategy.momentum",
    "proximal_mu": "strategy.proximal",
    "num_malicious_nodes": "strategy.byzantine",
    "num_nodes_to_select": "strategy.byzantine",
    "beta": "strategy.trim",
    "client_learning_rate": "local.rate",
}
"""Arguments, and the settings that reach them."""
DECIDED = {
    *("fraction_train", "min_train_nodes", "num_sampled_clients", "min_available_nodes"),
    *("fraction_evaluate", "min_evaluate_nodes", "eta_l", "train_loss_key"),
    *("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn", "selection_rule", "accountant"),
}
"""Arguments that the run decides, or that no text can name."""
COMMON = {"weighted_by_key", "arrayrecord_key", "configrecord_key"}
READ_BY_THE_RUN = {"name", "upload", "timeout", "arguments", "proximal", "least_share"}


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


def cautious(settings: Settings, min_available_nodes: int) -> Strategy:
    """Return a Krum that expects more hostile clients the more there are."""
    return Krum(
        fraction_evaluate=0.0,
        min_available_nodes=min_available_nodes,
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
    """Return a strategy made of whatever comes."""
    return FedAvg(**kwargs)


def hand_on_krum(**kwargs: Any) -> Strategy:
    """Return a robust strategy made of whatever comes."""
    return Krum(**kwargs)


def build(name: str, **change: Any) -> Any:
    """Return the strategy of a small run."""
    named = name if ":" in name else f"{FLOWER}{name}"
    settings = parse_settings(STOCK | {"strategy.name": named} | change)
    return build_strategy(settings, init_server_state(torch.zeros(9)), [(9,)], 6)


@pytest.mark.parametrize("name", ["FedAvg", *(f"{__name__}:{c}" for c in ("Passing", "Deep"))])
def test_a_class_that_hands_on_its_arguments_gets_what_its_parent_gets(name: str) -> None:
    """Sampling, evaluation and availability, through any number of `**kwargs`."""
    made = build(name, **{"clients-per-round": 3})
    assert (made.fraction_train, made.min_train_nodes) == (3 / 8, 3)
    assert (made.fraction_evaluate, made.min_available_nodes) == (0.0, 8)


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
    assert (made.eta, made.tau) == (0.25, 1.0) and isinstance(made.tau, float)
    assert (
        build("FedAvg", **{"strategy.arguments": "weighted_by_key=loss"}).weighted_by_key == "loss"
    )
    made = build(f"{__name__}:hand_on", **{"clients-per-round": 3})
    assert (made.fraction_train, made.min_train_nodes) == (3 / 8, 3)
    assert build(f"{__name__}:hand_on_krum", **{"strategy.byzantine": 2}).num_malicious_nodes == 2


def test_robust_strategies_are_told_how_many_are_hostile() -> None:
    """Krum and Bulyan f, MultiKrum m - f of m as well, FedTrimmedAvg the share it cuts off."""
    krum, multi = build("Krum"), build("MultiKrum", **{"strategy.byzantine": 2})
    assert isinstance(krum, Krum) and krum.num_malicious_nodes == 1
    assert isinstance(multi, MultiKrum) and multi.num_malicious_nodes == 2
    assert (krum.num_nodes_to_select, multi.num_nodes_to_select) == (1, 6)
    assert build("Bulyan", **{"clients": 11, "strategy.byzantine": 2}).num_malicious_nodes == 2
    trimmed = build("FedTrimmedAvg", **{"strategy.trim": 0.4})
    assert isinstance(trimmed, FedTrimmedAvg) and trimmed.beta == 0.4


def test_qfedavg_is_told_the_clients_rate_and_the_name_of_their_loss() -> None:
    """Its fairness q is an argument."""
    made = build("QFedAvg", **{"local.rate": 0.125, "strategy.arguments": "q=0.5"})
    assert isinstance(made, QFedAvg)
    assert (made.client_learning_rate, made.q, made.train_loss_key) == (0.125, 0.5, "loss")


def test_a_wrapper_wraps_what_its_arguments_name() -> None:
    """FedAvg by default; arguments and settings go to whichever of the two takes them."""
    name = "DifferentialPrivacyServerSideFixedClipping"
    arguments = "noise_multiplier=0.5,clipping_norm=2"
    plain = build(name, **{"strategy.arguments": arguments, "clients-per-round": 3})
    assert isinstance(plain, DifferentialPrivacyServerSideFixedClipping)
    assert type(plain.strategy) is FedAvg and plain.strategy.min_train_nodes == 3
    assert (plain.num_sampled_clients, plain.noise_multiplier, plain.clipping_norm) == (3, 0.5, 2)
    inner = build(name, **{"strategy.arguments": f"{arguments},strategy=FedAdam,eta=0.25"}).strategy
    assert isinstance(inner, FedAdam) and inner.eta == 0.25
    inner = build(
        name,
        **{"strategy.arguments": f"{arguments},strategy=FedTrimmedAvg", "strategy.trim": 0.3},
    ).strategy
    assert isinstance(inner, FedTrimmedAvg) and inner.beta == 0.3


FIXED_DP = "DifferentialPrivacyServerSideFixedClipping"
ADAPTIVE_DP = "DifferentialPrivacyClientSideAdaptiveClipping"


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "FedAdam",
            {"strategy.arguments": "etta=1"},
            "'etta', which .*FedAdam does not take; .*'eta'",
        ),
        ("FedAdam", {"strategy.arguments": "eta=fast"}, "eta=fast, eta must be a finite number"),
        ("FedAdam", {"strategy.arguments": "eta=nan"}, "eta=nan, eta must be a finite number"),
        (f"{__name__}:Deep", {"strategy.arguments": "depth=1.5"}, "depth must be a whole number"),
        ("FedAdam", {"strategy.arguments": "eta_l=1"}, "'eta_l', which is decided by local.rate"),
        ("FedAvg", {"strategy.arguments": "fraction_train=1"}, "decided by clients-per-round"),
        ("FedAvg", {"strategy.arguments": "min_evaluate_nodes=2"}, "decided by the server"),
        ("Krum", {"strategy.arguments": "num_malicious_nodes=1"}, "decided by strategy.byzantine"),
        (
            "FedAvg",
            {"strategy.arguments": "train_metrics_aggr_fn=f"},
            "takes no number and no text",
        ),
        ("FedAvg", {"strategy.arguments": "q=0.2"}, "'q', which .*FedAvg does not take"),
        (FIXED_DP, {}, "needs clipping_norm and noise_multiplier, .*'clipping_norm=...,noise"),
        (FIXED_DP, {"strategy.arguments": "noise_multiplier=-1,clipping_norm=1"}, "non-negative"),
        (ADAPTIVE_DP, {"strategy.arguments": "noise_multiplier=5"}, "clipped_count_stddev"),
        (ADAPTIVE_DP, {"strategy.arguments": "strategy=FedAvgg,noise_multiplier=0"}, "'FedAvg'?"),
        (ADAPTIVE_DP, {"strategy.arguments": f"strategy={FIXED_DP}"}, "cannot wrap"),
        (ADAPTIVE_DP, {"strategy.arguments": "strategy=FedXgbCyclic"}, "trees of XGBoost"),
        (
            ADAPTIVE_DP,
            {"strategy.arguments": "strategy=strategies:PosteriorStrategy"},
            "cannot wrap",
        ),
        (ADAPTIVE_DP, {"strategy.arguments": "strategy=FedAvg,noise_multiplier=0,eta=1"}, "'eta'"),
        ("Bulyan", {"clients": 6}, "6 clients train in a round, .*Bulyan needs 7 or more"),
        ("MultiKrum", {"clients-per-round": 4}, "4 clients train in a round, .*needs 5 or more"),
        ("FedTrimmedAvg", {"clients": 4}, "needs 5 or more: 1 / strategy.trim .0.2."),
        ("FedMedian", {"clients": 2}, "needs 3 or more"),
        ("FedProx", {"prior.mode": "consistent"}, "takes the place of the prior's"),
        (f"{__name__}:Closed", {"clients-per-round": 3}, "takes neither fraction_train nor"),
        (f"{__name__}:Fixed", {}, "multiple values for keyword argument 'fraction_evaluate'"),
        (f"{__name__}:hand_on", {"strategy.byzantine": 2}, "num_malicious_nodes"),
        ("FedAvg", {"clients-per-round": 3, "chain.scope": "head"}, "chain.scope"),
        ("FedAvg", {"temperature": 1.0}, "temperature"),
        ("FedAvg", {"local.control": "fresh"}, "local.control"),
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
    krum = build(f"{__name__}:cautious", **{"strategy.byzantine": 3})
    assert (krum.num_malicious_nodes, krum.min_available_nodes) == (2, 8)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    assert len(blocks) == 2
    assert all(block in Path(__file__).read_text() for block in blocks)


@pytest.mark.parametrize("name", flower_strategies.__all__)
def test_the_page_says_what_each_strategy_takes(name: str) -> None:
    """Its settings and its arguments, from its signature; every name of the installed Flower."""
    rows = [line for line in PAGE.read_text().splitlines() if re.match(rf"\|.*`{name}`", line)]
    if name in ("Result", "Strategy"):
        assert rows == []
        return
    cells = rows[0].split(" | ")
    if name in REFUSED:
        assert cells[1] == "refused"
        return
    settings, arguments = (set(re.findall(r"`([\w.-]+)`", cell)) for cell in cells[1:3])
    taken = set(read_signature(getattr(flower_strategies, name)).parameters)
    assert settings == {SETTINGS[key] for key in taken & SETTINGS.keys()}
    assert arguments == taken - SETTINGS.keys() - DECIDED - COMMON
    assert cells[5].startswith("yes" if is_repeatable(name) else "no")


def other_value(key: str) -> Any:
    """Return a value of a setting of the group `strategy` that is not its default."""
    values = {"max_norm": 3.0, "aggregation": "median", "damped": False, "trim": 0.4}
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
