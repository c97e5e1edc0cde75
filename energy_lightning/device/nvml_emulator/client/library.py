"""EmulatedLibrary: what stands in the place of the loaded libnvidia-ml under pynvml."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .arguments import readers
from .codes import Code, Fault
from .signatures import SIGNATURES

Transport = Callable[[str, list[Any]], tuple[int, tuple[Any, ...]]]
"""(name of the C function, plain inputs) -> return code and plain outputs, () where it failed."""

_MESSAGES = {
    Code.SUCCESS: "Success",
    Code.UNINITIALIZED: "Uninitialized",
    Code.INVALID_ARGUMENT: "Invalid Argument",
    Code.NOT_SUPPORTED: "Not Supported",
    Code.NO_PERMISSION: "Insufficient Permissions",
    Code.NOT_FOUND: "Not Found",
    Code.DRIVER_NOT_LOADED: "Driver Not Loaded",
    Code.GPU_IS_LOST: "GPU is lost",
}
_INIT = ("nvmlInit_v2", "nvmlInitWithFlags")


class EmulatedLibrary:
    """The C entry points as attributes, called with ctypes arguments as pynvml calls the real ones.

    Any other name raises AttributeError, which pynvml reports as NVML_ERROR_FUNCTION_NOT_FOUND. Initialisation counts
    per process, as in the real library.

    Args:
        transport: takes a call to the emulated GPUs.
    """

    emulated = True

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._initialised = 0

    def __getattr__(self, name: str) -> Any:
        point: Callable[..., Any]
        if name == "nvmlErrorString":
            point = _error_string()
        elif name in SIGNATURES:
            point = self._entry_point(name)
        else:
            raise AttributeError(f"the emulated NVML has no function {name}")
        setattr(self, name, point)  # the next look-up finds it without coming here
        return point

    def _entry_point(self, name: str) -> Callable[..., int]:
        parts = readers(SIGNATURES[name])
        starts, ends = name in _INIT, name == "nvmlShutdown"

        def entry_point(*arguments: Any) -> int:
            if not (self._initialised or starts):
                return int(Code.UNINITIALIZED)
            inputs: list[Any] = []
            remaining = iter(arguments)
            try:
                writers = [writer for read in parts if (writer := read(remaining, inputs)) is not None]
            except Fault as fault:
                return fault.code
            code, outputs = self._transport(name, inputs)
            if code == Code.SUCCESS:
                self._initialised += starts - ends
                for write, output in zip(writers, outputs, strict=True):
                    code = write(output) or code
            return int(code)

        return entry_point


def _error_string() -> Callable[[Any], bytes]:
    def entry_point(result: Any) -> bytes:
        return _MESSAGES.get(getattr(result, "value", result), "Unknown Error").encode()

    return entry_point


@dataclass(frozen=True)
class Replaced:
    """What pynvml held before a library took its place; `restore` puts it back."""

    pynvml: Any
    library: Any
    pointers: dict[str, Any]
    references: int

    def restore(self) -> None:
        """Pynvml as it was."""
        module = self.pynvml
        with module.libLoadLock:
            module.nvmlLib, module._nvmlLib_refcount = self.library, self.references
            module._nvmlGetFunctionPointer_cache.clear()
            module._nvmlGetFunctionPointer_cache.update(self.pointers)


def install(pynvml: Any, library: EmulatedLibrary) -> Replaced:
    """Put `library` in the place of the one that the module `pynvml` has loaded or would load."""
    with pynvml.libLoadLock:
        pointers = pynvml._nvmlGetFunctionPointer_cache
        replaced = Replaced(pynvml, pynvml.nvmlLib, dict(pointers), pynvml._nvmlLib_refcount)
        pynvml.nvmlLib, pynvml._nvmlLib_refcount = library, 0
        pointers.clear()
    return replaced
