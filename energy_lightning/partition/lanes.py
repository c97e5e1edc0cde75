"""What one nanobatch carries through forward and backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from energy_lightning.partition.calls import BlockCall
from energy_lightning.partition.groups import OperatorGroup
from energy_lightning.partition.random import RandomState
from energy_lightning.partition.sums import Sum
from energy_lightning.types import PhasePlan, Schedule

AS_EARLY_AS_POSSIBLE = Schedule(launch="norm_0")


@dataclass(frozen=True, slots=True)
class PhaseSchedules:
    """How the collectives of one phase are launched.

    Attributes:
        overlapped: whether collectives hide behind the other nanobatch's compute.
        schedules: partition key -> Schedule; a key that is missing is launched as early as possible.
    """

    overlapped: bool = False
    schedules: Mapping[str, Schedule] = field(default_factory=dict)

    @classmethod
    def from_plan(cls, phase: PhasePlan) -> PhaseSchedules:
        """As the plan says."""
        return cls(phase.nanobatched, phase.schedules)

    def of(self, key: str) -> Schedule:
        """The schedule of the collective that runs beside partition `key`."""
        schedule = self.schedules.get(key, AS_EARLY_AS_POSSIBLE)
        if self.overlapped:
            return schedule
        return Schedule(schedule.sm_count, launch=None, block_threads=schedule.block_threads)


@dataclass(slots=True)
class Checkpoint:
    """The state at a layer's entry, from which the layer is recomputed.

    `folded`: h holds h + y, so that the gradient of h is that of y as well.
    """

    h: Tensor
    y: Sum | None
    folded: bool


@dataclass(slots=True)
class Lane:
    """One nanobatch.

    Attributes:
        call: arguments of the blocks, of this nanobatch.
        h, y: residual stream and last body's output, as the next glue takes them.
        h_wants, y_wants: whether they want a gradient.
        glues, bodies: kept graphs, by the index of the body (of the body after it for glue).
        checkpoints: by layer, where activations are not kept.
        random_states: by body, where it draws random numbers and is recomputed.
        dh, dx: in backward, gradients of the outputs of the glue that is next.
    """

    call: BlockCall
    h: Tensor | None = None
    y: Sum | None = None
    h_wants: bool = False
    y_wants: bool = False
    glues: dict[int, OperatorGroup] = field(default_factory=dict)
    bodies: dict[int, OperatorGroup] = field(default_factory=dict)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)
    random_states: dict[int, RandomState] = field(default_factory=dict)
    dh: Tensor | None = None
    dx: Sum | None = None

    def enter(self) -> tuple[Tensor, Tensor | None]:
        """h and the complete y, for the next glue."""
        assert self.h is not None
        return self.h, None if self.y is None else self.y.result()

    def take_checkpoint(self, layer: int, *, fold: bool) -> None:
        """Keeps the state at the entry of `layer`; with `fold` as the single tensor h + y."""
        h, y = self.enter()
        folded = fold and y is not None
        if folded and y is not None:
            h, y = h + y, None
        self.h, self.y = h, self.y if y is not None else None
        self.checkpoints[layer] = Checkpoint(h, self.y, folded)

    def release_state(self) -> None:
        """Forgets h and y; what backward needs is in the graphs."""
        self.h, self.y = None, None
