"""Runs tidegate and Flink SQL over rows that each of them generates: windows per key (as W1), or the source alone.

Flink reads a folder of files in any order, so the rows of most files would be late; a generator keeps them in order.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from engine_runs import (
    HERE,
    ROCKSDB,
    WINDOWS,
    EngineRun,
    digest_of,
    run_peer,
    run_tidegate,
)
from environments import flink_jars, flink_python
from w1_workload import ROWS_PER_WINDOW, WINDOW_MS

BACK_ENDS = {"heap": "hashmap", "rocksdb": "rocksdb"}
"""Back ends of tidegate, and their counterparts in Flink."""
ENGINES = ("tidegate", "flink")
Costs = dict[tuple[int, str, bool], list[EngineRun]]
"""By number of keys, engine, and whether it is the source alone."""
Rows = Mapping[int, int]
"""Number of keys -> number of rows."""


@dataclass(frozen=True)
class Generated:
    """Rows of W1 (see `w1_workload.py`), or those with `skewed` of `pipelines/generated.py`."""

    rows: int
    keys: int
    skewed: bool = False

    @property
    def newest_window_us(self) -> int:
        """Return the start of the newest window, microseconds since the epoch."""
        return (self.rows - 1) // ROWS_PER_WINDOW * WINDOW_MS * 1000


def run_generated(engine: str, back_end: str, given: Generated, work: Path, *, source_only: bool) -> EngineRun:
    """Run once.

    Args:
        engine: "tidegate" or "flink".
        back_end: of tidegate; Flink uses its counterpart.
        given: the rows.
        work: folder for everything that is written.
        source_only: drop all rows behind the source.
    """
    target = work / f"{engine}-{time.time_ns()}"
    if engine == "flink":
        script = str(HERE / "engines" / "flink_windows.py")
        facts = [str(given.rows), str(given.keys), BACK_ENDS[back_end], "source" if source_only else "windows"]
        found = run_peer([flink_python(), script, *facts, flink_jars(), str(target), "2"], work)
    else:
        arguments = {"rows": given.rows, "keys": given.keys, "output": str(target), "source_only": source_only}
        options = {**ROCKSDB, "state_backend": back_end}
        found = run_tidegate("generated.py", arguments, options, work / "jobs")
    digest = "" if source_only else digest_of(WINDOWS.results, target, given.newest_window_us)
    shutil.rmtree(target, ignore_errors=True)
    return EngineRun(f"{engine}-{back_end}", *found, digest)


def measure(folder: Path, back_end: str, rows: Rows, repeat: int) -> Costs:
    """Run both engines in turn, with windows and the source alone. Ends the benchmark if results differ."""
    found: Costs = {}
    for count, its_rows in rows.items():
        given = Generated(its_rows, count)
        for _ in range(repeat):
            for engine in ENGINES:
                for source_only in (False, True):
                    run = run_generated(engine, back_end, given, folder, source_only=source_only)
                    found.setdefault((count, engine, source_only), []).append(run)
                    part = "source" if source_only else "windows"
                    print(
                        f"{count:,} keys: {run.engine}: {part}: {run.warm_cpu_s:.1f} CPU s", file=sys.stderr, flush=True
                    )
        digests = {run.digest for engine in ENGINES for run in found[(count, engine, False)]}
        if len(digests) != 1:
            raise SystemExit(f"{count:,} keys: the results differ: {digests}")
    return found


def table(found: Costs, rows: Rows) -> list[str]:
    """Return a table in Markdown of M rows per CPU second without start, and with the source's cost subtracted."""
    lines = ["| keys | M rows | engine | M rows per CPU s | without source | each run, CPU s | source alone, CPU s |"]
    lines.append("| ---: | ---: | --- | ---: | ---: | --- | --- |")
    for (count, engine, source_only), runs in found.items():
        if not source_only:
            alone = found[(count, engine, True)]
            each, source = (", ".join(f"{run.warm_cpu_s:.1f}" for run in some) for some in (runs, alone))
            millions = rows[count] / 1e6
            rate, own = millions / median(run.warm_cpu_s for run in runs), millions / own_cpu_s(found, count, engine)
            lines.append(
                f"| {count:,} | {millions:g} | {runs[0].engine} | {rate:.2f} | {own:.2f} | {each} | {source} |"
            )
    return lines


def bars(found: Costs, rows: Rows) -> list[tuple[str, float]]:
    """Return M rows per CPU second of each engine, with the source's cost subtracted, for a chart."""
    return [
        (f"{engine}, {keys:,} keys", rows[keys] / own_cpu_s(found, keys, engine) / 1e6)
        for keys, engine, source_only in found
        if not source_only
    ]


def own_cpu_s(found: Costs, keys: int, engine: str) -> float:
    """Return the CPU seconds of the windows: of the whole job, without those of its source alone."""
    whole, alone = (median(run.warm_cpu_s for run in found[(keys, engine, only)]) for only in (False, True))
    return whole - alone


def ratio(found: Costs, keys: int) -> float:
    """Return how many times as many rows tidegate processes per CPU second, sources excluded."""
    return own_cpu_s(found, keys, "flink") / own_cpu_s(found, keys, "tidegate")
