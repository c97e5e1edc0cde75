"""A process that dies without warning in the middle of profiling, and the one that takes over."""

import json
import signal
import subprocess
import sys
from pathlib import Path

from fake_trainer import FakeStrategy, FakeTrainer, all_callbacks

DIE_AFTER = 30

CHILD = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from fake_trainer import FakeStrategy, FakeTrainer, all_callbacks
from energy_lightning.measure import MeasurementStore

add, num_rows = MeasurementStore.add, 0

def add_and_die(self, config, measurement):
    global num_rows
    add(self, config, measurement)
    num_rows += 1
    if num_rows == {DIE_AFTER}:
        os.kill(os.getpid(), signal.SIGKILL)

MeasurementStore.add = add_and_die
FakeTrainer(FakeStrategy(Path(sys.argv[1])), all_callbacks()).fit()
"""


def test_a_killed_run_leaves_every_measurement_and_the_next_one_makes_the_rest(tmp_path: Path) -> None:
    tests = str(Path(__file__).parent)
    killed = subprocess.run([sys.executable, "-c", CHILD, str(tmp_path), tests], timeout=120, check=False)
    assert killed.returncode == -signal.SIGKILL
    path = tmp_path / "measurements.jsonl"
    before = path.read_text().splitlines()
    assert len(before) == DIE_AFTER

    trainer = FakeTrainer(FakeStrategy(tmp_path), all_callbacks())
    trainer.fit()
    after = path.read_text().splitlines()
    assert after[:DIE_AFTER] == before
    assert trainer.callbacks[1].num_measured == len(after) - DIE_AFTER
    rows = [json.loads(line) for line in after]
    assert len({(row["partition"], str(row["config"])) for row in rows}) == len(rows)
    assert trainer.callbacks[2].plan is not None
