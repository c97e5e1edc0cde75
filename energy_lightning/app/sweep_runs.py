"""The runs of a sweep: drawn from the factors' values, done one by one, and kept in a file that only grows."""

from __future__ import annotations

import fcntl
import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from energy_lightning.app.settings import checked_seed
from energy_lightning.emulation import GPU, check_memory
from energy_lightning.predict.proxies import STRATEGIES
from energy_lightning.predict.sweep import FineTuningRun, emulated_sweep
from energy_lightning.types import ConfigError, EnergyLightningError, MeasurementError

FACTORS = (
    "num_layers",
    "hidden_size",
    "num_heads",
    "ffn_size",
    "sequence_length",
    "batch_size",
    "strategy",
    "num_gpus",
)
_MOST_COMBINATIONS = 200_000

Settings = dict[str, Any]  # of one run: FACTORS and tokens
Outcome = tuple[str, dict[str, Any]]  # a run's key, and {"row": ...} or {"failed": reason}


def design(values: Mapping[str, Any]) -> list[Settings]:
    """Different runs from the factors' values: all combinations, or `count` of them drawn with `seed`.

    "single" takes one GPU whatever num_gpus says, tp and fsdp those of num_gpus above one.

    Raises:
        ConfigError: a factor without values, too many combinations, or count, seed or tokens out of range.
    """
    lists = [_values_of(name, values[name]) for name in FACTORS]
    tokens, count, seed = values["tokens"], values["count"], checked_seed(values)
    if isinstance(tokens, bool) or not isinstance(tokens, (int, float)) or not 0.0 < tokens < math.inf:
        raise ConfigError(f"tokens must be a finite number > 0 (of each run), got {tokens!r}")
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ConfigError(f"count must be a whole number > 0, or null for all combinations, got {count!r}")
    total = math.prod(map(len, lists))
    if total > _MOST_COMBINATIONS:
        raise ConfigError(f"the factors have {total} combinations, at most {_MOST_COMBINATIONS}: give fewer values")
    combinations = itertools.product(*lists)
    runs = {tuple(run.values()): run for run in _possible(combinations, float(tokens))}
    everything = list(runs.values())
    if not everything:
        raise ConfigError("no run has these values: single goes with one GPU, tp and fsdp with num_gpus above one")
    if count is None or count >= len(everything):
        return everything
    chosen = np.random.default_rng(seed).choice(len(everything), count, replace=False)
    return [everything[i] for i in chosen]


def _possible(combinations: Iterator[tuple[Any, ...]], tokens: float) -> Iterator[Settings]:
    for combination in combinations:
        run = dict(zip(FACTORS, combination, strict=True))
        if run["strategy"] == "single":
            run["num_gpus"] = 1
        if (run["strategy"] == "single") == (run["num_gpus"] == 1):
            yield run | {"tokens": tokens}


def _values_of(name: str, given: Any) -> list[Any]:
    values = list(given) if isinstance(given, list) else [given]
    wanted: type = str if name == "strategy" else int
    if not values or any(isinstance(v, bool) or not isinstance(v, wanted) for v in values):
        raise ConfigError(f"{name} must be a list of {'names' if wanted is str else 'whole numbers'}, got {given!r}")
    if wanted is str and (unknown := [v for v in values if v not in STRATEGIES]):
        raise ConfigError(f"unknown {name}={unknown[0]}; choose from {', '.join(STRATEGIES)}")
    if wanted is int and min(values) < 1:
        raise ConfigError(f"{name} must be > 0, got {given!r}")
    return values


@dataclass
class RunFile:
    """runs.jsonl: a line for each run that ended, with its row or the reason why it could not be.

    Lines are only appended. One that a kill left half written is cut off; its run is done again. With `retry_failed`
    runs that failed count as unknown; where one is done again, its later line counts.
    """

    path: Path
    retry_failed: bool = False
    known: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            with self.path.open("r+b") as file:
                file.truncate(len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                entry = json.loads(line)
                self.known[entry["key"]] = entry
            except (ValueError, KeyError, TypeError) as error:
                raise MeasurementError(
                    f"{self.path}, line {number} is not a run of a sweep; remove the line, or give another output_dir"
                ) from error
        if self.retry_failed:
            self.known = {key: entry for key, entry in self.known.items() if "row" in entry}

    def add(self, key: str, **content: Any) -> None:
        """Append a run; it is on its way to the disk when this returns."""
        self.known[key] = {"key": key, **content}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(self.known[key]) + "\n")


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Two sweeps in one folder would do the same runs twice, at the same time: ConfigError for the second.

    The file's lock ends with the process, however that ends. File systems without locks have none.
    """
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"another sweep is at work in {path.parent}: wait for its end, or give another output_dir"
            ) from error
        except OSError:
            pass
        yield


def key_of(run: Settings, gpu: GPU, dtype: str) -> str:
    """The same for the same run on the same GPU model."""
    return json.dumps({**run, "gpu_model": gpu.name, "dtype": dtype}, sort_keys=True)


def collect(
    runs: Mapping[str, Settings],
    file: RunFile,
    produce: Callable[[list[tuple[str, Settings]]], Iterable[Outcome]],
    progress: Callable[[int], None],
) -> tuple[list[Settings], list[Settings], int]:
    """Rows of the runs that ended well, of those that failed (settings and reason), and how many were known before.

    Args:
        runs: by key.
        file: what is known; grows by what is not.
        produce: from keys and settings to their outcomes, one after the other.
        progress: told how many are done.
    """
    missing = [(key, run) for key, run in runs.items() if key not in file.known]
    before = len(runs) - len(missing)
    progress(before)
    for number, (key, content) in enumerate(produce(missing), before + 1):
        file.add(key, **content)
        progress(number)
    entries = [(run, file.known[key]) for key, run in runs.items()]
    rows = [entry["row"] for _, entry in entries if "row" in entry]
    failures = [{**run, "reason": entry["failed"]} for run, entry in entries if "row" not in entry]
    return rows, failures, before


def emulated_outcomes(runs: Sequence[tuple[str, Settings]], gpu: GPU, dtype: str) -> Iterator[Outcome]:
    """Outcomes of training runs on a model of the GPU."""
    return ((key, _outcome(run, gpu, dtype)) for key, run in runs)


def _outcome(run: Settings, gpu: GPU, dtype: str) -> dict[str, Any]:
    """The run's row, or why it failed."""
    try:
        if run["hidden_size"] % run["num_heads"]:
            raise ConfigError(f"num_heads={run['num_heads']} does not divide hidden_size={run['hidden_size']}")
        wanted = FineTuningRun(**run)
        check_memory(wanted.workload(dtype), gpu)
        return {"row": {name: values[0] for name, values in emulated_sweep([wanted], gpu, dtype=dtype).items()}}
    except EnergyLightningError as error:
        return {"failed": str(error)}
