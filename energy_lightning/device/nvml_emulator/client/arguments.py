"""ctypes arguments to plain values and back: one reader per word of `signatures.SIGNATURES`.

A reader takes what it needs from the arguments of a C call, appends what goes to the GPU to `inputs`, and returns the
function that writes its output back, if it has one. A writer returns a code where the result did not fit.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from .codes import Code, Fault

Writer = Callable[[Any], int | None]
Reader = Callable[[Iterator[Any], list[Any]], Writer | None]

_FIELD_VALUES = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def readers(words: str) -> tuple[Reader, ...]:
    """The readers of a signature."""
    return tuple(_struct_reader(word[7:]) if word.startswith("struct:") else _READERS[word] for word in words.split())


def _target(argument: Any) -> Any:
    """What a pointer argument points to: byref(x) and pointer(x) give x, an array or structure itself stays."""
    if argument is None:
        raise Fault(Code.INVALID_ARGUMENT)
    pointed = getattr(argument, "_obj", None)
    if pointed is not None:
        return pointed
    return argument.contents if isinstance(argument, ctypes._Pointer) else argument


def _handle(arguments: Iterator[Any], inputs: list[Any]) -> None:
    argument = next(arguments)
    inputs.append((argument and ctypes.c_void_p.from_buffer(argument).value) or 0)


def _value(arguments: Iterator[Any], inputs: list[Any]) -> None:
    argument = next(arguments)
    inputs.append(getattr(argument, "value", argument))


def _text(arguments: Iterator[Any], inputs: list[Any]) -> None:
    text = getattr(argument := next(arguments), "value", argument)
    if text is None:
        raise Fault(Code.INVALID_ARGUMENT)
    inputs.append(text.decode())


def _out(arguments: Iterator[Any], inputs: list[Any]) -> Writer:
    target = _target(next(arguments))

    def write(output: Any) -> None:
        target.value = output

    return write


def _out_handle(arguments: Iterator[Any], inputs: list[Any]) -> Writer:
    target = _target(next(arguments))

    def write(output: Any) -> None:
        ctypes.c_void_p.from_buffer(target).value = output

    return write


def _buffer(arguments: Iterator[Any], inputs: list[Any]) -> Writer:
    target, length = _target(next(arguments)), next(arguments)

    def write(output: Any) -> int | None:
        encoded = output.encode()
        if len(encoded) >= getattr(length, "value", length):  # no room for the final zero
            return Code.INSUFFICIENT_SIZE
        target.value = encoded
        return None

    return write


def _counted(write_one: Callable[[Any, int, Any], None]) -> Reader:
    def read(arguments: Iterator[Any], inputs: list[Any]) -> Writer:
        count, array = _target(next(arguments)), next(arguments)

        def write(output: Any) -> int | None:
            room, count.value = count.value, len(output)
            if output and (array is None or room < len(output)):
                return Code.INSUFFICIENT_SIZE
            for index, item in enumerate(output):
                write_one(array, index, item)
            return None

        return write

    return read


def _fill(structure: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        setattr(structure, name, value.encode() if isinstance(value, str) else value)


def _struct_reader(names: str = "") -> Reader:
    def read(arguments: Iterator[Any], inputs: list[Any]) -> Writer:
        target = _target(next(arguments))
        inputs.extend(getattr(target, name) for name in names.split(",") if name)
        return lambda output: _fill(target, output)

    return read


def _fields(arguments: Iterator[Any], inputs: list[Any]) -> Writer:
    count, array = next(arguments), _target(next(arguments))
    fields = [array[index] for index in range(getattr(count, "value", count))]
    inputs.append([(field.fieldId, field.scopeId) for field in fields])

    def write(output: Any) -> None:
        for field, (code, kind, value) in zip(fields, output, strict=True):
            field.nvmlReturn, field.valueType = code, kind
            setattr(field.value, _FIELD_VALUES[kind], value)

    return write


_READERS: Mapping[str, Reader] = {
    "handle": _handle,
    "value": _value,
    "text": _text,
    "out": _out,
    "out_handle": _out_handle,
    "buffer": _buffer,
    "list": _counted(lambda array, index, item: array.__setitem__(index, item)),
    "processes": _counted(lambda array, index, item: _fill(array[index], item)),
    "struct": _struct_reader(),
    "fields": _fields,
}
