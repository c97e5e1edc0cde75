"""What a rehearsed or planned job is where the command line leaves it open."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from energy_lightning.app import main
from energy_lightning.app.configuration import (
    check_overrides,
    compose_config,
    conf_dir,
    expand_shorthand,
    group_options,
)
from energy_lightning.app.settings import build_workload, check_settings, checked_seed, checked_switch
from energy_lightning.measure import save_plan
from energy_lightning.types import ConfigError, PhasePlan, Plan, PlanError

STAGE = (PhasePlan("forward"), PhasePlan("backward"))


@pytest.mark.parametrize(
    ("preset", "expected"), [("bert_large", 512), ("gpt3_175b", 2048), ("llama3.2_3b", 4096), ("qwen3_1.7b", 4096)]
)
def test_sequences_are_as_long_as_such_models_are_trained_with(preset: str, expected: int) -> None:
    job = build_workload({"preset": preset, "sequence_length": None})
    assert job is not None
    assert job.sequence_length == expected


def test_a_sequence_length_that_is_given_stays() -> None:
    job = build_workload({"preset": "bert_large", "sequence_length": 128})
    assert job is not None
    assert job.sequence_length == 128


@pytest.mark.parametrize("seed", [-1, 1.5, True, "x", None])
def test_seeds_that_are_none_are_named(seed: object) -> None:
    assert checked_seed({"seed": 3}) == 3
    with pytest.raises(ConfigError, match="seed must be a whole number >= 0, got"):
        checked_seed({"seed": seed})


@pytest.mark.parametrize("value", ["no", "maybe", 0, None])
def test_switches_are_true_or_false(value: object) -> None:
    assert checked_switch({"emulated": True}, "emulated") is True
    with pytest.raises(ConfigError, match="emulated must be true or false, got"):
        checked_switch({"emulated": value}, "emulated")


@pytest.mark.parametrize(("stages", "message"), [(0, "cannot read the plan"), (2, "is for 2 pipeline stages"), (1, "")])
def test_a_plan_that_no_training_follows_is_refused_before_anything_starts(
    stages: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "plan.yaml"
    if stages:
        save_plan(path, Plan((STAGE,) * stages))
    config = compose_config([f"plan={path}", f"output_dir={tmp_path}"], [conf_dir()])
    if not message:
        check_settings(config)
        return
    with pytest.raises(PlanError, match=message):
        check_settings(config)


@pytest.mark.parametrize("checkpoint", ["there.ckpt", "last", "s3://bucket/a.ckpt", None])
def test_a_checkpoint_that_is_not_there_is_refused_before_anything_starts(
    checkpoint: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.ckpt").touch()
    given = "null" if checkpoint is None else f"'{checkpoint}'"
    check_settings(compose_config([f"checkpoint={given}", "output_dir=x"], [conf_dir()]))
    with pytest.raises(ConfigError, match=r"no checkpoint other\.ckpt; give a \.ckpt"):
        check_settings(compose_config(["checkpoint=other.ckpt", "output_dir=x"], [conf_dir()]))


def test_help_of_train_has_examples_that_are_accepted_and_every_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["train", "--help"])
    output = capsys.readouterr().out
    examples = re.findall(r"^  energy-lightning train (.*)$", output, flags=re.MULTILINE)
    assert len(examples) == 6
    folders = [conf_dir()]
    for example in examples:
        words = [word for word in example.split() if word != "--multirun"]
        check_overrides(expand_shorthand(words, group_options(folders)), folders)
    for group, choices in group_options(folders).items():
        assert f"{group}: {', '.join(sorted(choices))}" in output
