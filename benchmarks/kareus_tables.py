"""The published tables of Kareus beside what the emulated GPUs say. Everything under "emulated" is EMULATED.

    python benchmarks/kareus_tables.py [--points 20] [--skip-70b]

Published: Kareus, OSDI '26 (arXiv 2601.17654), 16 A100-SXM4-40GB, pipeline of 2 (15 and 13 layers), 8 microbatches,
activation checkpointing. Of its ten workloads our sources give ranges, one recorded run (Llama 3.2 3B TP8 8/4K), one
ablation and one fallback; the rest prints "not published in our sources". Definitions, as published:
    max throughput     a method's fastest plan against max_frequency (Megatron-LM at the highest clock)
    iso-time energy    least energy of plans no slower than perseus's fastest, against that plan's energy
    iso-energy time    least time of plans of no more than perseus's least energy, against that plan's time
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass

from energy_lightning.emulation import GPU, PlanPoint, plan_frontier
from energy_lightning.workload import Workload

CLOCKS_MHZ = range(900, 1411, 30)
METHODS = ("perseus", "nanobatch_perseus", "kareus")
SLOWER = 1e-4  # plans this much slower count as equally fast: 0.5 ms of 5 s
LARGE_GAP = 5.0  # points; above, a line says why


@dataclass(frozen=True, slots=True)
class Job:
    """One workload: model, tensor and context parallel, sequences a microbatch, tokens a sequence."""

    model: str
    tensor_parallel: int
    context_parallel: int
    microbatch_size: int
    sequence_length: int

    def __str__(self) -> str:
        split = f"TP{self.tensor_parallel}" if self.context_parallel == 1 else f"CP2 TP{self.tensor_parallel}"
        return f"{self.model} {split} {self.microbatch_size}/{self.sequence_length // 1024}K"

    def workload(self) -> Workload:
        """As the published experiments ran it."""
        return Workload.preset(
            self.model,
            tensor_parallel=self.tensor_parallel,
            context_parallel=self.context_parallel,
            pipeline_parallel=2,
            microbatch_size=self.microbatch_size,
            num_microbatches=8,
            sequence_length=self.sequence_length,
            activation_checkpointing=True,
            layers_per_stage=(15, 13),
        )


# Which ten were published is not in our sources beyond the five named there (*): these sizes are our choice.
JOBS = tuple(
    Job(model, tensor, context, microbatch, sequence)
    for model in ("llama3.2_3b", "qwen3_1.7b")
    for tensor, context, microbatch, sequence in (
        (8, 1, 8, 4096),  # * both
        (8, 1, 16, 4096),
        (8, 1, 8, 8192),
        (4, 2, 8, 4096),  # * both
        (4, 2, 8, 8192),  # * Qwen3 1.7B
    )
)
RECORDED = Job("llama3.2_3b", 8, 1, 8, 4096)
ABLATED = Job("qwen3_1.7b", 8, 1, 8, 4096)
FALLBACK = Job("qwen3_1.7b", 4, 2, 8, 4096)


@dataclass(frozen=True, slots=True)
class Effects:
    """Relative changes in percent; None: no plan of the method is that fast (or that frugal)."""

    time: float
    energy: float
    iso_time_energy: float | None
    iso_energy_time: float | None


def percent(new: float, old: float) -> float:
    """Relative change in percent."""
    return 100.0 * (new / old - 1.0)


def effects(front: Sequence[PlanPoint], max_frequency: PlanPoint, perseus: Sequence[PlanPoint]) -> Effects:
    """What a method's frontier gains; definitions in the module's docstring."""
    fastest, baseline, frugal = front[0], perseus[0], perseus[-1]
    in_time = [p.energy_j for p in front if p.time_s <= baseline.time_s * (1.0 + SLOWER)]
    in_energy = [p.time_s for p in front if p.energy_j <= frugal.energy_j * (1.0 + SLOWER)]
    return Effects(
        percent(fastest.time_s, max_frequency.time_s),
        percent(fastest.energy_j, max_frequency.energy_j),
        percent(min(in_time), baseline.energy_j) if in_time else None,
        percent(min(in_energy), frugal.time_s) if in_energy else None,
    )


def all_effects(workload: Workload, gpu: GPU, points: int = 20) -> dict[str, Effects]:
    """Every method's effects on one workload."""
    (top,) = plan_frontier(workload, gpu, "max_frequency", CLOCKS_MHZ)
    fronts = {method: plan_frontier(workload, gpu, method, CLOCKS_MHZ, points) for method in METHODS}
    return {method: effects(front, top, fronts["perseus"]) for method, front in fronts.items()}


def ablation(workload: Workload, gpu: GPU, points: int = 20) -> dict[str, float]:
    """Energy at max throughput against full kareus, in percent, of what is left without one of its parts."""
    full = plan_frontier(workload, gpu, "kareus", CLOCKS_MHZ, points)[0]
    one_clock = plan_frontier(workload, gpu, "kareus", CLOCKS_MHZ[-1:], points)[0]
    unscheduled = plan_frontier(workload, gpu, "nanobatch_perseus", CLOCKS_MHZ, points)[0]
    return {
        "no frequency scaling": percent(one_clock.energy_j, full.energy_j),
        "no kernel scheduling": percent(unscheduled.energy_j, full.energy_j),
    }


@dataclass(frozen=True, slots=True)
class Row:
    """One figure, published and emulated, in percent."""

    name: str
    published: float
    emulated: float | None

    def __str__(self) -> str:
        if self.emulated is None:
            return f"| {self.name} | {self.published:+.2f} | no such plan | |"
        return f"| {self.name} | {self.published:+.2f} | {self.emulated:+.2f} | {self.emulated - self.published:+.1f} |"

    @property
    def is_far(self) -> bool:
        """Whether a line must say why."""
        return self.emulated is None or abs(self.emulated - self.published) > LARGE_GAP


# Kareus, OSDI '26 (arXiv 2601.17654): method -> time, energy, iso-time energy, iso-energy time of the recorded run.
RECORDED_RUN = {
    "perseus": (0.06, -8.61, None, None),
    "nanobatch_perseus": (-7.87, -8.75, -16.23, -12.05),
    "kareus": (-13.70, -14.23, -23.08, -18.90),
}
BEST_OF_TEN = {"time": -14.9, "energy": -22.1, "iso_time_energy": -28.3, "iso_energy_time": -27.5}
ABLATION = {"no frequency scaling": 12.9, "no kernel scheduling": 10.8}
BEST_70B = {"time": -9.3, "iso-time energy": -15.3}
# Each was checked (2026-11-30): by the published planner's frontiers of the same job, or by changing a constant.
_FRONTIERS = (
    "the recorded run is measured end to end, the emulator fitted to the planner's frontiers published with it: what "
    "slowed the measured nanobatched run is not in them. They say "
)
_TEN = "which ten workloads were published is not in our sources, so the best of ours is another one's"
WHY = {
    "nanobatch_perseus, energy": _FRONTIERS + "-6.5% against perseus's fastest plan, with its -8.6% that is -14.5%.",
    "nanobatch_perseus, iso-energy time": _FRONTIERS + "-19.3%.",
    "best energy": (
        f"{_TEN}; and emulated schedules bring half a percent where +10.8% is published (see the ablation): with that "
        "instead, it would be -23%."
    ),
    "best iso-energy time": f"{_TEN}. On the one job that is known, the recorded run, this figure is 1.4 points off.",
    "no frequency scaling": (
        "the emulated cost of 1410 MHz throughout is +7.1% on the published fastest nanobatched plan of this job as "
        "well, so the planner is not the cause; what is left is how emulated power rises from 1260 to 1410 MHz."
    ),
    "no kernel scheduling": (
        "the planner's nanobatched frontiers, which the emulator was fitted to, leave schedules nothing to gain: on "
        "the recorded job, nanobatches without them cost +6.4% as measured (-8.75 against -14.23), -0.4% with the "
        "frontiers' -14.5 instead. The library's own schedule is not published; 20 SMs at the first launch point "
        "are assumed, near the emulated optimum (8 SMs: +3.9%, 32: +1.2%). The published kareus plans, emulated, "
        "take 12% too long; with a collective that never waits and moves twice as much a SM, 3%, and this row would "
        "be +2.9%. The rest is not explained."
    ),
    "nanobatched, time": (
        "the emulator follows the two published context-parallel frontiers (nanobatched +1.7% and -1.9%), which leave "
        "no room for 20%. The gap is 68 us for each of the 705 further kernels of a microbatch: no launch takes that."
    ),
}
NAMES = {
    "time": "time",
    "energy": "energy",
    "iso_time_energy": "iso-time energy",
    "iso_energy_time": "iso-energy time",
}


def print_rows(title: str, rows: Sequence[Row], why: dict[str, str]) -> None:
    print(f"\n### {title}\n\n| | published, % | EMULATED, % | gap, points |\n| --- | ---: | ---: | ---: |")
    for row in rows:
        print(row)
    for row in rows:
        if row.is_far:
            print(f"\n{row.name}: {why.get(row.name, 'NOT EXPLAINED')}")


def print_jobs(found: dict[Job, dict[str, Effects]]) -> None:
    print(
        "\n### Ten workloads, EMULATED, %; published: not in our sources except the recorded run and the best of ten\n"
    )
    print(f"| workload | method | {' | '.join(NAMES.values())} |\n| --- | --- | ---: | ---: | ---: | ---: |")
    for job, methods in found.items():
        for method, e in methods.items():
            iso = ["-" if value is None else f"{value:+.1f}" for value in (e.iso_time_energy, e.iso_energy_time)]
            print(f"| {job} | {method} | {e.time:+.1f} | {e.energy:+.1f} | {iso[0]} | {iso[1]} |")


def recorded_rows(found: dict[str, Effects]) -> list[Row]:
    return [
        Row(f"{method}, {name}", published, getattr(found[method], attribute))
        for method, values in RECORDED_RUN.items()
        for (attribute, name), published in zip(NAMES.items(), values, strict=True)
        if published is not None
    ]


def best_rows(found: dict[Job, dict[str, Effects]]) -> list[Row]:
    rows = []
    for attribute, published in BEST_OF_TEN.items():
        values = [getattr(methods["kareus"], attribute) for methods in found.values()]
        rows.append(Row(f"best {NAMES[attribute]}", published, min(value for value in values if value is not None)))
    return rows


def large_job(num_microbatches: int) -> Workload:
    """Llama 3.3 70B on 10 stages of 8 GPUs."""
    sizes = {"microbatch_size": 4, "num_microbatches": num_microbatches, "sequence_length": 4096}
    return Workload.preset("llama3.3_70b_pp10_tp8", activation_checkpointing=True, **sizes)


def print_large(gpu: GPU, points: int) -> None:
    """Llama 3.3 70B: kareus against perseus."""
    print("\n### Llama 3.3 70B, 10 stages x TP8, EMULATED, kareus against perseus, %\n")
    print("| microbatches | time | iso-time energy | both planned in, wall s | processor s |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    found = []
    for num_microbatches in (16, 32, 64, 128):
        start, start_processor = time.perf_counter(), time.process_time()
        workload = large_job(num_microbatches)
        baseline, front = (plan_frontier(workload, gpu, m, CLOCKS_MHZ, points) for m in ("perseus", "kareus"))
        gained = effects(front, baseline[0], baseline)
        wall_s, processor_s = time.perf_counter() - start, time.process_time() - start_processor
        found.append(gained)
        gains = f"{gained.time:+.1f} | {gained.iso_time_energy:+.1f}"
        print(f"| {num_microbatches} | {gains} | {wall_s:.0f} | {processor_s:.0f} |", flush=True)
    rows = [
        Row("best time", BEST_70B["time"], min(e.time for e in found)),
        Row("best iso-time energy", BEST_70B["iso-time energy"], min(e.iso_time_energy or 0.0 for e in found)),
    ]
    print_rows("Llama 3.3 70B, best of the four", rows, WHY)
    print(f"\nPeak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB.")  # kB on Linux


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=20, help="plans a frontier")
    parser.add_argument("--skip-70b", action="store_true")
    arguments = parser.parse_args()
    gpu = GPU.load("a100-sxm4-40gb")
    found = {job: all_effects(job.workload(), gpu, arguments.points) for job in JOBS}
    print_jobs(found)
    print_rows(f"Max throughput and iso, recorded run of {RECORDED}", recorded_rows(found[RECORDED]), WHY)
    print_rows("Best of the ten workloads, kareus", best_rows(found), WHY)
    left_out = ablation(ABLATED.workload(), gpu, arguments.points)
    print_rows(f"Ablation, {ABLATED}, energy", [Row(k, v, left_out[k]) for k, v in ABLATION.items()], WHY)
    print_fallback(gpu, arguments.points)
    if not arguments.skip_70b:
        print_large(GPU.load("a100-sxm4-80gb"), arguments.points)


def print_fallback(gpu: GPU, points: int) -> None:
    """The workload where overlap does not pay."""
    workload = FALLBACK.workload()
    (top,) = plan_frontier(workload, gpu, "max_frequency", CLOCKS_MHZ)
    nanobatched = plan_frontier(workload, gpu, "nanobatch_perseus", CLOCKS_MHZ, points)[0]
    plans = [point.plan for point in plan_frontier(workload, gpu, "kareus", CLOCKS_MHZ, points)]
    phases = [phase for plan in plans for stage in plan.stages for phase in stage]
    share = 100.0 * sum(not phase.nanobatched for phase in phases) / len(phases)
    rows = [Row("nanobatched, time", 20.4, percent(nanobatched.time_s, top.time_s))]
    print_rows(f"Sequential fallback, {FALLBACK}", rows, WHY)
    print(f"\nSequential phases in kareus's plans, EMULATED: {share:.0f}%; published: sequential is the right answer.")


if __name__ == "__main__":
    main()
