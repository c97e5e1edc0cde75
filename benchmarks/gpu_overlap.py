"""Overlap against sequential execution: forward and backward of Llama blocks, by launch point and SM count.

    python benchmarks/gpu_overlap.py                                # one GPU: collectives are the loop-back's
    torchrun --nproc-per-node 8 benchmarks/gpu_overlap.py           # the best backend

The block is one of eight ranks' part of Llama 3.2 3B. "Sequential" runs the same engine with every collective exposed;
"compute only" without collectives, nanobatched. Nothing changes clocks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import gpu_common as common
import gpu_models as models
import torch

from energy_lightning.collectives import Collectives
from energy_lightning.types import Plan, Schedule

HEADINGS = ("Execution", "SMs", "Forward + backward, ms: median (IQR)", "Against sequential")


def plans(args: argparse.Namespace) -> Iterator[tuple[str, int | None, Plan]]:
    """(name, SM count, plan): sequential first, then every launch point in the same place of each partition."""
    yield "sequential", None, models.plan_with({}, nanobatched=False)
    for sm_count in args.sm_counts:
        for place, name in enumerate(("as early as possible", "beside the second operator", "beside the third")):
            schedules = {key: Schedule(sm_count, points[place]) for key, points in models.LAUNCHES.items()}
            yield name, sm_count, models.plan_with(schedules, nanobatched=True)
        exposed = {key: Schedule(sm_count, None) for key in models.LAUNCHES}
        yield "nanobatched, not overlapped", sm_count, models.plan_with(exposed, nanobatched=True)


def rows_of(args: argparse.Namespace, device: torch.device, collectives: Collectives) -> list[Sequence[object]]:
    """One row per plan, and the compute alone."""
    block, rows, base_s = models.make_block(args, device, collectives), [], None
    for name, sm_count, plan in plans(args):
        block.engine.apply(plan)
        times = common.times_of(block.step, device, repeats=args.repeats)
        base_s = base_s or times.median_s
        rows.append((name, sm_count or "default", times, f"{times.median_s / base_s - 1.0:+.1%}"))
    alone = models.make_alone(args, device)
    times = common.times_of(alone.step, device, repeats=args.repeats)
    return [*rows, ("compute only", "-", times, f"{times.median_s / (base_s or times.median_s) - 1.0:+.1%}")]


def main(argv: Sequence[str] | None = None) -> int:
    parser = common.parser_of(__doc__)
    models.add_model_options(parser)
    parser.add_argument("--sm-counts", type=int, nargs="+", default=[4, 8, 16])
    args = parser.parse_args(argv)
    models.shrink(args)
    if args.smoke:
        args.sm_counts = [2]
    device = common.device_of(args)
    if device is None:
        return 0
    with common.partner(args, device) as collectives:
        rows = rows_of(args, device, collectives)
        title = f"Llama blocks, overlap against sequential: {args.layers} blocks, {args.batch} x {args.sequence} tokens"
        common.report(f"{title}, {args.dtype}, {collectives.name}", HEADINGS, rows, args, device)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
