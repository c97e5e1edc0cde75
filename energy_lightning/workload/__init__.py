"""A training job's shape as operators with FLOPs and bytes: what the emulator, the search and the engine agree on."""

from energy_lightning.workload.job import Workload
from energy_lightning.workload.operators import Collective, Operator, Partition
from energy_lightning.workload.shape import ModelShape, preset_names

__all__ = ["Collective", "ModelShape", "Operator", "Partition", "Workload", "preset_names"]
