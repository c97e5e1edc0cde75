"""Where conf/ is, and checks of Hydra overrides that name what is allowed."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from energy_lightning.types import ConfigError

CONFIG_NAME = "train"


def conf_dir() -> Path:
    """The folder conf/: beside the package in a checkout, `energy_lightning/_conf` in an installed wheel."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "_conf", package.parent / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise ConfigError(
        f"no configuration in {package / '_conf'} or {package.parent / 'conf'}: install the package again"
    )


def group_options(folders: Iterable[Path]) -> dict[str, list[str]]:
    """Config groups of the folders -> names of their choices."""
    found: dict[str, set[str]] = {}
    for folder in folders:
        for file in folder.glob("*/*.yaml"):
            found.setdefault(file.parent.name, set()).add(file.stem)
    return {group: sorted(options) for group, options in sorted(found.items())}


def expand_shorthand(arguments: Sequence[str], options: Mapping[str, Sequence[str]]) -> list[str]:
    """`workload=NAME`, where no choice is called so, becomes `workload=preset workload.preset=NAME`."""
    expanded = []
    for argument in arguments:
        group, _, value = argument.partition("=")
        if group == "workload" and value and not set(value.split(",")) & set(options.get(group, ())):
            expanded += ["workload=preset", f"workload.preset={value}"]
        else:
            expanded.append(argument)
    return expanded


def split_flags(arguments: Sequence[str]) -> tuple[list[str], Path | None]:
    """The overrides among Hydra's command-line arguments, and the user's --config-dir."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    for flag, short in (("--cfg", "-c"), ("--package", "-p"), ("--config-name", "-cn"), ("--config-path", "-cp")):
        parser.add_argument(flag, short)
    parser.add_argument("--info", "-i", nargs="?")
    known, others = parser.parse_known_args(list(arguments))
    overrides = [argument for argument in others if not argument.startswith("-")]
    return overrides, Path(known.config_dir).absolute() if known.config_dir else None


def check_overrides(overrides: Sequence[str], folders: Sequence[Path], config_name: str = CONFIG_NAME) -> None:
    """Raise ConfigError, naming what is allowed, for a group, choice or key that conf/`config_name`.yaml has not.

    Overrides that add (+key=...), delete (~key) or configure Hydra itself are left to Hydra.
    """
    plain = compose_config([], folders, config_name)
    options = {group: names for group, names in group_options(folders).items() if group in plain}
    own = [override for override in _parse(overrides) if not _is_hydras(override)]
    choices: dict[str, str] = {}
    for override in own:
        group = str(override.key_or_group)
        if group in options:
            values = list(override.sweep_iterator()) if override.is_sweep_override() else [override.value()]
            for value in values:
                _check_known(str(value), options[group], f"{group}=", "choices")
            choices[group] = str(values[0])
    config = compose_config([f"{group}={choice}" for group, choice in choices.items()], folders, config_name)
    for override in own:
        if override.key_or_group not in options:
            _check_key(str(override.key_or_group), config)


def _parse(overrides: Sequence[str]) -> list[Any]:
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser, parsed = OverridesParser.create(), []
    for override in overrides:
        try:
            parsed.append(parser.parse_override(override))
        except HydraException as error:
            raise ConfigError(f"cannot read {override}: {_how_to_write(override)}") from error
    return parsed


def _how_to_write(override: str) -> str:
    """What Hydra's grammar wants instead of a text that it cannot read."""
    key, _, value = override.partition("=")
    if not value or not (key.isascii() and key.strip("+~").replace(".", "").replace("_", "").isalnum()):
        return "write KEY=VALUE, e.g. budget.max_slowdown=0.05"
    if value.startswith(("[", "{")) and value.endswith(("]", "}")):
        return "write a list as 'KEY=[1,2]', in quotes for the shell"
    escaped = value.strip("'\"").replace("'", "\\'")
    quoted = f"{key}='{escaped}'"
    for_shell = shlex.quote(quoted) if set(quoted) & set('"$`\\!') else f'"{quoted}"'
    return f"its value needs quotes that the shell leaves alone: {for_shell}"


def _is_hydras(override: Any) -> bool:
    changes_keys = override.is_add() or override.is_force_add() or override.is_delete()
    return changes_keys or str(override.key_or_group).split(".")[0] == "hydra"


def compose_config(overrides: Sequence[str], folders: Sequence[Path], config_name: str = CONFIG_NAME) -> Any:
    """The configuration (DictConfig) that `overrides` select; `folders`: conf/, then the user's."""
    from hydra import compose, initialize_config_dir

    more = ",".join(f"file://{folder}" for folder in folders[1:])
    with initialize_config_dir(str(folders[0]), version_base="1.3"):
        return compose(config_name, overrides=[*overrides, f"hydra.searchpath=[{more}]"])


def _check_key(key: str, config: Any) -> None:
    node, above = config, ""
    for part in key.split("."):
        if not hasattr(node, "keys"):
            raise ConfigError(f"{above.rstrip('.')} is a value, it has no key {part!r}")
        _check_known(part, [str(k) for k in node], above, "keys" if above else "keys and groups")
        node, above = node._get_node(part), f"{above}{part}."


def _check_known(value: str, known: Sequence[str], prefix: str, what: str) -> None:
    if value in known:
        return
    near = difflib.get_close_matches(value, known, n=1)
    hint = f"; did you mean {prefix}{near[0]}?" if near else "."
    new = "" if prefix.endswith("=") else ". A new key is added with +KEY=VALUE"
    raise ConfigError(f"unknown {prefix}{value}{hint} Known {what}: {', '.join(known) or 'none'}{new}")
