"""Whether what a run costs says something of its batch size."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

from energy_lightning.recurring.wording import counted
from energy_lightning.workload import Workload

_ROUNDED = 0.05  # relative difference of sequences that is not worth a line
_TRAINED = "_energy_lightning_trained_for"  # attribute of a module; copies and pickles of it have it, too


def mark_trained(module: Any, store: Path) -> None:
    """The module's weights have been changed in a run of the store's job."""
    setattr(module, _TRAINED, {*getattr(module, _TRAINED, ()), str(store)})


def start_fault(trainer: Any, module: Any, store: Path, *, resumed: bool) -> str | None:
    """In words, that a run that begins now does not begin as the job's others do; None where nothing tells so.

    One that goes on from weights that were trained for the same job costs too little: it would make the least cost of
    all runs, past which later ones are stopped, and what is believed of its size. `resumed`: with a checkpoint that
    tells what was spent so far.
    """
    if resumed:
        return None
    if trainer.global_step > 0:
        return (
            f"it goes on from step {trainer.global_step}, and what was spent until there is not known. Resume from a "
            "checkpoint that was saved with RecurringJob, or begin with a new Trainer and a new module"
        )
    if str(store) in getattr(module, _TRAINED, ()):
        return (
            f"this {type(module).__name__} was trained in an earlier run of the job, and a run from trained weights "
            "costs too little. Make a new module for each run, or resume with fit(ckpt_path=...)"
        )
    return None


def loader_fault(trainer: Any, batch_size: int) -> str | None:
    """In words, that the trainer's loader makes other batches than of `batch_size`; None where it does or hides it.

    Either size may be the other times as many processes (of the job, of a node, with rows of their own), micro-batches
    of an optimizer step, or both; what does not divide evenly may be rounded. A loader with a batch sampler, and
    several loaders, hide it; so do batches of 1, torch's default, which the data set may make itself (see
    `loader_doubt`).
    """
    loaded = _loaded(trainer)
    if loaded is None or loaded == 1 or _parts(trainer, batch_size, loaded) is not None:
        return None
    return (
        f"the training loader makes batches of {loaded}, not of {batch_size}. Make it in train_dataloader(), from the "
        "attribute; one that counts otherwise takes a batch_sampler"
    )


def loader_doubt(trainer: Any, batch_size: int) -> str | None:
    """In words, how `batch_size` is counted where the loader's is another, or that nobody knows; None: no doubt."""
    loaded = _loaded(trainer)
    if loaded is None or loaded == batch_size:
        return None
    if (parts := _parts(trainer, batch_size, loaded)) is not None:
        share = f"{parts} batches together" if loaded < batch_size else f"one of the {parts} parts of a batch"
        return (
            f"the training loader makes batches of {loaded}, so batch size {batch_size} is taken to be that of {share} "
            "(processes, accumulated batches): a loader that does not follow the attribute is reported under the wrong "
            "size"
        )
    if loaded > 1:  # a fault
        return None
    return (
        f"the training loader makes batches of 1: unless its data set makes those of {batch_size} itself, this run is "
        "reported under the wrong size"
    )


def workload_doubt(device: Any, workload: Workload | None, batch_size: int, default: int) -> str | None:
    """In words, that the emulated `device` does not run batches of that size; None where it does, or nothing is known.

    `workload` is that of the default batch size. A microbatch has whole sequences, one at least.
    """
    runs = getattr(device, "workload", None)
    if workload is None or runs is None:
        return None
    needed, sequences = workload.microbatch_size * batch_size / default, runs.microbatch_size
    if abs(sequences - needed) <= _ROUNDED * needed:
        return None
    mend = f"Give a workload with more than {workload.microbatch_size}, e.g. microbatch_size={default}"
    if sequences != max(1, round(needed)):
        mend = "Give RecurringJob before the callback that has opened the emulated GPU"
    return (
        f"EMULATED steps with batch size {batch_size} have {counted(sequences, 'sequence')} in a microbatch instead of "
        f"{needed:.3g}, so their figures do not tell which size is cheap. {mend}"
    )


def _loaded(trainer: Any) -> int | None:
    """The loader's batch size; None where it is not known."""
    loaded: Any = getattr(getattr(trainer, "train_dataloader", None), "batch_size", None)
    return loaded if isinstance(loaded, int) else None


def _parts(trainer: Any, batch_size: int, loaded: int) -> int | None:
    """How many of one size make one of the other, as processes and accumulated batches may do; None: nothing does."""
    shared = getattr(trainer, "distributed_sampler_kwargs", None) or {}  # by ranks that have rows of their own
    processes: set[int] = {1, trainer.world_size, getattr(trainer, "num_devices", 1), shared.get("num_replicas", 1)}
    batches: set[int] = {1, trainer.accumulate_grad_batches}
    for parts in (first * second for first, second in product(processes, batches)):
        if loaded in (batch_size // parts, -(-batch_size // parts), batch_size * parts):
            return parts
    return None
