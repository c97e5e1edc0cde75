"""What is logged, with which name and unit, and what totals survive."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_trainer import WORKLOAD, EnergyMonitor, FakeStrategy, FakeTrainer

from energy_lightning.callbacks.job import gpu_identity
from energy_lightning.callbacks.monitored import Monitored
from energy_lightning.callbacks.shared_device import DeviceChoice
from energy_lightning.device import EmulatedDevice
from energy_lightning.emulation import GPU, emulate_iteration
from energy_lightning.measure import sum_over_gpus
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.types import DeviceError, PhasePlan, Plan, WorkloadError

A100 = GPU.load("a100-sxm4-40gb")
ITERATION = emulate_iteration(WORKLOAD, A100, Plan.sequential())


class Scripted(ScriptedDevice):
    """A step takes a second at 200 W."""

    def run_phase(self, phase_plan: PhasePlan) -> None:
        self.work(0.4)

    def run_iteration_end(self, phase_plan: PhasePlan) -> None:
        self.work(0.2)


def plain_trainer(monitor: Any, **options: Any) -> FakeTrainer:
    """Under a strategy that is not ours."""
    strategy = SimpleNamespace(
        root_device=SimpleNamespace(type="cpu"), device=None, applied_plan=None, broadcast=lambda value: value
    )
    return FakeTrainer(strategy, [monitor], **options)


def kareus_trainer(monitor: Any, tmp_path: Path, device: Any = None, **options: Any) -> FakeTrainer:
    strategy = FakeStrategy(tmp_path)
    strategy.device = device or strategy.device
    return FakeTrainer(strategy, [monitor], **options)


def test_emulated_figures_are_named_emulated_and_say_so(tmp_path: Path) -> None:
    trainer = kareus_trainer(EnergyMonitor(), tmp_path, max_steps=2)
    trainer.fit()
    first = trainer.lightning_module.logged[0]
    assert first["emulated_step_time_s"] == pytest.approx(ITERATION.time_s)
    assert first["emulated_energy_j"] == pytest.approx(ITERATION.energy_per_gpu_j, rel=0.05)
    assert first["emulated_power_w"] == pytest.approx(first["emulated_energy_j"] / first["emulated_step_time_s"])
    assert all(name.startswith("emulated_") for metrics in trainer.lightning_module.logged for name in metrics)
    assert "EMULATED" in trainer.lightning_module.lines[-1]


def test_measured_figures_carry_no_label(tmp_path: Path) -> None:
    device = Scripted(power_w=lambda _: 200.0)
    trainer = kareus_trainer(EnergyMonitor(), tmp_path, device, max_steps=12)
    trainer.fit()
    first, last = trainer.lightning_module.logged[0], trainer.lightning_module.logged[-1]
    assert first == pytest.approx({"step_time_s": 1.0, "energy_j": 200.0, "power_w": 200.0})
    assert last == pytest.approx({"total_time_s": 12.0, "total_energy_j": 2400.0})
    assert not [line for line in trainer.lightning_module.lines if "EMULATED" in line]


def test_a_slow_counter_gives_means_over_as_many_steps_as_it_needs(tmp_path: Path) -> None:
    device = Scripted(power_w=lambda _: 200.0, refresh_s=0.3)
    trainer = kareus_trainer(EnergyMonitor(), tmp_path, device, max_steps=30)
    trainer.fit()
    steps = [metrics for metrics in trainer.lightning_module.logged if "energy_j" in metrics]
    assert 5 <= len(steps) < 30
    assert all(metrics["energy_j"] == pytest.approx(200.0, rel=0.15) for metrics in steps)
    assert trainer.callbacks[0].own.energy_j == pytest.approx(30 * 200.0, rel=0.02)


class CountedReadings(Scripted):
    """Counts the calls of its energy counter."""

    num_readings = 0

    def energy_j(self) -> float | None:
        self.num_readings += 1
        return super().energy_j()


def test_a_slow_counter_is_read_once_a_window_and_not_at_every_step(tmp_path: Path) -> None:
    device = CountedReadings(power_w=lambda _: 200.0, refresh_s=2.0)
    trainer = kareus_trainer(EnergyMonitor(), tmp_path, device)
    trainer.call("on_train_start")
    for _ in range(99):
        trainer.batch(0, steps=True)
    monitor = trainer.callbacks[0]
    assert device.num_readings == 1 + 4  # windows of ten refreshes of 2 s; steps of 1 s
    assert monitor.num_steps == 99
    trainer.call("on_validation_start")  # what was not read yet is
    assert (monitor.own.time_s, monitor.own.energy_j) == (pytest.approx(99.0), pytest.approx(19800.0, rel=0.03))
    trainer.call("on_validation_end")
    trainer.batch(0, steps=True)
    trainer.call("on_train_epoch_end")
    assert monitor.total.time_s == pytest.approx(100.0)


def test_a_counter_that_has_not_moved_yet_is_no_energy_of_zero(tmp_path: Path) -> None:
    device = Scripted(power_w=lambda _: 200.0, refresh_s=60.0)
    device.work(1.0)
    trainer = kareus_trainer(EnergyMonitor(), tmp_path, device, max_steps=3)
    trainer.fit()
    assert trainer.lightning_module.logged[-1] == {"total_time_s": pytest.approx(3.0)}
    assert "energy not known yet: the counter has not moved" in trainer.lightning_module.lines[-1]


@pytest.mark.parametrize(
    ("valid_steps", "words"),
    [
        (0, "s in all, energy not known: no reading was valid ("),
        (2, " J over the GPUs of all processes (incomplete: some energy readings were void) ("),  # and no mean power
    ],
)
def test_a_counter_that_cannot_be_read_any_more_is_said(tmp_path: Path, valid_steps: int, words: str) -> None:
    device = Scripted(power_w=lambda _: 200.0)
    device.temperature_c = lambda: None  # type: ignore[method-assign]
    trainer = kareus_trainer(EnergyMonitor(), tmp_path, device)
    trainer.call("on_train_start")
    for _ in range(valid_steps):
        trainer.batch(0, steps=True)
    device.energy_j = lambda: None  # type: ignore[method-assign]
    trainer.batch(0, steps=True)
    trainer.call("on_train_epoch_end")
    assert words in trainer.lightning_module.lines[-1]


def test_the_line_of_an_epoch_tells_its_range_of_temperatures(tmp_path: Path) -> None:
    device = Scripted()
    readings_c = iter([50.0, 61.0, 58.0, 40.0])
    device.temperature_c = lambda: next(readings_c)  # type: ignore[method-assign]
    trainer = kareus_trainer(EnergyMonitor(), tmp_path, device)
    trainer.call("on_train_start")
    for _ in range(2):  # steps of 1.8 s: a reading after each, and one at the end of the epoch
        trainer.batch(0, steps=False)
        trainer.batch(1, steps=True)
    trainer.call("on_train_epoch_end")
    trainer.call("on_train_epoch_end")
    assert [line.split(", ")[-1] for line in trainer.lightning_module.lines] == [
        "50 to 61 C (scripted GPU)",
        "40 C (scripted GPU)",
    ]


def test_a_counter_reset_costs_one_window_and_marks_the_total(tmp_path: Path) -> None:
    device = Scripted(power_w=lambda _: 200.0)
    trainer = kareus_trainer(EnergyMonitor(), tmp_path, device)
    trainer.call("on_train_start")
    for step in range(5):
        if step == 2:
            device.reset_counter()
        trainer.batch(0, steps=True)
    monitor = trainer.callbacks[0]
    assert monitor.own.time_s == pytest.approx(5.0)
    assert monitor.own.energy_j == pytest.approx(4 * 200.0)
    assert not monitor.own.complete


def test_without_energy_the_time_is_logged_and_one_line_says_why() -> None:
    now_s = iter(range(1000))
    trainer = plain_trainer(EnergyMonitor(clock_s=lambda: float(next(now_s))), max_steps=3)
    trainer.fit()
    assert trainer.lightning_module.logged[0] == {"step_time_s": 1.0}
    assert "total_energy_j" not in trainer.lightning_module.logged[-1]
    assert len([line for line in trainer.lightning_module.lines if "energy is not measured" in line]) == 1


def test_under_another_strategy_a_workload_is_accounted_as_plain_execution() -> None:
    trainer = plain_trainer(EnergyMonitor(workload=WORKLOAD), max_steps=3)
    trainer.fit()
    assert trainer.lightning_module.logged[0]["emulated_step_time_s"] == pytest.approx(ITERATION.time_s)


def test_accumulated_microbatches_are_one_step(tmp_path: Path) -> None:
    trainer = kareus_trainer(EnergyMonitor(), tmp_path, Scripted(), max_steps=2, accumulate=3)
    trainer.fit()
    assert [m["step_time_s"] for m in trainer.lightning_module.logged[:2]] == pytest.approx([2.6, 2.6])


def test_validation_is_left_out(tmp_path: Path) -> None:
    device = Scripted(power_w=lambda _: 200.0)
    trainer = kareus_trainer(EnergyMonitor(), tmp_path, device)
    trainer.call("on_train_start")
    trainer.batch(0, steps=True)
    trainer.call("on_validation_start")
    device.work(100.0)
    trainer.call("on_validation_end")
    trainer.batch(0, steps=True)
    assert trainer.callbacks[0].own.time_s == pytest.approx(2.0)
    assert trainer.callbacks[0].own.energy_j == pytest.approx(400.0)


def test_totals_go_on_from_the_checkpoint(tmp_path: Path) -> None:
    trainer = kareus_trainer(EnergyMonitor(), tmp_path, Scripted(power_w=lambda _: 200.0))
    trainer.call("on_train_start")
    for _ in range(8):
        trainer.batch(0, steps=True)
    checkpoint: dict[str, Any] = {"callbacks": {}}
    trainer.call("on_save_checkpoint", checkpoint)
    state = json.loads(json.dumps(checkpoint["callbacks"]["EnergyMonitor"]))
    assert state == {"energy_j": pytest.approx(1600.0), "time_s": pytest.approx(8.0), "complete": True, "num_steps": 8}
    for _ in range(4):  # lost with the crash
        trainer.batch(0, steps=True)

    resumed = EnergyMonitor()
    resumed.load_state_dict(state)
    trainer = kareus_trainer(resumed, tmp_path, Scripted(power_w=lambda _: 200.0), max_steps=2)
    trainer.fit()
    assert resumed.total.energy_j == pytest.approx(2000.0)
    assert resumed.num_steps == 10


def test_a_second_fit_adds_to_the_first(tmp_path: Path) -> None:
    monitor = EnergyMonitor()
    kareus_trainer(monitor, tmp_path, Scripted(power_w=lambda _: 200.0), max_steps=3).fit()
    kareus_trainer(monitor, tmp_path, Scripted(power_w=lambda _: 200.0), max_steps=2).fit()
    assert (monitor.total.energy_j, monitor.num_steps) == (pytest.approx(1000.0), 5)


def test_step_records_past_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "energy.jsonl"
    trainer = kareus_trainer(EnergyMonitor(records=path), tmp_path, Scripted(), max_steps=12)
    trainer.fit()
    path.write_bytes(path.read_bytes()[:-9])  # killed in the middle of step 12
    resumed = kareus_trainer(EnergyMonitor(records=path), tmp_path, Scripted(), max_steps=2)
    resumed.global_step = 8
    resumed.fit()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 11))
    assert all(row["source"] == "counter" for row in rows)


def test_foreign_step_records_end_the_monitoring_not_the_training(tmp_path: Path) -> None:
    path = tmp_path / "energy.jsonl"
    path.write_text("not ours\n")
    trainer = kareus_trainer(EnergyMonitor(records=path), tmp_path, Scripted(), max_steps=2)
    trainer.fit()
    assert trainer.global_step == 2
    assert path.read_text() == "not ours\n"
    assert len([line for line in trainer.lightning_module.lines if "no longer monitored" in line]) == 1


class TwoRanks:
    """What a second rank would send in the reduction."""

    def __init__(self, other: tuple[float, ...]) -> None:
        self.other = other

    def gather(self, trainer: Any, values: Any) -> list[list[float]]:
        return [list(values), list(self.other)]


@pytest.mark.parametrize(("other_gpu", "expected_j"), [(-2.0, 70.0), (-1.0, 40.0)], ids=["distinct", "the same GPU"])
def test_ranks_add_up_over_distinct_gpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, other_gpu: float, expected_j: float
) -> None:
    group = TwoRanks((other_gpu, 40.0, 1.0, 1.0))
    monkeypatch.setattr("energy_lightning.callbacks.energy_monitor.gather_rows", group.gather)
    trainer = kareus_trainer(EnergyMonitor(), tmp_path, Scripted(power_w=lambda _: 30.0), max_steps=1)
    trainer.fit()
    assert trainer.callbacks[0].total.energy_j == pytest.approx(expected_j)


def test_gpus_are_the_same_only_with_the_same_uuid() -> None:
    one, two = SimpleNamespace(uuid="GPU-aaaa"), SimpleNamespace(uuid="GPU-bbbb")
    identities = [gpu_identity(one, 0), gpu_identity(one, 1), gpu_identity(two, 2), gpu_identity(None, 3)]
    assert identities[0] == identities[1]
    assert len(set(identities)) == 3
    assert sum_over_gpus(zip(identities, (1.0, 1.0, 1.0, 1.0), strict=True)) == 3.0


def choose(given: Any = None, strategy_device: Any = None, workload: Any = None) -> Any:
    trainer = plain_trainer(EnergyMonitor(), max_steps=1)
    trainer.local_rank = 0
    if strategy_device is not None:
        trainer.strategy = FakeStrategy(Path("unused"))
        trainer.strategy.device = strategy_device
    return DeviceChoice.parse(given, workload, "a100-sxm4-40gb").open(trainer, trainer.callbacks[0])


def test_ranks_open_their_device_with_what_their_job_has_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two ranks may have one GPU, which the first would keep from another job."""
    opened: list[dict[str, Any]] = []

    def open_device(name: str, **options: Any) -> ScriptedDevice:
        opened.append({"name": name, **options})
        return ScriptedDevice()

    monkeypatch.setattr("energy_lightning.callbacks.shared_device.open_device", open_device)
    for rank in range(2):
        trainer = plain_trainer(EnergyMonitor(device="nvidia"), max_steps=0)
        trainer.local_rank, trainer.strategy.broadcast = rank, lambda value: "the first rank's"
        trainer.callbacks[0].on_train_start(trainer, trainer.lightning_module)
    assert [(one["job"], one["torch_device"]) for one in opened] == [("the first rank's", 0), ("the first rank's", 1)]


@pytest.mark.parametrize(("given", "workload"), [(5, None), (None, 5)])
def test_what_is_no_device_or_workload_is_named(given: Any, workload: Any) -> None:
    with pytest.raises((DeviceError, WorkloadError), match=r"must be a .*, got 5"):
        EnergyMonitor(device=given, workload=workload)


def test_the_strategys_device_is_shared_not_owned() -> None:
    device = ScriptedDevice()
    monitored = choose(strategy_device=device)
    assert (monitored.device, monitored.owned, monitored.driven) == (device, False, False)


def test_a_device_given_by_the_user_wins() -> None:
    given = ScriptedDevice()
    assert choose(given, ScriptedDevice()).device is given


def test_an_emulated_device_of_our_own_is_driven_by_us() -> None:
    monitored = choose("emulated", workload=WORKLOAD)
    assert isinstance(monitored.device, EmulatedDevice)
    assert monitored.owned
    assert monitored.driven


@pytest.mark.parametrize(("name", "named"), [("emulated", "needs a workload"), ("quantum", "unknown device 'quantum'")])
def test_a_device_asked_for_by_name_that_cannot_be_had_is_an_error(name: str, named: str) -> None:
    with pytest.raises(DeviceError, match=named):
        choose(name)


def test_a_device_that_cannot_be_closed_hides_no_error(caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(ScriptedDevice):
        def close(self) -> None:
            raise DeviceError("the driver is gone")

    Monitored(Stuck()).close()  # another's: not ours to close
    assert not caplog.records
    Monitored(Stuck(), owned=True).close()
    assert "scripted GPU could not be closed (DeviceError: the driver is gone)" in caplog.text
