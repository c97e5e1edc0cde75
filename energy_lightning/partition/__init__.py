"""The partitioned-overlap execution engine (floor 3)."""

from energy_lightning.partition.architectures import ARCHITECTURES, Architecture
from energy_lightning.partition.engine import PartitionEngine, install
from energy_lightning.partition.errors import ExecutionError, TensorParallelError, UnrecognisedModelError
from energy_lightning.partition.recognition import BlockStack, check_tensor_parallel_size, find_stacks
from energy_lightning.partition.tracing import TraceEvent

__all__ = [
    "ARCHITECTURES",
    "Architecture",
    "BlockStack",
    "ExecutionError",
    "PartitionEngine",
    "TensorParallelError",
    "TraceEvent",
    "UnrecognisedModelError",
    "check_tensor_parallel_size",
    "find_stacks",
    "install",
]
