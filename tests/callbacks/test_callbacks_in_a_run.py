"""The four callbacks together, called in Lightning's order, on a real emulated device."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_trainer import (
    CLOCKS_MHZ,
    SMALL,
    WORKLOAD,
    EnergyMonitor,
    FakeStrategy,
    FakeTrainer,
    FrequencyController,
    FrontierOptimizer,
    PartitionProfiler,
    all_callbacks,
)

from energy_lightning.emulation import GPU, emulate_iteration
from energy_lightning.measure import load_plan
from energy_lightning.types import Budget, BudgetError, DeviceError, MeasurementError, Plan, PlanError, StrategyError

PLAIN = emulate_iteration(WORKLOAD, GPU.load("a100-sxm4-40gb"), Plan.sequential())


def trainer_in(folder: Path, callbacks: list[Any] | None = None, **options: Any) -> FakeTrainer:
    strategy_options = {k: options.pop(k) for k in ("budget", "workload") if k in options}
    return FakeTrainer(FakeStrategy(folder, **strategy_options), callbacks or all_callbacks(), **options)


def read(folder: Path) -> list[str]:
    return (folder / "measurements.jsonl").read_text().splitlines()


def lines_of(trainer: FakeTrainer, word: str) -> list[str]:
    return [line for line in trainer.lightning_module.lines if word in line]


def test_a_run_profiles_chooses_and_trains_at_the_plan(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    _, profiler, optimizer, controller = trainer.callbacks
    trainer.fit()
    assert profiler.num_measured == len((tmp_path / "measurements.jsonl").read_text().splitlines())
    assert load_plan(tmp_path / "plan.yaml") == optimizer.plan == controller.plan
    assert trainer.strategy.applied == [optimizer.plan]
    assert trainer.forward_mhz[-1] == optimizer.plan.forward.frequency_mhz < max(CLOCKS_MHZ)
    assert trainer.backward_mhz[-1] == optimizer.plan.backward.frequency_mhz
    assert set(optimizer.references) == {"max frequency", "frequency only", "nanobatching only", "kareus"}


def test_steps_at_the_plan_take_what_it_predicts(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    trainer.fit()
    plan, last = trainer.callbacks[2].plan, [m for m in trainer.lightning_module.logged if "emulated_energy_j" in m][-1]
    assert last["emulated_step_time_s"] == pytest.approx(plan.time_s, rel=1e-6)
    assert last["emulated_energy_j"] == pytest.approx(plan.energy_j, rel=0.05)
    assert not lines_of(trainer, "drifted")


def test_nothing_is_measured_during_warm_up_and_a_bounded_amount_after_each_step(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, all_callbacks(warmup_steps=3, measurements_per_step=5, max_fraction=1.0))
    profiler = trainer.callbacks[1]
    trainer.call("on_train_start")
    counts = []
    for _ in range(6):
        trainer.batch(0, steps=True)
        counts.append(profiler.num_measured)
    assert counts == [0, 0, 0, 5, 10, 15]


def test_microbatches_of_one_step_are_not_interrupted(tmp_path: Path) -> None:
    workload = WORKLOAD.with_sizes(num_microbatches=4)
    trainer = trainer_in(tmp_path, all_callbacks(warmup_steps=0, measurements_per_step=1), workload=workload)
    profiler = trainer.callbacks[1]
    trainer.call("on_train_start")
    counts = []
    for microbatch in range(8):
        trainer.batch(microbatch, steps=microbatch % 4 == 3)
        counts.append(profiler.num_measured)
    assert counts == [0, 0, 0, 1, 1, 1, 1, 2]


def test_accumulated_steps_take_what_the_plan_predicts_for_them(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, workload=WORKLOAD.with_sizes(num_microbatches=4), accumulate=4)
    trainer.fit()
    assert trainer.callbacks[3].drift.ratios["time"] == pytest.approx(1.0)


def test_training_that_is_too_short_goes_on_with_the_best_so_far_and_says_so(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, all_callbacks(measurements_per_step=10, max_fraction=0.25))
    trainer.fit()
    assert trainer.callbacks[1].num_measured == 40  # a quarter of the 18 steps after warm-up, 10 each
    assert len(lines_of(trainer, "longer than 25% of the training's steps")) == 1
    assert trainer.callbacks[2].plan is trainer.strategy.applied_plan


@pytest.mark.parametrize("max_steps", [3, 4, 7])
def test_an_emulated_gpu_is_profiled_completely_in_however_few_steps(tmp_path: Path, max_steps: int) -> None:
    long, short = trainer_in(tmp_path / "long"), trainer_in(tmp_path / "short", max_steps=max_steps)
    long.fit()
    short.fit()
    found, expected = short.callbacks[2].plan, long.callbacks[2].plan  # heat differs, so ties may fall either way
    assert (found.time_s, found.energy_j) == pytest.approx((expected.time_s, expected.energy_j), rel=2e-3)
    assert not lines_of(short, "longer than")


def test_training_that_ends_before_profiling_begins_says_so_once(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, all_callbacks(warmup_steps=5), max_steps=3)
    trainer.fit()
    assert len(lines_of(trainer, "before profiling began")) == 1
    assert not (tmp_path / "plan.yaml").exists()


def test_training_that_ends_in_the_middle_keeps_the_best_so_far(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, all_callbacks(measurements_per_step=10, max_fraction=1.0), max_steps=8)
    trainer.estimated_stepping_batches = float("inf")
    trainer.fit(num_steps=8)
    assert trainer.callbacks[2].plan == load_plan(tmp_path / "plan.yaml")


def test_a_second_run_measures_nothing_and_chooses_the_same(tmp_path: Path) -> None:
    first, second = trainer_in(tmp_path), trainer_in(tmp_path)
    first.fit()
    second.fit()
    assert second.callbacks[1].num_measured == 0
    assert second.callbacks[2].plan == first.callbacks[2].plan
    assert not lines_of(first, "measured before")
    line = f"{first.callbacks[1].num_measured} configurations were measured before, they are taken from {tmp_path}"
    assert len(lines_of(second, line)) == 1


@pytest.mark.parametrize("change", ["library", "shape"])
def test_a_changed_library_or_shape_measures_again(tmp_path: Path, change: str) -> None:
    first = trainer_in(tmp_path)
    first.fit()
    workload = WORKLOAD.with_sizes(sequence_length=1024) if change == "shape" else WORKLOAD
    second = trainer_in(tmp_path, workload=workload)
    second.strategy.library = "2" if change == "library" else "1"
    second.fit()
    assert second.callbacks[1].num_measured == pytest.approx(first.callbacks[1].num_measured, abs=10)


def test_an_unreachable_budget_stops_naming_what_is_reachable_and_keeps_the_measurements(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path, budget=Budget("deadline", 1e-3))
    with pytest.raises(BudgetError, match=r"the fastest takes 0\.\d+ s"):
        trainer.fit()
    assert len((tmp_path / "measurements.jsonl").read_text().splitlines()) > 50
    assert not (tmp_path / "plan.yaml").exists()


def test_a_budget_nothing_meets_yet_takes_the_fastest_when_profiling_is_cut_short(tmp_path: Path) -> None:
    callbacks = all_callbacks(measurements_per_step=10)
    trainer = trainer_in(tmp_path, callbacks, budget=Budget("deadline", 1e-3))
    trainer.fit()
    assert len(lines_of(trainer, "the fastest plan known runs instead")) == 1


@pytest.mark.parametrize(
    ("budget", "meets"),
    [
        (Budget("max_throughput"), lambda plan, base: plan.time_s <= base.time_s),
        (Budget("max_slowdown", 0.02), lambda plan, base: plan.time_s <= 1.02 * base.time_s),
        (Budget("deadline", 1.2 * PLAIN.time_s), lambda plan, base: plan.time_s <= 1.2 * PLAIN.time_s),
        (
            Budget("energy_budget", 0.95 * PLAIN.energy_per_gpu_j),
            lambda plan, base: plan.energy_j <= 0.95 * PLAIN.energy_per_gpu_j,
        ),
        (Budget("min_energy"), lambda plan, base: plan.energy_j <= base.energy_j),
    ],
    ids=lambda value: str(value) if isinstance(value, Budget) else "",
)
def test_the_chosen_plan_meets_its_budget(tmp_path: Path, budget: Budget, meets: Any) -> None:
    trainer = trainer_in(tmp_path, budget=budget)
    trainer.fit()
    optimizer = trainer.callbacks[2]
    assert meets(optimizer.plan, optimizer.references["max frequency"])
    assert f"budget: {budget}" in (tmp_path / "plan.yaml").read_text()


def test_a_foreign_measurements_file_stops_at_once_and_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "measurements.jsonl").write_text("step,loss\n")
    with pytest.raises(MeasurementError, match="line 1"):
        trainer_in(tmp_path).fit()
    assert (tmp_path / "measurements.jsonl").read_text() == "step,loss\n"


def test_a_row_of_ours_with_impossible_values_is_the_users_to_repair(tmp_path: Path) -> None:
    first = trainer_in(tmp_path)
    first.fit()
    path = tmp_path / "measurements.jsonl"
    row = json.loads(path.read_text().splitlines()[-1])
    path.write_text(path.read_text() + json.dumps({**row, "time_s": -1.0}) + "\n")
    with pytest.raises(MeasurementError, match="time is negative"):
        trainer_in(tmp_path).fit()


def test_a_plan_given_by_the_user_runs_from_the_first_step_and_nothing_is_measured(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    given = Plan.sequential(1200)
    trainer.strategy.plan = trainer.strategy.applied_plan = given
    trainer.fit()
    assert trainer.callbacks[1].num_measured == 0
    assert set(trainer.forward_mhz) == set(trainer.backward_mhz) == {1200}


def test_a_failure_while_measuring_is_one_line_and_training_goes_on(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise DeviceError("the GPU fell off the bus")

    trainer.strategy.device.run_partition = fail
    trainer.fit()
    assert trainer.global_step == 20
    assert len(lines_of(trainer, "profiling stopped")) == 1
    assert lines_of(trainer, "profiling stopped")[0].endswith(": DeviceError: the GPU fell off the bus")


def test_a_full_disk_is_one_line_and_the_plan_is_found_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("energy_lightning.measure.store.AppendLog.append", fail)
    monkeypatch.setattr("energy_lightning.callbacks.frontier_optimizer.save_plan", fail)
    trainer = trainer_in(tmp_path)
    trainer.fit()
    assert len(lines_of(trainer, "measurements cannot be written")) == 1
    assert len(lines_of(trainer, "the plan cannot be written")) == 1
    assert trainer.callbacks[2].plan is trainer.strategy.applied_plan


@pytest.mark.parametrize("missing", ["workload", "device", "energy"])
def test_what_cannot_be_profiled_still_trains_and_says_why(tmp_path: Path, missing: str) -> None:
    trainer = trainer_in(tmp_path, workload=None if missing in ("workload", "device") else WORKLOAD)
    if missing == "energy":
        trainer.strategy.device.energy_source = "none"
    trainer.fit()
    assert trainer.global_step == 20
    assert len(lines_of(trainer, "nothing is profiled")) == 1


def test_the_optimizer_refuses_a_strategy_that_cannot_follow_a_plan(tmp_path: Path) -> None:
    trainer = FakeTrainer(object(), [FrontierOptimizer()])
    trainer.strategy = type("DDPStrategy", (), {})()
    with pytest.raises(StrategyError, match="DDPStrategy"):
        trainer.call("on_train_start")


def test_a_decision_survives_the_checkpoint_and_is_not_made_again(tmp_path: Path) -> None:
    first = trainer_in(tmp_path / "first")
    first.fit()
    state = json.loads(json.dumps(first.callbacks[2].state_dict()))  # plain values only
    second = trainer_in(tmp_path / "elsewhere")
    second.callbacks[2].load_state_dict(state)
    second.fit()
    assert second.callbacks[2].outcome == first.callbacks[2].outcome
    assert second.callbacks[2].history == first.callbacks[2].history
    assert second.callbacks[1].num_measured == 0
    assert len(lines_of(second, "nothing is measured again")) == 1
    assert second.forward_mhz[-1] == first.forward_mhz[-1]


def test_a_decision_of_the_checkpoint_is_in_force_before_the_warm_up_is_over(tmp_path: Path) -> None:
    first = trainer_in(tmp_path / "first")
    first.fit()
    second = trainer_in(tmp_path / "second", all_callbacks(warmup_steps=10), max_steps=3)
    second.callbacks[2].load_state_dict(first.callbacks[2].state_dict())
    second.fit()
    assert second.forward_mhz[1:] == [first.forward_mhz[-1]] * 2


def test_a_second_fit_with_another_shape_does_not_reuse_the_first_ones_plan(tmp_path: Path) -> None:
    first = trainer_in(tmp_path)
    first.fit()
    second = trainer_in(tmp_path, first.callbacks, workload=WORKLOAD.with_sizes(sequence_length=1024))
    second.fit()
    assert second.forward_mhz[0] == 1410
    assert second.callbacks[2].plan is second.strategy.applied_plan
    assert second.callbacks[2].plan.time_s < first.strategy.applied_plan.time_s


def test_a_plan_of_ours_that_does_not_fit_is_one_line_and_plain_execution(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)

    def refuse(plan: Plan) -> None:
        raise PlanError("no such launch point")

    trainer.strategy.apply_plan = refuse
    trainer.fit()
    assert trainer.global_step == 20
    assert set(trainer.forward_mhz) == {1410}
    assert len(lines_of(trainer, "no such launch point")) == 1


def test_a_decision_for_another_shape_is_made_again(tmp_path: Path) -> None:
    first = trainer_in(tmp_path / "first")
    first.fit()
    second = trainer_in(tmp_path / "second", workload=WORKLOAD.with_sizes(sequence_length=1024))
    second.callbacks[2].load_state_dict(first.callbacks[2].state_dict())
    second.fit()
    assert second.callbacks[1].num_measured > 0


def test_a_decision_for_another_budget_is_made_again_from_what_is_measured(tmp_path: Path) -> None:
    first = trainer_in(tmp_path)
    first.fit()
    second = trainer_in(tmp_path, budget=Budget("max_throughput"))
    second.callbacks[2].load_state_dict(first.callbacks[2].state_dict())
    second.fit()
    assert second.callbacks[1].num_measured == 0
    assert second.callbacks[2].plan.time_s < first.callbacks[2].plan.time_s


def test_a_decision_made_early_is_not_final_after_resuming(tmp_path: Path) -> None:
    first = trainer_in(tmp_path, all_callbacks(measurements_per_step=10))
    first.fit()
    assert first.callbacks[2].plan is not None
    second = trainer_in(tmp_path)
    second.callbacks[2].load_state_dict(first.callbacks[2].state_dict())
    second.fit()
    assert second.callbacks[1].num_measured > 0
    assert (
        len({line.split('"partition"')[1].split('"time_s"')[0] for line in read(tmp_path)[1:]})
        == len(read(tmp_path)) - 1
    )


def test_a_checkpoint_before_the_decision_keeps_an_earlier_one() -> None:
    optimizer = FrontierOptimizer()
    assert optimizer.state_dict() == {}
    optimizer.load_state_dict({"made_for": "x"})
    assert optimizer.state_dict() == {"made_for": "x"}
    assert (optimizer.plan, optimizer.frontier, optimizer.references) == (None, [], {})


def test_the_same_seed_measures_the_same(tmp_path: Path) -> None:
    texts = []
    for name in ("a", "b"):
        trainer_in(tmp_path / name).fit()
        texts.append((tmp_path / name / "measurements.jsonl").read_text())
    assert texts[0] == texts[1]


def test_a_precision_shortens_windows_and_cool_downs(tmp_path: Path) -> None:
    spent_s = []
    for name, precision in (("whole", None), ("precise", 0.01)):
        callbacks = all_callbacks(precision=precision)
        trainer_in(tmp_path / name, callbacks=callbacks).fit()
        spent_s.append(callbacks[1].spent.time_s / callbacks[1].num_measured)
    assert 0.35 * spent_s[0] < spent_s[1] < 0.5 * spent_s[0]


@pytest.mark.parametrize(
    "bad", [{"warmup_steps": -1}, {"max_fraction": 0.0}, {"max_fraction": 1.5}, {"measurements_per_step": 0}]
)
def test_impossible_profiler_settings_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"need|must"):
        PartitionProfiler(**bad)


def test_callbacks_given_in_any_order_account_for_the_same_energy(tmp_path: Path) -> None:
    totals = []
    for name, turn in (("a", 0), ("b", 1), ("c", 2), ("d", 3)):
        callbacks = all_callbacks()
        monitor = callbacks[0]
        trainer = trainer_in(tmp_path / name, callbacks[turn:] + callbacks[:turn])
        trainer.fit()
        totals.append((monitor.own.time_s, monitor.num_steps))
    assert [num_steps for _, num_steps in totals] == [20] * 4
    assert [time_s for time_s, _ in totals] == pytest.approx([totals[0][0]] * 4, rel=0.1)


def test_profiling_is_not_counted_as_training(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    monitor, profiler, *_ = trainer.callbacks
    trainer.fit()
    assert profiler.spent.time_s > 500.0
    assert monitor.own.time_s == pytest.approx(20 * PLAIN.time_s, rel=0.3)
    assert monitor.own.energy_j == pytest.approx(
        sum(m.get("emulated_energy_j", 0.0) for m in trainer.lightning_module.logged)
    )
    device = trainer.strategy.device
    assert device.now_s() == pytest.approx(profiler.spent.time_s + monitor.own.time_s, abs=0.05)


def test_the_plan_can_be_replaced_in_the_middle_of_training(tmp_path: Path) -> None:
    trainer = trainer_in(tmp_path)
    optimizer = trainer.callbacks[2]
    trainer.fit(num_steps=10)
    chosen = optimizer.outcome.chosen
    optimizer.outcome = replace(optimizer.outcome, chosen=replace(chosen, choice=Plan.sequential(1200)))
    trainer.fit(num_steps=3)
    assert trainer.forward_mhz[-1] == 1200


def test_defaults_cover_the_whole_useful_range() -> None:
    assert EnergyMonitor()
    assert FrequencyController()
    assert FrontierOptimizer(sizes=SMALL)
