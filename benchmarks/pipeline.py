"""Pipeline plans against lowtime, Perseus's own solver: energy at equal deadlines, and time to a 20-point frontier.

    pip install lowtime            # needed by this benchmark only
    python benchmarks/pipeline.py --data DIR [--full]

Cost profile: DIR/perseus_instruction_profile.csv (GPT-3 175B, A100-80GB-SXM, per GPU), without it a synthetic one.
lowtime's plans are replayed with the real times of their clocks, like ours; at a deadline its best plan so far counts.
`--full` adds 10 and 16 stages x 128 microbatches (ours only). Our times for 4 x 16 are medians of 3 runs. Processor
time and the load average are printed beside wall time, which other work on the machine lengthens.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import logging
import os
import resource
import time
from pathlib import Path

import numpy as np

from energy_lightning.frontier import Option, PipelineProblem, solve_deadline, trace_frontier
from energy_lightning.frontier.pipeline import PipelineGraph

BLOCKING_W = 83.64  # A100, Perseus (SOSP '24)
UNIT_S = 1e-3  # lowtime's step


def measured_options(path: Path) -> dict[tuple[int, str], list[Option]]:
    """(stage, phase) -> options of the measured profile."""
    options: dict[tuple[int, str], list[Option]] = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            if row["gpu"] == "A100-80GB-SXM":
                option = Option(float(row["time_s"]), float(row["energy_j"]), int(row["freq_mhz"]))
                options.setdefault((int(row["stage"]), row["instruction"]), []).append(option)
    return options


def synthetic_options() -> dict[tuple[int, str], list[Option]]:
    """Eight uneven stages; time falls and power rises with the clock."""
    clocks_mhz = range(900, 1411, 30)
    work = {
        (stage, phase): (0.05 if phase == "forward" else 0.1) * (1.0 + 0.05 * (stage % 3))
        for stage in range(8)
        for phase in ("forward", "backward")
    }
    return {
        key: [Option(w * (0.3 + 0.7 * 1410 / f), w * (BLOCKING_W + 320.0 * (f / 1410) ** 2), f) for f in clocks_mhz]
        for key, w in work.items()
    }


def pipeline(options: dict[tuple[int, str], list[Option]], num_stages: int, num_microbatches: int) -> PipelineProblem:
    """1F1B over the first stages of the profile, repeated if there are too few."""
    known = 1 + max(stage for stage, _ in options)
    picked = {(s, phase): options[s % known, phase] for s in range(num_stages) for phase in ("forward", "backward")}
    return PipelineProblem(num_stages, num_microbatches, picked, BLOCKING_W)  # type: ignore[arg-type]


def lowtime_walk(problem: PipelineProblem) -> list[tuple[float, float]]:
    """Real (time_s, energy_j) of every plan on lowtime's walk from the slowest to the fastest."""
    import networkx as nx
    from lowtime.cost_model import ExponentialModel
    from lowtime.operation import CandidateExecutionOptions, DummyOperation, ExecutionOption, Operation, OperationSpec
    from lowtime.solver import PhillipsDessouky

    logging.disable(logging.CRITICAL)
    graph = PipelineGraph(problem)
    specs = []
    for choices in graph.choices:
        rows = zip(choices.time_s.tolist(), choices.cost_j.tolist(), range(len(choices.time_s)), strict=True)
        candidates = CandidateExecutionOptions([ExecutionOption(t, UNIT_S, c, k) for t, c, k in rows])
        specs.append(OperationSpec(candidates, ExponentialModel(candidates)))
    operations = [Operation(specs[kind]) for kind in graph.kinds]
    dag = nx.DiGraph()
    for i, operation in enumerate(operations):
        dag.add_node(i, op=operation)
    dag.add_edges_from(graph.edges.tolist())
    source, sink = len(operations), len(operations) + 1
    for node in (source, sink):
        dag.add_node(node, op=DummyOperation())
    dag.add_edges_from((source, i) for i, before in enumerate(graph.predecessors) if not before)
    dag.add_edges_from((i, sink) for i, after in enumerate(graph.successors) if not after)
    dag.graph.update(source_node=source, sink_node=sink)
    plans = []
    for _ in PhillipsDessouky(dag).run():
        chosen = np.array([operation.assigned_knob for operation in operations])
        plans.append(chosen)
    return [_replay(graph, problem, chosen) for chosen in plans]


def _replay(graph: PipelineGraph, problem: PipelineProblem, chosen: np.ndarray) -> tuple[float, float]:
    time_s = graph.makespan(graph.times(chosen))
    return time_s, graph.cost(chosen) + problem.num_stages * problem.blocking_power_w * time_s


def compare(name: str, problem: PipelineProblem, points: int) -> None:
    """Print both frontiers at `points` deadlines and the time each took."""
    took_s = []
    for _ in range(3):
        start = time.perf_counter()
        ours = trace_frontier(problem, points)
        took_s.append(time.perf_counter() - start)
    ours_s = float(np.median(took_s))
    start = time.perf_counter()
    theirs = lowtime_walk(problem)
    theirs_s = time.perf_counter() - start
    fastest_s = max(min(t for t, _ in theirs), ours[0].time_s)
    useful_s = min(theirs, key=lambda plan: plan[1])[0]
    differences = []
    for deadline_s in np.linspace(fastest_s, useful_s, points):
        their_j = min(e for t, e in theirs if t <= deadline_s * (1.0 + 1e-9))
        differences.append(solve_deadline(problem, float(deadline_s)).energy_j / their_j - 1.0)
    their_fastest_s = min(t for t, _ in theirs)
    print(f"{name}, {problem.num_stages} stages x {problem.num_microbatches} microbatches")
    print(
        f"  ours: {len(ours)} points in {ours_s:.2f} s; lowtime: {len(theirs)} steps in {theirs_s:.1f} s "
        f"({theirs_s / ours_s:.0f} times as long); load average {os.getloadavg()[0]:.1f}"
    )
    print(
        f"  energy against lowtime at {points} equal deadlines, discrete clocks: "
        f"median {np.median(differences):+.3%}, worst {max(differences):+.3%}"
    )
    print(f"  fastest plan: ours {ours[0].time_s:.4f} s, lowtime {their_fastest_s:.4f} s", flush=True)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with perseus_instruction_profile.csv")
    parser.add_argument("--points", type=int, default=20)
    parser.add_argument("--full", action="store_true")
    arguments = parser.parse_args()
    profiles = {"synthetic": synthetic_options()}
    if arguments.data is not None:
        profiles["GPT-3 175B (measured)"] = measured_options(arguments.data / "perseus_instruction_profile.csv")
    for (name, options), sizes in itertools.product(profiles.items(), [(4, 16)]):
        compare(name, pipeline(options, *sizes), arguments.points)
    if arguments.full:
        for (name, options), sizes in itertools.product(profiles.items(), [(10, 128), (16, 128)]):
            start, processor_s = time.perf_counter(), time.process_time()
            plans = trace_frontier(pipeline(options, *sizes), arguments.points)
            elapsed_s, processor_s = time.perf_counter() - start, time.process_time() - processor_s
            peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # kB on Linux
            print(
                f"{name}, {sizes[0]} x {sizes[1]}: {len(plans)} points in {elapsed_s:.1f} s "
                f"(processor {processor_s:.1f} s), peak memory {peak_gb:.2f} GB, load average {os.getloadavg()[0]:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
