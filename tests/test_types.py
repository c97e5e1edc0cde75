import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from energy_lightning.types import Budget, BudgetError, EnergyLightningError, PhasePlan, Plan, PlanError, Schedule

schedules = st.builds(
    Schedule,
    sm_count=st.one_of(st.none(), st.integers(1, 108)),
    launch=st.one_of(st.none(), st.sampled_from(["norm_0", "linear_0", "attn_0"])),
    block_threads=st.sampled_from([256, 512, 1024]),
)


def phase_plans(phase: str) -> st.SearchStrategy[PhasePlan]:
    keys = ["fwd_attn", "fwd_mlp"] if phase == "forward" else ["bwd_attn", "bwd_mlp", "rec_attn", "grad_bucket"]
    return st.builds(
        PhasePlan,
        phase=st.just(phase),
        frequency_mhz=st.one_of(st.none(), st.integers(210, 1980)),
        nanobatched=st.booleans(),
        schedules=st.dictionaries(st.sampled_from(keys), schedules),
    )


plans = st.builds(Plan.single_stage, phase_plans("forward"), phase_plans("backward"))


@given(plans)
def test_a_plan_survives_dict_and_pickle(plan: Plan) -> None:
    assert Plan.from_dict(plan.to_dict()) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan
    assert hash(pickle.loads(pickle.dumps(plan))) == hash(plan)


def test_stage_frequencies_keep_order_and_split_schedules_by_direction() -> None:
    everything = {k: Schedule(6, "norm_0") for k in ("fwd_attn", "rec_attn", "bwd_attn", "grad_bucket")}
    plan = Plan.from_stage_frequencies(
        [[("forward", 1410), ("backward", 1380)], [("forward", 900), ("backward", 930)]], True, everything
    )
    assert [[p.frequency_mhz for p in stage] for stage in plan.stages] == [[1410, 1380], [900, 930]]
    forward, backward = plan.stages[1]
    assert set(forward.schedules) == {"fwd_attn"}
    assert set(backward.schedules) == {"rec_attn", "bwd_attn", "grad_bucket"}
    with pytest.raises(PlanError, match="2 stages"):
        _ = plan.forward


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "stages"),
        ({"stages": []}, "stages"),
        ({"stages": [[]]}, r"stages\[0\]"),
        ({"stages": [[{"phase": "sideways"}]]}, "sideways"),
        ({"stages": [[{"phase": "forward", "frequency_mhz": "fast"}]]}, "'fast'"),
        ({"stages": [[{"phase": "forward", "frequency_mhz": -3}]]}, "-3"),
        ({"stages": [[{"phase": "forward", "nanobatched": "no"}]]}, "'no'"),
        ({"stages": [[{"phase": "forward", "schedules": {"fwd_attn": {"sm_count": 0}}}]]}, "fwd_attn.*got 0"),
        ({"stages": [[{"phase": "forward", "schedules": {"fwd_attn": {"sms": 3}}}]]}, "'sms'"),
        ({"stages": [[{"phase": "forward"}]], "time_s": float("nan")}, "time_s"),
        ({"stages": [[{"phase": "forward"}]], "colour": 1}, "'colour'"),
    ],
)
def test_a_bad_plan_is_refused_naming_place_and_value(data: dict, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan.from_dict(data)


@pytest.mark.parametrize(
    ("given_budget", "kind", "value"),
    [
        (None, "max_slowdown", 0.0),
        ("min_energy", "min_energy", None),
        ("max_slowdown=0.05", "max_slowdown", 0.05),
        ({"deadline": 1.5}, "deadline", 1.5),
        (Budget("energy_budget", 300), "energy_budget", 300.0),
    ],
)
def test_budgets_are_read(given_budget: object, kind: str, value: float | None) -> None:
    budget = Budget.parse(given_budget)  # type: ignore[arg-type]
    assert (budget.kind, budget.value) == (kind, value)


@pytest.mark.parametrize(
    "bad",
    ["cheap", "max_slowdown=fast", "deadline", {"deadline": float("nan")}, {"max_slowdown": -0.1}, {"deadline": 0},
     "min_energy=3", {"deadline": True}, {}, {"a": 1, "b": 2}, 7],
)  # fmt: skip
def test_bad_budgets_are_refused(bad: object) -> None:
    with pytest.raises(BudgetError):
        Budget.parse(bad)  # type: ignore[arg-type]


def test_our_errors_are_value_errors() -> None:
    assert issubclass(EnergyLightningError, ValueError)
    with pytest.raises(ValueError, match="multiple of 32"):
        Schedule(4, "norm_0", block_threads=100)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sm_count": 3.5}, "sm_count must be a whole number >= 1 or null, got 3.5"),
        ({"sm_count": float("nan")}, "got nan"),
        ({"sm_count": True}, "got True"),
        ({"sm_count": "6"}, "got '6'"),
        ({"launch": 3}, "launch must be the name of an operator or null, got 3"),
        ({"block_threads": 64.0}, "block_threads must be a positive multiple of 32, got 64.0"),
    ],
)
def test_a_schedule_of_the_wrong_kind_of_value_is_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Schedule.from_dict(values)
