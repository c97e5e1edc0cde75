"""A trainer that calls the callbacks' hooks in Lightning's order, with an emulated device and no model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from energy_lightning.callbacks import build_callbacks
from energy_lightning.device import EmulatedDevice
from energy_lightning.emulation import GPU
from energy_lightning.measure import describe_run
from energy_lightning.types import Budget, Plan
from energy_lightning.workload import Workload

CALLBACKS = build_callbacks(object, __name__)
EnergyMonitor = CALLBACKS["EnergyMonitor"]
PartitionProfiler = CALLBACKS["PartitionProfiler"]
FrontierOptimizer = CALLBACKS["FrontierOptimizer"]
FrequencyController = CALLBACKS["FrequencyController"]

for _name in CALLBACKS:
    CALLBACKS[_name].state_key = _name  # as Lightning's base class names it

WORKLOAD = Workload.preset("llama3.2_1b_tp8", microbatch_size=4, sequence_length=2048)
SMALL = {"initial": 12, "batch": 8, "num_batches": 1}
CLOCKS_MHZ = (1410, 1200, 990)


class RefusingDevice(EmulatedDevice):
    """May be clocked so many times; from then on it says nothing and changes nothing, as the protocol has it."""

    def __init__(self, num_permitted: int) -> None:
        super().__init__(GPU.load("a100-sxm4-40gb"), WORKLOAD)
        self.num_permitted, self.can_lock_frequency = num_permitted, num_permitted > 0

    def lock_frequency(self, frequency_mhz: int) -> None:
        self.num_permitted -= 1
        self.can_lock_frequency = self.num_permitted >= 0
        if self.can_lock_frequency:
            super().lock_frequency(frequency_mhz)


class FakeStrategy:
    """One rank of the job: broadcasts to itself, accounts for the plan in force."""

    def __init__(self, output_dir: Path, *, budget: Budget | None = None, workload: Workload | None = WORKLOAD) -> None:
        self.workload, self.budget, self.output_dir = workload, budget or Budget("min_energy"), output_dir
        self.device: Any = None if workload is None else EmulatedDevice(GPU.load("a100-sxm4-40gb"), workload)
        self.plan: Plan | None = None
        self.applied_plan: Plan | None = Plan.sequential()
        self.root_device = SimpleNamespace(type="cpu")
        self.applied: list[Plan] = []
        self.library = "1"

    def run_key(self) -> dict[str, Any]:
        return {**describe_run(self.device, self.workload), "library": self.library}  # type: ignore[arg-type]

    def apply_plan(self, plan: Plan) -> None:
        self.applied.append(plan)
        self.applied_plan = plan

    def broadcast(self, value: Any) -> Any:
        return value


class FakeModule:
    """Collects what is logged and said."""

    def __init__(self) -> None:
        self.logged: list[dict[str, float]] = []
        self.lines: list[str] = []

    def log_dict(self, metrics: dict[str, float], **options: Any) -> None:
        self.logged.append(dict(metrics))

    def print(self, line: str) -> None:
        self.lines.append(line)


class FakeTrainer:
    """Lightning's order of hooks over a number of optimizer steps."""

    is_global_zero, global_rank, world_size = True, 0, 1
    sanity_checking = False
    progress_bar_callback = None

    def __init__(self, strategy: Any, callbacks: Sequence[Any], *, max_steps: int = 20, accumulate: int = 1) -> None:
        self.strategy, self.callbacks = strategy, list(callbacks)
        self.lightning_module = FakeModule()
        self.estimated_stepping_batches: float = max_steps
        self.accumulate_grad_batches = accumulate
        self.global_step = self.current_epoch = 0
        self.forward_mhz: list[int] = []
        self.backward_mhz: list[int] = []

    def call(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            method: Callable[..., None] | None = getattr(callback, hook, None)
            if method is not None:
                method(self, self.lightning_module, *arguments)

    def fit(self, num_steps: int | None = None, *, validate_every: int | None = None) -> None:
        self.call("on_train_start")
        for step in range(int(self.estimated_stepping_batches) if num_steps is None else num_steps):
            for microbatch in range(self.accumulate_grad_batches):
                self.batch(microbatch, steps=microbatch == self.accumulate_grad_batches - 1)
            if validate_every and (step + 1) % validate_every == 0:
                self.call("on_validation_start")
                self.call("on_validation_end")
        self.call("on_train_epoch_end")
        self.call("on_train_end")
        self.call("teardown", "fit")

    def batch(self, index: int, *, steps: bool) -> None:
        device, plan = self.strategy.device, self.strategy.applied_plan
        self.call("on_train_batch_start", None, index)
        plan = self.strategy.applied_plan
        if device is not None:
            self.forward_mhz.append(device.frequency_mhz())
            device.run_phase(plan.forward)
        self.call("on_before_backward", None)
        if device is not None:
            self.backward_mhz.append(device.frequency_mhz())
            device.run_phase(plan.backward)
        if steps:
            if device is not None:
                device.run_iteration_end(plan.backward)
            self.global_step += 1
        self.call("on_train_batch_end", None, None, index)


def all_callbacks(**profiler: Any) -> list[Any]:
    return [
        EnergyMonitor(),
        PartitionProfiler(**{"warmup_steps": 2, **profiler}),
        FrontierOptimizer(frequencies_mhz=CLOCKS_MHZ, sizes=SMALL),
        FrequencyController(drift_steps=5),
    ]
