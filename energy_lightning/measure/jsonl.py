"""A JSON-lines file that is only ever appended to, and survives a process killed in the middle of a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from energy_lightning.types import MeasurementError


class AppendLog:
    """Rows of one kind in one file, one JSON object a line, each starting with the key "schema".

    A last line that was cut off is tolerated when read and removed by the next append. Anything else that is not
    such a row makes the file foreign: MeasurementError names the file, the line and what to do, and the file is
    left untouched.

    Args:
        path: the file; it need not exist yet (neither need its folder).
        what: what the file holds, for messages ("measurements").
    """

    SCHEMA = 1
    _SIGNATURE = b'{"schema": '

    def __init__(self, path: Path | str, *, what: str) -> None:
        self.path, self._what = Path(path), what
        self._repair_at: int | None = None  # offset at which a cut-off last line begins

    def read(self) -> list[tuple[int, dict[str, Any]]]:
        """All complete rows as (line number from 1, row). Raises MeasurementError on a foreign file."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise MeasurementError(f"cannot read {self.path}: {error.strerror}. {self._remedy()}") from error
        *lines, tail = content.split(b"\n")
        rows = [(number, self._parse(line, number)) for number, line in enumerate(lines, start=1)]
        self._repair_at = None
        if tail:
            self._check_cut_off(tail, len(lines) + 1)
            self._repair_at = len(content) - len(tail)
        return rows

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write the rows ("schema" is added) and hand them to the operating system: they survive a kill."""
        text = "".join(json.dumps({"schema": self.SCHEMA, **row}, allow_nan=False) + "\n" for row in rows)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self._repair_at is not None:
            with self.path.open("r+b") as file:
                file.truncate(self._repair_at)
            self._repair_at = None
        with self.path.open("ab") as file:
            file.write(text.encode())

    def replace_with(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write these rows instead of the file's; a reader sees the old file or the whole new one."""
        partial = AppendLog(self.path.with_name(f".{self.path.name}.{os.getpid()}"), what=self._what)
        partial.path.unlink(missing_ok=True)
        partial.append(rows)
        partial.path.replace(self.path)
        self._repair_at = None

    def _parse(self, line: bytes, number: int) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except ValueError as error:  # UnicodeDecodeError too
            raise self._foreign(number, f"is no JSON ({error})") from error
        if not isinstance(row, dict) or "schema" not in row:
            raise self._foreign(number, "is not one of our rows (no key 'schema')")
        if row["schema"] != self.SCHEMA:
            raise self._foreign(number, f"has schema {row['schema']!r}, this version reads schema {self.SCHEMA}")
        return row

    def _check_cut_off(self, tail: bytes, number: int) -> None:
        """A tail without newline is ours when it starts the way our rows start."""
        if not (tail.startswith(self._SIGNATURE) or self._SIGNATURE.startswith(tail)):
            raise self._foreign(number, "is not one of our rows")

    def _foreign(self, number: int, fault: str) -> MeasurementError:
        return MeasurementError(f"{self.path}, line {number}: {fault}. {self._remedy()}")

    def _remedy(self) -> str:
        return f"Move the file away or choose another output_dir; {self._what} were left untouched."


def rows_up_to(rows: Iterable[Mapping[str, Any]], step: int) -> list[Mapping[str, Any]]:
    """The rows of a per-step log up to a checkpoint's step (inclusive); later ones belong to a lost future."""
    return [row for row in rows if row["step"] <= step]
