"""How the processes of a job form tensor-parallel and data-parallel groups.

    rank = data_parallel_rank * tensor_parallel_size + tensor_parallel_rank

so tensor-parallel peers are adjacent ranks: they talk in every layer and should share a node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from energy_lightning.types import StrategyError

MESH_DIM_NAMES = ("data_parallel", "tensor_parallel")


@dataclass(frozen=True, slots=True)
class ParallelLayout:
    """Sizes of the two dimensions of the device mesh."""

    data_parallel_size: int
    tensor_parallel_size: int

    @classmethod
    def for_devices(
        cls, num_devices: int, *, tensor_parallel_size: int, data_parallel_size: int | Literal["auto"]
    ) -> ParallelLayout:
        """The layout over `num_devices` processes (all nodes together).

        Raises StrategyError when tensor_parallel_size does not divide num_devices, or when the product of both sizes
        is not num_devices.
        """
        if num_devices % tensor_parallel_size:
            allowed = ", ".join(str(size) for size in range(1, num_devices + 1) if num_devices % size == 0)
            raise StrategyError(
                f"tensor_parallel_size={tensor_parallel_size} does not divide the {num_devices} devices of this "
                f"Trainer; possible: {allowed}. Change it or Trainer(devices=..., num_nodes=...)."
            )
        fitting = num_devices // tensor_parallel_size
        if data_parallel_size not in ("auto", fitting):
            raise StrategyError(
                f"data_parallel_size={data_parallel_size} x tensor_parallel_size={tensor_parallel_size} is not the "
                f"{num_devices} devices of this Trainer; data_parallel_size must be {fitting} or 'auto'."
            )
        return cls(fitting, tensor_parallel_size)

    def data_parallel_rank(self, rank: int) -> int:
        """Which replica a global rank works for: ranks with the same one see the same batches."""
        return rank // self.tensor_parallel_size
