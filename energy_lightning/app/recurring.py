"""`energy-lightning recurring`: the state of a recurring job's store as a table; on request a picture and CSV files."""

from __future__ import annotations

import csv
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

from energy_lightning.app.folder import COMPLETED, FAILED
from energy_lightning.app.hydra_jobs import checked_arguments, exit_code, names_folder, run_hydra
from energy_lightning.app.predict_job import Job, Screen, run_job
from energy_lightning.app.settings import check_missing
from energy_lightning.recurring import (
    BatchSizeOptimizer,
    Belief,
    JointOptimizer,
    PowerLimitSample,
    Run,
    Savings,
    TargetNeverReachedError,
    savings,
)
from energy_lightning.recurring.wording import counted
from energy_lightning.report.recurring import (
    beliefs_table,
    cost_line,
    draw_recurring,
    limits_line,
    running_line,
    savings_line,
)
from energy_lightning.types import ConfigError, EnergyLightningError

CONFIG_NAME = "recurring"


def recurring(arguments: Sequence[str]) -> int:
    """Show the store that `arguments` (Hydra overrides and flags) name; the exit code."""
    given = [each for each in arguments if each != "output_dir=null"]
    writes = any(names_folder(each) or each in ("-m", "--multirun") for each in given)
    checked = checked_arguments(given, CONFIG_NAME, writes=writes)
    if not writes:
        checked.append("hydra.run.dir=.")  # where Hydra, which wants a folder, makes none
    return exit_code(run_hydra(checked, run_recurring, CONFIG_NAME), COMPLETED)


def run_recurring(config: Any, path: Path) -> str:
    """Show as the composed configuration says, and write files where it names a folder, `path`; the job's status."""
    if config.output_dir is not None or path != Path.cwd():  # the latter: one of several jobs, each has its folder
        return run_job(config, path, _show_and_write)
    try:
        check_missing(config)
        _State.read(config.store, config.power_limit_w).show(Screen())
    except EnergyLightningError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return COMPLETED


def _show_and_write(job: Job) -> None:
    state = _State.read(job.values["store"], job.values["power_limit_w"])
    state.show(job)
    job.complete(state.write(job.folder.path), **state.summary())


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """All that a store tells. `best`: None where no recent run reached the target; `fault`: that no batch size does."""

    store: Path
    optimizer: JointOptimizer
    emulated: bool
    runs: Sequence[Run]
    beliefs: Sequence[Belief]
    profiles: Mapping[int, Sequence[PowerLimitSample]]
    best: int | None
    fault: str | None
    saved: Savings | None
    power_limit_w: float | None

    @classmethod
    def read(cls, store: Any, power_limit_w: Any) -> Self:
        """With beliefs under a power limit in W; None: under each size's own. ConfigError, StoreError."""
        path, limit_w = Path(str(store)), _limit(power_limit_w)
        optimizer = JointOptimizer.of_store(path)
        asked = optimizer if limit_w is None else BatchSizeOptimizer.of_store(path)
        runs, best, fault = optimizer.runs(), None, None
        if optimizer.cost.eta == 0.0:  # earlier versions stored 0 J where nothing was measured
            runs = [replace(run, energy_j=run.energy_j or None) for run in runs]
        try:
            likely = asked.best(power_limit_w=limit_w)  # the default where no recent run reached the target
            recent = optimizer.settings.view(runs, limit_w).recent().outcomes
            best = likely if any(outcome.reached for outcome in recent) else None
        except TargetNeverReachedError as error:
            fault = str(error)
        return cls(
            store=path,
            optimizer=optimizer,
            emulated=optimizer.emulated,
            runs=runs,
            beliefs=asked.beliefs(power_limit_w=limit_w),
            profiles=optimizer.profiles(),
            best=best,
            fault=fault,
            saved=savings(runs, optimizer.default, optimizer.cost),
            power_limit_w=limit_w,
        )

    @property
    def _numbers(self) -> dict[str, int]:
        """How many runs were reported, go on, and ended without a report (interrupted, killed)."""
        states = Counter(run.state for run in self.runs)
        return {"num_runs": states["done"], "num_running": states["running"], "num_never_reported": states["dead"]}

    @property
    def _shown(self) -> dict[str, Any]:
        """What table and picture have in common."""
        numbers = self._numbers
        others = {"running": numbers["num_running"], "never reported": numbers["num_never_reported"]}
        told = [counted(numbers["num_runs"], "run"), *(f"{number} {what}" for what, number in others.items() if number)]
        told += [] if self.power_limit_w is None else [f"costs under {self.power_limit_w:g} W a GPU"]
        return {
            "cost": self.optimizer.cost,
            "title": f"Recurring job {self.store.name}: {', '.join(told)}",
            "default": self.optimizer.default,
            "emulated": self.emulated,
        }

    def show(self, screen: Screen) -> None:
        """A table and lines."""
        if self.fault is not None:
            screen.say(f"warning: {self.fault}")
        screen.say(beliefs_table(self.beliefs, best=self.best, **self._shown))
        screen.say(cost_line(self.optimizer.cost))
        limits = None if self.power_limit_w is not None else limits_line(self.runs, self.profiles)
        for line in filter(None, (limits, running_line(self.runs, time.time()))):
            screen.say(line)
        screen.say(savings_line(self.saved, self.optimizer.default, self.optimizer.cost))

    def summary(self) -> dict[str, Any]:
        """For summary.json."""
        return {
            "store": str(self.store),
            "emulated": self.emulated,
            "settings": asdict(self.optimizer.settings),
            "cost": cost_line(self.optimizer.cost),
            "best": self.best,
            **self._numbers,
            "savings": None if self.saved is None else asdict(self.saved),
        }

    def write(self, folder: Path) -> list[str]:
        """Tables and a picture; their names."""
        tables = {name: rows for name, rows in self._tables().items() if rows}
        for name, rows in tables.items():
            _write_csv(folder / name, rows)
        draw_recurring(self.beliefs, self.runs, folder / "recurring.png", saved=self.saved, **self._shown)
        return [*tables, "recurring.png"]

    def _tables(self) -> dict[str, list[dict[str, Any]]]:
        optimizer, kind = self.optimizer, {"emulated": self.emulated}
        return {
            "beliefs.csv": [
                {
                    **asdict(one),
                    "is_default": one.batch_size == optimizer.default,
                    "is_best": one.batch_size == self.best,
                    **kind,
                }
                for one in self.beliefs
            ],
            "profiles.csv": [
                {"batch_size": size, **asdict(one), "is_best": one.power_limit_w == optimizer.limit_of(size), **kind}
                for size, sweep in self.profiles.items()
                for one in sweep
            ],
            "runs.csv": [{**asdict(run), "cost_j": optimizer.cost.of(run), **kind} for run in self.runs],
        }


def _write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _limit(value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0.0:
        raise ConfigError(f"power_limit_w must be a limit in W or null, got {value!r}")
    return float(value)
