"""S5.2, S9.1: whole jobs whose aggregates are on RocksDB, through checkpoints, crashes and a savepoint."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tidegate as td
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
ROWS, KEYS, BUSY_MS = 6000, 401, 1500
_sinks = itertools.count()


def numbers(n: Any) -> dict[str, Any]:
    """A row a millisecond, with a pause of a second after every 1.5."""
    return {"k": (n * 7919) % KEYS, "v": n % 13, "ts": pa.array(n + n // BUSY_MS * 1000).cast(pa.timestamp("ms"))}


def results_of(draw: Callable[[td.Stream], td.Stream], back_end: str) -> Counter[tuple[Any, ...]]:
    """What a job of two subtasks commits; it crashes twice and goes on from checkpoints."""
    sink = f"stored-{next(_sinks)}"

    def pipeline() -> td.Pipeline:
        p = td.Pipeline()
        stream = p.read(td.DataGen(numbers, SCHEMA, rows=ROWS, splits=2, batch_rows=128), uid="in")
        draw(stream.with_watermark("ts", "0 s")).write(CollectSink(sink), uid="out")
        return p

    job = InProcessJob(pipeline, {"parallelism": 2, "state_backend": back_end, "state_size_threshold": "1 KiB"})
    run = job.submit()
    for number in range(2):
        run.pump(8)
        run.ask(ev.SnapshotRequest("checkpoint", request_id=f"c{number}"))
        run.pump(8)
        assert run.outcome is None, "the crash is in the middle"
        run.crash()
        run = job.rerun()
    assert isinstance(run.to_end(), RunEnded)
    found = Counter(tuple(row.values()) for row in collected(sink).table().to_pylist())
    clear_collected(sink)
    return found


AGGREGATES: dict[str, Any] = {"n": td.count(), "total": td.sum("v")}
JOBS: dict[str, Callable[[td.Stream], td.Stream]] = {
    "tumbling": lambda s: s.group_by("k").window(td.tumbling("1 s")).agg(**AGGREGATES, uid="a"),
    "sliding": lambda s: s.group_by("k").window(td.sliding("2 s", "1 s")).agg(**AGGREGATES, uid="a"),
    "session": lambda s: s.group_by("k").window(td.session("900 ms")).agg(**AGGREGATES, uid="a"),
    "final": lambda s: s.group_by("k").agg(output="final", **AGGREGATES, uid="a"),
    "whole stream": lambda s: s.agg(output="final", **AGGREGATES, uid="a"),
    "whole stream in windows": lambda s: s.window_all(td.tumbling("1 s")).agg(**AGGREGATES, uid="a"),
}


@pytest.mark.parametrize("job", JOBS)
def test_a_job_commits_what_it_commits_with_state_in_memory(job: str) -> None:
    stored = results_of(JOBS[job], "rocksdb")
    assert stored == results_of(JOBS[job], "heap")
    if job == "final":
        rows = numbers(np.arange(ROWS))
        counts, sums = np.bincount(rows["k"]), np.bincount(rows["k"], rows["v"])
        assert stored == Counter({(k, int(counts[k]), int(sums[k])): 1 for k in range(KEYS)})
