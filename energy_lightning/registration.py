"""Make the strategies known to both Lightning packages without importing either.

`lightning.pytorch` and `pytorch_lightning` have registries and base classes of their own. A registry is filled when its
module is imported (or at once if it already is), with factories that import the strategy only when a Trainer asks.
"""

from __future__ import annotations

import importlib
import importlib.abc
import sys
from collections.abc import Sequence
from functools import partial
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

STRATEGY_MODULE_OF = {
    "lightning.pytorch.strategies": "energy_lightning.lightning",
    "pytorch_lightning.strategies": "energy_lightning.pytorch_lightning",
}
"""Module with a Lightning package's `StrategyRegistry` -> our module with the strategy for it."""

START_METHOD_OF = {
    "kareus": "popen",
    "kareus_spawn": "spawn",
    "kareus_fork": "fork",
    "kareus_notebook": "fork",
}
"""Registered name -> how the processes of one node are started."""


def register_when_imported() -> None:
    """Register in every Lightning package already imported, and in the others once they are. Idempotent."""
    for name in STRATEGY_MODULE_OF:
        module = sys.modules.get(name)
        if module is not None:
            register(module)
    if not any(isinstance(finder, _PostImportFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _PostImportFinder())


def register(strategies_module: ModuleType) -> None:
    """Add the kareus strategies to the `StrategyRegistry` of a Lightning package's `strategies` module."""
    registry = strategies_module.StrategyRegistry
    for name, start_method in START_METHOD_OF.items():
        if name not in registry:
            registry.register(
                name,
                partial(_make_strategy, STRATEGY_MODULE_OF[strategies_module.__name__]),
                description=f"Partitioned overlap and energy-aware schedules, processes started by '{start_method}'",
                start_method=start_method,
            )


def _make_strategy(module_name: str, **options: Any) -> Any:
    return importlib.import_module(module_name).KareusStrategy(**options)


class _PostImportFinder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: wraps the loader that the other finders give for a module of `STRATEGY_MODULE_OF`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in STRATEGY_MODULE_OF:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _RegisteringLoader(spec.loader)
                return spec
        return None


class _RegisteringLoader(importlib.abc.Loader):
    """Runs the module's own loader, hands the module back to it, then registers."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        register(module)
