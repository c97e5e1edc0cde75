"""The benchmarks for GPUs run their whole code on a CPU, in tiny sizes: so that they work when they meet a GPU."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from loaded_python import spawned_by

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
REHEARSAL = ["--device", "cpu", "--smoke"]
NAMES = ("gpu_collectives", "gpu_overlap", "gpu_engine_overhead", "gpu_switch_latency", "gpu_energy")
WITH_CLOCKS = ("gpu_switch_latency", "gpu_energy")
WITHOUT_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = torch.get_rng_state()
    yield
    torch.set_rng_state(before)


def benchmark(name: str) -> ModuleType:
    return importlib.import_module(name)


def table_in(output: str) -> list[list[str]]:
    """Cells of the rows below the headings."""
    lines = [line for line in output.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("name", NAMES)
def test_a_rehearsal_prints_a_table_that_says_it_is_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--allow-clocks"] if name in WITH_CLOCKS else []
    assert benchmark(name).main([*REHEARSAL, *options]) == 0
    output = capsys.readouterr().out
    assert "REHEARSAL on a CPU, no measurement of a GPU" in output
    assert torch.__version__ in output
    rows = table_in(output)
    assert len(rows) >= 1
    assert len({len(row) for row in rows}) == 1
    assert not [row for row in rows if "" in row or "nan" in row]


@WITHOUT_GPU
@pytest.mark.parametrize("name", NAMES)
def test_without_a_gpu_one_line_says_so_and_nothing_went_wrong(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmark(name).main([]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("No NVIDIA GPU")
    assert benchmark(name).main(["--device", "cpu"]) == 0
    assert "add --smoke" in capsys.readouterr().out


def test_every_launch_point_and_sequential_execution_are_compared(capsys: pytest.CaptureFixture[str]) -> None:
    benchmark("gpu_overlap").main(REHEARSAL)
    names = [row[0] for row in table_in(capsys.readouterr().out)]
    assert names[0] == "sequential"
    assert names[-1] == "compute only"
    assert "nanobatched, not overlapped" in names
    assert len(names) == len(set(names)) == 6


def test_clocks_are_left_alone_unless_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from energy_lightning.device.nvidia import NvidiaDevice

    locked: list[int] = []
    lock = NvidiaDevice.lock_frequency

    def watched(self: NvidiaDevice, frequency_mhz: int) -> None:
        locked.append(frequency_mhz)
        lock(self, frequency_mhz)

    monkeypatch.setattr(NvidiaDevice, "lock_frequency", watched)
    for name in WITH_CLOCKS:
        benchmark(name).main(REHEARSAL)
    assert locked == []
    output = capsys.readouterr().out
    assert "needs --allow-clocks" in output
    clocks = {row[1] for row in table_in(output)}
    assert len(clocks) == 1
    benchmark("gpu_energy").main([*REHEARSAL, "--allow-clocks", "--clocks", "1200", "900"])
    assert set(locked) == {1200, 900}
    assert {row[1] for row in table_in(capsys.readouterr().out)} == {"1200", "900"}


def test_a_rehearsal_is_never_recorded_and_a_measurement_only_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    common = benchmark("gpu_common")
    results = tmp_path / "RESULTS.md"
    results.write_text("# Kept\n")
    monkeypatch.setattr(common, "machine_line", lambda device: "A GPU, driver 1, torch 2, today")
    monkeypatch.setattr(sys, "argv", ["benchmarks/gpu_overlap.py", "--record"])

    def record(device: str, *options: str) -> str:
        args = common.parser_of("").parse_args(list(options))
        common.report("Title", ("A", "B"), [(1, "x")], args, torch.device(device), notes=["why"], results=results)
        return results.read_text()

    assert record("cpu", "--record", "--smoke") == "# Kept\n"
    assert "Not recorded" in capsys.readouterr().out
    assert record("cuda") == "# Kept\n"
    kept = record("cuda", "--record")
    assert kept.startswith("# Kept\n\n## Title\n\nA GPU, driver 1, torch 2, today\n")
    assert "`python benchmarks/gpu_overlap.py --record`, 20 repeats" in kept
    assert "| A | B |\n| --- | --- |\n| 1 | x |\n\nwhy\n" in kept


def test_the_loopback_keeps_values_and_knows_what_it_grants() -> None:
    loopback = benchmark("gpu_loopback")
    collectives = loopback.loopback(torch.device("cpu"))
    tensor = torch.arange(5.0)
    handle = collectives.all_reduce(tensor, sm_count=4)
    assert torch.equal(handle.wait(), torch.arange(5.0))
    assert (handle.asked_sm_count, handle.granted_sm_count, collectives.supports_sm_count) == (4, None, False)
    assert torch.equal(collectives.all_gather(tensor).wait(), tensor)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run_rank(rank: int, ports: list[int], folder: str) -> None:
    """Several benchmarks, as torchrun would start them."""
    torch.set_num_threads(1)
    sys.path.insert(0, str(BENCHMARKS))
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    os.environ["XDG_STATE_HOME"] = folder
    with Path(folder, str(rank)).open("w", encoding="utf-8") as output, redirect_stdout(output):
        for name, port in zip(("gpu_collectives", "gpu_overlap", "gpu_energy"), ports, strict=True):
            os.environ["MASTER_PORT"] = str(port)
            module: Any = importlib.import_module(name)
            assert module.main([*REHEARSAL]) == 0


@pytest.mark.distributed
def test_two_processes_share_a_benchmark_and_one_of_them_prints(tmp_path: Path, quick_python: str) -> None:
    ports = [_free_port() for _ in range(3)]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_run_rank, args=(rank, ports, str(tmp_path))) for rank in range(2)]
    with spawned_by(quick_python):
        for process in processes:
            process.start()
    for process in processes:
        process.join(240.0)
        if process.is_alive():
            process.kill()
    assert [process.exitcode for process in processes] == [0, 0]
    first, second = (Path(tmp_path, str(rank)).read_text(encoding="utf-8") for rank in range(2))
    assert first.count("REHEARSAL") == 3
    assert "| gloo |" in first
    assert "REHEARSAL" not in second
