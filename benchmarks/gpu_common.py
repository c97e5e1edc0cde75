"""What the benchmarks for GPUs share: options, timing with events, tables, records, and a polite no without a GPU."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from gpu_loopback import loopback

from energy_lightning.collectives import Collectives, select_collectives

RESULTS = Path(__file__).with_name("RESULTS.md")


def parser_of(doc: str | None, *, repeats: int = 20) -> argparse.ArgumentParser:
    """The options that all of them have."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu for a rehearsal of the code")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes and few repeats: the numbers mean nothing")
    parser.add_argument("--repeats", type=int, default=repeats)
    parser.add_argument("--record", action="store_true", help="append the table to benchmarks/RESULTS.md")
    return parser


def allow_clocks_option(parser: argparse.ArgumentParser) -> None:
    """For those that can change clocks: only when told."""
    parser.add_argument("--allow-clocks", action="store_true", help="lock SM clocks (given back afterwards)")


def device_of(args: argparse.Namespace) -> torch.device | None:
    """The device, or None after a line that says why nothing is measured. Without a GPU nothing went wrong: exit 0."""
    device = torch.device(args.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        build = "a build for CPUs" if torch.version.cuda is None else f"CUDA {torch.version.cuda}"
        print(
            f"No NVIDIA GPU (torch {torch.__version__}, {build}): nothing is measured. --device cpu --smoke rehearses."
        )
        return None
    if device.type == "cuda":
        local = int(os.environ.get("LOCAL_RANK", "0"))  # torchrun's
        device = torch.device("cuda", local if device.index is None else device.index)
        torch.cuda.set_device(device)
    elif not args.smoke:
        print("On a CPU only a rehearsal makes sense: add --smoke.")
        return None
    return device


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of one execution, one value a repeat."""

    values_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        """The middle one."""
        return statistics.median(self.values_s)

    def __str__(self) -> str:
        """Median and spread between the quartiles, in ms."""
        low, _, high = statistics.quantiles(self.values_s, n=4) if len(self.values_s) > 1 else self.values_s * 3
        return f"{1e3 * self.median_s:.3f} ({1e3 * (high - low):.3f})"


def times_of(
    work: Callable[[], object], device: torch.device, *, repeats: int, inner: int = 1, warmup: int = 3
) -> Times:
    """Time of one `work`, `repeats` times over: by CUDA events around `inner` runs, or the wall clock on a CPU."""
    for _ in range(warmup):
        work()
    values_s = [_timed_s(work, device, inner) / inner for _ in range(repeats)]
    return Times(tuple(values_s))


def _timed_s(work: Callable[[], object], device: torch.device, inner: int) -> float:
    if device.type != "cuda":
        start_s = time.perf_counter()
        for _ in range(inner):
            work()
        return time.perf_counter() - start_s
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    start.record()
    for _ in range(inner):
        work()
    end.record()
    torch.cuda.synchronize(device)
    return start.elapsed_time(end) * 1e-3  # events tell ms


def machine_line(device: torch.device) -> str:
    """GPU, driver, versions, date: what a figure means nothing without."""
    date, commit = datetime.now(UTC).strftime("%Y-%m-%d"), _commit()
    versions = f"torch {torch.__version__}, {date}, commit {commit}"
    if device.type != "cuda":
        return f"REHEARSAL on a CPU, no measurement of a GPU: {versions}"
    return f"{torch.cuda.get_device_name(device)}, driver {_driver()}, CUDA {torch.version.cuda}, {versions}"


def _driver() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError as error:
        return f"unknown ({error})"


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=RESULTS.parent)
    return done.stdout.strip() or "unknown"


def in_processes() -> bool:
    """Whether torchrun (or what speaks like it) started several of us."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """The processes that torchrun started, connected; each on a GPU of its own."""
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def partner(args: argparse.Namespace, device: torch.device) -> Iterator[Collectives]:
    """Collectives to hide: the best backend under torchrun, else the loop-back of one GPU."""
    if not in_processes():
        yield loopback(device)
        return
    with process_group(device):
        collectives = select_collectives("auto", device=device)
        yield collectives
        collectives.close()


def report(
    title: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    args: argparse.Namespace,
    device: torch.device,
    *,
    notes: Sequence[str] = (),
    results: Path = RESULTS,
) -> str:
    """Print a table in Markdown, and append it to `results` with --record (never a rehearsal's). Returns it."""
    lines = [f"## {title}", "", machine_line(device), f"`python {' '.join(sys.argv)}`, {args.repeats} repeats", ""]
    lines += [f"| {' | '.join(headings)} |", f"| {' | '.join('---' for _ in headings)} |"]
    lines += [f"| {' | '.join(str(value) for value in row)} |" for row in rows]
    text = "\n".join([*lines, *(["", *notes] if notes else []), ""])
    if int(os.environ.get("RANK", "0")) > 0:
        return text
    print(text)
    if args.record and device.type == "cuda" and not args.smoke:
        with results.open("a", encoding="utf-8") as file:
            file.write(f"\n{text}")
    elif args.record:
        print("Not recorded: a rehearsal's numbers mean nothing.")
    return text
