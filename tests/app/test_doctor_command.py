"""`energy-lightning doctor` on emulated boards: what it says, and that it leaves everything as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from energy_lightning.app import main
from energy_lightning.app.doctor import doctor
from energy_lightning.app.doctor_facts import Doctor, import_nvml
from energy_lightning.collectives import CollectivesChoice
from energy_lightning.device.host import Host
from energy_lightning.device.nvml_emulator import EmulatedBoard, NvmlEmulator
from energy_lightning.device.state_file import GpuRecord, GpuState, boot_id
from energy_lightning.device.undo import Undo
from energy_lightning.report.doctor import Examination

FIRST, SECOND = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
BACKENDS = [
    CollectivesChoice(name="nccl4py", version="2.31", supports_sm_count=True),
    CollectivesChoice(name="gloo", version="2.13", supports_sm_count=False, limits=("takes no SM count",)),
]
NO_BACKENDS = [
    CollectivesChoice(name="nccl4py", version=None, supports_sm_count=True, reasons=("pip install 'energy[nccl]'",)),
    BACKENDS[1],
]


def torch_with(num_gpus: int, cuda_version: str | None = "12.8") -> Any:
    cuda = SimpleNamespace(is_available=lambda: num_gpus > 0, device_count=lambda: num_gpus)
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(cuda=cuda_version))


@contextmanager
def machine(
    boards: Sequence[EmulatedBoard],
    folder: Path,
    *,
    torch: Any = None,
    collectives: Sequence[CollectivesChoice] = BACKENDS,
    environment: dict[str, str] | None = None,
    **options: Any,
) -> Iterator[tuple[Doctor, NvmlEmulator]]:
    """A doctor for these boards on a virtual clock."""
    now_s = [0.0]

    def sleep(time_s: float) -> None:
        now_s[0] += time_s

    with NvmlEmulator(boards, now_s=lambda: now_s[0]) as nvml:
        for index in range(len(boards)):
            nvml.hold_power(index, 200.0)
        host = Host(
            environment={"XDG_STATE_HOME": str(folder), **(environment or {})},
            torch=torch or torch_with(len(boards)),
            clock_s=lambda: now_s[0],
            sleep=sleep,
        )
        options = {"in_container": lambda: False, **options}
        yield Doctor(host=host, list_collectives=lambda: list(collectives), **options), nvml


def board(uuid: str = FIRST, **options: Any) -> EmulatedBoard:
    return EmulatedBoard(uuid=uuid, counter_refresh_s=0.1, **options)


def examined(folder: Path, *boards: EmulatedBoard, **options: Any) -> Examination:
    with machine(boards, folder, **options) as (examiner, nvml):
        before = [nvml.state(index) for index in range(len(boards))]
        found = examiner.examine()
        after = [nvml.state(index) for index in range(len(boards))]
    for was, state in zip(before, after, strict=True):
        assert (state.locked_mhz, state.power_limit_w) == (was.locked_mhz, was.power_limit_w)
        # the one control call that the driver takes sets what is set already
        assert {call.function for call in state.sets if call.code == 0} <= {"nvmlDeviceSetPowerManagementLimit"}
    return found


def shown(found: Examination, capsys: pytest.CaptureFixture[str]) -> str:
    """The text of the tables, on one line."""
    assert doctor([], examined_by=SimpleNamespace(examine=lambda: found)) == 0  # type: ignore[arg-type]
    return " ".join(capsys.readouterr().out.split())


def test_full_control_is_said_with_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = examined(tmp_path, board(power_limit_w=350.0))
    (gpu,) = found.gpus
    assert (gpu.name, gpu.uuid, gpu.visible_as, gpu.mode, found.mode) == ("A100-SXM4-40GB", FIRST, 0, "full", "full")
    assert (gpu.can_lock_frequency, gpu.can_set_power_limit, gpu.control) == (True, True, "through NVML")
    assert gpu.counter_refresh_s == pytest.approx(0.1, rel=0.05)
    assert (gpu.clocks_mhz, gpu.power_limit_w, gpu.power_limit_range_w) == ((210, 1410), 350.0, (100.0, 400.0))
    assert (gpu.model, gpu.emulated, gpu.left_behind) == ("a100-sxm4-40gb", True, ())
    assert (found.emulated, found.permit, found.faults) == (False, None, ())
    text = shown(found, capsys)
    for words in (
        "GPU 0: A100-SXM4-40GB, cuda:0, EMULATED NVML",
        "counter, moves every 100 ms",
        "210 to 1410 MHz",
        "350 W, 100 to 400 W",
        "lock SM clocks yes set power limit yes control through NVML",
        "Mode: full control",
        "Collectives: nccl4py 2.31, honours the SM counts",
    ):
        assert words in text
    assert "administrator" not in text


@pytest.mark.parametrize(
    ("inside", "command"), [(False, "sudo setpriv --reuid"), (True, "docker run --cap-add SYS_ADMIN")]
)
def test_without_permission_the_one_command_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], inside: bool, command: str
) -> None:
    found = examined(tmp_path, board(permissions=()), in_container=lambda: inside)
    (gpu,) = found.gpus
    assert (gpu.can_lock_frequency, gpu.can_set_power_limit, gpu.mode) == (False, False, "measure-only")
    assert found.permit is not None
    assert found.permit.startswith(command)
    text = shown(found, capsys)
    assert "Mode: measuring only" in text
    assert f"an administrator runs: {command}" in text


@pytest.mark.parametrize(
    ("options", "source", "mode", "words"),
    [
        ({"has_counter": False}, "power", "full", "integrated from power readings: no energy counter"),
        (
            {"has_counter": False, "has_power": False, "has_power_fields": False},
            "none",
            "time-only",
            "no power reading",
        ),
    ],
)
def test_where_energy_comes_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: dict[str, Any], source: str, mode: str, words: str
) -> None:
    found = examined(tmp_path, board(**options))
    (gpu,) = found.gpus
    assert (gpu.energy_source, gpu.counter_refresh_s, found.mode) == (source, None, mode)
    assert words in shown(found, capsys)


def test_a_sliced_gpu_has_no_control_and_nothing_permits_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = examined(tmp_path, board(mig_uuids=("MIG-1",)), environment={"CUDA_VISIBLE_DEVICES": "MIG-1"})
    (gpu,) = found.gpus
    assert (gpu.is_mig, gpu.visible_as, gpu.mode, found.permit) == (True, 0, "measure-only", None)
    text = shown(found, capsys)
    assert "(MIG)" in text
    assert "counter of the whole GPU" in text


def test_several_gpus_with_one_hidden(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = examined(
        tmp_path,
        board(),
        board(SECOND, gpu="h100-sxm", permissions=()),
        torch=torch_with(1),
        environment={"CUDA_VISIBLE_DEVICES": "GPU-b"},
    )
    assert [gpu.visible_as for gpu in found.gpus] == [None, 0]
    assert found.mode == "measure-only"  # that of the GPU that a job would use
    assert "cuda:0 H100" in found.used_device
    assert "hidden by CUDA_VISIBLE_DEVICES" in shown(found, capsys)


@pytest.mark.parametrize(("visible", "place"), [("1", 0), (SECOND, 0), (None, 1)])
def test_a_gpu_that_is_lost_does_not_renumber_the_others(tmp_path: Path, visible: str | None, place: int) -> None:
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    with machine([board(), board(SECOND)], tmp_path, environment=environment) as (examiner, nvml):
        nvml.lose(0)
        found = examiner.examine()
    assert [(gpu.uuid, gpu.visible_as) for gpu in found.gpus] == [(SECOND, place)]
    assert found.faults == ("GPU 0: GPU is lost",)


def test_a_lost_gpu_that_is_the_visible_one_is_not_said_to_be_missing(tmp_path: Path) -> None:
    with machine([board(), board(SECOND)], tmp_path, environment={"CUDA_VISIBLE_DEVICES": "1"}) as (examiner, nvml):
        nvml.lose(1)
        found = examiner.examine()
    assert [gpu.visible_as for gpu in found.gpus] == [None]
    assert found.faults == ("GPU 1: GPU is lost",)


def test_an_impossible_visible_devices_is_a_line(tmp_path: Path) -> None:
    found = examined(tmp_path, board(), torch=torch_with(0), environment={"CUDA_VISIBLE_DEVICES": "GPU-zzz"})
    assert any("GPU-zzz" in fault for fault in found.faults)
    assert found.emulated
    assert "hides every GPU" in found.used_device


@pytest.mark.parametrize(("cuda_version", "words"), [(None, "build for CPUs"), ("12.8", "torch's CUDA fails")])
def test_a_gpu_that_torch_does_not_see_is_not_used_unless_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], cuda_version: str | None, words: str
) -> None:
    found = examined(tmp_path, board(permissions=()), torch=torch_with(0, cuda_version))
    assert found.emulated
    assert (found.mode, found.mode_with_nvidia) == (None, "measure-only")
    assert words in found.used_device
    text = shown(found, capsys)
    assert "A100-SXM4-40GB, not seen by torch, EMULATED NVML" in text
    assert "cuda:0" not in text
    assert "Mode with device=nvidia on the EMULATED NVML: measuring only" in text


@pytest.mark.parametrize(
    ("permission", "words"),
    [
        ("sm_clock", "lock SM clocks yes set power limit no control the power limit cannot be set"),
        ("power_limit", "lock SM clocks no set power limit yes control the SM clock cannot be set"),
    ],
)
def test_one_of_the_two_permissions_is_told_from_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], permission: str, words: str
) -> None:
    found = examined(tmp_path, board(permissions=(permission,)))
    assert (found.mode, found.permit is None) == ("full", False)
    assert words in shown(found, capsys)


def test_a_board_without_limits_is_no_matter_of_permission(tmp_path: Path) -> None:
    assert examined(tmp_path, board(has_clock_control=False)).permit is None


def test_no_driver_means_an_emulated_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with NvmlEmulator([], init_error=9):
        host = Host(environment={"XDG_STATE_HOME": str(tmp_path)}, torch=torch_with(0, None))
        found = Doctor(host=host, list_collectives=lambda: NO_BACKENDS).examine()
    assert (found.gpus, found.emulated, found.mode, found.permit) == ((), True, None, None)
    assert found.versions["driver"] == ""
    text = shown(found, capsys)
    for words in ("No NVIDIA GPU.", "is the NVIDIA driver loaded?", "an EMULATED GPU", "Collectives: gloo 2.13"):
        assert words in text
    assert "pip install 'energy[nccl]'" in text  # not taken for markup


def _raising(error: Exception) -> Any:
    def load() -> Any:
        raise error

    return load


class _Foreign:
    """The module of another distribution that is called pynvml, too."""

    class NVMLError(Exception):
        """Its own."""

    @staticmethod
    def nvmlInit() -> None:
        """Works."""


@pytest.mark.parametrize(
    "load",
    [
        _raising(ImportError("No module named 'pynvml'")),
        _raising(SyntaxError("invalid syntax")),
        lambda: SimpleNamespace(),
        _Foreign,
        lambda: SimpleNamespace(NVMLError=None),
    ],
    ids=["missing", "damaged", "empty", "foreign", "no exception"],
)
def test_a_damaged_pynvml_is_a_line_and_no_crash(tmp_path: Path, load: Any) -> None:
    host = Host(environment={"XDG_STATE_HOME": str(tmp_path)}, torch=torch_with(0))
    found = Doctor(host=host, load_nvml=load, list_collectives=lambda: NO_BACKENDS).examine()
    (fault,) = found.faults
    assert "pynvml" in fault
    assert "uninstall any package called pynvml" in fault
    assert found.emulated


def test_a_gpu_that_torch_sees_and_nvml_does_not_is_used_without_measuring(tmp_path: Path) -> None:
    with NvmlEmulator([], init_error=9):
        host = Host(environment={"XDG_STATE_HOME": str(tmp_path)}, torch=torch_with(1))
        found = Doctor(host=host, list_collectives=lambda: BACKENDS).examine()
    assert (found.emulated, found.mode) == (False, None)
    assert "without measuring" in found.used_device


def test_a_gpu_that_cannot_be_read_does_not_hide_the_others(tmp_path: Path) -> None:
    with machine([board(), board(SECOND)], tmp_path) as (examiner, nvml):
        nvml.lose(0)
        found = examiner.examine()
    assert [gpu.uuid for gpu in found.gpus] == [SECOND]
    assert any(fault.startswith("GPU 0") for fault in found.faults)


def record_in(folder: Path, pid: int, boot: str) -> GpuState:
    state = GpuState(folder / "energy_lightning", FIRST)
    state.folder.mkdir(parents=True)
    undo = (Undo(FIRST, "sm_clock", None), Undo(FIRST, "power_limit", 250.0))
    state.write(GpuRecord("train.py", "2026-11-30T01:02:03+00:00", boot, (f"{pid}-abc",), undo))
    return state


def test_a_job_that_has_the_gpu_is_named_and_not_disturbed(tmp_path: Path) -> None:
    record_in(tmp_path, os.getpid(), boot_id())
    with machine([board()], tmp_path) as (examiner, nvml):
        found = examiner.examine()
        assert nvml.state(0).sets == ()
    (gpu,) = found.gpus
    assert (gpu.can_lock_frequency, gpu.left_behind, found.permit) == (None, (), None)
    assert f"train.py (process {os.getpid()}) has it since 2026-11-30T01:02:03" in gpu.control


@pytest.mark.parametrize(("boot", "alive"), [("another start of the machine", True), (boot_id(), False)])
def test_what_a_dead_job_left_is_told_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], boot: str, alive: bool
) -> None:
    state = record_in(tmp_path, os.getpid(), boot)
    before = state.path(".json").read_bytes()
    found = examined(tmp_path, board(), process_exists=lambda pid: alive)
    (gpu,) = found.gpus
    assert gpu.left_behind == (
        f"nvidia-smi -i {FIRST} --reset-gpu-clocks",
        f"nvidia-smi -i {FIRST} --power-limit=250",
    )
    assert gpu.can_lock_frequency
    assert state.path(".json").read_bytes() == before
    assert "left by a dead job" in shown(found, capsys)


def test_a_damaged_record_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    state = record_in(tmp_path, 1, "")
    state.path(".json").write_text("{half", encoding="utf-8")
    found = examined(tmp_path, board())
    assert "cannot be read" in found.gpus[0].left_behind[0]
    assert [path.name for path in state.folder.iterdir()] == [state.path(".json").name]


def test_nothing_is_written_where_nothing_was(tmp_path: Path) -> None:
    examined(tmp_path, board())
    assert list(tmp_path.iterdir()) == []


def test_json_holds_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = examined(tmp_path, board(), board(SECOND, permissions=()))
    assert doctor(["--json"], examined_by=SimpleNamespace(examine=lambda: found)) == 0  # type: ignore[arg-type]
    values = json.loads(capsys.readouterr().out)
    assert values == json.loads(json.dumps(found.to_dict()))
    assert [gpu["mode"] for gpu in values["gpus"]] == ["full", "measure-only"]
    assert values["mode"] == "measure-only"  # the least of those that a job uses
    assert values["collectives"][0]["name"] == "nccl4py"


def test_the_command_examines_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["versions"]["python"]
    assert [choice["name"] for choice in values["collectives"]][-1] == "gloo"
    assert import_nvml().__name__ == "pynvml"
