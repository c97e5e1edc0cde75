"""Sweeps that go on: one at a time in a folder, failed runs again where asked for, ends by signals, words in a log."""

from __future__ import annotations

import io
import os
import signal
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from energy_lightning.app import sweep_worker
from energy_lightning.app.hydra_jobs import checked_arguments
from energy_lightning.app.predict_job import Job, _Sparing, terminated_as_interrupted
from energy_lightning.app.sweep import say_how_it_went
from energy_lightning.app.sweep_runs import RunFile, alone_with, collect
from energy_lightning.predict import FallbackWarning, UnitWarning
from energy_lightning.types import ConfigError

RUNS = {"a": {"batch_size": 1}, "b": {"batch_size": 2}}


def swept(path: Path, outcome: dict[str, Any], *, retry_failed: bool = False) -> tuple[list[Any], list[Any], int]:
    """Rows, failures and how many were known before, where each missing run has `outcome`."""
    file = RunFile(path, retry_failed)
    return collect(RUNS, file, lambda missing: [(key, dict(outcome)) for key, _ in missing], lambda _: None)


def test_failed_runs_are_done_again_where_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    RunFile(path).add("a", row={"energy_j": 1.0})
    assert swept(path, {"failed": "too slow"}) == ([{"energy_j": 1.0}], [{"batch_size": 2, "reason": "too slow"}], 1)
    row = {"row": {"energy_j": 2.0}}
    assert swept(path, row)[2] == 2
    assert swept(path, row, retry_failed=True) == ([{"energy_j": 1.0}, {"energy_j": 2.0}], [], 1)
    assert swept(path, row)[0] == [{"energy_j": 1.0}, {"energy_j": 2.0}]  # the later line counts


def test_one_sweep_at_a_time_in_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    with alone_with(path), pytest.raises(ConfigError, match="another sweep is at work in"), alone_with(path):
        pass
    with alone_with(path):
        RunFile(path)


def test_a_termination_is_an_interrupt() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_rank_that_outlives_its_parent_ends_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"{sweep_worker.FOLDER_PREFIX}1"
    for each in (folder, tmp_path / "other"):
        each.mkdir()
        (each / "orders.json").write_text("{}")
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(sweep_worker.sys, "stdin", io.StringIO())
    monkeypatch.setattr(sweep_worker.os, "kill", lambda *each: sent.append(each))
    for each in (folder, tmp_path / "other"):
        sweep_worker._end_with_stdin(each)
    assert sent == [(os.getpid(), signal.SIGKILL)] * 2
    assert [path.name for path in tmp_path.iterdir()] == ["other"]


def test_a_log_has_a_line_a_minute() -> None:
    said: list[str] = []
    times_s = iter([0.0, 1.0, 61.0, 61.0, 62.0, 122.0, 122.0])
    say = _Sparing(said.append, lambda: next(times_s))
    for number in range(4):
        say(f"measured {number}")
    assert said == ["measured 1", "measured 3"]


def test_restless_runs_and_known_failures_are_told() -> None:
    said: list[str] = []
    job: Any = SimpleNamespace(say=said.append)
    rows = [{"energy_spread": spread} for spread in (0.05, 0.2, 0.3)]
    say_how_it_went(job, "A40", rows, [{"reason": "too slow"}], 2, emulated=False)
    assert said[:2] == ["4 runs on A40 (measured): 2 known before, 1 failed", "failed, 1 runs: too slow"]
    assert "retry_failed=true does them again" in said[2]
    assert said[3].startswith("note: in 2 of 3 runs the windows' energies differ by more than 10%: measure longer")
    said.clear()
    say_how_it_went(job, "A40", [{"energy_j": 1.0}], [], 1, emulated=True)
    assert said == ["1 runs on A40 (EMULATED): 1 known before, 0 failed"]


def test_a_sweeps_own_joules_are_not_doubted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = Job(OmegaConf.create({}), tmp_path)
    for known in (False, True):
        with job.telling_warnings(units_known=known) as told:
            warnings.warn("these may be mJ", UnitWarning, stacklevel=1)
            warnings.warn("the mean is predicted", FallbackWarning, stacklevel=1)
        assert told == ([] if known else ["these may be mJ"]) + ["the mean is predicted"]
        assert ("mJ" in capsys.readouterr().out) != known
    assert "these may be mJ" in job.told  # nor shown as a note of the fit


def test_several_jobs_share_the_output_dir(tmp_path: Path) -> None:
    arguments = ["device.gpu=a40,v100", f"output_dir={tmp_path}/all"]
    assert checked_arguments(arguments, "sweep") == arguments
    for flag in ("-m", "--multirun"):
        assert checked_arguments([flag, *arguments], "sweep") == [
            flag,
            "device.gpu=a40,v100",
            f"hydra.sweep.dir={tmp_path}/all",
        ]
    job = Job(OmegaConf.create({"output_dir": "all"}), tmp_path / "0")
    assert OmegaConf.load(job.folder.config) == {"output_dir": str(tmp_path / "0")}
