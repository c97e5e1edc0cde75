"""What is recorded of a GPU, who may hold it, and what is undone by whom: files and leases over the emulated NVML."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from zeusd_stand_in import zeusd

from energy_lightning.device.lease import Lease, LeaseError, end_holder, repair_all
from energy_lightning.device.nvml_emulator import Code, EmulatedBoard, NvmlEmulator
from energy_lightning.device.state_file import GpuRecord, GpuState, boot_id, default_state_dir
from energy_lightning.device.undo import AbsentGpuError, GpuControl, Undo, UndoError

CLOCK = Undo("GPU-a", "sm_clock", None)
LIMIT = Undo("GPU-a", "power_limit", 250.0)


@pytest.fixture
def nvml() -> Iterator[NvmlEmulator]:
    with NvmlEmulator([EmulatedBoard(uuid="GPU-a", power_limit_w=250.0), EmulatedBoard(uuid="GPU-b")]) as emulator:
        yield emulator


@pytest.fixture
def change(nvml: NvmlEmulator) -> None:
    """What a job does to the first GPU: clock locked, limit of 250 W raised to 300 W (default 400 W)."""
    set_up(nvml)


def set_up(nvml: NvmlEmulator, limit_w: float = 300.0) -> None:
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    pynvml.nvmlDeviceSetGpuLockedClocks(handle, 1005, 1005)
    pynvml.nvmlDeviceSetPowerManagementLimit(handle, round(limit_w * 1e3))
    assert is_set(nvml) == ((1005, 1005), limit_w)


def is_set(nvml: NvmlEmulator) -> tuple[tuple[int, int] | None, float]:
    state = nvml.state(0)
    return state.locked_mhz, state.power_limit_w


def lease(folder: Path, holder: str = "1-a", job: str = "job one") -> Lease:
    return Lease(GpuState(folder, "GPU-a"), holder=holder, job=job, control=GpuControl())


def dead_job(folder: Path, *undo: Undo, boot: str | None = None, holders: tuple[str, ...] = ("1-a",)) -> GpuState:
    """The record of a job that nobody alive belongs to."""
    folder.mkdir(exist_ok=True)
    state = GpuState(folder, "GPU-a")
    state.write(GpuRecord("job one", "2026-01-02T03:04:05+00:00", boot or boot_id(), holders, undo))
    return state


# undo


@pytest.mark.parametrize("undo", [CLOCK, LIMIT, Undo("GPU-a", "sm_clock", (900, 1200)), Undo("G", "power_limit", 1, 2)])
def test_an_undo_comes_back_from_json(undo: Undo) -> None:
    assert Undo.from_dict(json.loads(json.dumps(undo.to_dict()))) == undo


@pytest.mark.parametrize(
    "wrong",
    [
        {"setting": "fan"},
        {"setting": "power_limit", "previous": None},
        {"setting": "power_limit", "previous": float("nan")},
        {"setting": "power_limit", "previous": -1.0},
        {"setting": "sm_clock", "previous": 1005},
        {"setting": "sm_clock", "previous": [1005]},
        {"uuid": 3},
        {"applied": "300"},
    ],
)
def test_an_undo_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"undo record|values to unpack"):
        Undo.from_dict({**CLOCK.to_dict(), **wrong})


@pytest.mark.usefixtures("change")
def test_clock_and_limit_come_back_and_twice_is_harmless(nvml: NvmlEmulator) -> None:
    for _ in range(2):
        assert GpuControl().apply(CLOCK) is None
        assert GpuControl().apply(LIMIT) is None
        assert is_set(nvml) == (None, 250.0)


def test_an_earlier_lock_that_is_known_comes_back(nvml: NvmlEmulator) -> None:
    GpuControl().apply(Undo("GPU-a", "sm_clock", (900, 1200)))
    assert nvml.state(0).locked_mhz == (900, 1200)


def test_a_limit_that_somebody_else_set_since_stays(nvml: NvmlEmulator) -> None:
    set_up(nvml, limit_w=280.0)
    line = GpuControl().apply(Undo("GPU-a", "power_limit", 250.0, applied=300.0))
    assert line is not None
    assert "280 W, not the 300 W that was set by this job: somebody changed it since, so it stays" in line
    assert nvml.state(0).power_limit_w == 280.0
    assert GpuControl().apply(Undo("GPU-a", "power_limit", 250.0, applied=None)) is None  # in flight: not known
    assert nvml.state(0).power_limit_w == 250.0


@pytest.mark.parametrize(("now_w", "then_w"), [(300.0, 250.0), (400.0, 250.0), (350.0, 350.0)])
def test_after_a_restart_the_default_limit_is_nobodys_choice(nvml: NvmlEmulator, now_w: float, then_w: float) -> None:
    set_up(nvml, limit_w=now_w)
    GpuControl().apply(Undo("GPU-a", "power_limit", 250.0, applied=300.0), restarted=True)
    assert nvml.state(0).power_limit_w == then_w


@pytest.mark.usefixtures("change")
def test_what_cannot_be_given_back_names_the_command(nvml: NvmlEmulator) -> None:
    nvml.permit(0)
    with pytest.raises(UndoError, match="nvidia-smi -i GPU-a --power-limit=250"):
        GpuControl().apply(LIMIT)
    with pytest.raises(UndoError, match="nvidia-smi -i GPU-a --reset-gpu-clocks"):
        GpuControl().apply(CLOCK)
    with pytest.raises(AbsentGpuError):
        GpuControl().apply(Undo("GPU-elsewhere", "sm_clock", None))


def test_what_was_set_through_zeusd_is_repaired_through_it(tmp_path: Path, nvml: NvmlEmulator) -> None:
    set_up(nvml)
    nvml.permit(0)  # this process may set nothing itself
    with tempfile.TemporaryDirectory(prefix="zeusd") as folder:  # paths of Unix sockets must be short
        socket = Path(folder) / "zeusd.sock"
        state = GpuState(tmp_path, "GPU-a")
        state.write(GpuRecord("job one", "since", boot_id(), ("1-a",), (CLOCK, LIMIT), str(socket)))
        Lease(state, holder="2-b", job="job two", control=GpuControl()).release()
        assert f"zeusd at {socket}: Cannot reach Zeusd" in state.said[0]
        assert is_set(nvml) == ((1005, 1005), 300.0)
        with zeusd(nvml, socket):
            Lease(state, holder="3-c", job="job three", control=GpuControl()).release()
        assert is_set(nvml) == (None, 250.0)


# records


def test_the_state_directory_follows_xdg() -> None:
    assert default_state_dir({"XDG_STATE_HOME": "/x"}) == Path("/x/energy_lightning")
    assert default_state_dir({}) == Path.home() / ".local/state/energy_lightning"
    assert default_state_dir({"XDG_STATE_HOME": "here", "HOME": "/h"}) == Path("/h/.local/state/energy_lightning")


def test_a_user_without_a_home_has_one_state_directory_wherever_jobs_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.path.expanduser", str)  # as where neither HOME nor the user database tells one
    found = default_state_dir({})
    assert found.is_absolute()
    assert found.parent == Path(tempfile.gettempdir())


def test_a_record_comes_back_from_its_file(tmp_path: Path) -> None:
    state = GpuState(tmp_path, "GPU-a")
    assert state.read() is None
    record = GpuRecord("job", "since", "boot", ("1-a", "2-b"), (CLOCK, LIMIT), "/run/zeusd")
    state.write(record, durable=True)
    assert state.read() == record
    state.remove()
    assert state.read() is None


WHOLE = '{"version": 1, "job": "", "since": "", "boot": "", "zeusd_socket": null, "holders": [], "undo": [%s]}'
NO_SETTING = '{"uuid": "GPU-a", "setting": [], "previous": null, "applied": null}'
ENDLESS_CLOCK = '{"uuid": "GPU-a", "setting": "sm_clock", "previous": [1e999, 2], "applied": null}'
OTHER_VERSIONS = ['{"version": 2}', '{"version": 1}', '{"version": 1, "job": 3}']


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "[" * 100_000, *OTHER_VERSIONS, b"\xff\xfe", WHOLE % NO_SETTING, WHOLE % ENDLESS_CLOCK],
    ids=range(11),
)
def test_a_damaged_record_is_set_aside_in_one_line(tmp_path: Path, text: str | bytes) -> None:
    state = GpuState(tmp_path, "GPU-a")
    state.path(".json").write_bytes(text.encode() if isinstance(text, str) else text)
    assert state.read() is None
    assert len(state.said) == 1
    assert "is damaged" in state.said[0]
    assert "nvidia-smi -i GPU-a --reset-gpu-clocks" in state.said[0]
    assert not state.path(".json").exists()
    assert len(list(tmp_path.glob("GPU-a.damaged-*"))) == 1


def test_a_lock_that_another_one_keeps_is_not_waited_for_for_ever(tmp_path: Path) -> None:
    with (
        GpuState(tmp_path, "GPU-a").transaction(),
        pytest.raises(TimeoutError, match="held by another process"),
        GpuState(tmp_path, "GPU-a").transaction(timeout_s=0.02),
    ):
        pass
    with GpuState(tmp_path, "GPU-a").transaction(timeout_s=0.0):
        pass


@contextmanager
def forked_child() -> Iterator[None]:
    """While entered, a child lives that was forked here and does nothing."""
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(to_child)
        os.write(to_parent, b"alive")
        os.read(from_parent, 1)  # until the parent closes its end
        os._exit(0)
    os.read(from_child, 5)
    yield
    for descriptor in (from_child, to_parent, from_parent, to_child):
        os.close(descriptor)
    os.waitpid(child, 0)


def test_a_child_forked_in_a_transaction_does_not_keep_its_lock(tmp_path: Path) -> None:
    transaction = GpuState(tmp_path, "GPU-a").transaction()
    transaction.__enter__()
    with forked_child():
        transaction.__exit__(None, None, None)
        with GpuState(tmp_path, "GPU-a").transaction(timeout_s=0.0):
            pass


# leases


class InterruptedState(GpuState):
    """A signal comes while the record is read."""

    handler: Callable[[], None] | None = None

    def read(self) -> GpuRecord | None:
        record, handler, self.handler = super().read(), self.handler, None
        if handler is not None:
            handler()
        return record


@pytest.mark.usefixtures("change")
@pytest.mark.parametrize("act", [Lease.remember, Lease.forget, Lease.give_back], ids=lambda act: act.__name__)
def test_a_signal_that_releases_in_the_middle_of_a_record_waits_for_nothing(
    tmp_path: Path, nvml: NvmlEmulator, act: Callable[[Lease, Any], object]
) -> None:
    state = InterruptedState(tmp_path, "GPU-a")
    held = Lease(state, holder="1-a", job="job one", control=GpuControl())
    held.remember(CLOCK)
    held.remember(LIMIT)
    state.handler = held.release
    start_s = time.monotonic()
    act(held, "sm_clock" if act is Lease.forget else CLOCK)
    assert time.monotonic() - start_s < 2.0
    assert is_set(nvml) == (None, 250.0)
    assert not list(tmp_path.glob("*.json"))
    lease(tmp_path, "2-b", "job two").release()


def test_another_job_is_refused_by_name(tmp_path: Path) -> None:
    held = lease(tmp_path, f"{os.getpid()}-a")
    with pytest.raises(
        LeaseError, match=rf"GPU-a is controlled by another job \(job one, process {os.getpid()}, since"
    ):
        lease(tmp_path, "2-b", job="job two")
    held.release()
    lease(tmp_path, "2-b", job="job two").release()
    assert not list(tmp_path.glob("*.json"))


def test_a_forked_child_does_not_hold_the_lease(tmp_path: Path) -> None:
    held = lease(tmp_path, "1-a")
    with forked_child():
        held.close()  # as the kernel does when the parent dies
        lease(tmp_path, "2-b", job="job two").release()


@pytest.mark.usefixtures("change")
def test_ranks_of_one_job_share_a_gpu_and_the_last_gives_it_back(tmp_path: Path, nvml: NvmlEmulator) -> None:
    first, second = lease(tmp_path, "1-a"), lease(tmp_path, "2-b")
    assert first.remember(LIMIT) == LIMIT
    assert second.remember(Undo("GPU-a", "power_limit", 300.0)) == LIMIT  # what the first rank set is not "before"
    second.remember(CLOCK)
    second.give_back(LIMIT)
    second.release()
    assert is_set(nvml) == ((1005, 1005), 300.0)
    first.give_back(LIMIT)
    assert is_set(nvml) == ((1005, 1005), 250.0)
    first.release()  # also the clock, which only the other rank had locked
    assert is_set(nvml) == (None, 250.0)


@pytest.mark.usefixtures("change")
def test_what_a_dead_job_left_is_repaired_by_the_next_lease(tmp_path: Path, nvml: NvmlEmulator) -> None:
    dead_job(tmp_path, CLOCK, LIMIT, holders=("1-a", "2-b"))
    new = lease(tmp_path, "3-c", job="job two")
    assert is_set(nvml) == (None, 250.0)
    assert len(new.state.said) == 2
    assert "job one, begun 2026-01-02T03:04:05+00:00, ended without giving this GPU back" in new.state.said[0]
    record = new.state.read()
    assert record is not None
    assert (record.job, record.holders, record.undo) == ("job two", ("3-c",), ())


@pytest.mark.usefixtures("change")
def test_a_job_that_was_restarted_under_its_name_repairs_itself(tmp_path: Path, nvml: NvmlEmulator) -> None:
    dead_job(tmp_path, CLOCK, LIMIT)
    new = lease(tmp_path, "2-b", job="job one")
    assert is_set(nvml) == (None, 250.0)
    set_up(nvml)
    new.remember(CLOCK)
    end_holder(tmp_path, "1-a", [CLOCK, LIMIT], GpuControl(), 0.0)  # its old watchdog comes late
    assert is_set(nvml) == ((1005, 1005), 300.0)


@pytest.mark.usefixtures("change")
def test_after_a_restart_of_the_machine_the_earlier_cap_is_set_again(tmp_path: Path, nvml: NvmlEmulator) -> None:
    set_up(nvml, limit_w=400.0)  # what the driver starts with
    dead_job(tmp_path, LIMIT, boot="another boot")
    lease(tmp_path, "3-c", job="job two")
    assert nvml.state(0).power_limit_w == 250.0


@pytest.mark.usefixtures("change")
def test_what_cannot_be_repaired_is_kept_for_the_end_of_the_next_job(tmp_path: Path, nvml: NvmlEmulator) -> None:
    dead_job(tmp_path, LIMIT)
    nvml.permit(0)
    new = lease(tmp_path, "3-c", job="job two")
    assert "an administrator can: nvidia-smi -i GPU-a --power-limit=250" in new.state.said[0]
    nvml.permit(0, "power_limit")
    assert new.remember(Undo("GPU-a", "power_limit", 300.0)).previous == 250.0
    new.release()
    assert nvml.state(0).power_limit_w == 250.0


@pytest.mark.usefixtures("change")
def test_other_gpus_of_dead_jobs_are_repaired_too_and_living_ones_left_alone(
    tmp_path: Path, nvml: NvmlEmulator
) -> None:
    state = dead_job(tmp_path, CLOCK, LIMIT)
    elsewhere = GpuState(tmp_path, "GPU-of-another-machine")
    elsewhere.write(GpuRecord("job", "since", "boot", ("9-z",), (Undo("GPU-of-another-machine", "sm_clock", None),)))
    living = Lease(GpuState(tmp_path, "GPU-b"), holder="8-y", job="job three", control=GpuControl())
    living.remember(Undo("GPU-b", "sm_clock", None))
    said = repair_all(tmp_path, GpuControl(), but="GPU-c")
    assert is_set(nvml) == (None, 250.0)
    assert len(said) == 2
    assert state.read() is None
    assert elsewhere.read() is not None
    assert not nvml.state(1).sets


# what a watchdog does


@pytest.mark.usefixtures("change")
def test_the_end_of_a_holder_gives_everything_back_once(tmp_path: Path, nvml: NvmlEmulator) -> None:
    dead_job(tmp_path, CLOCK, LIMIT)
    assert end_holder(tmp_path, "1-a", [CLOCK, LIMIT], GpuControl(), 0.0) == []
    assert is_set(nvml) == (None, 250.0)
    assert not list(tmp_path.glob("*.json"))


@pytest.mark.usefixtures("change")
def test_the_end_of_a_holder_leaves_what_is_another_jobs_by_now(tmp_path: Path, nvml: NvmlEmulator) -> None:
    new = lease(tmp_path, "2-b", job="job two")
    new.remember(CLOCK)
    end_holder(tmp_path, "1-a", [CLOCK, LIMIT], GpuControl(), 0.0)
    assert is_set(nvml) == ((1005, 1005), 300.0)


@pytest.mark.usefixtures("change")
@pytest.mark.parametrize("folder", ["none", "cleared", "a file"])
def test_without_records_a_dead_holders_word_counts(tmp_path: Path, nvml: NvmlEmulator, folder: str) -> None:
    (tmp_path / "a file").touch()
    end_holder(None if folder == "none" else tmp_path / folder, "1-a", [CLOCK, LIMIT], GpuControl(), 0.0)
    assert is_set(nvml) == (None, 250.0)


@pytest.mark.usefixtures("change")
def test_what_a_dead_holder_could_not_give_back_stays_recorded(tmp_path: Path, nvml: NvmlEmulator) -> None:
    dead_job(tmp_path, CLOCK, LIMIT)
    nvml.fail(0, "nvmlDeviceResetGpuLockedClocks", Code.UNKNOWN)
    (line,) = end_holder(tmp_path, "1-a", [CLOCK, LIMIT], GpuControl(), 0.0)
    assert "cannot give back GPU-a: SM clock not locked" in line
    record = GpuState(tmp_path, "GPU-a").read()
    assert record is not None
    assert record.undo == (CLOCK,)


@pytest.mark.parametrize(("uid", "owner", "is_refused"), [(1000, 1001, True), (1000, 1000, False), (1000, 0, False)])
def test_records_of_another_user_are_not_acted_upon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, owner: int, is_refused: bool
) -> None:
    """A folder beside the temporary files, for users without a home, can be made by anybody."""
    monkeypatch.setattr("os.getuid", lambda: uid)
    monkeypatch.setattr(Path, "stat", lambda path, **_: SimpleNamespace(st_uid=owner, st_mode=0o40700))
    expected = pytest.raises(PermissionError, match=r"another user \(uid 1001\)") if is_refused else nullcontext()
    with expected, GpuState(tmp_path, "GPU-a").transaction():
        pass
