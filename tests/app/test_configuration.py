"""Hydra configuration: what is allowed, what is refused and how. Hydra itself composes; nothing trains here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from energy_lightning.app.configuration import (
    check_overrides,
    compose_config,
    conf_dir,
    expand_shorthand,
    group_options,
    split_flags,
)
from energy_lightning.app.settings import build_workload
from energy_lightning.search import PASSES
from energy_lightning.tasks.sources import SOURCES
from energy_lightning.types import Budget, ConfigError

FOLDERS = [conf_dir()]
OPTIONS = group_options(FOLDERS)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["model=bert", "data=sentiment", "budget=max_slowdown", "budget.max_slowdown=0.05"],
        ["model=llama", "data=shakespeare", "trainer.devices=2", "tensor_parallel_size=2"],
        ["budget=max_throughput,min_energy"],
        ["workload=llama3.2_3b_tp8", "workload.microbatch_size=4"],
        [
            "workload=llama3.2_3b_fsdp8",
            "workload.data_parallel_kind=fully_sharded",
            "workload.layers_per_stage=[15,13]",
        ],
        ["model.config.hidden_size=64", "model=llama", "+trainer.fast_dev_run=true", "hydra.run.dir=x", "~plan"],
    ],
)
def test_documented_overrides_are_accepted(arguments: list[str]) -> None:
    check_overrides(expand_shorthand(arguments, OPTIONS), FOLDERS)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("budget=min_enery", r"unknown budget=min_enery; did you mean budget=min_energy\? Known choices: deadline, "),
        ("budget=max_throughput,fast", "unknown budget=fast"),
        ("budget.max_slow=1", r"did you mean budget.max_slowdown\? Known keys: max_slowdown"),
        ("trainer.device=2", r"did you mean trainer.devices\?"),
        ("bugdet=min_energy", r"did you mean budget\? Known keys and groups: model, data"),
        ("seed.x=1", "seed is a value"),
        ("two words", "cannot read two words: write KEY=VALUE"),
        ("é=3", "write KEY=VALUE"),
        ("output_dir=[1,2", r"its value needs quotes that the shell leaves alone: \"output_dir='\[1,2'\"$"),
        ("devices=[1 é]", r"write a list as 'KEY=\[1,2\]'"),
    ],
)
def test_unknown_ones_name_what_is_allowed(argument: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_overrides([argument], FOLDERS)


def test_overrides_of_a_rehearsed_job_reach_its_workload() -> None:
    overrides = ["workload=preset", "workload.preset=llama3.2_3b_pp2", "workload.layers_per_stage=[15,13]"]
    overrides += ["workload.data_parallel=4", "workload.data_parallel_kind=fully_sharded"]
    values: Any = OmegaConf.to_container(compose_config(overrides, FOLDERS).workload, resolve=True)
    workload = build_workload(values)
    assert workload is not None
    assert workload.fully_sharded
    assert (workload.num_replicas, workload.layers_per_stage) == (4, (15, 13))


def test_every_choice_composes_and_means_something() -> None:
    for group, names in OPTIONS.items():
        for name in names:
            config = compose_config([f"{group}={name}"], FOLDERS)
            assert OmegaConf.select(config, group) is not None
    for name in OPTIONS["search"]:
        assert compose_config([f"search={name}"], FOLDERS).search.passes in PASSES
    assert set(OPTIONS["data"]) == set(SOURCES)
    for name in OPTIONS["budget"]:
        config = compose_config([f"budget={name}"], FOLDERS)
        for key in OmegaConf.missing_keys(config):
            OmegaConf.update(config, key, 1.5)
        assert Budget.parse(OmegaConf.to_container(config.budget)).kind == name


def test_a_users_own_folder_adds_choices(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("task: next_token\nwidth: 3\n")
    overrides, folder = split_flags(
        ["--config-dir", str(tmp_path), "model=mine", "model.width=4", "--multirun", "-c", "job"]
    )
    assert overrides == ["model=mine", "model.width=4"]
    assert folder == tmp_path
    check_overrides(overrides, [*FOLDERS, folder])
    with pytest.raises(ConfigError, match="bert, bert_small, llama, pretrained"):
        check_overrides(overrides, FOLDERS)
