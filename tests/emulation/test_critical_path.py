"""The critical path against all paths of small pipelines, enumerated from the schedule's own dependencies."""

from __future__ import annotations

import itertools
from functools import cache

import numpy as np
import pytest

from energy_lightning.emulation.critical_path import Position, critical_path
from energy_lightning.emulation.pipeline import ScheduledPhase, one_f_one_b, place_phases
from energy_lightning.frontier.schedules import Instruction, PipelineShape, dependencies
from energy_lightning.types import PhasePlan

PLANS = {"forward": PhasePlan("forward", 1410), "backward": PhasePlan("backward", 1410)}


def placed(num_stages: int, num_microbatches: int, seed: int) -> list[list[ScheduledPhase]]:
    """1F1B with random durations of every phase; small whole numbers, so that ties happen."""
    rng = np.random.default_rng(seed)
    durations = [
        [(phase, float(rng.integers(1, 6))) for phase in one_f_one_b(num_stages, stage, num_microbatches)]
        for stage in range(num_stages)
    ]
    return [
        [ScheduledPhase(PLANS[phase], *where, 1.0) for (phase, _), where in zip(order, places, strict=True)]
        for order, places in zip(durations, place_phases(durations), strict=True)
    ]


def instruction(stages: list[list[ScheduledPhase]], position: Position) -> Instruction:
    phase = stages[position.stage][position.number]
    return Instruction(position.stage, phase.microbatch, phase.plan.phase)


def longest_s(stages: list[list[ScheduledPhase]], pairs: set[tuple[Instruction, Instruction]]) -> float:
    """The largest sum of durations over all paths of the dependency graph."""
    duration_s = {
        Instruction(s, p.microbatch, p.plan.phase): p.end_s - p.start_s for s, stage in enumerate(stages) for p in stage
    }

    @cache
    def from_here(start: Instruction) -> float:
        return duration_s[start] + max((from_here(b) for a, b in pairs if a == start), default=0.0)

    return max(map(from_here, duration_s))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(1, 3), (2, 2), (3, 4), (4, 2), (4, 6)])
def test_it_is_a_longest_path_of_the_dependencies(num_stages: int, num_microbatches: int, seed: int) -> None:
    stages = placed(num_stages, num_microbatches, seed)
    pairs = set(dependencies("1f1b", PipelineShape(num_stages, num_microbatches)))
    chain = critical_path(stages)
    names = [instruction(stages, position) for position in chain]
    assert all(pair in pairs for pair in itertools.pairwise(names))
    phases = [stages[p.stage][p.number] for p in chain]
    assert phases[0].start_s == 0.0
    assert all(a.end_s == b.start_s for a, b in itertools.pairwise(phases)), "no waiting on it"
    total_s = sum(phase.end_s - phase.start_s for phase in phases)
    assert total_s == longest_s(stages, pairs) == max(phase.end_s for stage in stages for phase in stage)


def test_it_stays_on_a_stage_where_it_can() -> None:
    """Equal durations, two stages: both predecessors of most phases end together."""
    durations = [[(phase, 1.0) for phase in one_f_one_b(2, stage, 3)] for stage in range(2)]
    stages = [
        [ScheduledPhase(PLANS[phase], *where, 1.0) for (phase, _), where in zip(order, places, strict=True)]
        for order, places in zip(durations, place_phases(durations), strict=True)
    ]
    assert [position.stage for position in critical_path(stages)] == [0, 1, 1, 1, 1, 1, 1, 0]


def test_an_empty_pipeline_has_none() -> None:
    assert critical_path([[], []]) == ()
