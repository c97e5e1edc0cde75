"""What the partition engine costs on a GPU without any collective: against the untouched model, and its peak memory.

    python benchmarks/gpu_engine_overhead.py --layers 4

Runs of the two are paired, their order alternating. On a GPU the host's work hides behind the device's where kernels
are long: with small --batch and --sequence its share shows. Nothing changes clocks.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence

import gpu_common as common
import gpu_models as models
import torch

HEADINGS = ("Execution", "Forward + backward, ms: median (IQR)", "Eager, ms", "Ratio (pairs)", "Peak memory, ratio")


def peak_bytes(step: Callable[[], object], device: torch.device) -> float | None:
    """Most memory allocated during a step; None on a CPU."""
    if device.type != "cuda":
        step()
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return float(torch.cuda.max_memory_allocated(device))


def row_of(name: str, nanobatched: bool, args: argparse.Namespace, device: torch.device) -> Sequence[object]:
    """Paired times of the plain model and of the same model in the engine."""
    plain, ours = models.make_plain(args, device), models.make_alone(args, device, nanobatched=nanobatched)
    steps = {"plain": plain.step, "ours": ours.step}
    times: dict[str, list[float]] = {"plain": [], "ours": []}
    for repeat in range(args.repeats):
        for which in ("plain", "ours") if repeat % 2 else ("ours", "plain"):
            once = common.times_of(steps[which], device, repeats=1, warmup=0 if repeat else 2)
            times[which] += once.values_s
    found, eager = common.Times(tuple(times["ours"])), common.Times(tuple(times["plain"]))
    ratio = statistics.median(b / a for a, b in zip(times["plain"], times["ours"], strict=True))
    memory = [peak_bytes(step, device) for step in steps.values()]
    share = "-" if memory[0] is None or memory[1] is None else f"{memory[1] / memory[0]:.2f}"
    return name, found, eager, f"{ratio:.3f}", share


def main(argv: Sequence[str] | None = None) -> int:
    parser = common.parser_of(__doc__)
    models.add_model_options(parser)
    args = parser.parse_args(argv)
    models.shrink(args)
    device = common.device_of(args)
    if device is None:
        return 0
    rows = [row_of(name, name == "nanobatched", args, device) for name in ("sequential", "nanobatched")]
    title = f"The engine against eager execution: {args.layers} Llama blocks, {args.batch} x {args.sequence} tokens"
    common.report(f"{title}, {args.dtype}", HEADINGS, rows, args, device)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
