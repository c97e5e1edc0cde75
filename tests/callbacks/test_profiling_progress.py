"""The progress bar beside each of Lightning's, as seen by fakes of them."""

from types import SimpleNamespace
from typing import Any

import pytest

from energy_lightning.callbacks.progress import ProfilingProgress


class FakeRich:
    """What Lightning's CustomProgress offers; like it, it refuses tasks without a total."""

    def __init__(self) -> None:
        self.tasks: dict[int, dict[str, Any]] = {}
        self.num_refreshes = 0

    def add_task(self, description: str, total: float | None = None, **fields: Any) -> int:
        assert total is not None
        self.tasks[len(self.tasks)] = {"description": description, "total": total, **fields}
        return len(self.tasks) - 1

    def update(self, task: int, **fields: Any) -> None:
        self.tasks[task] |= fields

    def remove_task(self, task: int) -> None:
        del self.tasks[task]

    def refresh(self) -> None:
        self.num_refreshes += 1


def trainer_with(bar: Any, *, is_global_zero: bool = True) -> Any:
    return SimpleNamespace(progress_bar_callback=bar, is_global_zero=is_global_zero)


def test_the_live_display_of_a_rich_bar_is_shared() -> None:
    rich = FakeRich()
    progress = ProfilingProgress(trainer_with(SimpleNamespace(is_enabled=True, progress=rich)), "Profiling")
    progress.update(10, 90)
    assert (rich.tasks[0]["completed"], rich.tasks[0]["total"], rich.tasks[0]["visible"]) == (10, 100, True)
    assert rich.num_refreshes == 1
    progress.close()
    progress.close()
    assert rich.tasks == {}


def test_beside_other_bars_the_count_and_the_time_left_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProfilingProgress(trainer_with(SimpleNamespace(is_enabled=True)), "Profiling")
    progress.update(10, 90)
    progress.update(60, 20)  # the search ends earlier than its upper bound
    progress.close()
    shown = capsys.readouterr().err
    assert "Profiling" in shown
    assert "10/100" in shown
    assert "60/80" in shown


@pytest.mark.parametrize(
    ("bar", "is_global_zero"),
    [(None, True), (SimpleNamespace(is_enabled=False), True), (SimpleNamespace(is_enabled=True), False)],
)
def test_no_bar_is_shown_where_the_trainer_shows_none(
    bar: Any, is_global_zero: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    progress = ProfilingProgress(trainer_with(bar, is_global_zero=is_global_zero), "Profiling")
    progress.update(1, 1)
    progress.close()
    assert capsys.readouterr().err == ""
