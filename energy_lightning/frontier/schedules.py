"""In which order a pipeline stage runs its microbatches. Pure generators; nothing here knows times.

1F1B, 4 stages, 6 microbatches, all instructions equally long (upper case: forward, lower case: backward):

    stage 0   A B C D . . . a E b F c . d . e . f
    stage 1   . A B C . . a D b E c F d . e . f .
    stage 2   . . A B . a C b D c E d F e . f . .
    stage 3   . . . A a B b C c D d E e F f . . .

A *chunk* is a run of layers; interleaved schedules give each stage several. Chunk c of stage s is virtual stage
c x num_stages + s, and data passes the virtual stages in order. Without interleaving both are the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from energy_lightning.frontier.pareto import FrontierError
from energy_lightning.types import Phase


class Instruction(NamedTuple):
    """One forward or backward of one microbatch on one virtual stage."""

    stage: int
    microbatch: int
    phase: Phase


class PipelineShape(NamedTuple):
    """Sizes of a pipeline: physical stages, microbatches, and chunks a stage."""

    num_stages: int
    num_microbatches: int
    num_chunks: int = 1


def gpipe(shape: PipelineShape, stage: int) -> Iterator[Instruction]:
    """All forwards, then all backwards, the last microbatch first. Source: Huang et al., GPipe (2019)."""
    for microbatch in range(shape.num_microbatches):
        yield Instruction(stage, microbatch, "forward")
    for microbatch in reversed(range(shape.num_microbatches)):
        yield Instruction(stage, microbatch, "backward")


def one_f_one_b(shape: PipelineShape, stage: int) -> Iterator[Instruction]:
    """As many forwards as stages follow, then one forward, one backward in turn. Source: PipeDream-Flush (2020)."""
    forwards = [Instruction(stage, m, "forward") for m in range(shape.num_microbatches)]
    backwards = [Instruction(stage, m, "backward") for m in range(shape.num_microbatches)]
    yield from _alternate(forwards, backwards, shape.num_stages - stage - 1)


def interleaved_1f1b(shape: PipelineShape, stage: int) -> Iterator[Instruction]:
    """1F1B over chunks: groups of num_stages microbatches pass chunk after chunk.

    Source: Narayanan et al., Megatron-LM (2021). Needs num_microbatches to be a multiple of num_stages.
    """
    total = shape.num_microbatches * shape.num_chunks
    forwards = [_interleaved(shape, stage, i, "forward") for i in range(total)]
    backwards = [_interleaved(shape, stage, i, "backward") for i in range(total)]
    warm_up = 2 * (shape.num_stages - stage - 1) + (shape.num_chunks - 1) * shape.num_stages
    if shape.num_microbatches == shape.num_stages:  # nothing is left to alternate with
        warm_up = total
    yield from _alternate(forwards, backwards, warm_up)


Generator = Callable[[PipelineShape, int], Iterator[Instruction]]
SCHEDULES: dict[str, Generator] = {"1f1b": one_f_one_b, "gpipe": gpipe, "interleaved": interleaved_1f1b}


def check_shape(schedule: str, shape: PipelineShape) -> None:
    """Raise FrontierError for an unknown schedule or sizes it cannot run."""
    if schedule not in SCHEDULES:
        raise FrontierError(f"unknown pipeline schedule {schedule!r}; known: {', '.join(SCHEDULES)}")
    if min(shape) < 1:
        raise FrontierError(f"stages, microbatches and chunks must be at least 1, got {shape}")
    if schedule == "interleaved":
        if shape.num_microbatches % shape.num_stages:
            raise FrontierError(
                f"the interleaved schedule needs a multiple of {shape.num_stages} microbatches (the stages), got "
                f"{shape.num_microbatches}"
            )
    elif shape.num_chunks != 1:
        raise FrontierError(f"schedule {schedule!r} has one chunk a stage, got {shape.num_chunks}; use 'interleaved'")


def dependencies(schedule: str, shape: PipelineShape) -> Iterator[tuple[Instruction, Instruction]]:
    """All pairs (earlier, later): the order on each stage, and the data between virtual stages."""
    for stage in range(shape.num_stages):
        order = list(SCHEDULES[schedule](shape, stage))
        yield from itertools.pairwise(order)
    num_virtual = shape.num_stages * shape.num_chunks
    for microbatch in range(shape.num_microbatches):
        for stage in range(num_virtual - 1):
            yield Instruction(stage, microbatch, "forward"), Instruction(stage + 1, microbatch, "forward")
            yield Instruction(stage + 1, microbatch, "backward"), Instruction(stage, microbatch, "backward")
        yield Instruction(num_virtual - 1, microbatch, "forward"), Instruction(num_virtual - 1, microbatch, "backward")


def _alternate(forwards: list[Instruction], backwards: list[Instruction], warm_up: int) -> Iterator[Instruction]:
    warm_up = min(warm_up, len(forwards))
    yield from forwards[:warm_up]
    for forward, backward in zip(forwards[warm_up:], backwards, strict=False):
        yield forward
        yield backward
    yield from backwards[len(forwards) - warm_up :]


def _interleaved(shape: PipelineShape, stage: int, position: int, phase: Phase) -> Instruction:
    """The instruction at one position of a stage's forward (or backward) sequence."""
    group, within = divmod(position, shape.num_stages * shape.num_chunks)
    chunk, offset = divmod(within, shape.num_stages)
    if phase == "backward":
        chunk = shape.num_chunks - 1 - chunk
    return Instruction(chunk * shape.num_stages + stage, group * shape.num_stages + offset, phase)
