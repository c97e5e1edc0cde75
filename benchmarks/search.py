"""How much of a measured time-energy front each kind of search finds, and how long one decision takes.

    python benchmarks/search.py --data DIR [--seeds 20] [--quick]

Tables: DIR/overlap_microbench.csv replayed (measured on 2 A100s), and partitions of three workloads on the emulated
A100-SXM4-40GB with 1.5% noise on what the search sees (emulated). Gap = 1 - hypervolume found / hypervolume of the
whole table, both of true values, scaled so that the least time and energy are 0, and 1.6 x the least time and the 95th
percentile of energy are 1; reference (1.1, 1.1). Seeds are paired: run k of every method draws from seed k.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
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
OURS = BatchSizes(12, 4, 25, 0.0)
CHECKPOINTS = (32, 48, 64, 72, 112)


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


def wrong_prior(table: Table, seed: int) -> Table:
    """The same table with a prior that misjudges clock and SM count by up to a fifth, as an emulator would."""
    rng = np.random.default_rng(seed)
    tilt = rng.uniform(-0.2, 0.2, (2, 2))
    scaled = np.stack([_unit(table.space.column(name)) for name in ("frequency_mhz", "sm_count")])
    values = np.stack([table.time_s, table.energy_j]) * np.exp(tilt @ scaled)
    prior = {tuple(table.space[i].items()): tuple(values[:, i]) for i in range(len(table.space))}
    return Table(
        table.name,
        table.space,
        table.time_s,
        table.energy_j,
        table.static_power_w,
        table.noise,
        lambda config: prior[tuple(config.items())],
    )


def _unit(values: list[Any]) -> np.ndarray:
    numbers = np.array(values, dtype=np.float64)
    return (numbers - numbers.min()) / np.ptp(numbers)


def replay(
    table: Table, passes: str, seed: int, sizes: BatchSizes | None, checkpoints: Iterable[int]
) -> dict[int, float]:
    """Gap (fraction) at each number of measurements, and under key -1 the number at which the search stopped."""
    prior = table.prior if passes == "default" else None
    search = MultiPassOptimizer(
        table.space, static_power_w=table.static_power_w, seed=seed, passes=passes, prior=prior, sizes=sizes
    )
    factors = np.exp(table.noise * np.random.default_rng(seed).standard_normal((2, len(table.space))))
    measured: list[int] = []
    while not search.done:
        for config in search.ask():
            i = table.space.index(config)
            measured.append(i)
            search.tell(config, time_s=table.time_s[i] * factors[0, i], energy_j=table.energy_j[i] * factors[1, i])
    return {n: table.gap(measured[:n]) for n in checkpoints} | {-1: len(measured), -2: table.gap(measured)}


def compare(table: Table, seeds: range) -> None:
    """Print the medians (and interquartile ranges) of the gaps of every method on one table."""
    print(f"\n{table.name}: {len(table.space)} configurations, noise {table.noise:.1%}, {len(seeds)} seeds")
    print(f"{'method':34s} {'measured':>8s} {'gap, median':>12s} {'(quartiles)':>17s} {'windows + cool-down':>20s}")
    for n, sizes in PUBLISHED.items():
        _row("random", n, [replay(table, "random", s, BatchSizes(n, 1, 0), [n])[n] for s in seeds])
        _row(
            f"published ({sizes.initial} + 4 x {sizes.batch})",
            n,
            [replay(table, "published", s, sizes, [n])[n] for s in seeds],
        )
    _ours("default", [replay(table, "default", s, OURS, CHECKPOINTS) for s in seeds], CHECKPOINTS)
    stopped = [replay(table, "default", s, None, []) for s in seeds]
    _row("default, stopping by itself", round(np.median([r[-1] for r in stopped])), [r[-2] for r in stopped])
    if table.noise:
        runs = [replay(wrong_prior(table, s), "default", s, OURS, CHECKPOINTS) for s in seeds]
        _ours("default, prior off by up to 20%", runs, CHECKPOINTS)


def _ours(name: str, runs: list[dict[int, float]], checkpoints: Iterable[int]) -> None:
    for n in checkpoints:
        _row(name, n, [run[n] for run in runs])


def _row(name: str, measured: int, gaps: list[float]) -> None:
    low, median, high = np.percentile(gaps, [25, 50, 75]) * 100.0
    seconds = measured * (WINDOW_S + COOL_DOWN_S)
    print(f"{name:34s} {measured:8d} {median:11.2f}% {f'({low:.2f}-{high:.2f})':>17s} {seconds:18.0f} s", flush=True)


def decision_time(repeats: int) -> None:
    """Print the time of one decision: fit, score 720 candidates, choose 32."""
    space = SearchSpace.grid(
        frequency_mhz=list(range(900, 1411, 30)),
        sm_count=list(range(3, 31, 3)),
        launch=["norm", "linear", "rope", "attn"],
    )
    print("\none decision (fit + score 720 candidates + choose 32), seconds of one core, median:")
    for passes in ("default", "published"):
        for num_told in (48, 96, 192):
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
    parser.add_argument("--quick", action="store_true", help="measured table only")
    arguments = parser.parse_args()
    decision_time(5)
    if arguments.data is not None:
        compare(measured_overlap(arguments.data / "overlap_microbench.csv"), range(arguments.seeds))
    if not arguments.quick:
        for workload, key in WORKLOADS.items():
            compare(emulated_partition(workload, key), range(arguments.seeds))


if __name__ == "__main__":
    main()
