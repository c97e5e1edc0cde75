"""Bandwidth of an all-reduce against the SMs it is lent, for every backend that this machine has.

    torchrun --nproc-per-node 8 benchmarks/gpu_collectives.py       # every backend
    python benchmarks/gpu_collectives.py                            # one GPU: the loop-back, see gpu_loopback.py

Bus bandwidth is 2 (n - 1) / n x bytes / time over n ranks, as NCCL's own tests have it; of the loop-back, bytes read
and written in device memory / time. Nothing changes clocks.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import gpu_common as common
import torch
from gpu_loopback import loopback

from energy_lightning.collectives import BACKENDS, Collectives, CollectivesError, select_collectives

HEADINGS = ("Backend", "MiB", "SMs asked", "granted", "Time, ms: median (IQR)", "GB/s")


def backends(device: torch.device) -> Iterator[Collectives]:
    """What can run here: each backend that all ranks can use, or the loop-back."""
    if not common.in_processes():
        yield loopback(device)
        return
    for name in BACKENDS:
        try:
            collectives = select_collectives(name, device=device)
        except CollectivesError as error:
            print(f"{name}: {error}")
            continue
        if collectives.name == name or (name == "gloo" and "gloo" in collectives.name):  # not what it fell back to
            yield collectives
        collectives.close()


def bus_bytes(collectives: Collectives, num_bytes: int) -> float:
    """Bytes that count as moved by one all-reduce."""
    size = collectives.size
    return 2.0 * (size - 1) / size * num_bytes if size > 1 else 4.0 * num_bytes  # two passes, each reads and writes


def rows_of(collectives: Collectives, args: argparse.Namespace, device: torch.device) -> Iterator[Sequence[object]]:
    """One row per size and SM count."""
    for mebibytes in args.mebibytes:
        num_bytes = int(mebibytes * 2**20)
        tensor = torch.zeros(num_bytes // 2, dtype=torch.bfloat16, device=device)
        for sm_count in args.sm_counts if collectives.supports_sm_count else (None,):
            handle = collectives.all_reduce(tensor, sm_count=sm_count)
            handle.wait()
            times = common.times_of(
                lambda asked=sm_count, t=tensor: collectives.all_reduce(t, sm_count=asked).wait(),
                device,
                repeats=args.repeats,
                inner=2 if args.smoke else 20,
            )
            rate = bus_bytes(collectives, num_bytes) / times.median_s / 1e9
            asked = "default" if sm_count is None else sm_count
            yield collectives.name, f"{mebibytes:g}", asked, handle.granted_sm_count or "-", times, f"{rate:.1f}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = common.parser_of(__doc__)
    parser.add_argument("--sm-counts", type=int, nargs="+", default=[1, 2, 4, 6, 8, 12, 16, 20, 24, 32])
    parser.add_argument("--mebibytes", type=float, nargs="+", default=[1.0, 16.0, 96.0])
    args = parser.parse_args(argv)
    if args.smoke:
        args.repeats, args.mebibytes, args.sm_counts = 2, [0.01], [1, 2]
    device = common.device_of(args)
    if device is None:
        return 0
    if common.in_processes():
        with common.process_group(device):
            rows = [row for backend in backends(device) for row in rows_of(backend, args, device)]
    else:
        rows = [row for backend in backends(device) for row in rows_of(backend, args, device)]
    common.report("All-reduce against SM count", HEADINGS, rows, args, device)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
