"""Tensors that are partial sums over the tensor-parallel group until somebody needs them."""

from __future__ import annotations

from torch import Tensor

from energy_lightning.collectives import Collectives, Handle
from energy_lightning.partition.order import Step
from energy_lightning.partition.tracing import TraceEvent
from energy_lightning.types import Schedule


class Sum:
    """The output of a partition on its way through the all-reduce.

    `collectives` None: the tensor is complete already. `exposed` says how to all-reduce where nothing hides it.
    """

    def __init__(
        self,
        tensor: Tensor,
        source: Step,
        collectives: Collectives | None = None,
        exposed: Schedule | None = None,
        trace: list[TraceEvent] | None = None,
    ) -> None:
        self._tensor = tensor if collectives is None else tensor.contiguous()
        self._source = source
        self._collectives = collectives
        self._exposed = exposed or Schedule()
        self._handle: Handle | None = None
        self._trace = trace

    def launch(self, schedule: Schedule | None = None, beside: Step | None = None, operator: str | None = None) -> None:
        """Issues the all-reduce now, unless that has happened; `beside` and `operator` say what hides it."""
        if self._collectives is None or self._handle is not None:
            return
        schedule = schedule or self._exposed
        self._handle = self._collectives.all_reduce(
            self._tensor, sm_count=schedule.sm_count, block_threads=schedule.block_threads
        )
        if self._trace is not None:
            self._trace.append(
                TraceEvent(
                    "launch",
                    self._source.key,
                    operator,
                    self._source.nanobatch,
                    self._source.layer,
                    None if beside is None else beside.key,
                    self._handle.asked_sm_count,
                    self._handle.granted_sm_count,
                )
            )

    def result(self) -> Tensor:
        """The sum over the group; launches the all-reduce if nobody has."""
        self.launch()
        if self._handle is not None:
            if self._trace is not None:
                source = self._source
                self._trace.append(TraceEvent("wait", source.key, None, source.nanobatch, source.layer))
            self._tensor = self._handle.wait()
            self._handle, self._collectives = None, None
        return self._tensor
