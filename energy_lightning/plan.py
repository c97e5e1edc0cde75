"""What runs: Schedule of a partition type, PhasePlan of a forward or backward, Plan of an iteration (see `types`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from types import MappingProxyType
from typing import Any, Literal, cast, get_args

from energy_lightning.errors import PlanError

Phase = Literal["forward", "backward"]


@dataclass(frozen=True, slots=True)
class Schedule:
    """How one partition type runs.

    Attributes:
        sm_count: SMs (thread blocks) lent to the collective; None leaves it to the backend.
        launch: name of the operator beside which the collective is launched; None: not overlapped (the
            collective finishes before the partition's compute begins).
        block_threads: threads per block of the collective kernel.
    """

    sm_count: int | None = None
    launch: str | None = None
    block_threads: int = 1024

    def __post_init__(self) -> None:
        count, threads = (cast(Any, value) for value in (self.sm_count, self.block_threads))  # of whatever kind
        if count is not None and (count is True or not isinstance(count, Integral) or count < 1):
            raise PlanError(f"sm_count must be a whole number >= 1 or null, got {self.sm_count!r}")
        if not (self.launch is None or isinstance(self.launch, str)):
            raise PlanError(f"launch must be the name of an operator or null, got {self.launch!r}")
        if not isinstance(threads, Integral) or threads < 32 or threads % 32:
            raise PlanError(f"block_threads must be a positive multiple of 32, got {self.block_threads!r}")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for YAML and JSON."""
        return {"sm_count": self.sm_count, "launch": self.launch, "block_threads": self.block_threads}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, where: str = "schedule") -> Schedule:
        """Inverse of `to_dict`; raises PlanError naming `where` on unknown keys or bad values."""
        _only_known_keys(data, {"sm_count", "launch", "block_threads"}, where)
        try:
            return cls(**data)
        except PlanError as error:
            raise PlanError(f"{where}: {error}") from error


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """The forward or backward of one microbatch: one frequency, one execution mode, one schedule per partition type.

    Attributes:
        phase: "forward" or "backward" (backward includes recomputation under activation checkpointing).
        frequency_mhz: SM clock to lock; None leaves the clock as it is.
        nanobatched: two interleaved nanobatches (partitioned overlap), or sequential execution.
        schedules: partition key ("fwd_attn", "bwd_mlp", "rec_attn", "grad_bucket", ...) -> Schedule.
    """

    phase: Phase
    frequency_mhz: int | None = None
    nanobatched: bool = False
    schedules: Mapping[str, Schedule] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.phase not in get_args(Phase):
            raise PlanError(f"phase must be one of {', '.join(get_args(Phase))}, got {self.phase!r}")
        if self.frequency_mhz is not None and self.frequency_mhz <= 0:
            raise PlanError(f"frequency_mhz must be > 0 or null, got {self.frequency_mhz}")
        object.__setattr__(self, "schedules", MappingProxyType(dict(self.schedules)))

    def __reduce__(self) -> tuple[Any, ...]:  # a mapping proxy does not pickle
        return (PhasePlan, (self.phase, self.frequency_mhz, self.nanobatched, dict(self.schedules)))

    def __hash__(self) -> int:
        return hash((self.phase, self.frequency_mhz, self.nanobatched, frozenset(self.schedules.items())))

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for YAML and JSON."""
        return {
            "phase": self.phase,
            "frequency_mhz": self.frequency_mhz,
            "nanobatched": self.nanobatched,
            "schedules": {key: schedule.to_dict() for key, schedule in self.schedules.items()},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, where: str = "phase") -> PhasePlan:
        """Inverse of `to_dict`; raises PlanError naming `where`."""
        _only_known_keys(data, {"phase", "frequency_mhz", "nanobatched", "schedules"}, where)
        if "phase" not in data:
            raise PlanError(f"{where}: needs the key 'phase' (forward or backward)")
        frequency_mhz, nanobatched = data.get("frequency_mhz"), data.get("nanobatched", False)
        if frequency_mhz is not None and (isinstance(frequency_mhz, bool) or not isinstance(frequency_mhz, int)):
            raise PlanError(f"{where}: frequency_mhz must be a whole number of MHz or null, got {frequency_mhz!r}")
        if not isinstance(nanobatched, bool):
            raise PlanError(f"{where}: nanobatched must be true or false, got {nanobatched!r}")
        schedules = data.get("schedules") or {}
        if not isinstance(schedules, Mapping):
            raise PlanError(f"{where}: schedules must map partition keys to schedules, got {schedules!r}")
        parsed = {k: Schedule.from_dict(v, where=f"{where}.schedules.{k}") for k, v in schedules.items()}
        try:
            return cls(data["phase"], frequency_mhz, nanobatched, parsed)
        except PlanError as error:
            raise PlanError(f"{where}: {error}") from error


@dataclass(frozen=True, slots=True)
class Plan:
    """What every stage runs in one iteration, in execution order.

    `stages[s]` is the sequence of PhasePlans of pipeline stage s; a job without pipeline has one stage, and
    `(forward, backward)` then stands for every microbatch.

    Attributes:
        stages: per stage, the phases in execution order.
        time_s: predicted time of one iteration, or None where nothing was predicted.
        energy_j: predicted energy of one iteration per GPU (mean over GPUs where stages differ), or None.
        emulated: the prediction rests on an emulated GPU.
        label: short human name ("max frequency", "kareus", ...).
    """

    stages: tuple[tuple[PhasePlan, ...], ...]
    time_s: float | None = None
    energy_j: float | None = None
    emulated: bool = False
    label: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stages", tuple(tuple(stage) for stage in self.stages))
        if not self.stages or not all(self.stages):
            raise PlanError("a plan needs at least one stage and each stage at least one phase")

    @classmethod
    def single_stage(cls, forward: PhasePlan, backward: PhasePlan, **attributes: Any) -> Plan:
        """A plan for a job without pipeline: the same forward and backward for every microbatch."""
        if forward.phase != "forward" or backward.phase != "backward":
            raise PlanError(f"need a forward and a backward phase, got {forward.phase} and {backward.phase}")
        return cls(((forward, backward),), **attributes)

    @classmethod
    def sequential(cls, frequency_mhz: int | None = None, **attributes: Any) -> Plan:
        """Plain execution: no nanobatches, one frequency (None: the clock is left as it is)."""
        return cls.single_stage(PhasePlan("forward", frequency_mhz), PhasePlan("backward", frequency_mhz), **attributes)

    @classmethod
    def from_stage_frequencies(
        cls,
        stages: Sequence[Iterable[tuple[Phase, int]]],
        nanobatched: bool = False,
        schedules: Mapping[str, Schedule] | None = None,
        **attributes: Any,
    ) -> Plan:
        """From per-stage lists of (phase, frequency_mhz) in execution order, as pipeline planners write them.

        `schedules` (if any) holds for every phase; each phase keeps the keys of its own direction.
        """

        def phase_plan(phase: Phase, frequency_mhz: int) -> PhasePlan:
            prefixes = ("fwd_",) if phase == "forward" else ("rec_", "bwd_", "grad_")
            own = {k: s for k, s in (schedules or {}).items() if k.startswith(prefixes)}
            return PhasePlan(phase, frequency_mhz, nanobatched, own)

        return cls(tuple(tuple(phase_plan(p, f) for p, f in stage) for stage in stages), **attributes)

    @property
    def forward(self) -> PhasePlan:
        """The forward of a single-stage plan; PlanError for a pipeline plan."""
        return self._only("forward")

    @property
    def backward(self) -> PhasePlan:
        """The backward of a single-stage plan; PlanError for a pipeline plan."""
        return self._only("backward")

    def _only(self, phase: Phase) -> PhasePlan:
        found = [p for p in self.stages[0] if p.phase == phase]
        if len(self.stages) != 1 or len(set(found)) != 1:
            raise PlanError(f"this plan has {len(self.stages)} stages: ask for the {phase} of one of plan.stages")
        return found[0]

    def with_prediction(self, time_s: float, energy_j: float, *, emulated: bool) -> Plan:
        """The same plan with its predicted iteration time (s) and energy per GPU (J)."""
        return replace(self, time_s=time_s, energy_j=energy_j, emulated=emulated)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for YAML and JSON."""
        return {
            "label": self.label,
            "time_s": self.time_s,
            "energy_j": self.energy_j,
            "emulated": self.emulated,
            "stages": [[phase.to_dict() for phase in stage] for stage in self.stages],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, where: str = "plan") -> Plan:
        """Inverse of `to_dict`; raises PlanError naming the place of the first fault."""
        _only_known_keys(data, {"label", "time_s", "energy_j", "emulated", "stages"}, where)
        stages = data.get("stages")
        if not isinstance(stages, Sequence) or isinstance(stages, str) or not stages:
            raise PlanError(f"{where}: needs a non-empty list 'stages', got {stages!r}")
        parsed = []
        for s, stage in enumerate(stages):
            if not isinstance(stage, Sequence) or isinstance(stage, str) or not stage:
                raise PlanError(f"{where}.stages[{s}]: needs a non-empty list of phases, got {stage!r}")
            parsed.append(tuple(PhasePlan.from_dict(p, where=f"{where}.stages[{s}][{i}]") for i, p in enumerate(stage)))
        for name in ("time_s", "energy_j"):
            value = data.get(name)
            if value is not None and not (isinstance(value, (int, float)) and math.isfinite(value) and value > 0):
                raise PlanError(f"{where}.{name} must be a positive number or null, got {value!r}")
        return cls(
            tuple(parsed),
            data.get("time_s"),
            data.get("energy_j"),
            bool(data.get("emulated", False)),
            str(data.get("label") or ""),
        )


def _only_known_keys(data: Any, known: set[str], where: str) -> None:
    if not isinstance(data, Mapping):
        raise PlanError(f"{where}: expected a mapping with the keys {', '.join(sorted(known))}, got {data!r}")
    unknown = sorted(str(key) for key in data if key not in known)
    if unknown:
        raise PlanError(f"{where}: unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")
