"""S5.2, S5.5: whole jobs with windows of so many keys that their state is in pieces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.api.aggregates import sum as total_of
from tidegate.api.pipeline import Pipeline
from tidegate.api.windows import tumbling
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.snapshot.metadata import read_metadata
from tidegate.state.copy_on_write import CHUNK_ENTRIES
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

KEYS = 5 * CHUNK_ENTRIES
ROWS = 2 * KEYS
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64()), ("ts", pa.timestamp("ms"))])
SINK = "large windows"


def rows(numbers: Any) -> dict[str, Any]:
    return {"k": numbers % KEYS, "v": numbers, "ts": pa.array(numbers // KEYS).cast(pa.timestamp("ms"))}


def pipeline() -> Pipeline:
    p = Pipeline()
    (
        p.read(DataGen(rows, SCHEMA, rows=ROWS, splits=1, batch_rows=4096), uid="numbers")
        .with_watermark("ts", "0 s")
        .group_by("k")
        .window(tumbling("1 h"))
        .agg(total=total_of("v"), uid="windows")
        .write(CollectSink(SINK), uid="out")
    )
    return p


def test_a_job_with_large_windows_goes_on_from_pieces_at_another_parallelism() -> None:
    """However they are compressed."""
    job = InProcessJob(pipeline, {"parallelism": 1, "snapshot_compression": "zstd"})
    sizes: list[int] = []
    run = job.submit()
    try:
        for parallelism, compression in ((2, "none"), (1, "lz4")):
            run.pump(24)
            run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
            outcome = run.to_end()
            assert isinstance(outcome, RunEnded) and outcome.path is not None
            metadata = read_metadata(job.store, outcome.path)
            (windows,) = (operator for operator in metadata.operators if operator.uid == "windows")
            sizes.append(metadata.size_bytes)
            assert all(held.handle is not None and held.handle.files for held in windows.subtasks), "in pieces"
            job.options = {"parallelism": parallelism, "snapshot_compression": compression}
            run = job.submit(RestoreFrom("savepoint", path=outcome.path))
        assert isinstance(run.to_end(), RunEnded)
        table = collected(SINK).table().sort_by("k")
    finally:
        clear_collected(SINK)
    assert 2 * sizes[0] < sizes[1], "zstd, then none, of about as many rows"
    assert np.array_equal(table["k"].to_numpy(), np.arange(KEYS))
    assert np.array_equal(table["total"].to_numpy(), 2 * np.arange(KEYS) + KEYS)
