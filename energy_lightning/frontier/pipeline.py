"""A training pipeline as a graph of instructions with choices of clock, and the plans made for it (Perseus).

Between instructions a GPU waits at blocking power. With P the blocking power, S the GPUs (one a stage) and T the time
of the iteration, energy = sum(energy_i - P x time_i) + S x P x T, so the *cost* of an instruction is energy - P x time
and waiting is paid for by T alone. Source: Perseus (SOSP '24, arXiv 2312.06902).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from energy_lightning.frontier.pareto import Floats, FrontierError, Indices, pareto_front
from energy_lightning.frontier.schedules import Instruction, PipelineShape, check_shape, dependencies
from energy_lightning.types import Phase


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run an instruction once: time (s), energy of one GPU (J), and the knob to set (a clock in MHz)."""

    time_s: float
    energy_j: float
    knob: Any = None

    def __post_init__(self) -> None:
        if not (0.0 < self.time_s < math.inf and 0.0 < self.energy_j < math.inf):  # NaN fails too
            raise FrontierError(f"an option needs finite time_s > 0 and energy_j > 0, got {self}")


@dataclass(frozen=True, slots=True)
class PipelineProblem:
    """What can be chosen in one iteration of a pipeline.

    Attributes:
        num_stages: physical stages; one GPU each is counted.
        num_microbatches: per iteration.
        options: (virtual stage, phase) -> options of one instruction; virtual stages are num_stages x num_chunks (see
            schedules.py).
        blocking_power_w: power of a GPU that waits for another stage.
        schedule: "1f1b", "gpipe" or "interleaved".
        num_chunks: chunks a stage, for "interleaved".
    """

    num_stages: int
    num_microbatches: int
    options: Mapping[tuple[int, Phase], Sequence[Option]]
    blocking_power_w: float
    schedule: str = "1f1b"
    num_chunks: int = 1

    def __post_init__(self) -> None:
        check_shape(self.schedule, self.shape)
        if not 0.0 <= self.blocking_power_w < math.inf:
            raise FrontierError(f"blocking_power_w must be finite and >= 0, got {self.blocking_power_w}")
        phases: tuple[Phase, Phase] = ("forward", "backward")
        for key in ((stage, phase) for stage in range(self.num_stages * self.num_chunks) for phase in phases):
            if not self.options.get(key):
                raise FrontierError(f"options[{key}] is missing or empty; known: {sorted(self.options)}")

    @property
    def shape(self) -> PipelineShape:
        """The sizes alone."""
        return PipelineShape(self.num_stages, self.num_microbatches, self.num_chunks)


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """A choice for every instruction.

    Attributes:
        time_s: of the iteration.
        energy_j: sum over stages of one GPU each, waiting included.
        knobs: (virtual stage, microbatch, phase) -> the chosen option's knob.
        num_stages, blocking_power_w: as in the problem.
    """

    time_s: float
    energy_j: float
    knobs: Mapping[Instruction, Any] = field(repr=False)
    num_stages: int
    blocking_power_w: float

    def energy_when_waiting_until(self, time_s: float) -> float:
        """Energy (J) if the iteration ends only at `time_s`, because a slower replica decides it."""
        if not time_s >= self.time_s * (1.0 - 1e-9):
            raise FrontierError(f"this plan takes {self.time_s:.6g} s, so it cannot end at {time_s:.6g} s")
        return self.energy_j + (time_s - self.time_s) * self.num_stages * self.blocking_power_w


@dataclass(frozen=True, slots=True)
class Choices:
    """Useful options of one kind of instruction, the faster the dearer: arrays (k,) by rising time, falling cost."""

    time_s: Floats
    cost_j: Floats
    options: tuple[Option, ...]

    def hull(self) -> Indices:
        """Numbers of the choices on the lower convex hull."""
        kept: list[int] = []
        for i in range(len(self.time_s)):
            while len(kept) >= 2 and self._slope(kept[-2], kept[-1]) >= self._slope(kept[-2], i):
                kept.pop()
            kept.append(i)
        return np.array(kept, dtype=np.intp)

    def _slope(self, first: int, second: int) -> float:
        return float((self.cost_j[second] - self.cost_j[first]) / (self.time_s[second] - self.time_s[first]))


def choices(options: Sequence[Option], blocking_power_w: float) -> Choices:
    """The non-dominated options in time and cost."""
    time_s = np.array([option.time_s for option in options])
    cost_j = np.array([option.energy_j for option in options]) - blocking_power_w * time_s
    kept = pareto_front(time_s, cost_j)
    return Choices(time_s[kept], cost_j[kept], tuple(options[i] for i in kept))


class PipelineGraph:
    """The instructions in topological order, their dependencies and their choices.

    Attributes:
        instructions: n of them; `kinds` (n,) numbers their (virtual stage, phase) in `choices`.
        edges: (m, 2) instruction numbers (earlier, later), no duplicates.
    """

    def __init__(self, problem: PipelineProblem) -> None:
        pairs = set(dependencies(problem.schedule, problem.shape))
        self.instructions = _topological(pairs)
        number = {instruction: i for i, instruction in enumerate(self.instructions)}
        self.edges = np.array(sorted((number[a], number[b]) for a, b in pairs), dtype=np.intp).reshape(-1, 2)
        keys = sorted(problem.options)
        self.choices = [choices(problem.options[key], problem.blocking_power_w) for key in keys]
        self.kinds = np.array([keys.index((i.stage, i.phase)) for i in self.instructions], dtype=np.intp)
        self.predecessors: list[list[int]] = [[] for _ in self.instructions]
        self.successors: list[list[int]] = [[] for _ in self.instructions]
        for earlier, later in self.edges.tolist():
            self.predecessors[later].append(earlier)
            self.successors[earlier].append(later)

    def times(self, chosen: Indices) -> Floats:
        """Time (n,) of every instruction under choice numbers (n,)."""
        return np.array([self.choices[kind].time_s[c] for kind, c in zip(self.kinds, chosen, strict=True)])

    def cost(self, chosen: Indices) -> float:
        """Sum of the costs (J)."""
        return float(sum(self.choices[kind].cost_j[c] for kind, c in zip(self.kinds, chosen, strict=True)))

    def starts(self, time_s: Floats) -> Floats:
        """Earliest starts (n,) for given instruction times."""
        starts = [0.0] * len(time_s)
        for i, before in enumerate(self.predecessors):
            if before:
                starts[i] = max(starts[p] + time_s[p] for p in before)
        return np.array(starts)

    def makespan(self, time_s: Floats) -> float:
        """Time of the iteration (s)."""
        return float((self.starts(time_s) + time_s).max())

    def latest_ends(self, time_s: Floats, deadline_s: float) -> Floats:
        """Latest ends (n,) that still let everything after finish by the deadline."""
        ends = [deadline_s] * len(time_s)
        for i in range(len(time_s) - 1, -1, -1):
            if self.successors[i]:
                ends[i] = min(ends[s] - time_s[s] for s in self.successors[i])
        return np.array(ends)


def _topological(pairs: set[tuple[Instruction, Instruction]]) -> list[Instruction]:
    """Kahn's algorithm, ties by name; a cycle would be a bug in the schedule."""
    later: dict[Instruction, list[Instruction]] = {}
    missing: dict[Instruction, int] = {}
    for a, b in sorted(pairs):
        later.setdefault(a, []).append(b)
        missing[b] = missing.get(b, 0) + 1
        missing.setdefault(a, 0)
    order = sorted(instruction for instruction, count in missing.items() if count == 0)
    for instruction in order:
        for follower in later.get(instruction, []):
            missing[follower] -= 1
            if missing[follower] == 0:
                order.append(follower)
    assert len(order) == len(missing), "the pipeline schedule has a cycle"
    return order
