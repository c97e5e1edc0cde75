"""What the store is told of a run that trains on after its verdict, is interrupted, or loses its GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from recurring_trainings import NEEDED, POWER_W, STEP_S, JobTrainer, job

from energy_lightning.callbacks.run_meter import JobMeter, RunMeter, Spent, gone_on, spent_by_all
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.recurring import BatchSizeOptimizer, Run
from energy_lightning.types import DeviceError

SIZES = [8, 16, 32, 64]


def runs(folder: Path) -> list[Run]:
    return BatchSizeOptimizer.of_store(folder / "job.sqlite").runs()


def known(folder: Path, *, steps: float, emulated: bool = False) -> None:
    """A run of the default size that reached its target after so many steps' cost."""
    optimizer = BatchSizeOptimizer(SIZES, default=32, max_power_w=400.0, store=folder / "job.sqlite")
    optimizer.observe(
        32, energy_j=steps * STEP_S * POWER_W, time_s=steps * STEP_S, reached_target=True, emulated=emulated
    )


def lines(trainer: JobTrainer) -> list[str]:
    return [line.removeprefix("energy_lightning: ") for line in trainer.lightning_module.lines]


@pytest.mark.parametrize(
    ("steps", "verdict", "at_step"), [(None, "reached", NEEDED[32]), (4.0, "too dear", 10)], ids=["reached", "dear"]
)
def test_what_min_steps_adds_after_the_verdict_does_not_count(
    steps: float | None, verdict: str, at_step: int, tmp_path: Path
) -> None:
    """A target after 4 steps' cost: 8 are not past twice that, and 10 are the next look."""
    if steps is not None:
        known(tmp_path, steps=steps)
    device = ScriptedDevice()
    callback = job(tmp_path, device, check_every_n_steps=10)
    trainer = JobTrainer(device, [callback], min_steps=150)
    trainer.fit()
    assert (trainer.global_step, callback.verdict) == (150, verdict)
    assert callback.spent.time_s == pytest.approx(at_step * STEP_S)
    run = runs(tmp_path)[-1]
    assert (run.state, run.reached_target) == ("done", verdict == "reached")
    assert (run.energy_j, run.time_s) == pytest.approx((at_step * STEP_S * POWER_W, at_step * STEP_S))
    told = [line for line in lines(trainer) if "its target" in line]
    assert len(told) == 1
    assert told[0].endswith(f": {at_step * POWER_W:.4g} J over all GPUs, {at_step} s")
    assert sum("what follows does not count" in line for line in lines(trainer)) == 1


def test_a_report_outlives_what_happens_after_the_verdict(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)], min_steps=150)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(fails=(100, KeyboardInterrupt()))
    (run,) = runs(tmp_path)
    assert (run.state, run.reached_target, run.time_s) == ("done", True, NEEDED[32])


def test_a_run_that_ends_at_its_verdict_is_not_said_to_go_on(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)])
    trainer.fit()
    assert not any("goes on" in line for line in lines(trainer))


@pytest.mark.parametrize("min_steps", [0, 200])
def test_resumed_after_its_target_a_run_is_not_reported_again(min_steps: int, tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)], min_steps=150)
    trainer.fit(save_at=100)
    device = ScriptedDevice()
    later = JobTrainer(device, [job(tmp_path, device, seed=1)], min_steps=min_steps)
    later.fit(resumed=trainer.checkpoint, save_at=150)
    assert later.global_step == max(100, min_steps)
    assert [(run.state, run.batch_size) for run in runs(tmp_path) if run.state != "dead"] == [("done", 32)]
    assert later.callbacks[0].verdict == "reached"
    assert later.lightning_module.batch_size == 32
    assert "has reached its target and is reported" in lines(later)[0]
    if min_steps:  # a checkpoint of the resumed run knows it, too
        assert later.checkpoint["callbacks"] == trainer.checkpoint["callbacks"]


def test_a_look_at_the_cost_judges_no_metric(tmp_path: Path) -> None:
    """A metric of single steps passes the target now and then: it counts after validation and after the epoch."""
    device = ScriptedDevice()
    callback = job(tmp_path, device, check_every_n_steps=1, monitor="train_loss")
    trainer = JobTrainer(device, [callback], max_steps=25)
    trainer.call("setup", "fit")
    trainer.call("on_train_start")
    trainer.call("on_train_batch_start", None, 0)
    trainer.callback_metrics["train_loss"] = 0.1
    device.work(STEP_S)
    trainer.global_step += 1
    trainer.call("on_train_batch_end", None, None, 0)
    assert callback.verdict == "going on"
    assert callback.spent.time_s == STEP_S
    trainer.call("on_train_batch_start", None, 0)  # of the next epoch: logged when the last one ended
    assert callback.verdict == "reached"


def test_a_fast_dev_run_after_a_run_knows_nothing_of_it(tmp_path: Path) -> None:
    device = ScriptedDevice()
    callback = job(tmp_path, device)
    JobTrainer(device, [callback]).fit()
    trainer = JobTrainer(device, [callback], max_steps=1)
    trainer.fast_dev_run = True
    trainer.fit(save_at=1)
    assert (callback.verdict, callback.spent) == ("no run", None)
    assert trainer.checkpoint["callbacks"] == {}
    assert len(runs(tmp_path)) == 1


def test_resumed_with_another_target_a_run_goes_on(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)], min_steps=150)
    trainer.fit(save_at=100)
    device = ScriptedDevice()
    later = JobTrainer(device, [job(tmp_path, device, target=-1.0)], max_steps=120)
    later.fit(resumed=trainer.checkpoint)
    assert later.global_step == 120
    assert [run.reached_target for run in runs(tmp_path) if run.state == "done"] == [True, False]


def test_resumed_after_it_got_too_dear_all_that_was_spent_counts(tmp_path: Path) -> None:
    known(tmp_path, steps=4.0)
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device, check_every_n_steps=10)], min_steps=25)
    trainer.fit(save_at=20)
    assert runs(tmp_path)[-1].time_s == pytest.approx(10 * STEP_S)
    assert trainer.callbacks[0].spent.time_s == pytest.approx(10 * STEP_S)
    state = trainer.checkpoint["callbacks"]["RecurringJob"]
    assert (state["time_s"], state["reached"]) == (pytest.approx(20 * STEP_S), None)
    after: dict[str, Any] = {"callbacks": {}}
    trainer.call("on_save_checkpoint", after)  # trainer.save_checkpoint() when the fit is over
    assert after["callbacks"]["RecurringJob"]["time_s"] == pytest.approx(25 * STEP_S)
    device = ScriptedDevice()
    later = JobTrainer(device, [job(tmp_path, device, check_every_n_steps=10)])
    later.fit(resumed=trainer.checkpoint)
    run = next(run for run in runs(tmp_path) if run.run_id == 2)
    assert (run.batch_size, run.reached_target) == (trainer.callbacks[0].batch_size, False)
    assert run.time_s == pytest.approx(30 * STEP_S)  # ten more until the next look


def test_ctrl_c_before_a_first_batch_leaves_nothing(tmp_path: Path) -> None:
    device = ScriptedDevice()
    trainer = JobTrainer(device, [job(tmp_path, device)])
    trainer.call("setup", "fit")
    trainer.call("on_exception", KeyboardInterrupt())
    trainer.call("teardown", "fit")
    assert (runs(tmp_path), trainer.callbacks[0].verdict) == ([], "interrupted")
    assert lines(trainer) == ["the run with batch size 32 is not reported: it was interrupted"]


def test_an_error_before_the_first_batch_counts_against_the_size(tmp_path: Path) -> None:
    """Of a loader that cannot make such batches: the store forgot the run, and suggested the size again every night."""
    known(tmp_path, steps=30.0)
    sizes = []
    for _ in range(2):
        device = ScriptedDevice()
        trainer = JobTrainer(device, [job(tmp_path, device)])
        trainer.call("setup", "fit")
        trainer.call("on_exception", ValueError("my loader has too few rows"))
        trainer.call("teardown", "fit")
        sizes.append(trainer.lightning_module.batch_size)
        assert (trainer.callbacks[0].verdict, lines(trainer)) == ("failed", [])
    assert [(run.batch_size, run.state) for run in runs(tmp_path)[1:]] == [(size, "dead") for size in sizes]
    assert sizes[0] != sizes[1]


def test_a_store_that_fails_before_the_first_batch_ends_no_training(tmp_path: Path) -> None:
    """While data were read and the model was compiled, say; the report finds it again."""
    store, away = tmp_path / "job.sqlite", tmp_path / "away.sqlite"
    device = ScriptedDevice()

    class Takes:
        def on_train_start(self, *_: Any) -> None:
            store.rename(away)

        def on_train_epoch_end(self, *_: Any) -> None:
            away.rename(store)

    trainer = JobTrainer(device, [Takes(), job(tmp_path, device)], max_steps=20)
    trainer.fit()
    assert trainer.callbacks[1].verdict == "ended"
    assert sum("training goes on, however dear it gets" in line for line in lines(trainer)) == 1
    assert [(run.state, run.time_s) for run in runs(tmp_path)] == [("done", 20 * STEP_S)]


class Lost(ScriptedDevice):
    """The driver fails after 15 s."""

    def energy_j(self) -> float | None:
        if self.now_s() > 15.0:
            raise DeviceError("GPU is lost")
        return super().energy_j()


def test_time_goes_on_by_the_wall_clock_where_the_gpu_is_lost() -> None:
    device, wall_s = Lost(), [100.0]
    meter = RunMeter(device, 1.0, (5.0, 50.0), clock_s=lambda: wall_s[0])
    meter.start()
    assert (meter.read().time_s, meter.read().energy_j) == (5.0, 50.0)  # nothing since
    for _ in range(4):
        device.work(5.0)
        wall_s[0] += 5.0
        spent = meter.read()
    assert (spent.time_s, spent.void_s) == (25.0, 5.0)
    wall_s[0] += 10.0
    spent = meter.read()
    assert (spent.time_s, spent.void_s) == (35.0, 15.0)
    assert spent.energy_j == pytest.approx(50.0 + 30.0 * POWER_W)  # at the mean power of what was measured
    meter.close()
    wall_s[0] += 10.0
    assert meter.read() == spent


def test_what_was_not_measured_before_a_checkpoint_counts_at_the_mean_power_since() -> None:
    device = ScriptedDevice()
    meter = RunMeter(device, 1.0, (5.0, None))
    meter.start()
    assert (meter.read().time_s, meter.read().energy_j) == (5.0, None)
    device.work(10.0)
    spent = meter.read()
    assert (spent.time_s, spent.void_s) == (15.0, 5.0)
    assert spent.energy_j == pytest.approx(15.0 * POWER_W)


@pytest.mark.parametrize("rank", [0, 1])
def test_what_was_not_measured_counts_on_every_rank(rank: int) -> None:
    device = ScriptedDevice()
    trainer = SimpleNamespace(is_global_zero=rank == 0, global_rank=rank, world_size=1)
    meter = JobMeter(trainer, device, {"time_s": 5.0, "energy_j": None})
    device.work(10.0)
    assert meter.read(trainer).energy_j == pytest.approx(15.0 * POWER_W)


class Unlimited(ScriptedDevice):
    """As boards that have no power limit, and raise when asked for it."""

    power_limit_range_w = None
    power_limit_w = property(lambda self: self.raises(), lambda self, value: None)  # type: ignore[assignment]

    def raises(self) -> float:
        raise DeviceError("does not tell its power limit")


@pytest.mark.parametrize(
    ("options", "told"), [({}, 1), ({"max_power_w": 300.0}, 0), ({"eta": 1.0}, 0), ({"eta": 0.0}, 0)]
)
def test_a_board_without_a_power_limit_trains_and_what_time_counts_is_told(
    options: dict[str, float], told: int, tmp_path: Path
) -> None:
    device = Unlimited()
    trainer = JobTrainer(device, [job(tmp_path, device, **options)])
    trainer.fit()
    assert [run.state for run in runs(tmp_path)] == ["done"]
    warned = [line for line in lines(trainer) if "time counts as if they drew 1 W: give max_power_w" in line]
    assert len(warned) == told


def test_by_time_alone_a_checkpoint_makes_up_no_energy(tmp_path: Path) -> None:
    device = ScriptedDevice(energy_source="none")
    trainer = JobTrainer(device, [job(tmp_path, device, eta=0.0)])
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(save_at=20, fails=(25, KeyboardInterrupt()))
    assert trainer.checkpoint["callbacks"]["RecurringJob"]["energy_j"] is None
    later = JobTrainer(device, [job(tmp_path, device, eta=0.0)])
    later.fit(resumed=trainer.checkpoint)
    (run,) = (run for run in runs(tmp_path) if run.state == "done")
    assert (run.energy_j, run.time_s) == (None, NEEDED[32] * STEP_S)


def test_other_ranks_are_taken_to_do_as_this_one_does() -> None:
    rows = [Spent(gpu=gpu, time_s=10.0 + gpu, energy_j=100.0 * gpu, limit_w=400.0, void_s=0.0) for gpu in (1.0, 2.0)]
    own = Spent(gpu=1.0, time_s=14.0, energy_j=130.0, limit_w=400.0, void_s=0.0)
    both = spent_by_all(gone_on(rows, own))
    assert (both.time_s, both.energy_j) == (15.0, 130.0 + 230.0)
    assert gone_on([], own) == gone_on([own], own) == [own]
    assert gone_on(rows, replace(rows[1], time_s=13.0, energy_j=220.0), 1)[0] == replace(
        rows[0], time_s=12.0, energy_j=120.0
    )
    lost = Spent(gpu=1.0, time_s=14.0, energy_j=None, limit_w=400.0, void_s=14.0)
    both = spent_by_all(gone_on(rows, lost))
    assert (both.time_s, both.energy_j) == (14.0, None)
