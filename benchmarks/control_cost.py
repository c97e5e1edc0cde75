"""What measuring and control of the clock cost the training path: at most 0.2 ms a step (median).

    python benchmarks/control_cost.py --steps 400

What is timed. EnergyMonitor and FrequencyController are driven as Lightning drives them (on_train_batch_start,
on_before_backward, on_train_batch_end), with a plan that predicts what a step takes, so that drift is watched, and that
changes the clock before every forward and every backward.
Wall time inside the hooks is added up per step. Between the hooks a phase takes --phase-s, by --work: "waiting" sleeps,
so that the hooks find a processor that has just woken up; "launching" issues small torch operations one after another,
as the host of a training does while its GPU is busy; "computing" stays in Python without ever letting go of the
interpreter, so that the time of a whole step shows what the switcher's thread takes away. --pause-s passes between two
steps, as where data comes late. Variants:

- empty hooks: two callbacks that do nothing; what calling and timing them takes, contained in all the others
- measuring only: the callbacks, with a plan that leaves the clock alone
- asynchronous: the clock is changed by FrequencySwitcher's thread (what the callbacks do)
- synchronous: the same changes made inside the hooks, for comparison

The NVML underneath is EMULATED (unmodified pynvml and Zeus above it): "in process" answers from this process, "server"
from another one, over a socket, as a system call leaves the process. Not in it: what a real driver's calls take. Steps
in which the counter is read (one in ten of its refreshes) count as the others do.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from energy_lightning.callbacks import build_callbacks
from energy_lightning.device.guard import HardwareGuard
from energy_lightning.device.nvidia import NvidiaDevice
from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator, NvmlServer
from energy_lightning.types import Budget, PhasePlan, Plan

LIMIT_S = 0.2e-3
CALLBACKS = build_callbacks(object, __name__)
PREDICTED = {"time_s": 1.0, "energy_j": 250.0}
SWITCHING = Plan.single_stage(PhasePlan("forward", 1200), PhasePlan("backward", 900), **PREDICTED)


class SynchronousDevice(NvidiaDevice):
    """Passes for one on a virtual clock, where changes are made in the caller."""

    virtual_clock = True


@dataclass
class Job:
    """The strategy's side of the callbacks."""

    device: Any
    plan: Plan | None
    output_dir: Path
    workload: None = None
    budget: Budget = field(default_factory=lambda: Budget("min_energy"))
    root_device: Any = field(default_factory=lambda: SimpleNamespace(type="cpu"))

    @property
    def applied_plan(self) -> Plan | None:
        """The plan that was given."""
        return self.plan

    def run_key(self) -> dict[str, Any]:
        """Not asked for."""
        return {}

    def apply_plan(self, plan: Plan) -> None:
        """Not asked for."""

    def broadcast(self, value: Any) -> Any:
        """There is one rank."""
        return value


class Module:
    """Takes what is logged and said."""

    def log_dict(self, metrics: dict[str, float], **options: Any) -> None:
        """Log nothing."""

    def print(self, line: str) -> None:
        """Say nothing."""


class EmptyHooks:
    """A callback that does nothing."""

    def on_train_batch_start(self, *arguments: Any) -> None:
        """Nothing."""

    on_before_backward = on_train_batch_end = on_train_batch_start


class Hooks:
    """Calls hooks as a Trainer does, and keeps the time spent in them by step."""

    is_global_zero, global_rank, world_size, sanity_checking = True, 0, 1, False
    accumulate_grad_batches = 1

    def __init__(self, job: Job, callbacks: list[Any]) -> None:
        self.strategy, self.callbacks, self.lightning_module = job, callbacks, Module()
        self.global_step = self.current_epoch = 0
        self.spent_s = 0.0

    def call(self, hook: str, *arguments: Any) -> None:
        """Call a hook of every callback."""
        start_s = time.perf_counter()
        for callback in self.callbacks:
            method: Callable[..., None] | None = getattr(callback, hook, None)
            if method is not None:
                method(self, self.lightning_module, *arguments)
        self.spent_s += time.perf_counter() - start_s

    def step(self, phase: Callable[[], object]) -> tuple[float, float]:
        """One optimizer step; returns the time in s that it spent in hooks, and that it took."""
        self.spent_s, start_s = 0.0, time.perf_counter()
        self.call("on_train_batch_start", None, self.global_step)
        phase()
        self.call("on_before_backward", None)
        phase()
        self.global_step += 1
        self.call("on_train_batch_end", None, None, self.global_step)
        return self.spent_s, time.perf_counter() - start_s


def run_steps(
    device: Any, plan: Plan, num_steps: int, phase: Callable[[], object], pause_s: float
) -> list[tuple[float, float]]:
    """(time in hooks, time) in s of each step; the first ten are left out: they start the thread and the watchdog."""
    monitor = CALLBACKS["EnergyMonitor"]()
    controller = CALLBACKS["FrequencyController"](min_dwell_s=0.0, drift_tolerance=math.inf)  # watched, never told
    hooks = Hooks(Job(device, plan, Path()), [monitor, controller])
    hooks.call("on_train_start")
    for _ in range(10):
        hooks.step(phase)
    time.sleep(1.0)  # the watchdog has started
    num_before = controller.num_switches
    steps_s = []
    for _ in range(num_steps):
        steps_s.append(hooks.step(phase))
        if pause_s:
            time.sleep(pause_s)
    num_wanted = 0 if plan.forward.frequency_mhz is None else 2 * num_steps
    num_made = controller.num_switches - num_before
    hooks.call("on_train_end")
    hooks.call("teardown", "fit")
    if num_made < 0.9 * num_wanted:  # the others were overtaken by the next one
        print(f"only {num_made} of {num_wanted} changes of the clock were made: give longer phases", file=sys.stderr)
    return steps_s


def computing(time_s: float) -> Callable[[], object]:
    """Python work of about this long."""
    count, start_s = 0, time.perf_counter()
    while time.perf_counter() - start_s < 0.2:
        sum(range(1000))
        count += 1
    num_rounds = max(1, round(count * time_s / 0.2))
    return lambda: [sum(range(1000)) for _ in range(num_rounds)]


def launching(time_s: float) -> Callable[[], object]:
    """Small operations of torch, for this long."""
    rows = torch.ones(64, 64)

    def phase() -> None:
        end_s = time.perf_counter() + time_s
        while time.perf_counter() < end_s:
            rows @ rows

    return phase


def waiting(time_s: float) -> Callable[[], object]:
    """A sleep."""
    return lambda: time.sleep(time_s)


WORK: dict[str, Callable[[float], Callable[[], object]]] = {
    "waiting": waiting,
    "launching": launching,
    "computing": computing,
}


@contextmanager
def in_process() -> Iterator[None]:
    with NvmlEmulator([EmulatedBoard()]) as nvml:
        nvml.load(0, 1.0)
        yield


@contextmanager
def in_server() -> Iterator[None]:
    with NvmlServer([EmulatedBoard()]) as server, server.installed():
        server.load(0, 1.0)
        yield


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--phase-s", type=float, default=0.02, help="time of a forward, and of a backward")
    parser.add_argument("--pause-s", type=float, default=0.0, help="time between two steps")
    parser.add_argument("--work", choices=WORK, default="waiting", help="what a phase does")
    arguments = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    print(f"commit {commit.stdout.strip()}; {machine}; load {os.getloadavg()[0]:.1f}")
    times = f"2 x {arguments.phase_s:g} s, {arguments.pause_s:g} s between two"
    print(f"EMULATED NVML; {arguments.steps} steps of {times}, {arguments.work}; ms a step\n")
    print("| NVML | Variant | In hooks, median | 95th percentile | Highest | Limit (median) | Whole step, median |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: |")
    seconds = float(arguments.phase_s)
    phase = WORK[arguments.work](seconds)
    variants: dict[str, tuple[type[NvidiaDevice], Plan]] = {
        "measuring only": (NvidiaDevice, Plan.sequential(**PREDICTED)),
        "asynchronous": (NvidiaDevice, SWITCHING),
        "synchronous": (SynchronousDevice, SWITCHING),
    }
    hooks = Hooks(Job(None, None, Path()), [EmptyHooks(), EmptyHooks()])
    print(f"| - | empty hooks | {row([hooks.step(phase) for _ in range(arguments.steps)], '')} |")
    for where, serving in (("in process", in_process), ("server", in_server)):
        for variant, (kind, plan) in variants.items():
            with tempfile.TemporaryDirectory() as folder, serving():
                device = kind(0, guard=HardwareGuard(Path(folder)))
                steps_s = run_steps(device, plan, arguments.steps, phase, arguments.pause_s)
                device.close()
                device.guard.close()
            print(
                f"| {where} | {variant} | {row(steps_s, '' if kind is SynchronousDevice else f'{1e3 * LIMIT_S:g}')} |"
            )


def row(steps_s: list[tuple[float, float]], limit: str) -> str:
    hooks_s, whole_s = zip(*steps_s, strict=True)
    values_s = (statistics.median(hooks_s), statistics.quantiles(hooks_s, n=20)[-1], max(hooks_s))
    columns = [*(f"{1e3 * value_s:.3f}" for value_s in values_s), limit, f"{1e3 * statistics.median(whole_s):.2f}"]
    return " | ".join(columns)


if __name__ == "__main__":
    main()
