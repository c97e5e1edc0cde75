"""The Lightning strategy `kareus`, as a mixin over the `DDPStrategy` of either Lightning package.

`energy_lightning.lightning` and `energy_lightning.pytorch_lightning` combine it with `ParallelExecutionMixin`, which
executes the model, and with the base class of their package. Here: options, workload and device, the plan in force.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from torch import Tensor
from torch.optim import Optimizer

from energy_lightning.callbacks.termination import before_sigterm
from energy_lightning.device import Device
from energy_lightning.emulation import GPU
from energy_lightning.measure import check_plan, describe_run
from energy_lightning.partition import check_tensor_parallel_size, find_stacks
from energy_lightning.strategy_parts.default_callbacks import (
    add_missing_callbacks,
    check_callback_options,
    check_callbacks_with_sharding,
)
from energy_lightning.strategy_parts.job import Job, own_workload
from energy_lightning.strategy_parts.real_runner import RealRunner
from energy_lightning.strategy_parts.settings import DEFAULT_GPU, KareusSettings, check_ddp_options
from energy_lightning.types import Budget, Plan, PlanError, Schedule, StrategyError
from energy_lightning.workload import Workload

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer

    from energy_lightning.strategy_parts.parallel_mixin import ParallelExecutionMixin as _Base
else:
    _Base = object

_DEFAULT_BUCKET_CAP_MB = 8


class KareusMixin(_Base):
    """Trains at the time-energy point that meets a budget.

    Args:
        budget: what may be given for less energy: a Budget, "min_energy", {"max_slowdown": 0.05}, ...
        tensor_parallel_size: ranks that share the weights of the blocks.
        data_parallel_size: replicas; "auto": the devices divided by tensor_parallel_size.
        device: "auto" (an NVIDIA GPU if there is one, else an emulated one) or another name `open_device` knows.
        gpu: which GPU an emulated device plays.
        workload: a Workload, or a preset such as "llama3.2_3b_tp8", to account for instead of the model's own shape.
        activation_checkpointing: recompute the blocks' activations in backward.
        collectives: "auto" (the best that all ranks can use), or "mscclpp", "nccl4py", "nccl_capped", "nccl", "gloo".
        plan: a Plan or the path of a plan.yaml to use; None: profile, search and choose one.
        output_dir: where measurements.jsonl and plan.yaml go; None: `<default_root_dir>/kareus`.
        callback_options: arguments of the default callbacks, e.g. {"PartitionProfiler": {"window_s": 2.0}}.
        ddp_options: any option of Lightning's DDPStrategy or of DistributedDataParallel (bucket_cap_mb, start_method,
            process_group_backend, timeout, find_unused_parameters, ...).

    Raises:
        EnergyLightningError: a setting that cannot be; before training, where Trainer or model must be known for it.
    """

    lightning_package: ClassVar[str]
    callback_types: ClassVar[Mapping[str, type]]

    def __init__(  # what users may set, each by keyword; kept together in KareusSettings
        self,
        budget: Budget | str | Mapping[str, Any] | None = None,
        *,
        tensor_parallel_size: int = 1,
        data_parallel_size: int | Literal["auto"] = "auto",
        device: str = "auto",
        gpu: GPU | str = DEFAULT_GPU,
        workload: Workload | str | None = None,
        activation_checkpointing: bool = False,
        collectives: str = "auto",
        plan: Plan | str | Path | None = None,
        output_dir: str | Path | None = None,
        callback_options: Mapping[str, Mapping[str, Any]] | None = None,
        **ddp_options: Any,
    ) -> None:
        self.settings = KareusSettings.parse(
            budget=budget,
            gpu=gpu,
            workload=workload,
            plan=plan,
            output_dir=output_dir,
            callback_options=callback_options,
            tensor_parallel_size=tensor_parallel_size,
            data_parallel_size=data_parallel_size,
            device=device,
            activation_checkpointing=activation_checkpointing,
            collectives=collectives,
        )
        check_callback_options(self.settings.callback_options, self.callback_types)
        check_ddp_options(ddp_options, type(self))
        super().__init__(**{"bucket_cap_mb": _DEFAULT_BUCKET_CAP_MB, **ddp_options})
        self._job: Job | None = None
        self._runner: RealRunner | None = None
        self._output_dir = self.settings.output_dir

    def __repr__(self) -> str:
        # A Trainer of the other package refuses this object and shows its repr: so it says what to do.
        return (
            f"<{type(self).__module__}.KareusStrategy, made for Trainers of {self.lightning_package}. Trainers of "
            "lightning.pytorch take energy_lightning.KareusStrategy, those of pytorch_lightning take "
            "energy_lightning.pytorch_lightning.KareusStrategy>"
        )

    # what the callbacks read

    @property
    def budget(self) -> Budget:
        """What may be given for less energy."""
        return self.settings.budget

    @property
    def plan(self) -> Plan | None:
        """The plan that the user gave, or None: one is to be found."""
        return self.settings.plan

    @property
    def applied_plan(self) -> Plan | None:
        """What every iteration runs now; None outside fit."""
        return None if self._job is None else self._job.plan

    @property
    def device(self) -> Device | None:
        """This rank's GPU, real or emulated; None outside fit and where there is nothing to measure or emulate."""
        return None if self._job is None else self._job.device

    @property
    def workload(self) -> Workload | None:
        """The job's shape; None outside fit and for a model without recognised blocks unless one was given."""
        return None if self._job is None else self._job.workload

    @property
    def workload_complete(self) -> bool:
        """Whether the workload's batch sizes are known (they are once the first batch has been seen)."""
        return self._job is not None and self._job.workload_complete

    @property
    def rehearsing(self) -> bool:
        """Whether a given workload is accounted for instead of the model's own shape."""
        return self.settings.workload is not None

    @property
    def partition_runner(self) -> RealRunner | None:
        """Runs single partitions of the model on its real GPU; None outside fit, on an emulated GPU, for a rehearsed
        workload (whose shape the model here does not have) and for a model without recognised blocks.
        """
        return self._runner

    @property
    def output_dir(self) -> Path:
        """Folder of measurements and plan, the same on all ranks and in every run that continues this one."""
        if self._output_dir is None:
            raise StrategyError("output_dir is not known before fit unless KareusStrategy(output_dir=...) gives it")
        return self._output_dir

    @property
    def plan_path(self) -> Path:
        """Where the chosen plan is written."""
        return self.output_dir / "plan.yaml"

    def run_key(self) -> dict[str, Any]:
        """What measurements of this run depend on: GPU, workload, library versions.

        Raises StrategyError outside fit and where there is no workload or device.
        """
        if self.device is None or self.workload is None:
            raise StrategyError("there is no device or no workload to describe: the model has no recognised blocks")
        return describe_run(self.device, self.workload)

    def apply_plan(self, plan: Plan) -> None:
        """Run this plan from the next iteration on (frequencies are the FrequencyController's).

        A rehearsed plan changes what is accounted; the real model follows it where its blocks have the same operators.
        Raises PlanError where the plan does not fit the model.
        """
        if self._job is None:
            raise StrategyError("apply_plan needs a running fit")
        if len(plan.stages) == 1:
            self._apply_to_model(plan)
        self._job.plan = plan

    def _apply_to_model(self, plan: Plan) -> None:
        if self._grad_buckets is not None:
            self._grad_buckets.schedule = plan.backward.schedules.get("grad_bucket", Schedule())
        if self._execution is None:
            return
        try:
            self._execution.apply(plan)
        except PlanError:
            if not self.rehearsing:
                raise
            self._execution.apply(Plan.sequential())

    # a run

    def connect(self, model: LightningModule) -> None:
        """Add the callbacks that are missing, before Lightning asks the model for its own."""
        super().connect(model)
        if model.trainer.state.fn == "fit":
            add_missing_callbacks(model.trainer, self.callback_types, self.settings.callback_options)

    def setup(self, trainer: Trainer) -> None:
        """Set the model up, then find out what is trained on what."""
        if self._output_dir is None:
            self._output_dir = self.broadcast(Path(trainer.default_root_dir).absolute() / "kareus")
        if trainer.state.fn != "fit":
            super().setup(trainer)
            return
        if self.tensor_parallel_size > 1:
            check_callbacks_with_sharding(trainer)
        own = self._own_workload(trainer)  # before the engine takes the blocks' place
        super().setup(trainer)
        # on a CPU, an NVIDIA device asked for by name is the visible GPU of the rank's number
        gpu = self.local_rank if self.root_device.type == "cpu" else self.root_device
        self._job = Job.open(self.settings, own=own, torch_device=gpu, speaks=self.is_global_zero)
        self._runner = self._make_runner(trainer)
        if self.plan is not None:
            if self.device is not None:
                check_plan(self.plan, self.device, self.workload)
            self.apply_plan(self.plan)

    def _make_runner(self, trainer: Trainer) -> RealRunner | None:
        if self.device is None or self.device.emulated or self.rehearsing or self._execution is None:
            return None
        return RealRunner(
            self._execution,
            checkpointing=self.settings.activation_checkpointing,
            num_microbatches=trainer.accumulate_grad_batches,
            context=self.precision_plugin.train_step_context,
            optimizers=lambda: self.optimizers,
        )

    def _own_workload(self, trainer: Trainer) -> Workload | None:
        stacks = find_stacks(self._module())
        if not stacks or self._layout is None:
            return None
        for stack in stacks:
            check_tensor_parallel_size(stack, self.tensor_parallel_size)
        return own_workload(
            stacks[0].config,
            layout=self._layout,
            settings=self.settings,
            num_microbatches=trainer.accumulate_grad_batches,
            precision=str(trainer.precision),
        )

    def barrier(self, name: str | None = None) -> None:
        """At "run-stage" Lightning has just set its handler of SIGTERM: the GPU is given back before that runs."""
        if name == "run-stage" and self._job is not None:
            before_sigterm(self._job.give_back)
        super().barrier(name)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Complete the workload with the first batch's sizes."""
        super().on_train_batch_start(batch, batch_idx)
        if self._job is not None:
            self._job.begin_batch()
            self._job.observe_batch(batch)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        """Forward of one microbatch."""
        output = super().training_step(*args, **kwargs)
        if self._job is not None:
            self._job.account_forward()
        return output

    def backward(self, closure_loss: Tensor, optimizer: Optimizer | None, *args: Any, **kwargs: Any) -> Tensor:
        """Backward of one microbatch."""
        loss = super().backward(closure_loss, optimizer, *args, **kwargs)
        if self._job is not None:
            self._job.account_backward()
        return loss

    def optimizer_step(self, optimizer: Optimizer, closure: Callable[[], Any], model: Any = None, **kwargs: Any) -> Any:
        """Optimizer step; the closure runs forward and backward."""
        output = super().optimizer_step(optimizer, closure, model, **kwargs)
        if self._job is not None:
            self._job.account_iteration_end()
        return output

    def on_exception(self, exception: BaseException) -> None:
        """Give the device back first: what follows may wait for ranks that are gone."""
        if self._job is not None:
            self._job.give_back()
        super().on_exception(exception)

    def teardown(self) -> None:
        """Give the device back, then the model."""
        if self._job is not None:
            self._job.close()
        if self._runner is not None:
            self._runner.close()
        self._job = self._runner = None
        super().teardown()
