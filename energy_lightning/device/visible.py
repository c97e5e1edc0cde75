"""Which GPUs a process sees: CUDA_VISIBLE_DEVICES as CUDA reads it, over UUIDs. Pure functions.

Only where torch has no CUDA to ask (see `finding`): a torch device is found by its UUID, whatever the variable says.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from energy_lightning.types import DeviceError

_NAMED = ("GPU-", "MIG-")
_INDEX = re.compile(r"[+-]?[0-9]+")  # int() would also take "1_0"


def visible_gpus(value: str | None, uuids: Sequence[str | None]) -> tuple[int, ...]:
    """Physical index of every visible GPU: entry i is what CUDA calls device i.

    Args:
        value: CUDA_VISIBLE_DEVICES; None where it is not set (all are visible); "" hides every GPU.
        uuids: "GPU-..." of the machine's GPUs, in NVML's order (PCI bus order); None for one that does not answer.

    Entries are indices, UUIDs or prefixes of UUIDs that only one GPU has. As in CUDA a negative index ends the list.
    CUDA silently shows fewer GPUs, or none, where an entry is unknown, ambiguous or given twice; here each of these is
    a DeviceError that says so. Indices count in NVML's order, which is CUDA's under CUDA_DEVICE_ORDER=PCI_BUS_ID and on
    machines whose GPUs are all alike. MIG slices are refused: resolve those with `mig_parent` first.
    """
    if value is None:
        return tuple(range(len(uuids)))
    found: list[int] = []
    for entry in (part.strip() for part in value.split(",") if value.strip()):
        index = _resolve(entry, value, uuids)
        if index is None:
            break
        if index in found:
            raise DeviceError(
                f"CUDA_VISIBLE_DEVICES={value} names GPU {index} twice, and CUDA then shows none; name each GPU once"
            )
        found.append(index)
    return tuple(found)


def _resolve(entry: str, value: str, uuids: Sequence[str | None]) -> int | None:
    """Index of one entry; None where it ends the list."""
    where = f"CUDA_VISIBLE_DEVICES={value}"
    if entry.startswith(_NAMED):
        return match_uuid(entry, uuids, where)
    if not _INDEX.fullmatch(entry):
        raise DeviceError(
            f"{where}: {entry!r} is neither an index nor a UUID; give e.g. 0 or {next(filter(None, uuids), 'GPU-...')}"
        )
    index = int(entry)
    if index >= len(uuids):
        raise DeviceError(f"{where}: there is no GPU {index}; this machine has {len(uuids)}, counted from 0")
    return None if index < 0 else index


def match_uuid(prefix: str, uuids: Sequence[str | None], where: str) -> int:
    """Index of the one UUID that starts with `prefix`; DeviceError naming `where` if none or several do."""
    matches = [i for i, uuid in enumerate(uuids) if uuid is not None and uuid.lower().startswith(prefix.lower())]
    if len(matches) == 1:
        return matches[0]
    known = ", ".join(filter(None, uuids)) or "no GPU"
    fault = f"is the beginning of {len(matches)} GPUs' UUIDs" if matches else "is no GPU of this machine"
    raise DeviceError(f"{where}: {prefix!r} {fault}; known: {known}")
