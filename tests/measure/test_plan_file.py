from pathlib import Path

import pytest
import yaml

from energy_lightning.device import device_facts
from energy_lightning.measure import check_plan, load_plan, save_plan
from energy_lightning.measure.testing import ScriptedDevice
from energy_lightning.types import Budget, PhasePlan, Plan, PlanError, Schedule
from energy_lightning.workload import Workload

FORWARD = PhasePlan("forward", 1200, True, {"fwd_attn": Schedule(6, "linear_0"), "fwd_mlp": Schedule(9, None)})
PLAN = Plan.single_stage(FORWARD, PhasePlan("backward", 900), time_s=0.25, energy_j=60.5, emulated=True, label="kareus")
WORKLOAD = Workload.preset("bert_base", tensor_parallel=2)


def test_a_plan_comes_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plan.yaml"
    save_plan(path, PLAN, run={"gpu": "A100", "sizes": (1, 2)}, budget=Budget("min_energy"), references={"plain": PLAN})
    assert load_plan(path) == PLAN
    assert [file.name for file in path.parent.iterdir()] == ["plan.yaml"]


def test_an_emulated_plan_says_so_to_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    save_plan(path, PLAN, run={"gpu": "A100"})
    text = path.read_text()
    assert "# EMULATED" in text
    assert "A100" in text
    assert yaml.safe_load(text)["emulated"] is True
    save_plan(path, Plan.sequential(900))
    assert "EMULATED" not in path.read_text()
    assert 'Load it with KareusStrategy(plan="plan.yaml")' in path.read_text()


def test_a_plan_says_what_the_device_permitted_and_loads_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    save_plan(path, PLAN, device=device_facts(ScriptedDevice()))
    assert yaml.safe_load(path.read_text())["device"] == {
        "name": "scripted GPU",
        "mode": "full",
        "mode_reason": "scripted",
        "energy_source": "counter",
    }
    assert load_plan(path) == PLAN


def test_a_plan_says_which_sm_counts_its_collectives_get_and_loads_all_the_same(tmp_path: Path) -> None:
    path, same = tmp_path / "plan.yaml", {"operation": "all_reduce", "count": 7}
    counts = [{**same, "asked_sm_count": asked, "granted_sm_count": asked - 1} for asked in (3, 6, 9)]
    group = {"role": "tensor_parallel", "backend": "nccl_capped", "supports_sm_count": True}
    save_plan(path, PLAN, collectives=[{**group, "sm_counts": counts}])
    expected = [
        {"operation": "all_reduce", "asked_sm_count": 6, "granted_sm_count": 5},
        {"operation": "all_reduce", "asked_sm_count": 9, "granted_sm_count": 8},
    ]
    assert yaml.safe_load(path.read_text())["collectives"] == [{**group, "sm_counts": expected}]
    assert load_plan(path) == PLAN


def test_an_edited_plan_is_loaded_with_the_edit(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    save_plan(path, PLAN)
    path.write_text(path.read_text().replace("frequency_mhz: 1200", "frequency_mhz: 1410"))
    assert load_plan(path).forward.frequency_mhz == 1410


def test_a_pipeline_plan_writes_each_different_phase_once(tmp_path: Path) -> None:
    other = PhasePlan("forward", 1200, True, {"fwd_attn": Schedule(3, "linear_0")})  # the same clock: a name of its own
    stages = tuple((FORWARD, other, PhasePlan("backward", 900)) * 40 for _ in range(3))
    path = tmp_path / "plan.yaml"
    save_plan(path, Plan(stages))
    text = path.read_text()
    assert load_plan(path) == Plan(stages)
    assert text.count("launch: linear_0") == 2
    assert text.count("*forward_1200\n") == text.count("*forward_1200_2\n") == text.count("*backward_900\n") == 119
    assert "# A phase that runs more than once" in text
    assert "a training here runs plans of one stage only" in text
    assert "Load it" not in text
    assert max(len(line) for line in text.splitlines()) <= 120
    path.write_text(text.replace("frequency_mhz: 900", "frequency_mhz: 930"))
    assert {phase.frequency_mhz for stage in load_plan(path).stages for phase in stage} == {1200, 930}


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ("a: [1, 2", "line 1"),
        ("just text", "not a plan file"),
        ("stages: []", "not a plan file"),
        ("schema: 2\nplan: {}", "schema 2"),
        ("schema: 1\nplan: {}\nextra: 1", "'extra'"),
        ("schema: 1\nplan: {stages: [[{phase: sideways}]]}", "plan.stages[0][0]"),
        ("schema: 1\nplan: {stages: [[{phase: forward, frequency_mhz: fast}]]}", "frequency_mhz"),
    ],
)
def test_a_file_that_is_no_plan_names_itself_and_the_place(tmp_path: Path, content: str, place: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(content)
    with pytest.raises(PlanError) as caught:
        load_plan(path)
    assert str(path) in str(caught.value)
    assert place in str(caught.value)


def test_a_missing_or_binary_file_is_a_named_error(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"no\.yaml"):
        load_plan(tmp_path / "no.yaml")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\xff")
    with pytest.raises(PlanError, match=r"picture\.png"):
        load_plan(tmp_path / "picture.png")


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ((PLAN.stages[0],) * 4, "is for 4 pipeline stages; a training runs plans of one stage"),
        (((*PLAN.stages[0], PhasePlan("forward", 900)),), "has 2 different forward phases"),
        (((FORWARD,),), "has 0 different backward phases"),
    ],
)
def test_a_plan_that_a_training_cannot_follow_is_refused(
    stages: tuple[tuple[PhasePlan, ...], ...], message: str
) -> None:
    with pytest.raises(PlanError, match=message):
        check_plan(Plan(stages), ScriptedDevice())
    check_plan(Plan(PLAN.stages * 1), ScriptedDevice())
    check_plan(Plan((PLAN.stages[0] * 8,)), ScriptedDevice())


def test_a_plan_that_fits_passes() -> None:
    check_plan(PLAN, ScriptedDevice(), WORKLOAD)
    check_plan(Plan.sequential(), ScriptedDevice())


@pytest.mark.parametrize(
    ("phase", "parts"),
    [
        (PhasePlan("forward", 1402), ("1402 MHz", "1200, 1410", "stages[0][0]")),
        (PhasePlan("forward", 900, True, {"fwd_attn": Schedule(120)}), ("120", "108 SMs", "fwd_attn")),
        (PhasePlan("forward", 900, True, {"fwd_moe": Schedule(3)}), ("'fwd_moe'", "fwd_mlp")),
        (PhasePlan("forward", 900, True, {"fwd_mlp": Schedule(3, "rope_0")}), ("'rope_0'", "activation_0")),
    ],
)
def test_a_plan_of_another_gpu_or_job_names_place_and_value(phase: PhasePlan, parts: tuple[str, ...]) -> None:
    with pytest.raises(PlanError) as caught:
        check_plan(Plan.single_stage(phase, PhasePlan("backward")), ScriptedDevice(), WORKLOAD)
    assert all(part in str(caught.value) for part in parts)
