"""Nexmark's queries beside Flink SQL, over the same Parquet files."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from engine_runs import run_tidegate
from environments import flink_jars, flink_python

from . import oracle
from .check import difference
from .events import GROUP, Shape, batch, table

FLINK = Path(__file__).resolve().parent / "flink_sql.py"
FILES = 2
"""One for each reader. A file is one row group, because Flink reads the row groups of a file in any order."""
CHECKED_EVENTS = 20_000
MOST_S = 1_200.0


@dataclass(frozen=True)
class QueryRun:
    """Wall and CPU seconds of one query, without start."""

    engine: str
    query: str
    wall_s: float
    cpu_s: float


def write_events(folder: Path, events: int) -> None:
    """Write the events 0 <= n < `events`; file s has every second group of 50 events."""
    folder.mkdir(parents=True)
    for number in range(FILES):
        groups = np.arange(number, events // GROUP, FILES, dtype=np.int64)
        numbers = (groups[:, None] * GROUP + np.arange(GROUP, dtype=np.int64)[None, :]).ravel()
        pq.write_table(pa.table(batch(numbers, Shape())), folder / f"{number}.parquet", row_group_size=len(numbers))


def measured(folder: Path, work: Path, queries: Sequence[str]) -> list[QueryRun]:
    """Run each query once on tidegate, and once on Flink in one warm process. Results are discarded."""
    found = []
    for query in queries:
        arguments = {"query": query, "files": str(folder)}
        options = {"checkpoint_interval": "1 s"}
        _, _, wall_s, cpu_s = run_tidegate("../nexmark/queries.py", arguments, options, work / "jobs")
        found.append(QueryRun("tidegate", query, wall_s, cpu_s))
    for query, (wall_s, cpu_s) in json.loads(_flink("measure", folder, queries)).items():
        found.append(QueryRun("flink", query, wall_s, cpu_s))
    return found


def check_both(work: Path, queries: Sequence[str]) -> None:
    """Compare the results of both engines with DuckDB's, on fewer events. Raises SystemExit if any differ."""
    folder, events = work / "checked", table(CHECKED_EVENTS, Shape())
    write_events(folder, CHECKED_EVENTS)
    comparable = [query for query in queries if query in oracle.QUERIES]
    (work / "flink").mkdir()
    _flink("check", folder, comparable, str(work / "flink"))
    for query in comparable:
        target = work / "tidegate" / query
        arguments = {"query": query, "files": str(folder), "out": str(target)}
        run_tidegate("../nexmark/queries.py", arguments, {}, work / "jobs")
        wanted = _in_ms(oracle.answers(events, query))
        for engine, files in (("tidegate", target), ("flink", work / "flink" / f"{query}.parquet")):
            differs = difference(_in_ms(pq.read_table(files)), wanted)
            if differs:
                raise SystemExit(f"{query} on {engine}: {differs}")
        print(f"{query}: {wanted.num_rows} rows, equal", file=sys.stderr, flush=True)
    shutil.rmtree(folder)


def _in_ms(rows: pa.Table) -> pa.Table:
    """Cut times to milliseconds, because PyFlink's results have no more."""
    fields = [pa.field(f.name, pa.timestamp("ms")) if pa.types.is_timestamp(f.type) else f for f in rows.schema]
    return rows.cast(pa.schema(fields), safe=False)


def _flink(mode: str, folder: Path, queries: Sequence[str], *more: str) -> str:
    """Return the last line of output."""
    command = [flink_python(), str(FLINK), mode, str(folder), ",".join(queries), flink_jars(), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=MOST_S)
    if done.returncode:
        raise SystemExit(f"Flink failed with exit code {done.returncode}: {done.stderr[-3000:]}")
    return (done.stdout.strip().splitlines() or [""])[-1]
