"""Batch stages as RDDs: what Spark calls in a worker, and which jobs run so (S8.1)."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from builders.batches import KEYED_ROWS, numbered_rows

from tidegate import DataGen, Discard, Pipeline, SparkFrame, Stream, collect, count, tumbling
from tidegate.plan.batch_plan import plan_batch
from tidegate.spark.batch.exchange import PACK, PACK_SCHEMA, TARGET
from tidegate.spark.batch.rdd_frames import OutputSelection, PartitionTask
from tidegate.spark.batch.stage_compiler import needs_spark_sql

ROWS = pa.schema([("c0", pa.int64()), ("c1", pa.string())])


@dataclass
class Passed:
    """A task that emits what it gets, or as much of it."""

    most: int = 100

    def run(self, index: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        given = iter(batches)
        for _ in range(self.most):
            batch = next(given, None)
            if batch is None:
                return
            yield batch


def partition(reads: pa.Schema | None, emits: pa.Schema, work: Any) -> PartitionTask:
    return PartitionTask(work, reads, emits)


def rows(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(numbers, pa.int64()), pa.array([f"n{n}" for n in numbers])], schema=ROWS)


def test_rows_are_decoded_and_encoded() -> None:
    encoded = [batch.serialize().to_pybytes() for batch in (rows(1, 2), rows(), rows(3))]
    found = list(partition(ROWS, ROWS, Passed())(0, iter(encoded)))
    assert [pa.ipc.read_record_batch(one, ROWS) for one in found] == [rows(1, 2), rows(), rows(3)]


def test_a_pack_is_sent_after_its_target_and_arrives_alone() -> None:
    """The JVM reads a target of eight bytes, then a pack."""

    class Packs:
        def run(self, index: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            assert list(batches) == [], "a stage without input has no rows"
            yield pa.record_batch([pa.array([0, 2], pa.int32()), pa.array([b"zero", b"two"])], schema=PACK_SCHEMA)
            yield pa.record_batch([pa.array([2], pa.int32()), pa.array([b"more"])], schema=PACK_SCHEMA)

    sent = [bytes(part) for part in partition(None, PACK_SCHEMA, Packs())(0, iter([0]))]  # type: ignore[list-item]
    assert [struct.unpack("!q", target)[0] for target in sent[::2]] == [0, 2, 2]
    assert sent[1::2] == [b"zero", b"two", b"more"]

    class Received:
        def run(self, index: int, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                assert batch.schema == PACK_SCHEMA and batch.column(TARGET).null_count == 1
                batch.validate(full=True)
                yield pa.record_batch([pa.array([0]), batch.column(PACK).cast(pa.string())], schema=ROWS)

    found = partition(PACK_SCHEMA, ROWS, Received())(0, iter(sent[1::2]))
    assert [pa.ipc.read_record_batch(one, ROWS)["c1"].to_pylist() for one in found] == [["zero"], ["two"], ["more"]]


@pytest.mark.parametrize("reads", [None, ROWS])
def test_a_task_reads_its_input_to_the_end_so_that_spark_uses_its_worker_again(reads: pa.Schema | None) -> None:
    given = iter([rows(n).serialize().to_pybytes() for n in range(5)])
    list(partition(reads, ROWS, Passed(most=1))(0, given))
    assert list(given) == []


def test_an_output_among_several_is_selected_with_the_names_of_the_wire() -> None:
    several = pa.schema([("output", pa.int8()), ("o0_0", pa.int64()), ("o1_0", pa.string()), ("o1_1", pa.int64())])
    batches = [
        pa.record_batch([[0, 0], [1, 2], pa.nulls(2, pa.string()), pa.nulls(2, pa.int64())], schema=several),
        pa.record_batch([[1], pa.nulls(1, pa.int64()), ["late"], [7]], schema=several),
    ]
    encoded = [batch.serialize().to_pybytes() for batch in batches]
    (first,) = OutputSelection(several, 0, 1)(encoded)
    assert pa.ipc.read_record_batch(first, pa.schema([("c0", pa.int64())])).to_pydict() == {"c0": [1, 2]}
    (second,) = OutputSelection(several, 1, 2)(encoded)
    side = pa.schema([("c0", pa.string()), ("c1", pa.int64())])
    assert pa.ipc.read_record_batch(second, side).to_pydict() == {"c0": ["late"], "c1": [7]}


def _windows(stream: Stream, aggregate: Any) -> Stream:
    return stream.with_watermark("ts", "0 s").group_by("k").window(tumbling("1 s")).agg(n=aggregate, uid="w")


@pytest.mark.parametrize(
    ("draw", "needed"),
    [
        (lambda stream: stream, False),
        (lambda stream: _windows(stream, count()), False),
        (lambda stream: stream.group_by("k").agg(n=count(), output="final", uid="sums"), False),
        (lambda stream: _windows(stream, collect("v")), True),
        (lambda stream: stream.rebalance(), True),
    ],
    ids=["rows", "windows", "aggregates", "order", "rebalance"],
)
def test_spark_sql_starts_only_for_rows_that_spark_sorts_or_reads(
    draw: Callable[[Stream], Stream], needed: bool
) -> None:
    for source in (
        DataGen(numbered_rows(300), KEYED_ROWS, rows=10),
        SparkFrame(lambda spark: spark.table("x"), schema=KEYED_ROWS),
    ):
        p = Pipeline()
        draw(p.read(source, uid="in")).write(Discard(), uid="out")
        assert needs_spark_sql(plan_batch(p.build(), 2, 128)) is (needed or isinstance(source, SparkFrame))
