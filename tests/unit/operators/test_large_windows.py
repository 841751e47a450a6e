"""Windows of many keys: written in chunks while they go on, unchanged chunks not again (S5.2, S5.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from builders.operators import open_operator

from tidegate.channel.elements import MAX_WATERMARK
from tidegate.operators.aggregates.aggregate_specs import BoundAggregate
from tidegate.operators.aggregates.frozen_aggregates import TABLE_ROWS
from tidegate.operators.stream_operator import StreamOperator
from tidegate.operators.windows.window_specs import WindowAggSpec
from tidegate.snapshot.parts import Blob, StatePart
from tidegate.state.copy_on_write import CHUNK_ENTRIES

KEYS = 3 * CHUNK_ENTRIES + 100
BOUNDS = [("window_start", pa.timestamp("us")), ("window_end", pa.timestamp("us"))]
INPUT = pa.schema([("k", pa.int64()), ("s", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
AGGREGATES = (BoundAggregate("rows", "count"), BoundAggregate("total", "sum", "v"), BoundAggregate("mean", "mean", "v"))
RESULTS = [("rows", pa.int64()), ("total", pa.int64()), ("mean", pa.float64())]
Opened = Callable[..., StreamOperator]


@pytest.fixture(params=[("k",), ("k", "s")], ids=["number", "number and text"])
def opened(request: pytest.FixtureRequest) -> Opened:
    """opened(time_column="t", subtask=0, parallelism=1): an operator, windows of 100 us or of processing time."""
    keys = request.param

    def open_(time_column: str | None = "t", subtask: int = 0, parallelism: int = 1) -> StreamOperator:
        schema = pa.schema([*(INPUT.field(key) for key in keys), *BOUNDS, *RESULTS])
        spec = WindowAggSpec(keys, time_column, "us", 100, 0, AGGREGATES, INPUT, schema)
        opened: StreamOperator = open_operator(spec, INPUT, subtask=subtask, parallelism=parallelism)
        return opened

    return open_


def feed(operator: StreamOperator, numbers: Sequence[int] | range, time_us: int = 5, value: int | None = 1) -> None:
    """A row for each key number; every fourth value null where None is given."""
    k = np.array(numbers, np.int64)
    values = pa.array(k, mask=k % 4 == 0) if value is None else pa.array(np.full(len(k), value))
    arrays = [pa.array(k), pa.array(k).cast(pa.string()), pa.array(np.full(len(k), time_us)), values]
    assert list(operator.process(pa.RecordBatch.from_arrays(arrays, schema=INPUT), 0)) == []


def kept(parts: Sequence[StatePart]) -> list[StatePart]:
    """Parts whose blobs can be read again."""
    return [StatePart(p.name, p.kind, p.table, blobs=tuple(map(_kept, p.blobs))) for p in parts]


def _kept(blob: Blob) -> Blob:
    data = b"".join(blob.pieces())
    return Blob(blob.id, lambda: data)


def fired(*operators: StreamOperator) -> pa.Table:
    """Result rows, sorted."""
    batches: Any = [batch for operator in operators for batch in operator.on_watermark(MAX_WATERMARK)]
    return pa.Table.from_batches(batches).sort_by([("window_start", "ascending"), ("k", "ascending")])


def snapshot(operator: StreamOperator) -> Sequence[StatePart]:
    taken = operator.snapshot(1)
    assert taken is not None
    return taken()


@pytest.mark.parametrize("time_column", ["t", None], ids=["event time", "processing time"])
def test_a_large_window_is_written_in_chunks_sorted_by_key_group_and_restored(
    opened: Opened, time_column: str | None
) -> None:
    operator = opened(time_column)
    feed(operator, range(KEYS), value=None)
    feed(operator, range(0, KEYS, 2), value=None)
    parts = kept(snapshot(operator))
    assert (parts[0].table.num_rows, len(parts[0].blobs)) == (0, 4)
    for table in parts[0].tables():
        assert table.schema.equals(parts[0].table.schema)
    halves = [opened(time_column, subtask, 2) for subtask in range(2)]
    for half in halves:
        half.restore(parts)
    again = opened(time_column)
    again.restore(parts)
    expected = fired(operator)
    assert expected.num_rows == KEYS
    assert fired(again).equals(expected)
    assert fired(*halves).equals(expected)


def test_chunks_keep_their_ids_until_a_row_comes_for_one_of_their_keys(opened: Opened) -> None:
    operator = opened()
    feed(operator, range(KEYS))
    first = [blob.id for blob in snapshot(operator)[0].blobs]
    feed(operator, [1, 2 * CHUNK_ENTRIES])
    feed(operator, range(10), time_us=205)
    second = snapshot(operator)[0]
    assert second.table.num_rows == 10
    assert [old == new.id for old, new in zip(first, second.blobs, strict=True)] == [False, True, False, True]
    assert [blob.id for blob in snapshot(operator)[0].blobs] == [blob.id for blob in second.blobs]


def test_small_windows_of_many_rows_are_one_blob_of_their_moment(opened: Opened) -> None:
    """S5.2: they are frozen as large ones are, though rows come before they are written."""
    operator, still = opened(), opened()
    per_window = TABLE_ROWS // 3
    for window in range(4):
        for each in (operator, still):
            feed(each, range(per_window + window), time_us=5 + 100 * window, value=None)
    taken, later = operator.snapshot(1), operator.snapshot(2)
    feed(operator, range(5000), time_us=105)
    assert taken is not None and later is not None
    parts = kept(taken())
    assert (parts[0].table.num_rows, len(parts[0].blobs)) == (0, 1)
    assert parts[0].blobs[0].table().num_rows == 4 * per_window + 6
    assert parts[0].blobs[0].id != later()[0].blobs[0].id
    halves = [opened("t", subtask, 2) for subtask in range(2)]
    for half in halves:
        half.restore(parts)
    assert fired(*halves).equals(fired(still))


def test_few_rows_of_small_windows_are_a_table(opened: Opened) -> None:
    operator = opened()
    for window in range(4):
        feed(operator, range(TABLE_ROWS // 4), time_us=5 + 100 * window)
    [part] = snapshot(operator)[:1]
    assert (part.table.num_rows, part.blobs) == (TABLE_ROWS, ())


def test_another_window_of_the_same_start_has_other_ids(opened: Opened) -> None:
    operator = opened(None)
    ids = []
    for _ in range(2):
        feed(operator, range(KEYS))
        ids += [blob.id for blob in snapshot(operator)[0].blobs]
        list(operator.on_processing_time(1))
    assert len(set(ids)) == len(ids) == 8


def test_a_snapshot_is_of_its_moment_though_rows_come_while_it_is_written(opened: Opened) -> None:
    operator, still = opened(), opened()
    for each in (operator, still):
        feed(each, range(KEYS))
        feed(each, range(100), time_us=105)
    taken = operator.snapshot(1)
    assert taken is not None
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: kept(taken()))
        for step in range(20):
            feed(operator, range(step, KEYS + 1000 * step, 7), value=None)
            feed(operator, range(step, 200), time_us=105)
        restored = opened()
        restored.restore(writing.result())
    assert fired(restored).equals(fired(still))
