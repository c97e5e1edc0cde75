"""Which of a store's runs a checkpoint is of, and what becomes of its report."""

from __future__ import annotations

from pathlib import Path

import pytest
from recurring_trainings import NEEDED, JobTrainer, job

from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.recurring import BatchSizeOptimizer, Run


def runs(folder: Path) -> list[Run]:
    return BatchSizeOptimizer.of_store(folder / "job.sqlite").runs()


def lines(trainer: JobTrainer) -> list[str]:
    return [line.removeprefix("energy_lightning: ") for line in trainer.lightning_module.lines]


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_checkpoints_run_that_does_not_go_on_stays_as_it_was(interrupted: bool, tmp_path: Path) -> None:
    """What it had cost was lost, as of a run that goes on."""
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)], max_steps=20)
    trainer.fit(save_at=20)
    missed = runs(tmp_path)
    assert [(run.run_id, run.state, run.time_s) for run in missed] == [(1, "done", 20.0)]
    later = JobTrainer(device, [job(tmp_path, device)], max_steps=20)
    if interrupted:
        later.call("setup", "fit")
        later.call("on_load_checkpoint", trainer.checkpoint)
        later.call("on_exception", KeyboardInterrupt())
        assert lines(later)[-1].endswith("it was interrupted; resumed from a checkpoint it goes on")
    else:
        later.fit(resumed=trainer.checkpoint)
    assert runs(tmp_path) == missed


def test_a_checkpoints_run_that_has_reached_its_target_since_is_not_counted_twice(tmp_path: Path) -> None:
    """What was spent before the checkpoint was in the row of the run, and in that of the one which resumed it."""
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)])
    trainer.fit(save_at=20)
    (reached,) = runs(tmp_path)
    device = ScriptedDevice()
    later = JobTrainer(device, [job(tmp_path, device)])
    later.fit(resumed=trainer.checkpoint, save_at=40)
    assert (later.callbacks[0].verdict, later.global_step) == ("reached", NEEDED[32])
    assert runs(tmp_path) == [reached]
    told = [line for line in lines(later) if "report" in line]
    assert told[0].startswith(
        "this run will not be reported: run 1, which the checkpoint is of, has reached its target"
    )
    assert told[1].endswith("; not reported")
    again = JobTrainer(device, [job(tmp_path, device)])  # from a checkpoint of that
    again.fit(resumed=later.checkpoint)
    assert runs(tmp_path) == [reached]
    other = JobTrainer(device, [job(tmp_path, device, target=-1.0)], max_steps=50)
    other.fit(resumed=trainer.checkpoint)  # to another target it is another run
    assert [(run.reached_target, run.time_s) for run in runs(tmp_path)] == [(True, NEEDED[32]), (False, 50.0)]


def test_in_another_store_a_checkpoints_run_is_not_the_one_of_its_number(tmp_path: Path) -> None:
    """Which lost its report to it, or was said to have reached the target of this one."""
    (other := tmp_path / "other").mkdir()
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)], max_steps=20)
    trainer.fit(save_at=20)
    for max_steps in (20, 200):
        JobTrainer(device, [job(other, device, default=32)], max_steps=max_steps).fit()
        known = runs(other)
        later = JobTrainer(device, [job(other, device)], max_steps=30)
        later.fit(resumed=trainer.checkpoint)
        assert [run for run in runs(other) if run in known] == known
        (new,) = [run for run in runs(other) if run not in known]
        assert (new.batch_size, new.state, new.time_s) == (32, "done", 30.0)


def test_a_run_that_goes_on_in_two_processes_is_reported_by_the_first(tmp_path: Path) -> None:
    """The other one was told to report it later, which would have counted it twice."""
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)], max_steps=20)
    trainer.fit(save_at=20)
    other = BatchSizeOptimizer.of_store(tmp_path / "job.sqlite")

    class Reports:
        def on_train_epoch_end(self, *_: object) -> None:
            other.adopt(1, 32)
            other.observe(32, energy_j=1.0, time_s=25.0, reached_target=False)

    later = JobTrainer(device, [Reports(), job(tmp_path, device)], max_steps=30)
    later.fit(resumed=trainer.checkpoint)
    assert lines(later)[-1] == ("the run is not reported: another process, which went on with it too, has reported it")
    assert [(run.run_id, run.time_s) for run in runs(tmp_path)] == [(1, 25.0)]


def test_an_older_checkpoint_is_of_its_stores_run_of_that_number_and_size(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)], max_steps=20)
    trainer.fit(save_at=20)
    del trainer.checkpoint["callbacks"]["RecurringJob"]["store_id"]
    JobTrainer(device, [job(tmp_path, device)], max_steps=30).fit(resumed=trainer.checkpoint)
    assert [(run.run_id, run.time_s) for run in runs(tmp_path)] == [(1, 30.0)]
    trainer.checkpoint["callbacks"]["RecurringJob"]["batch_size"] = 8
    known = BatchSizeOptimizer.of_store(tmp_path / "job.sqlite")
    known.adopt(1, 32)
    known.observe(32, energy_j=1e6, time_s=1e3, reached_target=True)
    later = JobTrainer(device, [job(tmp_path, device)], max_steps=30)
    later.fit(resumed=trainer.checkpoint)
    assert [(run.batch_size, run.time_s) for run in runs(tmp_path)] == [(32, 1e3), (8, 30.0)]
