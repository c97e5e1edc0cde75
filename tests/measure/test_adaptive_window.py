"""Windows that end early: against numpy's straight lines, and on scripted devices whose energies are known."""

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from energy_lightning.measure import CallableRunner, PartitionConfig, PartitionMeter, WindowSettings
from energy_lightning.measure.adaptive import slope_with_half_width
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.types import EnergyLightningError, Measurement
from energy_lightning.workload import Partition

PARTITION = Partition("fwd_attn", (), None, 1, True)
CONFIG = PartitionConfig("fwd_attn", 900)
PER_RUN_J = 0.003 * 190.0


def measure(
    device: ScriptedDevice, seed: int | None = None, *, agree: Callable[[bool], bool] = bool, **settings: float | None
) -> tuple[Measurement, PartitionMeter]:
    """One measurement of runs of 3 ms at 190 W; with a seed their lengths vary by 10%."""
    rng = None if seed is None else np.random.default_rng(seed)

    def run_once() -> None:
        device.work(0.003 if rng is None else 0.003 * rng.normal(1.0, 0.1))

    windows = WindowSettings(**{"precision": 0.01, **settings})  # type: ignore[arg-type]
    meter = PartitionMeter(device, CallableRunner(lambda *_: run_once), windows, refresh_s=0.1, agree=agree)
    return meter.measure(PARTITION, CONFIG), meter


@pytest.mark.parametrize("count", [5, 6, 11, 100])
def test_slope_and_interval_are_those_of_linear_regression(count: int) -> None:
    values = np.random.default_rng(count).standard_normal(count).cumsum()
    expected = stats.linregress(np.arange(count), values)
    slope, half = slope_with_half_width(values.tolist())
    assert slope == pytest.approx(expected.slope)
    quantile = stats.t.ppf(0.975, count - 2)
    assert half == pytest.approx(quantile * expected.stderr, rel=0.002 if count > 10 else 0.04)


def test_few_values_have_a_slope_and_no_interval() -> None:
    assert slope_with_half_width([1.0, 3.0]) == (2.0, float("inf"))
    assert slope_with_half_width([1.0, 3.0, 5.0, 7.0]) == (2.0, float("inf"))


@pytest.mark.parametrize("refresh_s", [0.0, 0.1])
def test_a_steady_window_ends_at_its_least_length_and_so_does_its_cool_down(refresh_s: float) -> None:
    device = ScriptedDevice(refresh_s=refresh_s)
    measured, meter = measure(device)
    assert measured.valid
    assert 2.0 <= meter.window_time_s < 2.3
    assert meter.cool_down_time_s == pytest.approx(meter.window_time_s)
    assert device.calls[-1] == ("idle", pytest.approx(meter.window_time_s))
    assert measured.time_s == pytest.approx(0.003)
    assert measured.energy_j == pytest.approx(PER_RUN_J, rel=0.005)


def test_short_windows_are_as_exact_as_published_ones_with_a_slow_counter() -> None:
    """The counter shows up to 0.1 s too little: 20 windows each, at phases of the counter that differ."""
    errors: dict[float | None, list[float]] = {None: [], 0.01: []}
    for precision, found in errors.items():
        device = ScriptedDevice(refresh_s=0.1)
        for phase in range(20):
            device.idle(0.0137 * phase)
            measured, _ = measure(device, seed=phase, precision=precision)
            assert measured.energy_j is not None
            found.append(measured.energy_j / measured.time_s / 190.0 - 1.0)
    spread = {precision: np.sqrt(np.mean(np.square(found))) for precision, found in errors.items()}
    assert spread[0.01] < spread[None] < 0.015


def test_an_unsteady_window_goes_on_to_its_full_length() -> None:
    device = ScriptedDevice(refresh_s=0.1)
    _, meter = measure(device, seed=0, precision=1e-4)
    assert 5.0 <= meter.window_time_s < 5.6


def test_one_long_run_fills_the_window() -> None:
    device = ScriptedDevice()
    runner = CallableRunner(lambda *_: lambda: device.work(7.0))
    meter = PartitionMeter(device, runner, WindowSettings(precision=0.01))
    measured = meter.measure(PARTITION, CONFIG)
    assert (measured.time_s, measured.energy_j) == (pytest.approx(7.0), pytest.approx(7.0 * 190.0))
    assert meter.window_time_s == pytest.approx(7.0)


def test_no_rank_stops_before_all_agree() -> None:
    wishes: list[bool] = []

    def agree(own: bool) -> bool:
        wishes.append(own)
        looks = wishes[wishes.index(False) :] if False in wishes else []
        return sum(looks) >= 3 if looks else own  # the other rank is satisfied two looks later, and fails at nothing

    _, meter = measure(ScriptedDevice(refresh_s=0.1), agree=agree)
    assert wishes[wishes.index(False) :].count(True) >= 3
    assert meter.window_time_s > 2.3


def test_a_reset_ends_the_window_and_it_is_measured_again() -> None:
    device = ScriptedDevice()
    num_runs = 0

    def run_once() -> None:
        nonlocal num_runs
        num_runs += 1
        device.work(0.003)
        if num_runs == 20:
            device.reset_counter()

    meter = PartitionMeter(device, CallableRunner(lambda *_: run_once), WindowSettings(precision=0.01))
    measured = meter.measure(PARTITION, CONFIG)
    assert measured.valid
    assert measured.energy_j == pytest.approx(PER_RUN_J)


def test_sources_without_a_counter() -> None:
    timed, _ = measure(ScriptedDevice(energy_source="none"))
    assert timed.valid
    assert (timed.energy_j, timed.time_s) == (None, pytest.approx(0.003))
    still, _ = measure(ScriptedDevice(refresh_s=100.0), max_retries=0)
    assert "did not move" in str(still.invalid_reason)


@pytest.mark.parametrize("bad", [{"precision": 0.0}, {"precision": float("nan")}, {"least_window_s": 0.0}])
def test_impossible_settings_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(EnergyLightningError, match="precision"):
        WindowSettings(**bad)  # type: ignore[arg-type]
