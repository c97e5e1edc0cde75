"""The job as the planner sees it: its workload, this rank's device, the plan in force, and emulated accounting."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from energy_lightning.device import Device, EmulatedDevice, open_device
from energy_lightning.parallel.batches import token_shape
from energy_lightning.parallel.layout import ParallelLayout
from energy_lightning.strategy_parts.settings import KareusSettings
from energy_lightning.types import DeviceError, EnergyLightningError, Phase, PhasePlan, Plan
from energy_lightning.workload import Workload

log = logging.getLogger(__name__)


class Job:
    """What one rank trains, and on what.

    Args:
        workload: shape and parallelism; None where the model has no recognised blocks and none was given.
        rehearsing: the workload is a target's, not the shape of the model that really trains here.
        device: this rank's GPU, real or emulated; None where there is nothing to measure or emulate.
        speaks: whether this rank writes log lines.
    """

    def __init__(self, workload: Workload | None, *, rehearsing: bool, device: Device | None, speaks: bool) -> None:
        self.workload = workload
        self.rehearsing = rehearsing
        self.device = device
        self.plan = Plan.sequential()
        """What every iteration runs now."""
        self.workload_complete = rehearsing or workload is None
        """Whether microbatch size and sequence length are those of the real batches."""
        self._speaks = speaks
        self._accounts = isinstance(device, EmulatedDevice)
        self._iteration_ended = False

    @classmethod
    def open(
        cls, settings: KareusSettings, *, own: Workload | None, torch_device: torch.device | int, speaks: bool
    ) -> Job:
        """The job of one rank: the rehearsed workload if there is one, else the model's `own`. Collective.

        Raises DeviceError for a device asked for by name that cannot be opened; "auto" then goes on without one.
        """
        workload = settings.workload or own
        job_id = _shared_id()
        device: Device | None = None
        reason = "no recognised transformer blocks and no GPU"
        if workload is not None or _is_real(settings.device):
            try:
                device = _open(settings, workload, torch_device, job_id, speaks=speaks)
            except (DeviceError, ImportError) as error:
                if settings.device != "auto":
                    raise
                reason = f"the GPU cannot be measured ({error})"
        if device is None and speaks:
            log.warning(
                f"energy_lightning: {reason}: training goes on, time and energy are not accounted. "
                'KareusStrategy(workload="llama3.2_3b_tp8", device="emulated") rehearses a job.'
            )
        return cls(workload, rehearsing=settings.workload is not None, device=device, speaks=speaks)

    def observe_batch(self, batch: Any) -> None:
        """Complete the workload with the sizes of the first batch of token ids."""
        if self.workload_complete or self.workload is None:
            return
        shape = token_shape(batch)
        if shape is not None:
            self.workload = self.workload.with_sizes(microbatch_size=shape[0], sequence_length=shape[1])
            if isinstance(self.device, EmulatedDevice):
                self.device.set_workload(self.workload)
        elif self._speaks:
            log.warning(
                "energy_lightning: the first batch holds no token ids of shape (sequences, tokens): the workload keeps "
                f"microbatch_size={self.workload.microbatch_size}, sequence_length={self.workload.sequence_length}."
            )
        self.workload_complete = True

    def begin_batch(self) -> None:
        """A new batch: the next optimizer step ends an iteration, further ones for the same batch do not."""
        self._iteration_ended = False

    def account_forward(self) -> None:
        """One microbatch's forward, on an emulated device."""
        if self._accounts:  # asked here, for on a real GPU a step of training should cost nothing more
            self._account(lambda device: device.run_phase(_phase(self.plan, "forward")))

    def account_backward(self) -> None:
        """One microbatch's backward, on an emulated device."""
        if self._accounts:
            self._account(lambda device: device.run_phase(_phase(self.plan, "backward")))

    def account_iteration_end(self) -> None:
        """Gradient reduction and optimizer, on an emulated device; once per batch however many optimizers step."""
        if self._accounts and not self._iteration_ended:
            self._iteration_ended = True
            self._account(lambda device: device.run_iteration_end(_phase(self.plan, "backward")))

    def _account(self, run: Callable[[EmulatedDevice], object]) -> None:
        assert isinstance(self.device, EmulatedDevice), "nothing is accounted on any other"
        try:
            run(self.device)
        except EnergyLightningError as error:  # accounting is a service: training goes on without it
            self._accounts = False
            if self._speaks:
                log.warning(f"energy_lightning: emulated accounting stops, training goes on: {error}")

    def give_back(self) -> None:
        """Clocks and limits as they were, now and for good; the device can still be read. Idempotent."""
        if self.device is not None:
            self.device.close()

    def close(self) -> None:
        """Give the device back and forget it. Idempotent."""
        device, self.device, self._accounts = self.device, None, False
        if device is not None:
            device.close()


def own_workload(
    config: Any, *, layout: ParallelLayout, settings: KareusSettings, num_microbatches: int, precision: str
) -> Workload:
    """The workload of the model that trains here; batch sizes are filled in when the first batch is seen.

    `config` is the transformers configuration of its block stack, `precision` a Lightning precision name.
    """
    return Workload.from_config(
        config,
        tensor_parallel=layout.tensor_parallel_size,
        data_parallel=layout.data_parallel_size,
        num_microbatches=num_microbatches,
        activation_checkpointing=settings.activation_checkpointing,
        dtype={"bf16": "bf16", "16": "fp16"}.get(precision.split("-")[0], "fp32"),
    )


def _phase(plan: Plan, phase: Phase) -> PhasePlan:
    """What one microbatch runs; of a rehearsed pipeline this is the first stage's first microbatch."""
    return next(found for found in plan.stages[0] if found.phase == phase)


def _open(
    settings: KareusSettings, workload: Workload | None, torch_device: torch.device | int, job_id: str, *, speaks: bool
) -> Device:
    # the other ranks need not repeat that "auto" found no GPU
    name = settings.device if speaks or _is_real(settings.device) else "emulated"
    return open_device(
        name,
        gpu=settings.gpu,
        workload=workload,  # type: ignore[arg-type]  # None only for a real GPU, which needs none
        torch_device=torch_device,
        job=job_id,
    )


def _shared_id() -> str:
    """A name that all ranks of this run have and no other run has: they may share a GPU, others may not. Collective."""
    names = [f"{os.getpid()}-{secrets.token_hex(4)}"]
    if dist.is_available() and dist.is_initialized():
        dist.broadcast_object_list(names, src=0)
    return names[0]


def _is_real(device_name: str) -> bool:
    return device_name not in ("auto", "emulated") or (device_name == "auto" and torch.cuda.is_available())
