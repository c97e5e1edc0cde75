"""NVML's return codes and the other numbers of its C header that the emulator speaks (nvml.h, CUDA 13)."""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Return codes, named as in NVML without the prefix NVML_ERROR_."""

    SUCCESS = 0
    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    ALREADY_INITIALIZED = 5
    NOT_FOUND = 6
    INSUFFICIENT_SIZE = 7
    INSUFFICIENT_POWER = 8
    DRIVER_NOT_LOADED = 9
    TIMEOUT = 10
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    OPERATING_SYSTEM = 17
    IN_USE = 19
    MEMORY = 20
    UNKNOWN = 999


class Fault(Exception):
    """An entry point that ends with `code` instead of success."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = int(code)
