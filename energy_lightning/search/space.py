"""A finite space of configurations: plain dicts of numbers, strings, booleans and None."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from energy_lightning.types import EnergyLightningError

Config = dict[str, Any]
Floats = NDArray[np.float64]


class SearchError(EnergyLightningError):
    """A space, a configuration or measured values that the search cannot work with."""


class SearchSpace:
    """An ordered set of candidate configurations that share the same parameter names.

    Equal candidates are kept once. String values are ordered as they first appear, so launch points given in
    execution order stay in it.
    """

    def __init__(self, candidates: Iterable[Mapping[str, Any]]) -> None:
        rows = [{name: _plain(name, value) for name, value in row.items()} for row in candidates]
        if not rows or not rows[0]:
            raise SearchError("a search space needs at least one candidate with at least one parameter")
        self.names: tuple[str, ...] = tuple(rows[0])
        for i, row in enumerate(rows):
            if row.keys() != rows[0].keys():
                raise SearchError(f"candidate {i} has the parameters {sorted(row)}, the first one {sorted(self.names)}")
        unique: dict[tuple[Any, ...], Config] = {}
        for row in rows:
            unique.setdefault(self._key(row), row)
        self._index = {key: i for i, key in enumerate(unique)}
        self._candidates = tuple(unique.values())

    @classmethod
    def from_candidates(cls, candidates: Iterable[Mapping[str, Any]]) -> SearchSpace:
        """From explicit candidates; raises SearchError if there are none or their parameters differ."""
        return cls(candidates)

    @classmethod
    def grid(cls, **parameters: Sequence[Any]) -> SearchSpace:
        """All combinations of the values of each parameter, the last parameter varying fastest."""
        empty = [name for name, values in parameters.items() if not len(values)]
        if empty:
            raise SearchError(f"parameter {empty[0]!r} of the grid has no values; give at least one")
        return cls(dict(zip(parameters, values, strict=True)) for values in itertools.product(*parameters.values()))

    def __len__(self) -> int:
        return len(self._candidates)

    def __getitem__(self, index: int) -> Config:
        """A copy of candidate number `index`."""
        return dict(self._candidates[index])

    def index(self, config: Mapping[str, Any]) -> int:
        """Number of the candidate equal to `config`; SearchError if it is not in the space."""
        plain = {name: _plain(name, value) for name, value in config.items()}
        found = self._index.get(self._key(plain)) if plain.keys() == set(self.names) else None
        if found is None:
            raise SearchError(f"{plain} is not one of the {len(self)} candidates; parameters: {', '.join(self.names)}")
        return found

    def column(self, name: str) -> list[Any]:
        """The values of one parameter, one a candidate."""
        return [candidate[name] for candidate in self._candidates]

    def codes(self) -> Floats:
        """Candidates as numbers (len(self), len(names)): numbers as they are, strings by order, None as NaN."""
        return np.stack([_codes(self.column(name)) for name in self.names], axis=1)

    def fingerprint(self) -> str:
        """Identifies the candidates and their order, for saved states."""
        text = json.dumps(self._candidates, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _key(self, config: Mapping[str, Any]) -> tuple[Any, ...]:
        # True == 1 and 1.0 == 1 in Python: numbers may meet, a boolean and a number may not.
        return tuple((isinstance(config[name], bool), config[name]) for name in self.names)


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise SearchError(f"parameter {name!r} must be a number, string, boolean or None, got {value!r}")
    if isinstance(value, float) and not math.isfinite(value):
        raise SearchError(f"parameter {name!r} must be finite, got {value}")
    return value


def _codes(values: Sequence[Any]) -> Floats:
    order = {text: float(i) for i, text in enumerate(dict.fromkeys(v for v in values if isinstance(v, str)))}
    return np.array([math.nan if v is None else order[v] if isinstance(v, str) else float(v) for v in values])
