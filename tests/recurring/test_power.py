"""The power limit chosen from a sweep, against brute force over measured profiles.

Folder of the profiles: $ENERGY_LIGHTNING_DATA, else ../shared/data beside the checkout.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from energy_lightning.recurring import PowerObjective, RecurringError, choose_power_limit

FOLDER = Path(os.environ.get("ENERGY_LIGHTNING_DATA", Path(__file__).resolve().parents[3] / "shared" / "data"))
FILE = FOLDER / "zeus_power_limit_profiles.csv"
measured = pytest.mark.skipif(not FILE.is_file(), reason=f"no measured profiles in {FOLDER}; set ENERGY_LIGHTNING_DATA")
PROFILE = [(100.0, 20.0, 1500.0), (150.0, 12.0, 1200.0), (200.0, 10.2, 1400.0), (250.0, 10.0, 1700.0)]


def profiles() -> dict[str, list[tuple[float, float, float]]]:
    found: dict[str, list[tuple[float, float, float]]] = {}
    with FILE.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            values = (float(row["power_limit_w"]), float(row["time_s"]), float(row["energy_j"]))
            found.setdefault(row["source_file"], []).append(values)
    return found


def brute_force(rows: list[tuple[float, float, float]], objective: PowerObjective, noise: float) -> float:
    """Highest limit that no other limit beats by more than the noise, found by comparing every pair."""
    top = max(rows)
    values: dict[str, Callable[[tuple[float, float, float]], float]] = {
        "energy": lambda r: r[2],
        "max_slowdown": lambda r: r[2],
        "time": lambda r: r[1],
        "cost": lambda r: objective.eta * r[2] + (1 - objective.eta) * top[0] * r[1],
    }
    value = values[objective.goal]
    if objective.goal == "max_slowdown":
        rows = [row for row in rows if row[1] / top[1] <= 1 + objective.max_slowdown]
    unbeaten = [row for row in rows if not any(value(other) * (1 + noise) < value(row) for other in rows)]
    return max(row[0] for row in unbeaten)


@measured
@pytest.mark.parametrize("noise", [0.0, 0.01, 0.05])
@pytest.mark.parametrize(
    "objective",
    [PowerObjective(goal="energy"), PowerObjective(goal="time")]
    + [PowerObjective(goal="cost", eta=eta) for eta in (0.0, 0.3, 0.5, 0.8, 1.0)]
    + [PowerObjective(goal="max_slowdown", max_slowdown=share) for share in (0.0, 0.05, 0.1, 0.5)],
    ids=lambda one: f"{one.goal}-{one.eta}-{one.max_slowdown}",
)
def test_equals_brute_force_on_measured_sweeps(objective: PowerObjective, noise: float) -> None:
    found = profiles()
    assert len(found) == 4
    for rows in found.values():
        chosen = choose_power_limit(reversed(rows), objective, noise=noise)
        assert chosen.power_limit_w == brute_force(rows, objective, noise)


@pytest.mark.parametrize(
    ("objective", "expected_w"),
    [
        (PowerObjective(), 150.0),
        (PowerObjective(goal="time"), 250.0),
        (PowerObjective(goal="cost"), 200.0),  # 600+1500, 700+1275 (least), 850+1250, 750+2500
        (PowerObjective(goal="max_slowdown", max_slowdown=0.05), 200.0),
        (PowerObjective(goal="max_slowdown"), 250.0),
        (PowerObjective(goal="cost", eta=1.0), 150.0),
    ],
)
def test_choices_by_hand(objective: PowerObjective, expected_w: float) -> None:
    assert choose_power_limit(PROFILE, objective).power_limit_w == expected_w


def test_ties_within_noise_keep_the_higher_limit() -> None:
    rows = [(100.0, 10.0, 98.0), (200.0, 10.0, 100.0), (300.0, 10.0, 104.0)]
    assert choose_power_limit(rows, noise=0.01).power_limit_w == 100.0
    assert choose_power_limit(rows, noise=0.03).power_limit_w == 200.0
    assert choose_power_limit(rows, noise=0.1).power_limit_w == 300.0


def test_repeats_of_a_limit_are_averaged() -> None:
    chosen = choose_power_limit([(200.0, 10.0, 5.0), (300.0, 9.0, 6.0), (200.0, 10.2, 5.2)])
    assert (chosen.time_s, chosen.energy_j) == pytest.approx((10.1, 5.1))


@pytest.mark.parametrize("row", [(0.0, 1.0, 1.0), (100.0, float("nan"), 1.0), (100.0, 1.0, -1.0), (100.0, 0.0, 1.0)])
def test_impossible_rows_are_refused(row: tuple[float, float, float]) -> None:
    with pytest.raises(RecurringError, match="drop failed windows"):
        choose_power_limit([*PROFILE, row])


def test_wrong_questions_are_refused() -> None:
    with pytest.raises(RecurringError, match="empty"):
        choose_power_limit([])
    with pytest.raises(RecurringError, match="known: energy, time, cost, max_slowdown"):
        PowerObjective(goal="speed")  # type: ignore[arg-type]
    with pytest.raises(RecurringError, match="eta"):
        PowerObjective(eta=1.5)
    with pytest.raises(RecurringError, match="max_slowdown"):
        PowerObjective(max_slowdown=float("nan"))
    with pytest.raises(RecurringError, match="noise"):
        choose_power_limit(PROFILE, noise=1.0)
