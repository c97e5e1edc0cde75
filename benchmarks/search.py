"""How much of a measured time-energy front each kind of search finds, and how long one decision takes.

    python benchmarks/search.py --data DIR [--seeds 20] [--only NAME ...] [--cache DIR] [--priors]

Tables: DIR/overlap_microbench.csv replayed (measured on 2 A100s), and partitions of three workloads on the emulated
A100-SXM4-40GB with 1.5% noise on what the search sees (emulated). Gap = 1 - hypervolume found / hypervolume of the
whole table, both of true values, scaled so that the least time and energy are 0, and 1.6 x the least time and the 95th
percentile of energy are 1; reference (1.1, 1.1). "gap" is that of everything measured, "front chosen" that of the front
picked by the measured (noisy) values, "from smoothed values" that of the front picked by each method's own surrogates.
Seeds are paired: run k of every method draws from seed k, and meets the same noise.
Runs found in the folder of --cache are not repeated: empty it after a change of the code.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from energy_lightning.emulation import GPU, emulate_partition
from energy_lightning.frontier import hypervolume
from energy_lightning.search import BatchSizes, MultiPassOptimizer, SearchSpace
from energy_lightning.workload import Workload

WINDOW_S, COOL_DOWN_S = 5.0, 5.0  # per measured configuration, as published
WORKLOADS = {"llama3.2_3b_tp8": "fwd_attn", "qwen3_1.7b_tp4": "bwd_mlp", "llama3.1_8b_tp4": "fwd_mlp"}
PUBLISHED = {64: BatchSizes(32, 8, 4, 0.0), 112: BatchSizes(48, 16, 4, 0.0), 224: BatchSizes(96, 32, 4, 0.0)}
PRIORS = ("tilted", "doubled", "shuffled")
OURS = BatchSizes(12, 4, 25, 0.0)
CHECKPOINTS = (64, 72, 112, 224)


@dataclass(frozen=True)
class Table:
    """A space, the true time (s) and energy per GPU (J) of every candidate (n,), and the relative `noise` to add."""

    name: str
    space: SearchSpace
    time_s: np.ndarray
    energy_j: np.ndarray
    static_power_w: float
    noise: float = 0.0
    prior: Callable[[dict[str, Any]], tuple[float, float]] | None = None

    def gap(self, indices: list[int]) -> float:
        """Share of the whole table's hypervolume that the candidates `indices` leave out."""
        lows = self.time_s.min(), self.energy_j.min()
        spans = 0.6 * lows[0], np.percentile(self.energy_j, 95) - lows[1]
        scaled_s, scaled_j = (self.time_s - lows[0]) / spans[0], (self.energy_j - lows[1]) / spans[1]
        whole = hypervolume(scaled_s, scaled_j, (1.1, 1.1))
        return 1.0 - hypervolume(scaled_s[indices], scaled_j[indices], (1.1, 1.1)) / whole


def measured_overlap(path: Path) -> Table:
    """The overlap microbenchmark: window x SMs x threads x clock, energy of 2 GPUs halved, static power 85 W."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    candidates = [
        {
            "frequency_mhz": int(float(row["locked_freq_mhz"] or 1410)),
            "launch": None if row["overlap_start_op"].startswith("none") else row["overlap_start_op"],
            "join": None if row["overlap_end_op"].startswith("none") else row["overlap_end_op"],
            "sm_count": int(row["comm_sm_count"]),
            "block_threads": int(row["comm_block_threads"]),
        }
        for row in rows
    ]
    time_s = np.array([float(row["time_s"]) for row in rows])
    energy_j = np.array([float(row["energy_2gpu_j"]) / 2.0 for row in rows])
    return Table("overlap microbenchmark (measured)", SearchSpace(candidates), time_s, energy_j, 85.0)


def emulated_partition(workload: str, key: str) -> Table:
    """A partition on the emulated A100: 18 clocks x 10 SM counts x its launch points and "not overlapped"."""
    gpu = GPU.load("a100-sxm4-40gb")
    shape = Workload.preset(workload, microbatch_size=8, sequence_length=4096, activation_checkpointing=True)
    phase = "forward" if key.startswith("fwd") else "backward"
    partition = next(p for p in shape.partitions(phase, nanobatched=True) if p.key == key)
    space = SearchSpace.grid(
        frequency_mhz=list(range(900, 1411, 30)),
        sm_count=list(range(3, 31, 3)),
        launch=[*partition.launch_points, None],
    )
    estimates = [
        emulate_partition(partition.operators, partition.collective, gpu, **space[i]) for i in range(len(space))
    ]
    time_s, energy_j = np.array([(e.time_s, e.energy_j) for e in estimates]).T
    return Table(f"{workload} {key} (emulated)", space, time_s, energy_j, gpu.static_power_w, noise=0.015)


def wrong_prior(table: Table, kind: str, seed: int) -> Table:
    """The same table with a prior: "tilted" along clock and SM count by up to a fifth, "doubled", or "shuffled"."""
    rng = np.random.default_rng(seed)
    values = np.stack([table.time_s, table.energy_j])
    if kind == "tilted":
        scaled = np.stack([_unit(table.space.column(name)) for name in ("frequency_mhz", "sm_count")])
        values = values * np.exp(rng.uniform(-0.2, 0.2, (2, 2)) @ scaled)
    elif kind == "doubled":
        values = 2.0 * values
    else:
        values = values[:, rng.permutation(len(table.space))]
    prior = {tuple(table.space[i].items()): (float(values[0, i]), float(values[1, i])) for i in range(len(table.space))}
    return replace(table, prior=lambda config: prior[tuple(config.items())])


def _unit(values: list[Any]) -> np.ndarray:
    numbers = np.array(values, dtype=np.float64)
    return (numbers - numbers.min()) / np.ptp(numbers)


@dataclass(frozen=True)
class Run:
    """Candidates in the order measured; after n measurements, the front chosen from measured and smoothed values."""

    measured: list[int]
    fronts: dict[int, tuple[list[int], list[int]]]


def replay(table: Table, passes: str, seed: int, sizes: BatchSizes | None) -> Run:
    """One search from its first to its last measurement."""
    search = MultiPassOptimizer(
        table.space, static_power_w=table.static_power_w, seed=seed, passes=passes, prior=table.prior, sizes=sizes
    )
    factors = np.exp(table.noise * np.random.default_rng(seed).standard_normal((2, len(table.space))))
    run = Run([], {})
    while not search.done:
        for config in search.ask():
            i = table.space.index(config)
            run.measured.append(i)
            search.tell(config, time_s=table.time_s[i] * factors[0, i], energy_j=table.energy_j[i] * factors[1, i])
            if len(run.measured) in CHECKPOINTS:
                run.fronts[len(run.measured)] = _fronts(search)
    run.fronts[len(run.measured)] = _fronts(search)
    return run


def _fronts(search: MultiPassOptimizer) -> tuple[list[int], list[int]]:
    """Chosen from measured and from smoothed values; random search has no model and takes the measured ones twice."""
    fronts = search.front(), search.front(smoothed=search.passes != "random")
    first, second = ([search.space.index(point.choice) for point in front] for front in fronts)
    return first, second


def one_run(seed: int, name: str, method: str, data: Path | None, cache: Path | None) -> Run:
    """`replay` of a method (a key of METHODS), kept in the cache."""
    file = None if cache is None else cache / f"{name}-{method}-{seed}.json".replace(" ", "_")
    if file is not None and file.exists():
        kept = json.loads(file.read_text())
        return Run(kept["measured"], {int(n): tuple(fronts) for n, fronts in kept["fronts"].items()})
    passes, sizes, prior = METHODS[method]
    table = load(name, data)
    run = replay(wrong_prior(table, prior, seed) if prior else table, passes, seed, sizes)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"measured": run.measured, "fronts": run.fronts}))
    return run


METHODS: dict[str, tuple[str, BatchSizes | None, str]] = {
    "random": ("random", BatchSizes(224, 1, 0), ""),
    **{f"published {n}": ("published", sizes, "") for n, sizes in PUBLISHED.items()},
    "default": ("default", OURS, ""),
    "default, stopping by itself": ("default", None, ""),
    **{f"default, prior {kind}": ("default", OURS, kind) for kind in PRIORS},
}


def load(name: str, data: Path | None) -> Table:
    """A table by its name: "overlap", or a key of WORKLOADS."""
    if name != "overlap":
        return emulated_partition(name, WORKLOADS[name])
    assert data is not None
    return measured_overlap(data / "overlap_microbench.csv")


def compare(name: str, methods: list[str], seeds: int, data: Path | None, cache: Path | None, jobs: int) -> None:
    """Print medians and quartiles of the gaps of every method on one table, and what the published quality costs."""
    table = load(name, data)
    print(f"\n{table.name}: {len(table.space)} configurations, noise {table.noise:.1%}, {seeds} seeds")
    print("| method | measured | windows + cool-downs, s | gap, median | front chosen | from smoothed values |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    runs: dict[str, list[Run]] = {}
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for method in methods:
            work = functools.partial(one_run, name=name, method=method, data=data, cache=cache)
            runs[method] = pool.map(work, range(seeds), chunksize=1)
            _rows(table, method, runs[method])
    for n in PUBLISHED:
        pairs = list(zip(runs["default"], runs[f"published {n}"], strict=True))
        low, median, high = np.percentile([_share(table, *pair) for pair in pairs], [25, 50, 75])
        print(f"published quality at {n}: {median:.0%} of its measuring time ({low:.0%}-{high:.0%})", flush=True)


def _rows(table: Table, method: str, runs: list[Run]) -> None:
    longest = max(len(run.measured) for run in runs)
    checked = method in ("random", "default") or "prior" in method
    for end in [n for n in CHECKPOINTS if n <= longest] if checked else [longest]:
        ends = [min(end, len(run.measured)) for run in runs]
        gaps = [
            (table.gap(run.measured[:n]), *(table.gap(front) for front in run.fronts[n]))
            for run, n in zip(runs, ends, strict=True)
        ]
        low, median, high = np.percentile(gaps, [25, 50, 75], axis=0) * 100.0
        cells = [f"{m:.2f}% ({a:.2f}-{b:.2f})" for a, m, b in zip(low, median, high, strict=True)]
        num_measured = float(np.median(ends))
        seconds = num_measured * (WINDOW_S + COOL_DOWN_S)
        print(f"| {method} | {num_measured:.0f} | {seconds:.0f} | {' | '.join(cells)} |", flush=True)


def _share(table: Table, ours: Run, theirs: Run) -> float:
    """Share of `theirs`' measuring time after which `ours` has measured as good a front; 1 if never."""
    goal, most = table.gap(theirs.measured), len(theirs.measured)
    enough = (n for n in range(1, len(ours.measured) + 1) if table.gap(ours.measured[:n]) <= goal)
    return next(enough, most) / most


def decision_time(repeats: int) -> None:
    """Print the time of one decision: fit, score 720 candidates, choose 32."""
    space = SearchSpace.grid(
        frequency_mhz=list(range(900, 1411, 30)),
        sm_count=list(range(3, 31, 3)),
        launch=["norm", "linear", "rope", "attn"],
    )
    print("\none decision (fit + score 720 candidates + choose 32), seconds of one core, median:")
    for passes in ("default", "published"):
        for num_told in (48, 96, 192, 224):
            elapsed_s = [_one_decision(space, passes, num_told, seed) for seed in range(repeats)]
            print(f"  {passes:10s} {num_told:4d} measured: {np.median(elapsed_s):.3f} s", flush=True)


def _one_decision(space: SearchSpace, passes: str, num_told: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    search = MultiPassOptimizer(space, static_power_w=85.0, passes=passes, sizes=BatchSizes(16, 32, 99, 0.0))
    for i in rng.choice(len(space), num_told, replace=False):
        config = space[int(i)]
        relative = config["frequency_mhz"] / 1410.0
        time_s = (0.3 + 0.7 / relative) * (1.0 + 0.001 * (config["sm_count"] - 12) ** 2) * rng.lognormal(0.0, 0.01)
        search.tell(config, time_s=time_s, energy_j=85.0 * time_s + 200.0 * relative**2 * rng.lognormal(0.0, 0.01))
    start = time.process_time()
    search.ask(32)
    return time.process_time() - start


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with overlap_microbench.csv; without it emulated tables only")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--only", nargs="+", default=["decision", "overlap", *WORKLOADS], help="pieces to run")
    parser.add_argument("--cache", type=Path, help="folder that keeps finished runs")
    parser.add_argument("--priors", action="store_true", help="wrong priors too, on the emulated tables")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    if "decision" in arguments.only:
        decision_time(5)
    for name in ("overlap", *WORKLOADS):
        if name in arguments.only and (name != "overlap" or arguments.data is not None):
            with_priors = arguments.priors and name != "overlap"
            methods = [method for method in METHODS if with_priors or "prior" not in method]
            compare(name, methods, arguments.seeds, arguments.data, arguments.cache, arguments.jobs)


if __name__ == "__main__":
    main()
