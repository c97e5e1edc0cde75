"""Which phases decide how long a pipeline's iteration takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from energy_lightning.emulation.pipeline import ScheduledPhase
from energy_lightning.types import Phase


class Position(NamedTuple):
    """One phase: the number of its stage, and its number in the stage's execution order."""

    stage: int
    number: int


def critical_path(stages: Sequence[Sequence[ScheduledPhase]]) -> tuple[Position, ...]:
    """A chain of phases from the start to the end of the pipeline, each of which starts as its predecessor ends.

    `stages[s]` is stage s's phases in execution order, placed on the time axis. Any phase of the chain that took longer
    would delay the end. Where several predecessors end together, the one on the same stage is taken, so the chain
    changes stage only where it must. O(n) in the phases. Not in it: the iteration's end (gradients, optimizer).
    """
    where = {
        (phase.plan.phase, s, phase.microbatch): Position(s, i)
        for s, stage in enumerate(stages)
        for i, phase in enumerate(stage)
    }
    if not where:
        return ()

    def ends(position: Position) -> float:
        return stages[position.stage][position.number].end_s

    chain = [max(where.values(), key=ends)]
    while before := _predecessors(chain[-1], stages, where):
        chain.append(max(before, key=ends))  # the first of equals: that on the same stage
    return tuple(reversed(chain))


def _predecessors(
    position: Position,
    stages: Sequence[Sequence[ScheduledPhase]],
    where: dict[tuple[Phase, int, int], Position],
) -> list[Position]:
    """What must end before the phase starts, that on the same stage first."""
    stage, number = position
    phase = stages[stage][number]
    before = [Position(stage, number - 1)] if number else []
    neighbour = stage - 1 if phase.plan.phase == "forward" else stage + 1
    needs = [(phase.plan.phase, neighbour, phase.microbatch)]
    if phase.plan.phase == "backward":
        needs.append(("forward", stage, phase.microbatch))
    return before + [where[need] for need in needs if need in where]
