"""Run by a child's interpreter at its start: the first import of pynvml gets the emulated NVML under it.

Costs a child that never imports pynvml nothing but this file. Another sitecustomize further down the path is run too.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # as in typing, which a child may never need
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

SOCKET_VARIABLE = "ENERGY_LIGHTNING_EMULATED_NVML"
_PACKAGE = "energy_lightning_nvml_client"  # the folder above, loaded by its path: the packages above it are heavy


class PynvmlFinder:
    """Finds pynvml as everyone does and puts the emulated library into it once it is loaded."""

    def __init__(self, socket_path: str) -> None:
        self.socket_path = socket_path

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The usual spec of pynvml, its loader followed by `install`; None for all other modules."""
        if name != "pynvml":
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((found for finder in others if (found := finder.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            load = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                load(module)
                self.install(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec

    def install(self, pynvml: ModuleType) -> None:
        """Put the emulated library in the place of the real one."""
        from importlib import import_module
        from importlib.util import module_from_spec, spec_from_file_location

        folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
        start = os.path.join(folder, "__init__.py")
        spec = spec_from_file_location(_PACKAGE, start, submodule_search_locations=[folder])
        assert spec is not None
        sys.modules[_PACKAGE] = module_from_spec(spec)
        library, connection = import_module(f"{_PACKAGE}.library"), import_module(f"{_PACKAGE}.connection")
        library.install(pynvml, library.EmulatedLibrary(connection.Connection(self.socket_path)))


def _run_the_next_sitecustomize() -> None:
    from importlib.machinery import PathFinder
    from importlib.util import module_from_spec

    own = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path) != own])
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = module_from_spec(spec)
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":  # not where a test or a tool imports it as a part of its package
    if SOCKET_VARIABLE in os.environ:
        sys.meta_path.insert(0, PynvmlFinder(os.environ[SOCKET_VARIABLE]))
    _run_the_next_sitecustomize()
