"""What `import energy_lightning` adds to `import lightning.pytorch`: medians of paired runs in fresh interpreters.

    python benchmarks/import_time.py --repeats 7

Each pair runs, in alternating order, an interpreter that imports Lightning alone and one that imports energy_lightning
too (before or after Lightning, both orders are shown). The last column times the import statement itself.
Limit: 0.15 s.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys

LIMIT_S = 0.15
_TIMER = "import time; start = time.perf_counter(); {statements}; print(time.perf_counter() - start)"
_ALONE = "import lightning.pytorch"
_BOTH = {
    "after": "import lightning.pytorch; import energy_lightning",
    "before": "import energy_lightning; import lightning.pytorch",
}
_INNER = "import lightning.pytorch; start = time.perf_counter(); import energy_lightning"


def time_s(statements: str) -> float:
    """Seconds that a fresh interpreter needs for the import statements."""
    command = [sys.executable, "-c", _TIMER.format(statements=statements)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    time_s(_BOTH["after"])  # fill the file cache
    added_s: dict[str, list[float]] = {order: [] for order in _BOTH}
    alone_s, statement_s = [], []
    for repeat in range(repeats):
        for order, statements in _BOTH.items():
            pair = [time_s(code) for code in ((_ALONE, statements) if repeat % 2 else (statements, _ALONE))]
            alone, both = pair if repeat % 2 else reversed(pair)
            alone_s.append(alone)
            added_s[order].append(both - alone)
        statement_s.append(time_s(_INNER))
    print(f"import lightning.pytorch: {statistics.median(alone_s):.3f} s (median of {len(alone_s)})")
    print(f"| import energy_lightning | median added, s (of {repeats}) | spread, s |\n| --- | ---: | ---: |")
    for order, values in added_s.items():
        print(f"| {order} Lightning | {statistics.median(values):+.3f} | {statistics.pstdev(values):.3f} |")
    print(f"| the statement alone | {statistics.median(statement_s):+.4f} | {statistics.pstdev(statement_s):.4f} |")
    print(f"limit {LIMIT_S} s: {'met' if statistics.median(statement_s) <= LIMIT_S else 'MISSED'} by the statement")


if __name__ == "__main__":
    main()
