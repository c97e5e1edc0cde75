"""Several callbacks and one device: whoever opened it first shares it, and accounts for an emulated one's work."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from energy_lightning.callbacks.job import job_of
from energy_lightning.callbacks.monitored import ClockOnly, Monitored, emulated_for
from energy_lightning.device import Device, open_device
from energy_lightning.types import DeviceError, WorkloadError
from energy_lightning.workload import Workload

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceChoice:
    """What a user may say of the device: see EnergyMonitor.

    Attributes:
        device: a Device, a name for `open_device`, or None: another callback's or the strategy's, else an NVIDIA GPU.
        workload: job shape for an emulated device under a strategy that has none.
        gpu: GPU model of such an emulated device.
    """

    device: Device | str | None = None
    workload: Workload | None = None
    gpu: str = "a100-sxm4-40gb"

    @classmethod
    def parse(cls, device: Device | str | None, workload: Workload | str | None, gpu: str) -> DeviceChoice:
        """`workload` may be a preset's name. DeviceError for what is neither a device nor a name."""
        if not isinstance(device, (str, type(None))) and not hasattr(device, "energy_source"):
            raise DeviceError(
                f"device must be a Device, a name such as 'nvidia' or 'emulated', or None, got {device!r}"
            )
        if not isinstance(workload, (str, Workload, type(None))):
            raise WorkloadError(f"workload must be a Workload, the name of a preset, or None, got {workload!r}")
        shape = Workload.preset(workload) if isinstance(workload, str) else workload
        return cls(device=device, workload=shape, gpu=gpu)

    def scaled(self, ratio: float) -> DeviceChoice:
        """The same with `ratio` times the sequences in a microbatch, one at least."""
        if self.workload is None:
            return self
        num_sequences = max(1, round(ratio * self.workload.microbatch_size))
        return replace(self, workload=self.workload.with_sizes(microbatch_size=num_sequences))

    def open(self, trainer: Any, owner: Any, *, clock_s: Callable[[], float] = time.perf_counter) -> Monitored:
        """The device for `owner`, one of the trainer's callbacks: another's that is open, or one of its own.

        Collective. Where none is to be had time is still measured, by `clock_s`, and the note says why energy is not,
        where no other's has. Raises DeviceError for a device asked for by name that cannot be opened.
        """
        found = [getattr(each, "monitored", None) for each in trainer.callbacks if each is not owner]
        others = [one for one in found if isinstance(one, Monitored)]
        opened = self._opened(trainer, others, clock_s)
        return replace(opened, note="") if opened.note in [one.note for one in others] else opened

    def _opened(self, trainer: Any, others: Sequence[Monitored], clock_s: Callable[[], float]) -> Monitored:
        job_id = trainer.strategy.broadcast(secrets.token_hex(8))  # ranks of one job may share a GPU, others may not
        job, root = job_of(trainer), trainer.strategy.root_device
        own = None if job is None else job.device
        if self.device is None and own is not None:
            return Monitored(own)
        if self.device is not None and not isinstance(self.device, str):
            return Monitored(self.device)
        for one in others:
            if not isinstance(one.device, ClockOnly):
                return replace(one, owned=False, driven=False, note="")
        if isinstance(self.device, str) and self.device not in ("auto", "emulated"):
            return Monitored(self._open_named(self.device, trainer.local_rank, root, job_id), owned=True)
        if root.type == "cuda" and self.device != "emulated":
            try:
                return Monitored(self._open_named("nvidia", trainer.local_rank, root, job_id), owned=True)
            except (DeviceError, ImportError) as error:
                if self.device is not None:
                    raise
                return Monitored(ClockOnly(clock_s), note=f"energy is not measured: {error}")
        return emulated_for(self.device, self.workload, self.gpu, clock_s)

    def _open_named(self, name: str, local_rank: int, root: Any, job_id: str) -> Device:
        """Where torch has no CUDA, the GPU of the rank's number among the visible ones."""
        return open_device(
            name,
            gpu=self.gpu,
            workload=self.workload,  # type: ignore[arg-type]  # a real GPU needs none
            torch_device=root if root.type == "cuda" else local_rank,
            job=job_id,
        )


def gather_objects(trainer: Any, own: T) -> list[T]:
    """One small picklable object from every rank, in order of ranks. Collective."""
    if trainer.world_size == 1:
        return [own]
    import torch.distributed as dist

    rows: list[Any] = [None] * trainer.world_size
    dist.all_gather_object(rows, own)
    return rows
