"""What has become of a run of a recurring job, and how that is told."""

from __future__ import annotations

from typing import Literal

from energy_lightning.callbacks.run_meter import Spent

_NO_MEMORY = ("can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDA error: out of memory")
"""In RuntimeErrors of torch 2.x where memory is short (torch/csrc: c10/core/impl/alloc_cpu.cpp, aten CUDABlas)."""

Verdict = Literal["no run", "going on", "reached", "too dear", "ended", "out of memory", "interrupted", "failed"]


def told(batch_size: int | None, verdict: Verdict, spent: Spent, *, emulated: bool) -> str:
    """One line about a run that is over."""
    void = f" ({spent.void_s:.3g} s of it at mean power: readings were void)" if spent.void_s else ""
    reached = "reached its target" if verdict == "reached" else f"did not reach its target ({verdict})"
    if spent.energy_j is None:
        energy, void = "energy not measured", ""
    else:
        energy = f"{spent.energy_j:.4g} J over all GPUs"
    cost = f"{energy}, {spent.time_s:.4g} s{void}"
    return f"the run with batch size {batch_size} {reached}: {cost}{' (EMULATED)' if emulated else ''}"


def verdict_of(error: BaseException) -> Verdict:
    """What has become of a run that `error` ends."""
    if is_out_of_memory(error):
        return "out of memory"
    return "failed" if isinstance(error, Exception) else "interrupted"  # Ctrl-C, SIGTERM


def is_out_of_memory(error: BaseException) -> bool:
    """Whether what ended a run is that it did not fit, on a GPU or on the CPU."""
    import torch

    said = str(error) if isinstance(error, RuntimeError) else ""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or any(part in said for part in _NO_MEMORY)
