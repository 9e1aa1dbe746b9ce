"""Scores of predicted probabilities, intervals, and spreads of features."""

from typing import TYPE_CHECKING

from fedcel.lazy import export_lazily as _export_lazily

if TYPE_CHECKING:
    from fedcel.metrics.calibration import bald as bald
    from fedcel.metrics.calibration import ece as ece
    from fedcel.metrics.calibration import nll as nll
    from fedcel.metrics.calibration import predictive_entropy as predictive_entropy
    from fedcel.metrics.calibration import reliability as reliability
    from fedcel.metrics.calibration import score_probabilities as score_probabilities
    from fedcel.metrics.chance import chance_accuracy as chance_accuracy
    from fedcel.metrics.chance import is_at_chance as is_at_chance
    from fedcel.metrics.intervals import NORMAL_QUANTILE as NORMAL_QUANTILE
    from fedcel.metrics.intervals import UNSEEN_EVENTS as UNSEEN_EVENTS
    from fedcel.metrics.intervals import mean_half_width as mean_half_width
    from fedcel.metrics.intervals import round_up as round_up
    from fedcel.metrics.intervals import sample_half_width as sample_half_width
    from fedcel.metrics.spread import between_group_spread as between_group_spread
    from fedcel.metrics.spread import within_class_spread as within_class_spread
else:
    __all__, __getattr__, __dir__ = _export_lazily(__name__, __file__)
