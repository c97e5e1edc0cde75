"""The command line around a job, with the job replaced: folders, statuses, exit codes, sweeps."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from torch.distributed import TCPStore

from energy_lightning.app import COMMANDS, main, torchrun, train
from energy_lightning.app.folder import RunFolder
from energy_lightning.app.worker import StatusInSummary, is_rank_zero
from energy_lightning.types import ConfigError


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in COMMANDS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["trian"], "unknown command 'trian'; known: train"), (["train", "budgt=x"], "did you mean budget?")],
)
def test_mistakes_cost_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def left_after_ctrl_c() -> SystemExit:
    """What Lightning raises from its handler of a KeyboardInterrupt."""
    left = SystemExit(1)
    left.__context__ = KeyboardInterrupt()
    return left


def run_here(monkeypatch: pytest.MonkeyPatch, folder: Path, worker: Any, arguments: list[str]) -> int:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(train, "run_worker", worker)
    return main(["train", *arguments])


def test_a_job_gets_a_folder_with_its_resolved_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def worker(path: Path) -> int:
        seen.append(path)
        RunFolder(path).update(status="completed")
        return 0

    assert run_here(monkeypatch, tmp_path, worker, ["output_dir=runs/mine", "workload=llama3.2_3b_tp8"]) == 0
    assert seen == [tmp_path / "runs" / "mine"]
    config = OmegaConf.load(seen[0] / "config.yaml")
    assert config.workload.preset == "llama3.2_3b_tp8"
    assert config.output_dir == str(seen[0])
    assert config.profiler.seed == 0


def test_a_sweep_goes_on_after_a_failed_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def worker(path: Path) -> int:
        config = OmegaConf.load(path / "config.yaml")
        if "max_throughput" in config.budget:
            return -signal.SIGKILL  # died without a word
        RunFolder(path).update(status="completed")
        return 0

    sweep = ["--multirun", "budget=max_throughput,min_energy,deadline", "hydra.sweep.dir=sweep"]
    assert run_here(monkeypatch, tmp_path, worker, sweep) == 1
    summaries = {p.parent.name: json.loads(p.read_text()) for p in (tmp_path / "sweep").glob("*/summary.json")}
    assert {name: summary["status"] for name, summary in summaries.items()} == {
        "0_budget=max_throughput": "failed",
        "1_budget=min_energy": "completed",
        "2_budget=deadline": "failed",
    }
    assert "signal 9" in summaries["0_budget=max_throughput"]["error"]
    assert "budget.deadline must be given" in summaries["2_budget=deadline"]["error"]
    assert capsys.readouterr().out.count("failed") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["workload=llama9"], "llama9"),
        (["budget=deadline", "budget.deadline=-1"], "finite number > 0 (seconds per iteration), got -1"),
        (["device.gpu=a1000"], "a1000"),
        (["data=text"], "data.path must be given, e.g. data.path=VALUE"),
    ],
)
def test_impossible_settings_are_refused_before_anything_starts(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    started: list[Path] = []
    assert run_here(monkeypatch, tmp_path, started.append, ["output_dir=run", *arguments]) == 1
    assert not started
    assert message in capsys.readouterr().err
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "failed"
    assert message in summary["error"]


@pytest.mark.parametrize(
    ("raised", "status", "text"),
    [
        (None, "completed", None),
        (ConfigError("no such thing"), "failed", "no such thing"),
        (KeyboardInterrupt(), "interrupted", "interrupted by the user"),
        (left_after_ctrl_c(), "interrupted", "interrupted by the user"),
        (ZeroDivisionError("x"), "failed", "ZeroDivisionError: x"),
    ],
)
def test_how_a_job_ended_is_in_its_summary(
    tmp_path: Path, raised: BaseException | None, status: str, text: str | None
) -> None:
    folder = RunFolder(tmp_path)
    folder.update(status="running", plan="kept")
    caught = None
    try:
        with StatusInSummary(folder):
            if raised is not None:
                raise raised
    except BaseException as error:
        caught = error
    assert caught is raised
    summary = folder.read()
    assert (summary["status"], summary["error"], summary["plan"]) == (status, text, "kept")
    assert folder.end(1) == status, "a status that is already told stays"


def test_only_the_first_rank_tells() -> None:
    assert is_rank_zero({})
    assert is_rank_zero({"LOCAL_RANK": "0", "NODE_RANK": "0"})
    assert not is_rank_zero({"LOCAL_RANK": "1"})
    assert not is_rank_zero({"LOCAL_RANK": "0", "RANK": "8"})


def test_torchrun_ranks_are_told_the_folders(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    common = {"TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    first, second = {**common, "RANK": "0"}, {**common, "RANK": "1"}
    assert not torchrun.is_follower(first)
    assert torchrun.is_follower(second)
    seen: list[Path] = []

    def worker(path: Path) -> int:
        seen.append(path)
        return 1 if path.name == "b" else 0

    codes: list[int] = []
    follower = threading.Thread(target=lambda: codes.append(torchrun.follow(second, worker)))
    follower.start()
    with torchrun.announcing(first) as announce:
        announce(tmp_path / "a")
        announce(tmp_path / "b")
    follower.join(timeout=30)
    del server
    assert seen == [tmp_path / "a", tmp_path / "b"]
    assert codes == [1]


@pytest.mark.parametrize("grace_s", [0.0, 30.0])
def test_a_process_ends_with_the_one_that_started_it(grace_s: float) -> None:
    """SIGKILL of the command once left its training running, and SIGKILL of torchrun the commands of its ranks."""
    waiting = "import os, time\nfrom energy_lightning.app.orphans import end_with_parent\n"
    waiting += f"end_with_parent(os.getppid(), grace_s={grace_s})\n"
    waiting += "print(os.getpid(), flush=True)\ntime.sleep(60)\n"
    starting = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {waiting!r}])"
    command = subprocess.Popen([sys.executable, "-c", starting], stdout=subprocess.PIPE, text=True)
    assert command.stdout is not None
    pid = int(command.stdout.readline())
    command.kill()
    command.wait()
    deadline_s = time.monotonic() + 20
    while _runs(pid) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert not _runs(pid)


def test_a_rank_whose_torchrun_is_gone_costs_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"TORCHELASTIC_RUN_ID": "x", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(server.port)}
    called, codes = threading.Event(), list[int]()

    def worker(path: Path) -> int:
        called.set()
        return 0

    environment = {**common, "RANK": "1"}
    follower = threading.Thread(target=lambda: codes.append(torchrun.follow(environment, worker)), daemon=True)
    follower.start()
    server.set("energy_lightning/0/0", str(tmp_path))
    assert called.wait(30.0)
    del server
    follower.join(timeout=30)
    assert codes == [1]
    assert "error: rank 1 cannot reach torchrun any more: " in capsys.readouterr().err


def test_ranks_of_torchrun_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[int] = []
    monkeypatch.setattr(train, "end_with_parent", lambda pid, *, grace_s: watched.append(pid))
    monkeypatch.setattr(torchrun, "follow", lambda environment, run_worker: 0)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "a job")
    assert train.train([]) == 0
    assert watched == [os.getppid()]


def test_a_sigterm_reaches_the_worker_as_an_interrupt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning's own handler of SIGTERM once left two ranks waiting for each other forever."""
    worker = (
        "import pathlib, sys, time\nready = pathlib.Path(sys.argv[1])\ntry:\n    ready.touch()\n    time.sleep(60)\n"
    )
    (tmp_path / "waiting_worker.py").write_text(f"{worker}except KeyboardInterrupt:\n    sys.exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(train, "WORKER_MODULE", "waiting_worker")

    def terminate() -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=terminate, daemon=True).start()
    assert train.run_worker(tmp_path / "ready") == 7


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_a_disk_that_fills_up_costs_the_job_and_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fills_up(_path: Path) -> int:
        raise OSError(28, "No space left on device")

    assert run_here(monkeypatch, tmp_path, fills_up, [f"output_dir={tmp_path / 'job'}"]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert "No space left on device" in line
    assert "output_dir=FOLDER" in line
