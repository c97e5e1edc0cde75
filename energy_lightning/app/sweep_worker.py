"""`python -m energy_lightning.app.sweep_worker FILE RANK`: one rank that does a sweep's measured runs one by one.

FILE is JSON (see `Orders`). Rank 0 prints a line of JSON when a run begins and one when it has ended. A run that fails
ends the process where other ranks could be left waiting for it; whoever started the ranks starts them again.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from energy_lightning.app.sweep_windows import Repeated, WindowChoices, measure_repeated
from energy_lightning.types import EnergyLightningError

if TYPE_CHECKING:
    import torch

    from energy_lightning.device import Device
    from energy_lightning.measure import EnergyMeter

LINE = "energy_lightning-sweep "  # other lines of stdout are no outcomes
FOLDER_PREFIX = "energy_lightning-sweep-"  # of the folder with the orders
FAILED_RUN = 3
_FAULTS = (EnergyLightningError, RuntimeError, ValueError)  # torch's own are RuntimeErrors


@dataclass(frozen=True, slots=True)
class Orders:
    """What the ranks are to do.

    Attributes:
        kind: "training" or "inference".
        runs: key and settings of each run.
        num_ranks: GPUs that work together.
        options: what all runs share (dtype, model, warmup, window_s, windows).
        rendezvous: a file that does not exist yet, by which the ranks find each other; chosen at the start.
    """

    kind: str
    runs: list[tuple[str, dict[str, Any]]]
    num_ranks: int
    options: dict[str, Any]
    rendezvous: str = ""


def main(arguments: Sequence[str]) -> int:
    """Do the orders; the exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):  # for all processes of a group: the parent ends this one
        signal.signal(number, signal.SIG_IGN)
    file, rank = Path(arguments[0]), int(arguments[1])
    orders = Orders(**json.loads(file.read_text(encoding="utf-8")))
    threading.Thread(target=_end_with_stdin, args=(file.parent,), name="end-with-parent", daemon=True).start()
    import torch
    import torch.distributed as dist

    compute = torch.device("cuda", rank) if torch.cuda.is_available() else torch.device("cpu")
    if compute.type == "cuda":
        torch.cuda.set_device(compute)
    if orders.num_ranks > 1:
        backend, meeting = "nccl" if compute.type == "cuda" else "gloo", f"file://{orders.rendezvous}"
        dist.init_process_group(backend, init_method=meeting, rank=rank, world_size=orders.num_ranks)
    from energy_lightning.device.nvidia import NvidiaDevice

    device = NvidiaDevice(rank)
    try:
        worker = _Worker(orders, rank, device, compute)
        if not all(worker.do(key, run) for key, run in orders.runs):
            return FAILED_RUN
    finally:
        device.close()
    if orders.num_ranks > 1:
        dist.destroy_process_group()
    return 0


def _end_with_stdin(folder: Path) -> None:
    """Whoever started this process holds the other end; once it is closed, nobody is left to listen or to clean up."""
    sys.stdin.read()
    if folder.name.startswith(FOLDER_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
    os.kill(os.getpid(), signal.SIGKILL)


class _TogetherError(EnergyLightningError):
    """A run that fails on all ranks at the same place: none is left waiting."""


@dataclass
class _Worker:
    orders: Orders
    rank: int
    device: Device
    compute: torch.device

    def do(self, key: str, run: dict[str, Any]) -> bool:
        """Whether the ranks may go on."""
        if self.rank == 0:
            _tell(key, begun=True)
        try:
            row = self._measured(run)
        except _TogetherError as error:
            row = None
            if self.rank == 0:
                _tell(key, failed=str(error))
        except _FAULTS as error:
            row = None
            _tell(key, failed=_in_words(error))
            if self.orders.num_ranks > 1:
                return False
        if row is not None and self.rank == 0:
            _tell(key, row=row)
        gc.collect()
        if self.compute.type == "cuda":
            import torch

            torch.cuda.empty_cache()
        return True

    def _measured(self, run: dict[str, Any]) -> dict[str, Any]:
        from energy_lightning.measure import EnergyMeter

        meter = EnergyMeter(self.device, refresh_s=self.device.counter_refresh_s)
        choices = WindowChoices.from_values(self.orders.options)
        try:
            if self.orders.kind == "training":
                return self._training(run, meter, choices)
            from energy_lightning.app.sweep_generation import measured_generation

            return measured_generation(run, choices, lambda: self._model, self.device, meter, self.compute)
        finally:
            meter.close()

    @cached_property
    def _model(self) -> Any:
        from energy_lightning.app.sweep_generation import load_model

        return load_model(self.orders.options, self.compute)

    def _encoder(self, run: dict[str, Any]) -> Any:
        """On all ranks or on none: what cannot be built need not take the processes down."""
        from energy_lightning.app.sweep_steps import encoder, of_all_ranks

        built, fault = None, None
        try:
            built = encoder(run, self.compute)
        except _FAULTS as error:
            fault = _in_words(error)
        faults = [each for each in of_all_ranks(fault) if each is not None]
        if faults:
            raise _TogetherError(faults[0])
        return built

    def _training(self, run: dict[str, Any], meter: EnergyMeter, choices: WindowChoices) -> dict[str, Any]:
        from energy_lightning.app.sweep_steps import agree_on_most, of_all_ranks, training_step
        from energy_lightning.measure import sum_over_gpus

        step, held = training_step(self._encoder(run), run, self.orders.options["dtype"], self.compute)
        own = measure_repeated(self.device, meter, step, choices, lambda value: agree_on_most(value, self.compute))
        ranks = of_all_ranks((self.device.uuid or self.device.name, asdict(own), self.device.temperature_c()))
        found = [(uuid, Repeated(**values)) for uuid, values, _ in ranks]
        steps = run["tokens"] / (run["batch_size"] * run["sequence_length"])
        step_time_s = max(each.time_s for _, each in found)
        return {
            "time_s": step_time_s * steps,
            "energy_j": sum_over_gpus((uuid, each.energy_j) for uuid, each in found) * steps,
            "step_time_s": step_time_s,
            "parameters_per_gpu": held,
            "measured_steps": own.repetitions * choices.windows,
            "energy_spread": max(each.spread for _, each in found),
            "temperature_c": max((degrees for *_, degrees in ranks if degrees is not None), default=None),
            "energy_source": own.source,
        }


def _in_words(error: Exception) -> str:
    """One line; out of memory reads alike whoever ran out."""
    text = " ".join(str(error).split())
    first = text[:200]
    low = text.lower()
    if "out of memory" in low or "can't allocate memory" in low or "not enough memory" in low:
        return f"out of memory: {first}"
    return first or type(error).__name__


def _tell(key: str, **content: Any) -> None:
    print(LINE + json.dumps({"key": key, **content}), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
