"""What profiling and search cost beside the measuring windows: at most 5% of the windows.

    python benchmarks/profiling_overhead.py --repeats 5

What is compared. On a real GPU each configuration takes a window (5 s of repeats) and a cool-down (5 s of rest), both
part of the measuring protocol. Here the GPU is EMULATED: windows, cool-downs, warm-up runs and clock changes pass on
its virtual clock, where they take as long as the model says a real GPU would need. Search and bookkeeping (asking,
telling, writing measurements.jsonl, composing the frontier, writing plan.yaml) are real work of this machine, timed
with the wall clock. Overhead = wall time of search and bookkeeping + virtual time of warm-up runs and clock changes,
as a share of the virtual time inside windows. The emulator's own computing stands in for the GPU and counts nowhere.

One process, as rank 0 does it between training steps; one search per repeat, fresh folder, seeds 0, 1, ...
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from energy_lightning.callbacks import FrontierSearch, IterationCosts, SearchSettings, partition_tasks
from energy_lightning.device import EmulatedDevice
from energy_lightning.emulation import GPU
from energy_lightning.measure import (
    EmulatedRunner,
    MeasurementStore,
    PartitionMeter,
    WindowSettings,
    describe_run,
    save_plan,
)
from energy_lightning.types import Budget
from energy_lightning.workload import Workload

LIMIT = 0.05
BATCH = 64
WORKLOADS = {
    "bert_base_tp2, 8 x 128": Workload.preset("bert_base_tp2", microbatch_size=8, sequence_length=128),
    "llama3.2_1b_tp2, 8 x 2048": Workload.preset("llama3.2_1b_tp2", microbatch_size=8, sequence_length=2048),
    "llama3.2_3b_tp8, 8 x 4096, recompute": Workload.preset(
        "llama3.2_3b_tp8", microbatch_size=8, sequence_length=4096, activation_checkpointing=True
    ),
}


@dataclass(frozen=True)
class Cost:
    """Of profiling one job once: virtual seconds of the GPU, wall seconds of this machine."""

    num_measured: int
    windows_s: float
    cool_downs_s: float
    warm_up_s: float
    search_wall_s: float

    @property
    def overhead(self) -> float:
        """Share of the windows."""
        return (self.search_wall_s + self.warm_up_s) / self.windows_s


def profile(workload: Workload, gpu: GPU, seed: int, folder: Path) -> Cost:
    device, settings = EmulatedDevice(gpu, workload), WindowSettings()
    meter, rng = PartitionMeter(device, EmulatedRunner(device), settings), np.random.default_rng(seed)
    wall_s = -time.perf_counter()
    run = describe_run(device, workload)
    store = MeasurementStore(folder / "measurements.jsonl", run, source=device.energy_source)
    costs = IterationCosts(
        num_microbatches=workload.num_microbatches,
        static_power_w=device.static_power_w,
        switch_time_s=device.switch_time_s,
        emulated=True,
    )
    search = FrontierSearch(partition_tasks(workload, device), store, costs, SearchSettings(seed=seed))
    while requests := search.ask(BATCH):
        wall_s += time.perf_counter()
        results = meter.measure_all(requests, rng)
        wall_s -= time.perf_counter()
        for (_, config), measurement in zip(requests, results, strict=True):
            search.tell(config, measurement)
    save_plan(folder / "plan.yaml", search.outcome(Budget("max_slowdown")).plan, run=run)
    wall_s += time.perf_counter()
    warm_up_s = device.now_s() - meter.window_time_s - meter.cool_down_time_s
    return Cost(search.num_measured, meter.window_time_s, meter.cool_down_time_s, warm_up_s, wall_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--gpu", default="a100-sxm4-40gb")
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"commit {commit.stdout.strip()}; {machine}")
    print(f"EMULATED {arguments.gpu}; median of {arguments.repeats} searches (range)\n")
    print(
        "| Workload | Configurations | Windows, virtual s | Cool-downs | Warm-up | Search, wall s | Overhead | Limit |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    gpu = GPU.load(arguments.gpu)
    for name, workload in WORKLOADS.items():
        runs = []
        for seed in range(arguments.repeats):
            with tempfile.TemporaryDirectory() as folder:
                runs.append(profile(workload, gpu, seed, Path(folder)))
        print(f"| {name} | {row(runs)} | {LIMIT:.0%} |")


def row(runs: list[Cost]) -> str:
    columns = [
        f"{statistics.median(run.num_measured for run in runs):.0f}",
        f"{statistics.median(run.windows_s for run in runs):.0f}",
        f"{statistics.median(run.cool_downs_s for run in runs):.0f}",
        f"{statistics.median(run.warm_up_s for run in runs):.1f}",
        f"{statistics.median(run.search_wall_s for run in runs):.1f}",
    ]
    overheads = [run.overhead for run in runs]
    return " | ".join([*columns, f"{statistics.median(overheads):.2%} ({min(overheads):.2%} to {max(overheads):.2%})"])


if __name__ == "__main__":
    main()
