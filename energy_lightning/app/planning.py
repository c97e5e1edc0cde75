"""From the settings of `energy-lightning plan` to frontiers and a chosen plan. Emulated; nothing heavy is imported."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from energy_lightning.app.settings import build_workload
from energy_lightning.callbacks.spaces import useful_frequencies
from energy_lightning.emulation import GPU, check_memory
from energy_lightning.emulation.planning import METHODS, PlanPoint, plan_frontier
from energy_lightning.frontier import FrontierPoint, choose, pareto_front
from energy_lightning.report.planning import BASELINE_METHOD, PlannedJob, method_name, plan_of
from energy_lightning.types import Budget, BudgetError, ConfigError, WorkloadError
from energy_lightning.workload import Workload, preset_names

NO_JOB = f"plan needs a job: workload=NAME with one of {', '.join(preset_names())}"
_MOST_POINTS = 1000  # a row of the table each, and a deadline to solve
# Relative. Plans that keep the pace miss it by some 1e-5 where the optimizer runs at a lower clock: no slow-down.
_TIME_TIE = 5e-4
_CONTAINS_BASELINE = ("perseus", "kareus")  # methods that plain execution at the highest clock is a plan of


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What is to be planned.

    Attributes:
        workload: the job.
        gpu: the model of its GPUs.
        budget: what the plan is chosen for.
        method: whose plan is chosen.
        methods: all methods to plan with; `method` and BASELINE_METHOD are among them.
        frequencies_mhz: clocks to plan with, ascending.
        points: most plans of a frontier.
        over_memory: by how much the job exceeds the GPUs' memory, in words; "" where it fits.
    """

    workload: Workload
    gpu: GPU
    budget: Budget
    method: str
    methods: tuple[str, ...]
    frequencies_mhz: tuple[int, ...]
    points: int
    over_memory: str = ""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> PlanRequest:
        """From the composed configuration as plain values; EnergyLightningError for the first one that cannot be."""
        try:
            return cls._from_values(values)
        except KeyError as error:  # ~NAME on the command line
            raise ConfigError(
                f"the setting {error} was taken out; plan needs it: leave ~{error.args[0]} away"
            ) from error

    @classmethod
    def _from_values(cls, values: Mapping[str, Any]) -> PlanRequest:
        if values["device"]["gpu"] is None:
            raise ConfigError(f"plan emulates a GPU: device.gpu=NAME with one of {', '.join(GPU.names())}")
        gpu, method = GPU.load(values["device"]["gpu"]), values["method"]
        wanted = (BASELINE_METHOD, *_listed(values["compare_with"], "compare_with"), method)
        for name in wanted:
            _check_method(name)
        workload = build_workload(values["workload"])
        if workload is None:
            raise ConfigError(NO_JOB)
        points = values["points"]
        if isinstance(points, bool) or not isinstance(points, int) or not 2 <= points <= _MOST_POINTS:
            raise ConfigError(f"points must be a whole number from 2 to {_MOST_POINTS}, got {points!r}")
        return cls(
            workload=workload,
            gpu=gpu,
            budget=Budget.parse(values["budget"]),
            method=method,
            methods=tuple(dict.fromkeys(wanted)),
            frequencies_mhz=_frequencies(values["frequencies_mhz"], gpu),
            points=points,
            over_memory=_over_memory(workload, gpu, allowed=_switch(values["allow_over_memory"], "allow_over_memory")),
        )


def _over_memory(workload: Workload, gpu: GPU, *, allowed: bool) -> str:
    try:
        check_memory(workload, gpu)
    except WorkloadError as error:
        if not allowed:
            remedy = "Sizes are set as workload.NAME=VALUE; to plan the job all the same: allow_over_memory=true"
            raise WorkloadError(f"{error}. {remedy}") from error
        return str(error)
    return ""


def _listed(value: Any, name: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ConfigError(f'{name} must be a list, e.g. "{name}=[a,b]", got {value!r}')
    return value


def _switch(value: Any, name: str) -> bool:
    if not isinstance(value, bool):  # the text "no" would count as true
        raise ConfigError(f"{name} must be true or false, got {value!r}")
    return value


def _check_method(name: str) -> None:
    if name not in METHODS:
        near = difflib.get_close_matches(str(name), METHODS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(f"unknown method {name!r}; {hint}known: {', '.join(METHODS)}")


def _frequencies(wanted_mhz: Any, gpu: GPU) -> tuple[int, ...]:
    """The wanted clocks (DeviceError for one that the GPU lacks), or its useful ones; ascending."""
    if wanted_mhz is None:
        return tuple(sorted(useful_frequencies(gpu.frequencies_mhz)))
    clocks_mhz = _listed(wanted_mhz, "frequencies_mhz")
    if not clocks_mhz or any(isinstance(f, bool) or not isinstance(f, int) for f in clocks_mhz):
        raise ConfigError(f"frequencies_mhz must list whole numbers of MHz, or be null, got {wanted_mhz!r}")
    for frequency_mhz in clocks_mhz:
        gpu.check_frequency(frequency_mhz)
    return tuple(sorted(set(clocks_mhz)))


def plan_job(request: PlanRequest, note: Callable[[str], None] = lambda _: None) -> PlannedJob:
    """Frontiers of all methods, and what each has for the budget. `note` is told the method that is planned next."""
    frontiers: dict[str, list[FrontierPoint]] = {}
    for method in request.methods:
        note(method)
        frontiers[method] = _frontier(request, method)
        if method in _CONTAINS_BASELINE:
            plain = [_labelled(point, method) for point in frontiers[BASELINE_METHOD]]
            frontiers[method] = _merged(plain + frontiers[method])
    baseline_s = frontiers[BASELINE_METHOD][0].time_s
    return PlannedJob(
        job=describe_workload(request.workload),
        gpu=request.gpu.display_name,
        num_gpus=request.workload.num_gpus,
        budget=request.budget,
        method=request.method,
        frontiers=frontiers,
        chosen={method: _chosen(points, request.budget, baseline_s) for method, points in frontiers.items()},
    )


def _frontier(request: PlanRequest, method: str) -> list[FrontierPoint]:
    """Memory was judged with the request."""
    clocks_mhz = request.frequencies_mhz
    if method == BASELINE_METHOD:
        clocks_mhz = (request.gpu.max_frequency_mhz,)
    found = plan_frontier(
        request.workload, request.gpu, method, clocks_mhz, points=request.points, allow_over_memory=True
    )
    return [_per_gpu(point, request) for point in found]


def _per_gpu(point: PlanPoint, request: PlanRequest) -> FrontierPoint:
    energy_j = point.energy_j / request.workload.num_gpus
    plan = point.plan.with_prediction(point.time_s, energy_j, emulated=True)
    return FrontierPoint(point.time_s, energy_j, plan)


def _labelled(point: FrontierPoint, method: str) -> FrontierPoint:
    return replace(point, choice=replace(plan_of(point), label=method_name(method)))


def _merged(points: list[FrontierPoint]) -> list[FrontierPoint]:
    kept = pareto_front([point.time_s for point in points], [point.energy_j for point in points])
    return [points[i] for i in kept]


def _chosen(points: Sequence[FrontierPoint], budget: Budget, baseline_s: float) -> FrontierPoint | None:
    if budget.kind == "max_throughput":  # of all that keep the fastest's pace, the least energy
        budget = Budget("deadline", min(point.time_s for point in points) * (1.0 + _TIME_TIE))
    try:
        return choose(points, budget, baseline_time_s=baseline_s * (1.0 + _TIME_TIE))
    except BudgetError:
        return None


def refuse_unmet_budget(planned: PlannedJob) -> None:
    """BudgetError, naming what is reachable, if the method has no plan for the budget."""
    if planned.chosen[planned.method] is None:
        choose(planned.frontiers[planned.method], planned.budget, baseline_time_s=planned.baseline.time_s)


def describe_workload(workload: Workload) -> str:
    """Model, parallelism and sizes in one line."""
    groups = {
        "TP": workload.tensor_parallel,
        "CP": workload.context_parallel,
        "PP": workload.pipeline_parallel,
        "DP": workload.data_parallel,
    }
    split = [f"{name}{size}" for name, size in groups.items() if size > 1]
    count = workload.num_microbatches
    sizes = f"{count} microbatch{'es' if count > 1 else ''} of {workload.microbatch_size} x {workload.sequence_length}"
    return " ".join([workload.model.name, *split]) + f", {sizes} tokens"
