"""Batch size and power limit together: profiles kept, runs compared under their best limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from energy_lightning.recurring import JointOptimizer, RecurringError

# (limit in W, time in s, energy in J) of the same work; cost at eta 0.5 and 200 W: 0.5 E + 100 t
SWEEPS = {
    8: [(100.0, 2.0, 150.0), (150.0, 1.2, 160.0), (200.0, 1.0, 190.0)],  # 275, 200, 195: 200 W
    16: [(100.0, 1.5, 100.0), (150.0, 1.1, 130.0), (200.0, 1.0, 180.0)],  # 200, 175, 190: 150 W
}


def joint(folder: Path) -> JointOptimizer:
    return JointOptimizer([8, 16], default=8, max_power_w=200.0, store=folder / "job.sqlite")


def test_the_first_run_of_a_size_sweeps_and_later_ones_use_its_limit(tmp_path: Path) -> None:
    optimizer = joint(tmp_path)
    first = optimizer.suggest_both()
    assert (first.batch_size, first.power_limit_w) == (8, None)
    assert optimizer.profile(8, SWEEPS[8]) == 200.0
    optimizer.observe(8, energy_j=1900.0, time_s=10.0, reached_target=True)
    assert optimizer.profile(16, SWEEPS[16]) == 150.0
    other = joint(tmp_path)  # another process
    assert (other.limit_of(8), other.limit_of(16)) == (200.0, 150.0)
    choice = other.suggest_both()
    assert choice.power_limit_w == other.limit_of(choice.batch_size)


def test_runs_under_another_limit_count_as_if_under_the_best(tmp_path: Path) -> None:
    optimizer = joint(tmp_path)
    optimizer.observe(16, energy_j=1800.0, time_s=10.0, reached_target=True, power_limit_w=200.0)
    assert not optimizer.should_stop(energy_j=3799.0, time_s=19.0)  # 3799.5 of 2 x 1900
    optimizer.profile(16, SWEEPS[16])
    # ten times the work of the sweep: 1300 J and 11 s at 150 W, cost 1750 J, so the threshold is 3500 J
    assert optimizer.should_stop(energy_j=3102.0, time_s=19.5)
    assert not optimizer.should_stop(energy_j=3098.0, time_s=19.5)
    (run,) = optimizer.runs()
    assert (run.energy_j, run.time_s, run.power_limit_w) == (1800.0, 10.0, 200.0)  # as it was


def test_profiles_are_replaced_and_bad_ones_change_nothing(tmp_path: Path) -> None:
    optimizer = joint(tmp_path)
    optimizer.profile(8, SWEEPS[8])
    for sizes, sweep in ((12, SWEEPS[8]), (8, []), (8, [(0.0, 1.0, 1.0)]), (8, [(100.0, float("nan"), 1.0)])):
        with pytest.raises(RecurringError):
            optimizer.profile(sizes, sweep)
    assert [one.power_limit_w for one in optimizer.profiles()[8]] == [100.0, 150.0, 200.0]
    optimizer.profile(8, [(100.0, 2.0, 150.0), (100.0, 4.0, 170.0)])  # repeats: their mean
    assert [(one.power_limit_w, one.time_s, one.energy_j) for one in optimizer.profiles()[8]] == [(100.0, 3.0, 160.0)]
    assert set(optimizer.profiles()) == {8}


def test_two_processes_profile_and_observe_at_once(tmp_path: Path) -> None:
    code = (
        "import sys; from energy_lightning.recurring import JointOptimizer\n"
        "size, path = int(sys.argv[1]), sys.argv[2]\n"
        "o = JointOptimizer([8, 16], default=8, max_power_w=200.0, store=path)\n"
        "for i in range(20):\n"
        "    o.suggest_both(); o.profile(size, [(100.0, 1.0 + i, 1.0), (150.0, 1.0, 1.0 + i)])\n"
        "    o.observe(size, energy_j=float(i + 1), time_s=1.0, reached_target=True, power_limit_w=100.0)\n"
    )
    command = [sys.executable, "-c", code]
    running = [subprocess.Popen([*command, size, str(tmp_path / "job.sqlite")]) for size in ("8", "16")]
    assert [process.wait(timeout=120) for process in running] == [0, 0]
    done = [run for run in joint(tmp_path).runs() if run.state == "done"]
    assert sorted((run.batch_size, run.energy_j) for run in done) == [
        (size, float(i + 1)) for size in (8, 16) for i in range(20)
    ]
    assert {size: len(sweep) for size, sweep in joint(tmp_path).profiles().items()} == {8: 2, 16: 2}
