"""Compares Nexmark's results with the same queries in SQL, on the same events: `make nexmark-check`.

Every query runs in this process at parallelism 2, takes a checkpoint, crashes after it, and resumes from it. `--events
N` sets the number of events; `--only q3,q4` selects queries.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

from . import oracle, queries
from .events import GROUP, Nexmark, Shape, table

EVENTS = 200_000
POLLS = 40
"""Batches of each of the two source subtasks."""
FLOAT_TOLERANCE = 1e-9
"""Relative tolerance: the mean of millions of values, added in another order."""


def result(query: str, events: int, shape: Shape) -> pa.Table:
    """Return the rows that the pipeline commits."""
    name = f"nexmark-{query}"
    clear_collected(name)
    source = Nexmark(events, shape, splits=4, batch_groups=max(1, events // GROUP // (2 * POLLS)))
    job = InProcessJob(lambda: queries.pipeline(query, source, CollectSink(name), shape), {"parallelism": 2})
    run = job.submit()
    run.pump(POLLS // 2)
    answer = run.ask(ev.SnapshotRequest("checkpoint", request_id="mid"))
    assert answer is not None and answer.ok, answer
    run.pump(POLLS // 4)
    assert run.outcome is None, "the job ended before it could crash: give more events"
    run.crash()
    outcome = job.rerun().to_end()
    assert isinstance(outcome, RunEnded), outcome
    found = collected(name).table()
    clear_collected(name)
    return found


def difference(found: pa.Table, wanted: pa.Table) -> str:
    """Return "" if the rows are the same, in any order; else the difference."""
    if sorted(found.schema.names) != sorted(wanted.schema.names):
        return f"columns {found.schema.names}, wanted {wanted.schema.names}"
    if found.num_rows != wanted.num_rows:
        return f"{found.num_rows} rows, wanted {wanted.num_rows}"
    schema = pa.schema([wanted.schema.field(name) for name in _exact_first(found.schema)])
    ours, theirs = _sorted(found, schema), _sorted(wanted, schema)
    for name in schema.names:
        if not _equal(ours[name], theirs[name]):
            return f"column {name!r} differs"
    return ""


def _exact_first(schema: pa.Schema) -> list[str]:
    """Return the columns with floats last, so that rows are ordered by exact values."""
    return sorted(schema.names, key=lambda name: (pt.is_floating(schema.field(name).type), name))


def _sorted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    chosen = pa.table([rows[f.name].cast(f.type) for f in schema], schema=schema)
    return chosen.sort_by([(name, "ascending") for name in schema.names])


def _equal(ours: pa.ChunkedArray, theirs: pa.ChunkedArray) -> bool:
    if not pt.is_floating(theirs.type):
        return bool(ours.combine_chunks().equals(theirs.combine_chunks()))
    return bool(np.allclose(ours.to_numpy(), theirs.to_numpy(), rtol=FLOAT_TOLERANCE, atol=0, equal_nan=True))


def check(names: Sequence[str], events: int, shape: Shape) -> list[str]:
    """Run the queries, print a line for each, and return the names of those that differ."""
    made = table(events, shape)
    different: list[str] = []
    for name in names:
        started = time.perf_counter()
        found, wanted = result(name, events, shape), oracle.answers(made, name)
        differs = difference(found, wanted)
        if differs:
            different.append(name)
        took_s = time.perf_counter() - started
        print(f"{name:>4} {found.num_rows:>8} rows {took_s:6.1f} s  {differs or 'equal'}", flush=True)
    return different


def main() -> int:
    """Run the check; return 1 if a query differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--only", help="names of queries, with commas")
    chosen = parser.parse_args()
    names = chosen.only.split(",") if chosen.only else [name for name in queries.QUERIES if name in oracle.QUERIES]
    different = check(names, chosen.events, Shape())
    print(f"nexmark: {len(names)} queries, {len(different)} different")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
