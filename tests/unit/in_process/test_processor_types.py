"""Null and times of pandas and numpy through a whole job: states, map keys, results and timers of a StatefulProcessor,
over a snapshot and on every back end (S5.1, S5.3)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import tidegate as td
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
NOON = pd.Timestamp("2024-07-01 12:00:00.123456")
DAY = dt.date(2024, 7, 1)
COLUMNS = "d DATE, t TIMESTAMP, a ARRAY<DATE>, r STRUCT<t: TIMESTAMP>"
KEPT = (
    (None, NOON.to_pydatetime(), [None, DAY], Row(t=None)),
    (DAY, None, None, Row(t=NOON.to_pydatetime())),
)
GIVEN = (
    (pd.NaT, NOON, [pd.NaT, NOON], (pd.NaT,)),
    (np.datetime64("2024-07-01T12:00", "s"), np.datetime64("NaT", "ns"), pd.NA, {"t": NOON.to_datetime64()}),
)
RESULT = "k BIGINT, d DATE, t TIMESTAMP, seen STRING"


class Stores(StatefulProcessor):
    """Writes both rows into states of each kind with the first rows of a key; with the others it reads them back."""

    def __init__(self, pandas: bool) -> None:
        self.pandas = pandas

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.values = [handle.getValueState(f"value {n}", COLUMNS) for n in range(2)]
        self.list = handle.getListState("list", COLUMNS)
        self.map = handle.getMapState("map", "d DATE, t TIMESTAMP", "n INT")

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        for _ in rows:
            pass
        if not self.list.exists():
            for state, row in zip(self.values, GIVEN, strict=True):
                state.update(row)
            self.list.put(list(GIVEN))
            self.map.updateValue((pd.NaT, NOON), (1,))
            self.map.updateValue((NOON, pd.NaT), (2,))
        read = [state.get() for state in self.values], list(self.list.get())
        fits = read == (list(KEPT), list(KEPT)) and self.map.getValue((None, NOON)) == Row(n=1)
        fits = fits and self.map.getValue((DAY, None)) == Row(n=2) and len(list(self.map.keys())) == 2
        result = {"k": key[0], "d": pd.NaT, "t": pd.NaT, "seen": "all" if fits else repr(read)}
        yield (
            pd.DataFrame({name: pd.Series([v], dtype=object) for name, v in result.items()})
            if self.pandas
            else Row(**result)
        )


@pytest.mark.parametrize("pandas", [False, True])
@pytest.mark.parametrize("back_end", ["heap", "memory", "rocksdb"])
def test_what_pandas_has_for_null_is_null_in_states_keys_and_results(
    back_end: str, pandas: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """And a naive time is one of this process, as in PySpark."""
    sink = request.node.name

    def pipeline() -> td.Pipeline:
        p = td.Pipeline()
        rows = p.read(td.DataGen(lambda n: {"k": n % 3, "v": n}, SCHEMA, rows=200, batch_rows=20), uid="rows")
        grouped = rows.group_by("k")
        call = grouped.transform_with_state_in_pandas if pandas else grouped.transform_with_state
        call(Stores(pandas), RESULT, "Append", "None", uid="stores").write(CollectSink(sink), uid="out")
        return p

    job = InProcessJob(pipeline, {"parallelism": 2, "state_backend": back_end}, scratch=str(tmp_path))
    run = job.submit()
    run.pump(6)
    answer = run.ask(ev.SnapshotRequest("savepoint", request_id="now"))
    assert answer is not None and answer.ok
    run.crash()
    run = job.submit(RestoreFrom("savepoint", path=str(answer.data["path"])))
    assert run.to_end() == RunEnded(None, None, None, None)
    told = collected(sink).table().to_pylist()
    clear_collected(sink)
    assert {(row["d"], row["t"], row["seen"]) for row in told} == {(None, None, "all")} and len(told) > 6


class Spans(StatefulProcessor):
    """Adds up a day-time interval."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "span INTERVAL DAY TO SECOND")
        self.all = handle.getListState("all", "span INTERVAL DAY TO SECOND")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        for row in rows:
            held = self.total.get()
            self.total.update((pd.Timedelta(seconds=row.v) + (held[0] if held else dt.timedelta()),))
            self.all.appendValue((np.timedelta64(row.v, "s"),))
        yield Row(k=key[0], span=self.total.get()[0], n=len(list(self.all.get())))


@pytest.mark.parametrize("back_end", ["heap", "memory", "rocksdb"])
def test_intervals_are_kept_over_snapshots_and_given(
    back_end: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    sink = request.node.name

    def pipeline() -> td.Pipeline:
        p = td.Pipeline()
        rows = p.read(td.DataGen(lambda n: {"k": n % 1, "v": n}, SCHEMA, rows=200, batch_rows=20), uid="rows")
        spans = rows.group_by("k").transform_with_state(
            Spans(), "k BIGINT, span INTERVAL DAY TO SECOND, n INT", "Append", "None", uid="spans"
        )
        spans.write(CollectSink(sink), uid="out")
        return p

    job = InProcessJob(pipeline, {"parallelism": 1, "state_backend": back_end}, scratch=str(tmp_path))
    run = job.submit()
    run.pump(4)
    answer = run.ask(ev.SnapshotRequest("checkpoint", request_id="now"))
    assert answer is not None and answer.ok
    run.crash()
    assert job.rerun().to_end() == RunEnded(None, None, None, None)
    last = max(collected(sink).table().to_pylist(), key=lambda row: row["n"])
    clear_collected(sink)
    assert last == {"k": 0, "span": dt.timedelta(seconds=sum(range(200))), "n": 200}
