"""The command that runs another one on emulated GPUs."""

from __future__ import annotations

import os
import signal as signals
import subprocess
import sys
import textwrap

import pytest

from energy_lightning.device.nvml_emulator.__main__ import main

CHILD = """
import os, sys, pynvml
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(pynvml.nvmlDeviceGetCount() - 1)
print(pynvml.nvmlDeviceGetName(gpu), pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu)
outcomes = []
for call in (
    lambda: pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 900, 900),
    lambda: pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 1200, 1200),
    lambda: pynvml.nvmlDeviceSetPowerManagementLimit(gpu, 200_000),
    lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu),
):
    try:
        call()
        outcomes.append("done")
    except pynvml.NVMLError as error:
        outcomes.append(type(error).__name__.removeprefix("NVMLError_"))
print(*outcomes, flush=True)
if len(sys.argv) > 1:
    os.kill(os.getpid(), int(sys.argv[1]))
"""


def test_a_refusal_half_way_and_a_death(capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--gpus=2", "--gpu=a40", "--load=0.5", "--refuse-after=1", "--power-limit=250", "--permissions=sm_clock"]
    assert main([*options, "--", sys.executable, "-c", CHILD, "9"]) == 128 + 9
    said = capfd.readouterr()
    assert said.out.splitlines() == ["NVIDIA A40 50", "done NoPermission NoPermission done"]
    before, after = said.err.split("EMULATED NVML: ")[1:]
    assert before.splitlines()[0] == "2 x NVIDIA A40; nothing below is measured"
    assert before.count("clocks not locked, limit 250 W, 0 control calls") == 2
    assert "locked to 900-900 MHz, limit 250 W, 3 control calls" in after.splitlines()[2]
    assert "clocks not locked" in after.splitlines()[1]


def test_ctrl_c_is_left_to_the_command() -> None:
    """It gives its clock back on the way out, is waited for, and the last look shows that."""
    child = textwrap.dedent("""
        import pynvml, time
        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceSetGpuLockedClocks(gpu, 900, 900)
        try:
            print("locked", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            time.sleep(0.5)
            pynvml.nvmlDeviceResetGpuLockedClocks(gpu)
    """)
    command = [sys.executable, "-m", "energy_lightning.device.nvml_emulator", "--", sys.executable, "-c", child]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, start_new_session=True, **pipes) as rehearsal:
        assert rehearsal.stdout is not None
        assert rehearsal.stdout.readline() == "locked\n"
        os.killpg(rehearsal.pid, signals.SIGINT)
        _, said = rehearsal.communicate(timeout=60)
    assert rehearsal.returncode == 0
    assert "the command ended with 0" in said
    assert "clocks not locked, limit 400 W, 2 control calls" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpu=a1000", "--", "true"], "unknown GPU 'a1000'"),
        (["--permissions=clocks", "--", "true"], "--permissions clocks: give all, none, or of sm_clock"),
        (["--gpus=0", "--", "true"], "--gpus >= 1"),
        (["--gpus=2", "--slices=1", "--", "true"], "--slices 1 goes with one GPU, got --gpus 2"),
        (["--slices=9", "--", "true"], "--slices from 0 to 7"),
        (["--power-limit=5000", "--", "true"], "power_limit_w must be within 100 to 400 W"),
        (["--load=2", "--", "true"], "--load from 0 to 1, got 2"),
        (["--load=nan", "--", "true"], "--load from 0 to 1, got nan"),
        (["--refuse-after=-1", "--", "true"], "--refuse-after 0 or more, got -1"),
        ([], "give the command to run after --"),
    ],
)
def test_machines_that_cannot_be(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_a_command_that_is_not_there(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--", "no-such-program"]) == 127
    assert "no-such-program cannot be started: No such file or directory" in capfd.readouterr().err
