"""From measured partitions to the frontier of a whole iteration.

    partition options --(same frequency, one mode)--> phase fronts --(any frequency pair)--> iteration front

One schedule per partition type, one frequency per phase, nanobatched or sequential per phase (Kareus,
arXiv 2601.17654). Nothing is enumerated: see convolution.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from energy_lightning.frontier.budget import FrontierPoint
from energy_lightning.frontier.convolution import Front, convolve, convolve_all, leaf, shifted, union
from energy_lightning.frontier.pareto import FrontierError
from energy_lightning.types import Phase, PhasePlan, Plan, Schedule

Frequency = int | None  # MHz; None: the clock is left as it is


@dataclass(frozen=True, slots=True)
class PartOption:
    """One way to run a part once: time (s) and energy per GPU (J, static power included) of one execution."""

    frequency_mhz: Frequency
    schedule: Schedule | None
    time_s: float
    energy_j: float

    def __post_init__(self) -> None:
        if not (0.0 < self.time_s < math.inf and 0.0 < self.energy_j < math.inf):  # NaN fails too
            raise FrontierError(f"an option needs finite time_s > 0 and energy_j > 0, got {self}")


@dataclass(frozen=True, slots=True)
class PartProfile:
    """All known ways to run one part of an iteration.

    Attributes:
        phase: "forward" or "backward" of a microbatch, or "iteration": once per iteration (gradients, optimizer).
        key: partition key, under which a chosen schedule enters the plan.
        nanobatched: the mode in which this profile holds; None: the part is the same in both modes.
        count: executions in that phase of one microbatch (or in one iteration).
        options: at least one.
    """

    phase: Literal["forward", "backward", "iteration"]
    key: str
    nanobatched: bool | None
    count: int
    options: Sequence[PartOption]

    def __post_init__(self) -> None:
        if self.phase not in ("forward", "backward", "iteration"):
            raise FrontierError(f"phase of {self.key!r} must be forward, backward or iteration, got {self.phase!r}")
        if self.count < 1 or not self.options:
            raise FrontierError(f"part {self.key!r} needs count >= 1 and at least one option, got count {self.count}")


def compose_iteration(
    parts: Sequence[PartProfile],
    *,
    num_microbatches: int,
    static_power_w: float,
    switch_time_s: float = 0.0,
    emulated: bool = False,
) -> list[FrontierPoint]:
    """The exact time-energy front of one iteration (per GPU), by rising time; each `choice` is a single-stage Plan.

    Iteration = num_microbatches x (forward + backward) + the "iteration" parts at the backward's frequency. Where the
    two frequencies differ, two switches a microbatch are charged: `switch_time_s` each at `static_power_w`, as if the
    GPU stood still from the request until the new clock is in force. A GPU that works on meanwhile, at the clock that
    was, loses less: of the two changes of a microbatch one comes too late to speed up, the other too late to slow down,
    so that to first order the time cancels and the energy of running the slower phase too fast for `switch_time_s`
    stays. The charge is an upper bound of both, and a plan that switches is worth it by more than what is not modelled.
    A mode counts for a phase only with a profile of every part in it, a frequency only where every part has an option
    there. Raises FrontierError when a phase has no parts, no complete mode or no common frequency.
    """
    if num_microbatches < 1 or not (0.0 <= switch_time_s < math.inf and 0.0 <= static_power_w < math.inf):
        raise FrontierError(
            "need num_microbatches >= 1, finite switch_time_s >= 0 and finite static_power_w >= 0, got "
            f"{num_microbatches}, {switch_time_s}, {static_power_w}"
        )
    forward = _phase_fronts(parts, "forward", num_microbatches)
    backward = _phase_fronts(parts, "backward", num_microbatches)
    switching_s = 2 * num_microbatches * switch_time_s
    any_pair = convolve(union(list(forward.values())), union(list(backward.values())))
    fronts = [shifted(any_pair, add_time_s=switching_s, add_energy_j=switching_s * static_power_w)]
    if switching_s > 0.0:  # equal pairs are in any_pair as well, dominated by these without switches
        fronts += [convolve(forward[f], backward[f]) for f in forward if f in backward]
    front = union(fronts)
    return [_point(front, i, emulated) for i in range(len(front))]


def _phase_fronts(parts: Sequence[PartProfile], phase: Phase, num_microbatches: int) -> dict[Frequency, Front]:
    """Per frequency the front of one phase over the whole iteration; choices are (phase, mode, key, option)."""
    own = [part for part in parts if part.phase == phase]
    if not own:
        raise FrontierError(f"no part belongs to the {phase}: a plan needs at least one forward and one backward part")
    once = [part for part in parts if part.phase == "iteration"] if phase == "backward" else []
    by_mode = [_mode_fronts(own, once, mode, num_microbatches) for mode in _complete_modes(own + once, phase)]
    frequencies = {frequency for fronts in by_mode for frequency in fronts}
    if not frequencies:
        known = "; ".join(f"{p.key}: {sorted({str(o.frequency_mhz) for o in p.options})}" for p in own + once)
        raise FrontierError(f"the {phase} has no frequency at which all its parts were measured ({known})")
    ordered = sorted(frequencies, key=lambda frequency: frequency or 0)
    return {f: union([fronts[f] for fronts in by_mode if f in fronts]) for f in ordered}


def _complete_modes(parts: Sequence[PartProfile], phase: Phase) -> list[bool]:
    """The modes with a profile of every part; a mode half profiled would look faster than it is."""
    keys = {part.key for part in parts}
    modes = sorted({part.nanobatched for part in parts if part.nanobatched is not None}) or [False]
    present = {mode: {part.key for part in parts if part.nanobatched in (mode, None)} for mode in modes}
    complete = [mode for mode in modes if present[mode] == keys]
    if not complete:
        missing = {("nanobatched" if mode else "sequential"): sorted(keys - present[mode]) for mode in modes}
        raise FrontierError(f"the {phase} is complete in no mode; missing profiles: {missing}. Profile these parts too")
    return complete


def _mode_fronts(
    own: Sequence[PartProfile], once: Sequence[PartProfile], mode: bool, num_microbatches: int
) -> dict[Frequency, Front]:
    members = [(part, part.count * num_microbatches) for part in own if part.nanobatched in (mode, None)]
    members += [(part, part.count) for part in once if part.nanobatched in (mode, None)]
    by_frequency = [_part_fronts(part, times, mode) for part, times in members]
    common = set.intersection(*(set(fronts) for fronts in by_frequency))
    return {f: convolve_all([fronts[f] for fronts in by_frequency]) for f in common}


def _part_fronts(part: PartProfile, times: int, mode: bool) -> dict[Frequency, Front]:
    groups: dict[Frequency, list[PartOption]] = {}
    for option in part.options:
        groups.setdefault(option.frequency_mhz, []).append(option)
    phase = "forward" if part.phase == "forward" else "backward"
    return {
        f: leaf((times * o.time_s, times * o.energy_j, (phase, mode, part.key, o)) for o in options)
        for f, options in groups.items()
    }


def _point(front: Front, index: int, emulated: bool) -> FrontierPoint:
    phases: dict[Phase, tuple[bool, Frequency]] = {}
    schedules: dict[Phase, dict[str, Schedule]] = {"forward": {}, "backward": {}}
    for phase, mode, key, option in front.chosen(index):
        phases[phase] = (mode, option.frequency_mhz)
        if option.schedule is not None:
            schedules[phase][key] = option.schedule
    plans: Mapping[Phase, PhasePlan] = {
        phase: PhasePlan(phase, frequency, mode, dict(sorted(schedules[phase].items())))
        for phase, (mode, frequency) in phases.items()
    }
    time_s, energy_j = float(front.time_s[index]), float(front.energy_j[index])
    plan = Plan.single_stage(
        plans["forward"], plans["backward"], time_s=time_s, energy_j=energy_j, emulated=emulated, label="kareus"
    )
    return FrontierPoint(time_s, energy_j, plan)
