"""The strategy and callbacks for `lightning.pytorch`."""

from __future__ import annotations

from lightning.pytorch.callbacks import Callback
from lightning.pytorch.strategies import DDPStrategy

from energy_lightning.batch_size import RecurringJobMixin
from energy_lightning.callbacks import build_callbacks
from energy_lightning.power_limit import PowerLimitOptimizerMixin
from energy_lightning.strategy import KareusMixin
from energy_lightning.strategy_parts.parallel_mixin import ParallelExecutionMixin

_callback_types = build_callbacks(Callback, __name__)
EnergyMonitor = _callback_types["EnergyMonitor"]
PartitionProfiler = _callback_types["PartitionProfiler"]
FrontierOptimizer = _callback_types["FrontierOptimizer"]
FrequencyController = _callback_types["FrequencyController"]
_zeus_mixins = {"PowerLimitOptimizer": PowerLimitOptimizerMixin, "RecurringJob": RecurringJobMixin}
_zeus_types = build_callbacks(Callback, __name__, _zeus_mixins)
PowerLimitOptimizer = _zeus_types["PowerLimitOptimizer"]
RecurringJob = _zeus_types["RecurringJob"]


class KareusStrategy(KareusMixin, ParallelExecutionMixin, DDPStrategy):
    """Trains in several processes with partitioned overlap, at the time-energy point that meets a budget."""

    lightning_package = "lightning.pytorch"
    callback_types = _callback_types


__all__ = [
    "EnergyMonitor",
    "FrequencyController",
    "FrontierOptimizer",
    "KareusStrategy",
    "PartitionProfiler",
    "PowerLimitOptimizer",
    "RecurringJob",
]
