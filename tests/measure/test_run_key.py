import pytest

from energy_lightning.device import EmulatedDevice
from energy_lightning.emulation import GPU
from energy_lightning.measure import describe_run, library_versions, run_hash
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.workload import Workload

A100 = GPU.load("a100-sxm4-40gb")
WORKLOAD = Workload.preset("bert_base_tp2")


def key(gpu: GPU = A100, workload: Workload = WORKLOAD, **options: object) -> str:
    return run_hash(describe_run(EmulatedDevice(gpu, workload), workload, **options))  # type: ignore[arg-type]


def test_equal_runs_have_equal_keys() -> None:
    assert key() == key(GPU.load("a100-sxm4-40gb"), Workload.preset("bert_base_tp2"))


@pytest.mark.parametrize(
    "other",
    [
        key(A100.with_constants(power__static_w=99.0)),
        key(workload=WORKLOAD.with_sizes(microbatch_size=2)),
        key(workload=WORKLOAD.with_sizes(sequence_length=256)),
        key(workload=Workload.preset("bert_base_tp4")),
        key(workload=Workload.preset("bert_large_tp2")),
        key(libraries=["energy-lightning"]),
        run_hash(describe_run(ScriptedDevice(), WORKLOAD)),
    ],
    ids=["GPU constants", "batch", "sequence", "parallelism", "model", "libraries", "real GPU"],
)
def test_whatever_changes_a_measurement_changes_the_key(other: str) -> None:
    assert other != key()


def test_the_clock_that_runs_and_a_power_limit_in_force_change_the_key_of_one_gpu() -> None:
    device = EmulatedDevice(A100, WORKLOAD)
    keys = [run_hash(describe_run(device, WORKLOAD))]
    device.set_power_limit(250.0)
    keys.append(run_hash(describe_run(device, WORKLOAD)))
    device.set_power_limit(300.0)
    keys.append(run_hash(describe_run(device, WORKLOAD)))
    device.reset_power_limit()
    assert run_hash(describe_run(device, WORKLOAD)) == keys[0]
    device.can_lock_frequency = False
    keys.append(run_hash(describe_run(device, WORKLOAD)))
    assert len(set(keys)) == 4


def test_versions_name_what_is_not_installed_too() -> None:
    versions = library_versions(["numpy", "no-such-distribution"])
    assert versions["no-such-distribution"] is None
    assert str(versions["numpy"])[0].isdigit()
