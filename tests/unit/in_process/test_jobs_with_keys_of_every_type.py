"""S5.1: windows and processes keyed by dictionaries, decimals and times, through a rescale."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tidegate import KeyedProcess, KeyedRows, ProcessContext, reducing_state
from tidegate.api.aggregates import count
from tidegate.api.pipeline import Pipeline
from tidegate.api.windows import tumbling
from tidegate.connectors.datagen import DataGen
from tidegate.coordinator import events as ev
from tidegate.coordinator.job_run import RunEnded
from tidegate.jobs.records import RestoreFrom
from tidegate.testing.collect_sink import CollectSink, clear_collected, collected
from tidegate.testing.in_process_job import InProcessJob

ROWS = 400
SCHEMA = pa.schema(
    [
        ("word", pa.dictionary(pa.int32(), pa.string())),
        ("price", pa.decimal128(9, 2)),
        ("at", pa.time64("us")),
        ("span", pa.duration("ms")),
    ]
)
KEYS = ("word", "price", "at", "span")
_sinks = itertools.count()


def key(n: int) -> tuple[Any, ...]:
    price = None if n % 4 == 3 else decimal.Decimal(n % 4 * 150) / 100
    return f"w{n % 3}", price, dt.time(n % 2), dt.timedelta(seconds=n % 2)


def rows(numbers: Any) -> pa.RecordBatch:
    keys = [key(int(n)) for n in numbers]
    words = pa.array([k[0] for k in keys]).dictionary_encode().cast(SCHEMA.field("word").type)
    arrays = [words, *(pa.array([k[i] for k in keys], SCHEMA.field(i).type) for i in (1, 2, 3))]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class Counting(KeyedProcess):
    states = (reducing_state("rows", {"n": ("count", pa.int64())}),)

    def process(self, rows: KeyedRows, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        ctx.merging("rows").add(rows.keys, rows.owners, pa.record_batch({"n": pa.array([1] * len(rows.owners))}))
        return iter(())

    def finish(self, ctx: ProcessContext) -> Iterator[pa.RecordBatch]:
        for keys in ctx.all_keys("rows"):
            found = ctx.merging("rows").get(keys)
            yield pa.RecordBatch.from_arrays([*keys.columns().columns, found.columns.column(0)], [*KEYS, "n"])


@pytest.fixture
def sink() -> Iterator[str]:
    name = f"key-types-{next(_sinks)}"
    yield name
    clear_collected(name)


@pytest.mark.parametrize("what", ["windows", "heap", "rocksdb"])
def test_rows_are_counted_by_keys_of_any_type_through_a_rescale(sink: str, what: str, tmp_path: Any) -> None:
    def build() -> Pipeline:
        p = Pipeline()
        stream = p.read(DataGen(rows, SCHEMA, rows=ROWS, splits=3, batch_rows=16, rate=1_000), uid="rows")
        grouped = stream.group_by(*KEYS)
        if what == "windows":
            counted = grouped.window(tumbling("1 h", time="processing")).agg(n=count(), uid="counted")
        else:
            out = [pa.field("word", pa.string()), *(SCHEMA.field(name) for name in KEYS[1:]), ("n", pa.int64())]
            counted = grouped.process(Counting(), schema=pa.schema(out), uid="counted")
        counted.write(CollectSink(sink), uid="out")
        return p

    options = {"processing_time_on_end": "fire", "state_backend": "heap" if what == "windows" else what}
    a_job = InProcessJob(build, {"parallelism": 2, **options}, scratch=str(tmp_path))
    run = a_job.submit()
    run.until(lambda: sum(s.source.records for s in run.slot.metrics().subtasks if s.source is not None) > ROWS // 2)
    run.ask(ev.SnapshotRequest("stop-savepoint", request_id="stop", stop="suspend"))
    outcome = run.to_end()
    assert isinstance(outcome, RunEnded) and outcome.path is not None
    a_job.options = {"parallelism": 3, **options}
    a_job.submit(RestoreFrom("savepoint", path=outcome.path)).to_end()
    table = collected(sink).table()
    assert table.schema.field("word").type == pa.string()
    found: Counter[tuple[Any, ...]] = Counter()
    for row in table.to_pylist():
        found[tuple(row[name] for name in KEYS)] += row["n"]
    assert found == Counter(key(n) for n in range(ROWS))
