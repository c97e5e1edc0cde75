"""Hydra at work: from the command line's arguments to one call for each job that they describe."""

from __future__ import annotations

import os
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
from energy_lightning.types import ConfigError

_SHOWING_FLAGS = ("-h", "--help", "--hydra-help", "-c", "--cfg", "-i", "--info")  # nothing is written
_FOLDER_KEYS = ("output_dir", "hydra.run.dir", "hydra.sweep.dir")


def checked_arguments(arguments: Sequence[str], config_name: str = CONFIG_NAME, *, writes: bool = True) -> list[str]:
    """The arguments as Hydra takes them: shorthands written out, flags first. `writes`: whether the jobs make files.

    Raises:
        ConfigError: a group, choice or key that conf/`config_name`.yaml does not have, or an output folder that cannot
            be written to.
    """
    folder = conf_dir()
    expanded = expand_shorthand(_jobs_in_output_dir(arguments), group_options([folder]))
    overrides, user_folder = split_flags(expanded)
    check_overrides(overrides, [folder, *([user_folder] if user_folder else [])], config_name)
    if writes and not any(argument.split("=")[0] in _SHOWING_FLAGS for argument in expanded):
        _check_writable(overrides)
    # Hydra's parser takes overrides on one side of its flags only.
    return [*(argument for argument in expanded if argument not in overrides), *overrides]


def _jobs_in_output_dir(arguments: Sequence[str]) -> list[str]:
    """`--multirun output_dir=FOLDER` puts each job's folder into FOLDER; Hydra alone would leave FOLDER unused."""
    if not {"-m", "--multirun"} & set(arguments):
        return list(arguments)
    single = [each.startswith("output_dir=") and "," not in each for each in arguments]
    return [
        f"hydra.sweep.dir={each.removeprefix('output_dir=')}" if is_folder else each
        for each, is_folder in zip(arguments, single, strict=True)
    ]


def names_folder(override: str) -> bool:
    """Whether it says where files go."""
    return override.lstrip("+").partition("=")[0] in _FOLDER_KEYS


def _check_writable(overrides: Sequence[str]) -> None:
    """Make the folders that `overrides` name (Hydra would, and end in a traceback where it cannot)."""
    given = [override.partition("=")[2] for override in overrides if names_folder(override)]
    named = [folder for value in given for folder in value.split(",") if "$" not in folder]
    for folder in (Path(name.strip("'\"")) for name in named or ["."]):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            reason = None if os.access(folder, os.W_OK | os.X_OK) else "no permission"
        except OSError as error:
            reason = error.strerror or str(error)
        if reason is not None:
            raise ConfigError(f"cannot write into {folder.absolute()}: {reason}; give a folder with output_dir=FOLDER")


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
