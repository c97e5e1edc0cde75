"""The examples in `energy-lightning plan --help` are jobs that the command plans."""

from __future__ import annotations

import re
import shlex
from typing import Any, cast

import pytest
from omegaconf import OmegaConf

from energy_lightning.app.configuration import compose_config, conf_dir, expand_shorthand, group_options
from energy_lightning.app.planning import PlanRequest

_TEXT = (conf_dir() / "plan.yaml").read_text().split("examples:")[1].split("writes into")[0]
EXAMPLES = [" ".join(e.split()) for e in re.sub(r"\\\n", " ", _TEXT).split("energy-lightning plan")[1:]]


def test_the_examples_are_found() -> None:
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_fits_its_gpus(example: str) -> None:
    words = [word for word in shlex.split(example) if word != "--multirun"]
    words = [word.split(",")[0] for word in words]  # of a sweep, the first job
    folders = [conf_dir()]
    config = compose_config(expand_shorthand(words, group_options(folders)), folders, "plan")
    config.output_dir = "unused"
    values = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    assert PlanRequest.from_values(values).over_memory == ""
