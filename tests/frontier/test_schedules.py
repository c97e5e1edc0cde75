import itertools

import pytest

from energy_lightning.frontier import FrontierError
from energy_lightning.frontier.schedules import SCHEDULES, Instruction, PipelineShape, check_shape, dependencies

SHAPES = [("1f1b", PipelineShape(s, m)) for s, m in itertools.product((1, 2, 4), (1, 2, 5, 8))]
SHAPES += [("gpipe", PipelineShape(s, m)) for s, m in itertools.product((1, 3), (1, 4))]
SHAPES += [
    ("interleaved", PipelineShape(s, s * k, c)) for s, k, c in itertools.product((1, 2, 3, 4), (1, 2, 3), (1, 2, 3))
]


def timetable(schedule: str, shape: PipelineShape) -> list[str]:
    """Instructions of one time unit each, every one as early as possible; fails on a deadlock."""
    before: dict[Instruction, set[Instruction]] = {}
    for earlier, later in dependencies(schedule, shape):
        before.setdefault(later, set()).add(earlier)
        before.setdefault(earlier, set())
    rows = [""] * shape.num_stages
    done: set[Instruction] = set()
    while len(done) < len(before):
        ready = [i for i, needs in before.items() if i not in done and needs <= done]
        assert ready, f"deadlock after {len(done)} instructions"
        for stage in range(shape.num_stages):
            mine = [i for i in ready if i.stage % shape.num_stages == stage]
            letters = ["abcdefghijkl"[i.microbatch] for i in mine]
            rows[stage] += (letters[0].upper() if mine[0].phase == "forward" else letters[0]) if mine else "."
        done.update(ready)
    return rows


@pytest.mark.parametrize(("schedule", "shape"), SHAPES)
def test_every_instruction_runs_once_on_its_stage_without_deadlock(schedule: str, shape: PipelineShape) -> None:
    virtual = range(shape.num_stages * shape.num_chunks)
    expected = sorted(itertools.product(virtual, range(shape.num_microbatches), ("backward", "forward")))
    orders = [list(SCHEDULES[schedule](shape, stage)) for stage in range(shape.num_stages)]
    assert sorted(map(tuple, itertools.chain(*orders))) == expected
    assert all(i.stage % shape.num_stages == stage for stage, order in enumerate(orders) for i in order)
    timetable(schedule, shape)


def test_1f1b_timetable() -> None:
    assert timetable("1f1b", PipelineShape(4, 6)) == [
        "ABCD...aEbFc.d.e.f",
        ".ABC..aDbEcFd.e.f.",
        "..AB.aCbDcEdFe.f..",
        "...AaBbCcDdEeFf...",
    ]


def test_gpipe_timetable() -> None:
    assert timetable("gpipe", PipelineShape(3, 3)) == ["ABC....cba", ".ABC..cba.", "..ABCcba.."]


def test_1f1b_holds_no_more_microbatches_than_stages() -> None:
    for stage in range(4):
        in_flight = list(
            itertools.accumulate(
                1 if i.phase == "forward" else -1 for i in SCHEDULES["1f1b"](PipelineShape(4, 9), stage)
            )
        )
        assert max(in_flight) == 4 - stage


def test_interleaving_shortens_the_bubble() -> None:
    """Same work in half-size chunks: fewer idle half-slots in all than idle slots of 1F1B x 2."""
    plain, interleaved = timetable("1f1b", PipelineShape(4, 8)), timetable("interleaved", PipelineShape(4, 8, 2))
    assert len(interleaved[0]) < 2 * len(plain[0])


def test_shapes_that_cannot_run_are_named() -> None:
    with pytest.raises(FrontierError, match="known: 1f1b, gpipe, interleaved"):
        check_shape("zero", PipelineShape(2, 2))
    with pytest.raises(FrontierError, match="multiple of 4"):
        check_shape("interleaved", PipelineShape(4, 6, 2))
    with pytest.raises(FrontierError, match="one chunk"):
        check_shape("1f1b", PipelineShape(4, 6, 2))
    with pytest.raises(FrontierError, match="at least 1"):
        check_shape("1f1b", PipelineShape(0, 6))
