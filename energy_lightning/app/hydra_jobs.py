"""Hydra at work: from the command line's arguments to one call for each job that they describe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from energy_lightning.app.configuration import (
    CONFIG_NAME,
    check_overrides,
    conf_dir,
    expand_shorthand,
    group_options,
    split_flags,
)


def checked_arguments(arguments: Sequence[str], config_name: str = CONFIG_NAME) -> list[str]:
    """The arguments as Hydra takes them: shorthands written out, flags first.

    Raises:
        ConfigError: a group, choice or key that conf/`config_name`.yaml does not have.
    """
    folder = conf_dir()
    expanded = expand_shorthand(arguments, group_options([folder]))
    overrides, user_folder = split_flags(expanded)
    check_overrides(overrides, [folder, *([user_folder] if user_folder else [])], config_name)
    # Hydra's parser takes overrides on one side of its flags only.
    return [*(argument for argument in expanded if argument not in overrides), *overrides]


def run_hydra(
    arguments: Sequence[str], job: Callable[[Any, Path], str], config_name: str = CONFIG_NAME
) -> dict[Path, str]:
    """Let Hydra call `job` with the configuration and folder of each job; folder -> what `job` returned."""
    import hydra
    from hydra.core.hydra_config import HydraConfig

    statuses: dict[Path, str] = {}

    def task(config: Any) -> None:
        path = Path(HydraConfig.get().runtime.output_dir)
        statuses[path] = job(config, path)

    with _process_arguments([sys.argv[0], *arguments]):
        hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=config_name)(task)()
    return statuses


def exit_code(statuses: dict[Path, str], completed: str) -> int:
    """0 when every job completed; with more than one, each job's status is printed."""
    if len(statuses) > 1:
        for path, status in statuses.items():
            print(f"{status:>11}  {path}")
    return 0 if all(status == completed for status in statuses.values()) else 1


@contextmanager
def _process_arguments(argv: list[str]) -> Iterator[None]:
    previous, sys.argv = sys.argv, argv  # Hydra reads the process's own
    try:
        yield
    finally:
        sys.argv = previous
