"""The store as a file: what survives a kill, what is reused, what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from energy_lightning.measure import AppendLog, MeasurementStore, PartitionConfig, merge_trials, rows_up_to, run_hash
from energy_lightning.types import Measurement, MeasurementError, Schedule

RUN = {"gpu": "A100", "workload": {"hidden_size": 256}, "versions": {"torch": "2.13"}}
CONFIG = PartitionConfig("fwd_attn", 1410, Schedule(4, "norm_0"))
MEASURED = Measurement(time_s=0.002, energy_j=0.5, requested_mhz=1410, actual_mhz=1410, temperature_c=51.0)


def store_at(path: Path, run: dict[str, object] | None = None, **options: object) -> MeasurementStore:
    return MeasurementStore(path, RUN if run is None else run, **{"source": "counter", **options})  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run" / "measurements.jsonl"


def test_a_second_run_knows_what_the_first_measured(path: Path) -> None:
    store_at(path).add(CONFIG, MEASURED)
    assert store_at(path).known(CONFIG) == MEASURED


def test_a_row_is_on_disk_as_soon_as_it_is_added(path: Path) -> None:
    store = store_at(path)
    store.add(CONFIG, MEASURED)
    store.add(replace(CONFIG, frequency_mhz=900), MEASURED)
    first, second = [json.loads(line) for line in path.read_text().splitlines()]
    assert first["run"] == RUN
    assert "run" not in second
    assert first["key"] == second["key"] == run_hash(RUN)
    assert second["config"] == {"frequency_mhz": 900, "sm_count": 4, "launch": "norm_0", "block_threads": 1024}
    assert (second["schema"], second["emulated"], second["partition"]) == (1, False, "fwd_attn")


def test_a_row_says_what_the_device_permitted_when_it_was_measured(path: Path) -> None:
    permitted = ["full"]
    store = store_at(path, mode=lambda: permitted[0])
    store.add(CONFIG, MEASURED)
    permitted[0] = "measure-only"  # refused in the middle of the run
    store.add(CONFIG, MEASURED)
    assert [json.loads(line)["mode"] for line in path.read_text().splitlines()] == ["full", "measure-only"]
    assert store_at(path).num_rows == 2


def test_rows_from_an_emulated_board_say_so_whatever_their_source(path: Path) -> None:
    store_at(path, {**RUN, "emulated": True}).add(CONFIG, MEASURED)
    store_at(path, {**RUN, "emulated": False}).add(CONFIG, MEASURED)
    assert [json.loads(line)["emulated"] for line in path.read_text().splitlines()] == [True, False]


@pytest.mark.parametrize(
    "other",
    [
        {**RUN, "gpu": "A40"},
        {**RUN, "workload": {"hidden_size": 512}},
        {**RUN, "versions": {"torch": "2.14"}},
    ],
)
def test_another_gpu_shape_or_version_reuses_nothing_and_loses_nothing(path: Path, other: dict[str, object]) -> None:
    store_at(path).add(CONFIG, MEASURED)
    changed = store_at(path, other)
    assert changed.known(CONFIG) is None
    assert changed.num_other_rows == 1
    changed.add(CONFIG, replace(MEASURED, time_s=9.0))
    assert store_at(path).known(CONFIG) == MEASURED


def test_the_key_does_not_depend_on_the_order_of_the_description() -> None:
    assert run_hash({"a": 1, "b": {"c": 2, "d": 3}}) == run_hash({"b": {"d": 3, "c": 2}, "a": 1})


@pytest.mark.parametrize("value", [math.nan, object()])
def test_a_run_is_described_by_plain_values(value: object) -> None:
    with pytest.raises(MeasurementError, match="plain finite values"):
        run_hash({"a": value})


def test_rows_of_another_energy_source_are_not_mixed_in(path: Path) -> None:
    store_at(path).add(CONFIG, MEASURED)
    assert store_at(path, source="power").known(CONFIG) is None
    with pytest.raises(MeasurementError, match="never mixed"):
        store_at(path).add(CONFIG, replace(MEASURED, source="power"))


def test_a_half_written_last_line_is_tolerated_and_repaired_by_the_next_append(path: Path) -> None:
    store = store_at(path)
    for frequency_mhz in (900, 1200):
        store.add(replace(CONFIG, frequency_mhz=frequency_mhz), MEASURED)
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[1])):
        path.write_bytes(whole[:-cut])
        if whole[-cut - 1 :].startswith(b"\n") and cut > 1:
            continue
        resumed = store_at(path)
        assert resumed.num_rows == 1
        assert path.read_bytes() == whole[:-cut]  # reading repairs nothing
    resumed.add(replace(CONFIG, frequency_mhz=1410), MEASURED)
    assert {c.frequency_mhz for c in store_at(path).measurements()} == {900, 1410}


@pytest.mark.parametrize(
    "content",
    [
        b"step,loss\n1,0.5\n",
        b"half a text",
        b'{"schema": 2, "key": "x"}\n',
        b'{"loss": 0.5}\n',
        b"[1, 2]\n",
        b"\xff\xfe\x00binary\n",
        b'{"schema": 1}\n',
        b"\n",
    ],
)
def test_a_foreign_file_is_refused_by_name_and_line_and_left_untouched(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(MeasurementError) as caught:
        store_at(path)
    assert str(path) in str(caught.value)
    assert "line 1" in str(caught.value)
    assert "ove" in str(caught.value)  # what to do: (re)move
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    ("field", "value"),
    [("time_s", "fast"), ("time_s", -1.0), ("energy_j", True), ("config", {"frequency_mhz": 0}), ("partition", 7)],
)
def test_an_impossible_row_names_its_line(path: Path, field: str, value: object) -> None:
    store_at(path).add(CONFIG, MEASURED)
    row = json.loads(path.read_text())
    path.write_text(path.read_text() + json.dumps({**row, field: value}) + "\n")
    with pytest.raises(MeasurementError, match="line 2"):
        store_at(path)


def test_a_folder_in_the_way_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="cannot read"):
        store_at(tmp_path)


def test_only_a_writable_store_writes(path: Path) -> None:
    reader = store_at(path, writable=False)
    reader.add(CONFIG, MEASURED)
    assert reader.known(CONFIG) == MEASURED
    assert not path.exists()


def test_repeats_merge_into_one_candidate() -> None:
    merged = merge_trials([replace(MEASURED, time_s=10.0, energy_j=5.0), replace(MEASURED, time_s=10.2, energy_j=5.2)])
    assert (merged.time_s, merged.energy_j, merged.num_repeats) == (pytest.approx(10.1), pytest.approx(5.1), 2)
    assert merged.time_std_s == pytest.approx(0.2 / math.sqrt(2))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_impossible_trials_are_left_out_and_all_bad_is_a_named_error(bad: float) -> None:
    trials = [replace(MEASURED, time_s=bad), MEASURED, replace(MEASURED, energy_j=bad)]
    assert merge_trials(trials) == MEASURED
    with pytest.raises(MeasurementError, match=r"none of 2 .* is usable: 1 x time .*, 1 x energy"):
        merge_trials([trials[0], trials[2]])


def test_merging_nothing_is_a_named_error() -> None:
    with pytest.raises(MeasurementError, match="no trials"):
        merge_trials([])


def test_a_failed_configuration_is_known_to_fail_until_it_succeeds(path: Path) -> None:
    failed = replace(MEASURED, energy_j=None, invalid_reason="unreachable: asked for 1410 MHz, seen 1200 MHz")
    store_at(path).add(CONFIG, failed)
    store = store_at(path)
    assert store.known(CONFIG) == failed
    store.add(CONFIG, MEASURED)
    assert store.known(CONFIG) == MEASURED


def test_records_past_the_checkpoint_are_dropped(tmp_path: Path) -> None:
    log = AppendLog(tmp_path / "energy.jsonl", what="the records in it")
    log.append({"step": step, "energy_j": float(step)} for step in range(1, 13))
    log.path.write_bytes(log.path.read_bytes()[:-5])  # killed in the middle of step 12
    kept = rows_up_to([row for _, row in log.read()], step=8)
    assert [row["step"] for row in kept] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert sum(row["energy_j"] for row in kept) == pytest.approx(36.0)
