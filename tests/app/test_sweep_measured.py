"""Measured sweeps: processes that die, windows of known power, and the command over emulated boards, end to end."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import MagicMock

import pandas as pd
import pytest
import torch

from energy_lightning.app import main, sweep_launch
from energy_lightning.app.sweep_generation import Generation, load_model
from energy_lightning.app.sweep_launch import measured_outcomes
from energy_lightning.app.sweep_measured import with_baselines, with_speedups
from energy_lightning.app.sweep_steps import encoder, training_step
from energy_lightning.app.sweep_windows import WindowChoices, measure_repeated
from energy_lightning.app.sweep_worker import LINE, Orders
from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlServer
from energy_lightning.measure import EnergyMeter
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.types import ConfigError, DataError, DeviceError, MeasurementError

# A rank without torch: what a run's `what` says happens to it.
RANK = f"""
import json, os, signal, sys, time
orders, rank = json.load(open(sys.argv[1])), int(sys.argv[2])
if orders["options"].get("broken"):
    sys.exit("no driver")
for key, run in orders["runs"]:
    tell = lambda **content: print({LINE!r} + json.dumps({{"key": key, **content}}), flush=True)
    begun = sys.argv[1] + "." + key
    if rank == 0:
        tell(begun=True)
        open(begun, "w").close()
    while not os.path.exists(begun):  # ranks train together
        time.sleep(0.001)
    print("not for the sweep", flush=True)
    if run["what"] == "killed" and rank == orders["num_ranks"] - 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if run["what"] in ("killed", "hangs"):
        time.sleep(600)
    if run["what"] == "ends":
        sys.exit("Traceback\\nRuntimeError: it broke")
    if run["what"] == "fails":
        tell(failed="out of memory")
        if orders["num_ranks"] > 1:
            sys.exit(3)
    elif rank == 0:
        tell(row={{"energy_j": run["energy_j"]}})
"""


def outcomes(tmp_path: Path, *what: str, ranks: int = 1, timeout_s: float = 30.0, **options: bool) -> list[object]:
    (tmp_path / "rank.py").write_text(RANK)
    runs = [(f"{i}", {"what": each, "energy_j": i}) for i, each in enumerate(what)]
    orders = Orders("training", runs, ranks, dict(options))
    command = (sys.executable, str(tmp_path / "rank.py"))
    return list(measured_outcomes(orders, timeout_s, command=command))


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("killed", "its process was killed by SIGKILL, as hosts do that run out of memory"),
        ("ends", "its process ended with exit code 1: RuntimeError: it broke"),
        ("fails", "out of memory"),
    ],
)
def test_a_run_that_takes_its_process_down_costs_that_run_only(
    fault: str, reason: str, ranks: int, tmp_path: Path
) -> None:
    assert outcomes(tmp_path, "fine", fault, "fine", ranks=ranks) == [
        ("0", {"row": {"energy_j": 0}}),
        ("1", {"failed": reason}),
        ("2", {"row": {"energy_j": 2}}),
    ]


def lines_of(*said: tuple[str, dict[str, object]]) -> list[str]:
    return [LINE + json.dumps({"key": key, **content}) for key, content in said]


FIRST = lines_of(("0", {"begun": True}), ("0", {"row": {"energy_j": 0}}), ("1", {"begun": True}))
TOLD = lines_of(("1", {"failed": "out of memory"}))


@pytest.mark.parametrize(
    ("heard", "reason"),
    [
        ([(1, None), *[(0, line) for line in FIRST], (0, None)], "its process was killed"),
        ([(1, TOLD[0]), (1, None), *[(0, line) for line in FIRST], (0, None)], "out of memory"),
        ([(1, TOLD[0]), *[(0, line) for line in FIRST], (1, None)], "out of memory"),
        ([*[(0, line) for line in FIRST], (0, TOLD[0]), (1, TOLD[0]), (1, None), (0, None)], "out of memory"),
    ],
)
def test_what_was_measured_counts_whichever_pipe_is_heard_first(
    heard: list[tuple[int, str | None]], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank's end was once heard before another rank's row, which was lost and its run called failed."""
    ranks = sweep_launch._Ranks(Orders("training", [], 2, {}), tmp_path, ())
    ranks._processes, ranks._open = [MagicMock(), MagicMock()], 2
    monkeypatch.setattr(ranks, "_why_ended", lambda rank: "its process was killed" if rank else None)
    for each in heard:
        ranks._lines.put(each)
    assert list(ranks.outcomes(1.0)) == [("0", {"row": {"energy_j": 0}}), ("1", {"failed": reason})]


def test_what_ranks_wrote_is_read_while_their_folder_is_there(tmp_path: Path) -> None:
    """A rank that outlives its process's end clears the folder away once its stdin closes."""
    ranks = sweep_launch._Ranks(Orders("training", [], 1, {}), tmp_path, ())
    said, process = tmp_path / "stderr.0", MagicMock()
    said.write_text("no driver\n")
    process.stdin.close = said.unlink
    ranks._processes = [process]
    ranks.__exit__()
    assert not said.exists()
    assert ranks.last_words() == "no driver"


def test_a_run_that_hangs_is_ended_in_time(tmp_path: Path) -> None:
    assert outcomes(tmp_path, "hangs", "fine", timeout_s=1.0) == [
        ("0", {"failed": "took longer than timeout_s=1"}),
        ("1", {"row": {"energy_j": 1}}),
    ]


def test_processes_that_cannot_start_end_the_sweep(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="measuring on 1 GPUs cannot start: no driver"):
        outcomes(tmp_path, "fine", broken=True)


def test_windows_of_known_power() -> None:
    """241 W while working (the scripted device's highest clock), a counter that moves every 0.1 s."""
    gpu = ScriptedDevice(refresh_s=0.1)
    meter = EnergyMeter(gpu, refresh_s=0.1)
    choices = WindowChoices(warmup=2, window_s=3.0, windows=2)
    found = measure_repeated(gpu, meter, lambda: gpu.work(0.03), choices)
    assert found.time_s == pytest.approx(0.03)
    assert found.repetitions == 100  # 3 s of 0.03 s
    assert found.energy_j == pytest.approx(241.0 * 0.03, rel=0.1 / 3.0)
    assert found.source == "counter"
    assert gpu.now_s() == pytest.approx(0.03 * (2 + 1 + 2 * 100))


def test_windows_span_ten_refreshes_and_as_many_repetitions_on_all_ranks() -> None:
    gpu = ScriptedDevice(refresh_s=0.1)
    meter = EnergyMeter(gpu, refresh_s=0.1)
    choices = WindowChoices(warmup=1, window_s=0.01, windows=1)
    assert measure_repeated(gpu, meter, lambda: gpu.work(0.1), choices).repetitions == 10
    slowest = iter([1.0, 0.5])  # another rank's window, then its step
    assert measure_repeated(gpu, meter, lambda: gpu.work(0.1), choices, lambda _: next(slowest)).repetitions == 2


def test_void_windows_are_no_measurement() -> None:
    gpu = ScriptedDevice(energy_source="none")
    with pytest.raises(MeasurementError, match=r"no valid energy in 2 windows: .* reports no energy"):
        measure_repeated(gpu, EnergyMeter(gpu), lambda: gpu.work(0.1), WindowChoices(windows=2))


@pytest.mark.parametrize("changed", [{"warmup": 0}, {"windows": 0}, {"window_s": 0.0}, {"window_s": "long"}])
def test_window_settings_that_cannot_be_are_named(changed: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="window_s"):
        WindowChoices.from_values({"warmup": 1, "windows": 1, "window_s": 1.0, **changed})


SIZES = {"num_layers": 1, "hidden_size": 8, "num_heads": 2, "ffn_size": 8, "sequence_length": 8, "batch_size": 4}
RUN = {**SIZES, "tokens": 64.0}


def test_each_run_on_several_gpus_gets_a_baseline_once() -> None:
    two, four = ({**RUN, "strategy": "tp", "num_gpus": n} for n in (2, 4))
    alone = {**RUN, "strategy": "single", "num_gpus": 1}
    assert with_baselines([two, four]) == [two, four, alone]
    rows = with_speedups([{**two, "time_s": 2.0}, {**alone, "time_s": 3.0}, {**four, "batch_size": 8, "time_s": 1.0}])
    assert [row["speedup"] for row in rows[:2]] == [1.5, 1.0]
    assert math.isnan(rows[2]["speedup"])


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch, quick_python: str) -> Iterator[NvmlServer]:
    """Two emulated boards of 100 W each, for this process and its children."""
    with NvmlServer([EmulatedBoard(counter_refresh_s=0.005), EmulatedBoard(counter_refresh_s=0.005)]) as server:
        for index in range(2):
            server.hold_power(index, 100.0)
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        monkeypatch.setattr(sys, "executable", quick_python)
        with server.installed():
            yield server


MEASURING = ["device=nvidia", "dtype=fp32", "warmup=1", "window_s=0.2", "windows=1"]


def test_training_steps_are_measured_end_to_end(
    boards: NvmlServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two GPUs, a model that fits no memory, more GPUs than there are; the second time nothing is run."""
    lists = ["num_layers=[1]", f"hidden_size=[8,{2**31}]", "num_heads=[2]", "ffn_size=[8]", "sequence_length=[8]"]
    lists += ["batch_size=[4]", "num_gpus=[2,4]", "strategy=[tp,fsdp]", "count=null", "tokens=64", "baselines=false"]
    arguments = ["sweep", *lists, *MEASURING, f"output_dir={tmp_path}"]
    assert main(arguments) == 0
    output = capsys.readouterr().out
    assert "8 runs on A100-SXM4-40GB (emulated NVML) (EMULATED): 0 known before, 6 failed" in output
    assert "failed, 4 runs: needs 4 GPUs, 2 visible" in output
    assert "some speed-ups are unknown" in output
    table, failures = pd.read_csv(tmp_path / "runs.csv"), pd.read_csv(tmp_path / "failures.csv")
    assert failures[failures.num_gpus < 4].reason.str.startswith("out of memory: ").all()
    assert set(failures[failures.num_gpus < 4].hidden_size) == {2**31}
    found = {row.strategy: row for row in table.itertuples()}
    assert set(found) == {"tp", "fsdp"}
    assert table.emulated.all()
    for row in found.values():  # two steps of 4 x 8 tokens; each of two GPUs draws 100 W
        assert row.time_s == pytest.approx(2.0 * row.step_time_s)
        assert row.energy_j == pytest.approx(200.0 * row.time_s, rel=0.2)
    whole = parameters(encoder({**RUN, "strategy": "single", "num_gpus": 1}, torch.device("cpu")))
    assert 0.5 * whole <= found["fsdp"].parameters_per_gpu < 0.55 * whole
    layer = 4 * 8 * 8 + 2 * 8 * 8  # weights of attention and feed-forward, cut in halves with the columns' biases
    assert whole - found["tp"].parameters_per_gpu == (layer + 4 * 8) // 2
    done = (tmp_path / "runs.jsonl").read_bytes()
    assert main([*arguments, "timeout_s=0.001"]) == 0
    assert "8 known before" in capsys.readouterr().out
    assert (tmp_path / "runs.jsonl").read_bytes() == done
    assert json.loads((tmp_path / "summary.json").read_text())["emulated"] is True


def parameters(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_step_on_one_gpu_moves_the_weights(dtype: str) -> None:
    run = {**RUN, "strategy": "single", "num_gpus": 1}
    model = encoder(run, torch.device("cpu"))
    before = model.classifier.weight.detach().clone()
    step, held = training_step(model, run, dtype, torch.device("cpu"))
    step()
    assert held == parameters(model)
    assert not torch.equal(before, model.classifier.weight)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_heads": 3}, "num_heads=3 does not divide hidden_size=8"),
        ({"strategy": "tp", "num_gpus": 4}, "tensor_parallel=4 does not divide num_heads=2"),
        ({"strategy": "fsdp", "num_gpus": 8}, "batch_size=4 cannot be shared by 8 GPUs"),
    ],
)
def test_sizes_that_do_not_go_together_are_named(changed: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        encoder({**RUN, "strategy": "single", "num_gpus": 1, **changed}, torch.device("cpu"))


TINY = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 32,
    "vocab_size": 64,
    "max_position_embeddings": 64,
}


def test_decoding_is_what_generate_does_and_can_be_repeated() -> None:
    cpu = torch.device("cpu")
    model = load_model({"model_path": None, "model_config": TINY, "dtype": "fp32"}, cpu)
    generation = Generation(model, {"input_tokens": 6, "output_tokens": 5, "batch_size": 3}, cpu)
    generation.prefill()
    first, again = generation.decode(), generation.decode()
    prompts = generation.prompts
    model.generation_config.eos_token_id = None  # a token like any other, here: the served length is given
    expected = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=5, do_sample=False)
    assert torch.equal(first, expected[:, 6:])
    assert torch.equal(first, again)


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    with pytest.raises(DataError, match="no causal language model in"):
        load_model({"model_path": str(tmp_path), "model_config": None, "dtype": "fp32"}, torch.device("cpu"))


def test_generation_is_measured_end_to_end_and_its_table_can_be_fitted(
    boards: NvmlServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tiny.json").write_text(json.dumps(TINY))
    lists = ["input_tokens=[4,60]", "output_tokens=[2,9]", "batch_size=[1,4]", "tensor_parallel=[1,2]"]
    model = f"served_model={tmp_path}/tiny.json"
    assert main(["sweep", "kind=inference", model, *lists, *MEASURING, f"output_dir={tmp_path}/swept"]) == 0
    assert "16 runs on tiny, A100-SXM4-40GB (emulated NVML) (EMULATED): 0 known before, 10 failed" in (
        capsys.readouterr().out
    )
    failures = pd.read_csv(tmp_path / "swept" / "failures.csv")
    assert failures[failures.tensor_parallel == 2].reason.str.contains("emulated only").all()
    too_long = failures[failures.tensor_parallel == 1]
    assert set(zip(too_long.input_tokens, too_long.output_tokens, strict=True)) == {(60, 9)}
    table = pd.read_csv(tmp_path / "swept" / "runs.csv")
    assert table.emulated.all()
    assert table.energy_j.to_numpy() == pytest.approx((table.prefill_energy_j + table.decode_energy_j).to_numpy())
    assert table.latency_s.to_numpy() == pytest.approx((table.prefill_time_s + table.decode_time_s).to_numpy())
    for energy_j, time_s in (
        (table.prefill_energy_j, table.prefill_time_s),
        (table.decode_energy_j, table.decode_time_s),
    ):
        assert (energy_j * table.batch_size).to_numpy() == pytest.approx((100.0 * time_s).to_numpy(), rel=0.2)
    steps = table.set_index(["input_tokens", "output_tokens", "batch_size"]).decode_time_s
    assert steps[4, 9, 4] > 2.0 * steps[4, 2, 4]  # eight passes against one
    files = [f"csv={tmp_path}/swept/runs.csv", f"output_dir={tmp_path}/fitted"]
    assert main(["fit", "kind=inference", *files]) == 0
    assert "(EMULATED)" in capsys.readouterr().out
