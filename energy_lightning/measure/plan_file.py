"""plan.yaml: the chosen plan as a file that people read, edit and load again."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from energy_lightning.types import Budget, Phase, PhasePlan, Plan, PlanError, Schedule

if TYPE_CHECKING:
    from energy_lightning.device import Device
    from energy_lightning.workload import Partition, Workload

SCHEMA = 1
_KEYS = ("schema", "emulated", "device", "collectives", "budget", "run", "references", "plan")
_GRAD_BUCKET_LAUNCHES = ("end",)  # held back until backward is over

_HEADER = """\
# energy_lightning plan: what every iteration runs. {use}
# Edit freely: frequency_mhz (SM clock; null leaves the clock alone), nanobatched (two interleaved half batches),
# and per partition sm_count (SMs lent to the collective; null: the backend's choice) and launch (the operator beside
# which the collective starts; null: not overlapped). time_s and energy_j are one iteration's, energy per GPU.
"""
_ONE_STAGE = 'Load it with KareusStrategy(plan="{name}"): nothing is profiled.'
_PIPELINE = """\
A list of phases for every pipeline stage, in order:
# for a pipeline's runtime; a training here runs plans of one stage only."""
_SHARED = "# A phase that runs more than once is written once, as &name, and referred to as *name.\n"
_EMULATED = "# EMULATED: time_s and energy_j come from a model of {gpu}; nothing was measured on a GPU.\n"


def save_plan(
    path: Path | str,
    plan: Plan,
    *,
    run: Mapping[str, Any] | None = None,
    budget: Budget | None = None,
    references: Mapping[str, Plan] | None = None,
    device: Mapping[str, str] | None = None,
    collectives: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Write a plan file; a reader sees the old file or the whole new one, never a half.

    `run` (see `describe_run`), `budget`, the predictions of `references`, what the `device` permitted (see
    `device_facts`) and what the `collectives` granted (see KareusStrategy.collectives_report; of their SM counts those
    that the plan asks for) are written for the reader of the file; loading needs only the plan.
    """
    path = Path(path)
    content: dict[str, Any] = {"schema": SCHEMA, "emulated": plan.emulated}
    if device is not None:
        content["device"] = dict(device)
    if collectives:
        content["collectives"] = _granted(collectives, plan)
    if budget is not None:
        content["budget"] = str(budget)
    content["plan"] = plan.to_dict()
    content["plan"]["stages"] = _with_shared_phases(plan)
    if references:
        content["references"] = {
            name: {"time_s": reference.time_s, "energy_j": reference.energy_j} for name, reference in references.items()
        }
    if run is not None:
        content["run"] = dict(run)
    use = _ONE_STAGE.format(name=path.name) if len(plan.stages) == 1 else _PIPELINE
    header = _HEADER.format(use=use)
    if any(len(set(stage)) < len(stage) for stage in plan.stages):
        header += _SHARED
    if plan.emulated:
        header += _EMULATED.format(gpu=(run or {}).get("gpu", "a GPU"))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(
            header + yaml.dump(_plain(content), Dumper=_Dumper, sort_keys=False, width=120), encoding="utf-8"
        )
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _granted(collectives: Sequence[Mapping[str, Any]], plan: Plan) -> list[dict[str, Any]]:
    """The report with the SM counts of this plan only, and without how often they were asked for."""
    phases = itertools.chain.from_iterable(plan.stages)
    asked = {schedule.sm_count for phase in phases for schedule in phase.schedules.values()} - {None}
    rows = []
    for group in collectives:
        counts = [row for row in group["sm_counts"] if row["asked_sm_count"] in asked]
        rows.append({**group, "sm_counts": [{k: v for k, v in row.items() if k != "count"} for row in counts]})
    return rows


def load_plan(path: Path | str) -> Plan:
    """Read a plan file. Raises PlanError naming the file and the place of the first fault."""
    path = Path(path)
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise PlanError(f"cannot read the plan {path}: {error.strerror}. Give the path of a plan.yaml") from error
    except UnicodeDecodeError as error:
        raise PlanError(f"{path} is no text file ({error.reason}); give the path of a plan.yaml") from error
    except yaml.YAMLError as error:
        raise PlanError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, Mapping) or "plan" not in content or "schema" not in content:
        raise PlanError(f"{path} is not a plan file: needs the keys 'schema' and 'plan'. Write one with save_plan")
    if content["schema"] != SCHEMA:
        raise PlanError(f"{path}: schema {content['schema']!r} is not known, this version reads schema {SCHEMA}")
    unknown = sorted(str(key) for key in content if key not in _KEYS)
    if unknown:
        raise PlanError(f"{path}: unknown key {unknown[0]!r}; known: {', '.join(_KEYS)}")
    return Plan.from_dict(content["plan"], where=f"{path}: plan")


def check_plan(plan: Plan, device: Device, workload: Workload | None = None) -> None:
    """Refuse a plan that this GPU or this job cannot run.

    Raises PlanError naming the place, the value and what is allowed: a clock the GPU does not have, more SMs than it
    has, a partition or launch point the job does not have, more than one stage, microbatches that differ.
    """
    check_trainable(plan)
    for s, stage in enumerate(plan.stages):
        known = None if workload is None else _partitions(workload)
        for i, phase in enumerate(stage):
            where = f"{plan.label or 'plan'}.stages[{s}][{i}] ({phase.phase})"
            _check_frequency(phase, device, where)
            for key, schedule in phase.schedules.items():
                _check_schedule(schedule, key, device, known, f"{where}.schedules.{key}")


def check_trainable(plan: Plan) -> None:
    """PlanError unless a training can follow it: one pipeline stage, and every microbatch of it alike."""
    name = plan.label or "the plan"
    if len(plan.stages) > 1:
        raise PlanError(
            f"{name} is for {len(plan.stages)} pipeline stages; a training runs plans of one stage. Plan the job with "
            "pipeline_parallel=1, or give each stage's part to its own runtime"
        )
    for kind in ("forward", "backward"):
        different = {phase for phase in plan.stages[0] if phase.phase == kind}
        if len(different) != 1:
            raise PlanError(
                f"{name} has {len(different)} different {kind} phases; a training runs every microbatch alike. Edit "
                f"the plan to one {kind}, or choose another point of the frontier"
            )


def _check_frequency(phase: PhasePlan, device: Device, where: str) -> None:
    frequency_mhz = phase.frequency_mhz
    if frequency_mhz is None or frequency_mhz in device.frequencies_mhz or not device.frequencies_mhz:
        return
    near = sorted(sorted(device.frequencies_mhz, key=lambda f: abs(f - frequency_mhz))[:2])
    raise PlanError(
        f"{where}: {device.name} has no clock of {frequency_mhz} MHz; nearest: {', '.join(map(str, near))}. "
        "Edit the plan, or profile on this GPU"
    )


def _check_schedule(
    schedule: Schedule, key: str, device: Device, known: Mapping[str, tuple[str, ...]] | None, where: str
) -> None:
    if schedule.sm_count is not None and schedule.sm_count > device.num_sms:
        raise PlanError(f"{where}: sm_count {schedule.sm_count} is more than the {device.num_sms} SMs of {device.name}")
    if known is None:
        return
    if key not in known:
        raise PlanError(f"{where}: this job has no partition {key!r}; it has {', '.join(sorted(known))}")
    if schedule.launch is not None and schedule.launch not in known[key]:
        raise PlanError(f"{where}: no launch point {schedule.launch!r}; known: {', '.join(known[key])}, or null")


def _partitions(workload: Workload) -> dict[str, tuple[str, ...]]:
    """Partition key -> names of the operators beside which a collective may be launched."""
    phases: tuple[Phase | str, ...] = ("forward", "backward", "iteration")
    found: dict[str, tuple[str, ...]] = {}
    for phase in phases:
        for nanobatched in (False, True):
            for partition in workload.partitions(phase, nanobatched=nanobatched):  # type: ignore[arg-type]
                found[partition.key] = _launches(partition)
    return {**found, "grad_bucket": _GRAD_BUCKET_LAUNCHES}


def _launches(partition: Partition) -> tuple[str, ...]:
    return tuple(operator.name for operator in partition.operators)


def _with_shared_phases(plan: Plan) -> list[list[_Phase]]:
    """The plan's stages, equal phases being one object: YAML writes it once and refers to it (&name, *name).

    A pipeline plan holds thousands of phases, of which a few differ.
    """
    values = {phase: _Phase(_plain(phase.to_dict())) for stage in plan.stages for phase in stage}
    return [[values[phase] for phase in stage] for stage in plan.stages]


class _Phase(dict[str, Any]):
    """A phase's plain values."""


class _Dumper(yaml.SafeDumper):
    """Names a repeated phase for people: forward_1110, backward_900_b, ..."""

    def generate_anchor(self, node: yaml.Node) -> str:
        """The phase and its clock, numbered where another phase has both in common."""
        values = {key.value: value.value for key, value in node.value} if isinstance(node, yaml.MappingNode) else {}
        name = f"{values.get('phase', 'value')}_{values.get('frequency_mhz', '')}".rstrip("_")
        taken = set(self.anchors.values())
        names = itertools.chain([name], (f"{name}_{i}" for i in itertools.count(2)))
        return next(candidate for candidate in names if candidate not in taken)


_Dumper.add_representer(_Phase, lambda dumper, phase: dumper.represent_dict(phase))


def _plain(value: Any) -> Any:
    """Mappings and tuples as dicts and lists, which YAML writes without tags."""
    if isinstance(value, _Phase):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value
