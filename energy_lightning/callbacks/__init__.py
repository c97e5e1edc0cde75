"""The four callbacks, without Lightning: `build_callbacks` makes ordinary callbacks of either Lightning package."""

from __future__ import annotations

from collections.abc import Mapping

from energy_lightning.callbacks.composition import (
    FREQUENCY_ONLY,
    KAREUS,
    MAX_FREQUENCY,
    NANOBATCHING_ONLY,
    IterationCosts,
    Outcome,
)
from energy_lightning.callbacks.energy_monitor import EnergyMonitorMixin
from energy_lightning.callbacks.frequency_controller import FrequencyControllerMixin
from energy_lightning.callbacks.frontier_optimizer import FrontierOptimizerMixin
from energy_lightning.callbacks.frontier_search import FrontierSearch, SearchSettings
from energy_lightning.callbacks.partition_profiler import PartitionProfilerMixin
from energy_lightning.callbacks.spaces import PartitionTask, partition_tasks

MIXINS: dict[str, type] = {
    "EnergyMonitor": EnergyMonitorMixin,
    "PartitionProfiler": PartitionProfilerMixin,
    "FrontierOptimizer": FrontierOptimizerMixin,
    "FrequencyController": FrequencyControllerMixin,
}
"""Public name -> logic, in the order in which a trainer should call them."""


def build_callbacks(callback_base: type, module: str, mixins: Mapping[str, type] = MIXINS) -> dict[str, type]:
    """The callbacks as subclasses of a Lightning package's Callback.

    Args:
        callback_base: `lightning.pytorch.Callback` or `pytorch_lightning.Callback`.
        module: name of the module that exposes the classes under their public names (so that they pickle).
        mixins: public name -> logic.
    """
    return {
        name: type(name, (mixin, callback_base), {"__module__": module, "__qualname__": name, "__doc__": mixin.__doc__})
        for name, mixin in mixins.items()
    }


__all__ = [
    "FREQUENCY_ONLY",
    "KAREUS",
    "MAX_FREQUENCY",
    "MIXINS",
    "NANOBATCHING_ONLY",
    "EnergyMonitorMixin",
    "FrequencyControllerMixin",
    "FrontierOptimizerMixin",
    "FrontierSearch",
    "IterationCosts",
    "Outcome",
    "PartitionProfilerMixin",
    "PartitionTask",
    "SearchSettings",
    "build_callbacks",
    "partition_tasks",
]
