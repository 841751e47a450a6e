"""The parts of batch mode that need no Spark: how rows travel, how they are cut, what a task tells (S8.1)."""

from __future__ import annotations

import decimal
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from builders.batches import KEYED_ROWS, numbered_rows
from builders.jobs import submission
from hypothesis import given
from hypothesis import strategies as st

from tidegate import DataGen, Discard, Pipeline, PipelineError, SparkFrame, SparkTable, SparkWriter, collect, tumbling
from tidegate.connectors.interface import SourceContext
from tidegate.connectors.spark.materialised_splits import splits_of_files
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import OptionError, TidegateError
from tidegate.jobs.options import JobOptions
from tidegate.plan.batch_plan import BatchPlan, plan_batch
from tidegate.spark.application import spark_settings
from tidegate.spark.batch.exchange import HASH, TARGET, SortedBlocks, sort_columns
from tidegate.spark.batch.exchange_senders import ExchangeSender
from tidegate.spark.batch.wire_rows import from_wire, to_wire, wire_schema
from tidegate.spark.batch.worker_task import FAILURE, TaskFailedError, failure_in, failure_report, subtask_of
from tidegate.spark.driver_loop.row_materialisation import WriteTask
from tidegate.subtask.chain import OperatorFailure

COLUMNS: dict[str, pa.Array] = {
    "u8": pa.array([1, 255, None], pa.uint8()),
    "u64": pa.array([2**64 - 1, 0, None], pa.uint64()),
    "ns": pa.array([-1, 2**62, None], pa.timestamp("ns", "Europe/Berlin")),
    "time": pa.array([1, 2, None], pa.time32("s")),
    "date64": pa.array([86_400_000, 0, None], pa.date64()),
    "duration": pa.array([1, 2, None], pa.duration("ns")),
    "half": pa.array([1.5, 2, None], pa.float16()),
    "large": pa.array(["a", "", None], pa.large_string()),
    "fixed": pa.array([b"abc", b"xyz", None], pa.binary(3)),
    "null": pa.nulls(3),
    "nested": pa.array(
        [[{"a": 255, "b": [1]}], None, []], pa.list_(pa.struct([("a", pa.uint8()), ("b", pa.list_(pa.date32()))]))
    ),
    "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.uint32())),
    "dictionaries": pa.array([["a", "a"], None, ["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    "decimal": pa.array([decimal.Decimal("1.23"), None, decimal.Decimal("-9.99")], pa.decimal128(20, 2)),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("start", [0, 1])
def test_a_column_of_any_type_travels_without_a_change(name: str, start: int) -> None:
    batch = pa.record_batch([COLUMNS[name]], names=[name]).slice(start)
    sent = pa.RecordBatch.from_arrays(to_wire(batch), schema=wire_schema(batch.schema))
    assert from_wire(sent.columns, batch.schema).equals(batch)


@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal256(40, 2),
        pa.list_(pa.null()),
        pa.struct([("a", pa.null())]),
        pa.map_(pa.string(), pa.dictionary(pa.int8(), pa.int64())),
    ],
)
def test_a_type_that_cannot_travel_and_come_back_is_refused_by_its_column(kind: pa.DataType) -> None:
    with pytest.raises(PipelineError, match="column 'wide' of type"):
        wire_schema(pa.schema([("wide", kind)]))


def windowed() -> BatchPlan:
    """A source, and windows by key."""
    p = Pipeline()
    source = p.read(DataGen(numbered_rows(300), KEYED_ROWS, rows=10), uid="numbers").with_watermark("ts", "0 s")
    source.group_by("k").window(tumbling("1 s")).agg(n=collect("ts"), m=collect("v"), uid="w").write(
        Discard(), uid="out"
    )
    return plan_batch(p.build(), 2, 128)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=80), st.integers(1, 30), st.integers(1, 25))
def test_blocks_hold_whole_keys_in_order_of_time_and_all_rows_once(
    keys: list[int], block_rows: int, batch_rows: int
) -> None:
    plan = windowed()
    stage = plan.stages[1]
    assert stage.by_key
    times = pa.array([(i * 37) % 101 for i in range(len(keys))]).cast(pa.timestamp("ms"))
    batch = pa.record_batch([pa.array(keys), pa.array(range(len(keys))), times], schema=KEYED_ROWS)
    tagged = ExchangeSender(plan, stage, stage.inputs[0], 0).tagged(batch)
    ordered = (
        pa.Table.from_batches([tagged])
        .sort_by([(name, "ascending") for name in sort_columns(tagged.schema)])
        .combine_chunks()
    )
    blocks = []
    for block in SortedBlocks(stage, ordered.to_batches(max_chunksize=batch_rows), block_rows):
        runs = [run.batch for run in block.runs]
        blocks.append(pa.Table.from_batches(runs))
    seen: set[int] = set()
    for number, table in enumerate(blocks):
        mine = set(table["k"].to_pylist())
        assert not mine & seen, "a key comes again"
        assert table.num_rows >= block_rows or number == len(blocks) - 1
        seen |= mine
        for key in mine:
            of_key = table.filter(pc.equal(table["k"], key))
            assert of_key["ts"].to_pylist() == sorted(of_key["ts"].to_pylist())
    assert sorted(v for table in blocks for v in table["v"].to_pylist()) == list(range(len(keys)))


@pytest.mark.parametrize("is_ordered", [True, False])
def test_rebalanced_rows_find_the_same_subtask_when_a_stage_runs_again(is_ordered: bool) -> None:
    """Also when a DataFrame gives them in another order: subtasks that have read theirs do not read again."""
    p = Pipeline()
    by_us, by_spark = (
        DataGen(numbered_rows(300), KEYED_ROWS, rows=10),
        SparkFrame(lambda spark: spark.table("x"), schema=KEYED_ROWS),
    )
    p.read(by_us if is_ordered else by_spark, uid="in").rebalance().write(Discard(), uid="out")
    plan = plan_batch(p.build(), 3, 128)
    stage = plan.stages[1]
    made = pa.record_batch(list(numbered_rows(300)(np.arange(300)).values()), schema=KEYED_ROWS)

    def targets(batches: list[pa.RecordBatch]) -> dict[int, int]:
        tagger = ExchangeSender(plan, stage, stage.inputs[0], 1)
        tagged = pa.Table.from_batches([tagger.tagged(batch) for batch in batches])
        return dict(zip(tagged["c0_1"].to_pylist(), tagged[TARGET].to_pylist(), strict=True))

    first = targets([made.slice(start, 50) for start in range(0, 300, 50)])
    assert all(list(first.values()).count(target) > 60 for target in range(3))
    if not is_ordered:
        shuffled = made.take(pa.array(np.random.default_rng(1).permutation(300)))
        assert targets([shuffled.slice(0, 70), shuffled.slice(70)]) == first


def test_a_block_is_fed_in_full_whatever_the_cut_when_state_is_not_by_key() -> None:
    stage = windowed().stages[1]
    assert list(SortedBlocks(stage, [], None)) == []


def test_a_subtask_is_told_by_its_rows_else_by_its_partition() -> None:
    sent = pa.record_batch([pa.array([3, 3], pa.int32()), pa.array([1, 2])], names=[TARGET, HASH])
    assert subtask_of(iter([sent]), 0)[0] == 3
    assert subtask_of(iter([pa.record_batch([[5]], names=["id"])]), 0)[0] == 5
    plain = pa.record_batch([[5]], names=["c0"])
    index, batches = subtask_of(iter([plain.slice(0, 0), plain]), 1)
    assert (index, [b.num_rows for b in batches]) == (1, [1])


def test_what_a_task_tells_of_its_failure_is_found_in_the_text_of_an_error_of_spark() -> None:
    cause = OperatorFailure("doubled", 2, ValueError('bad "row"\nof two lines'))
    text = f"Job aborted\n  TaskFailedError: {TaskFailedError(FAILURE + json.dumps(failure_report(cause)))}\n"
    found = failure_in(text + "\tat org.apache.spark")
    assert found is not None
    assert (found.message, found.operator, found.subtask) == ('ValueError: bad "row"\nof two lines', "doubled", 2)
    assert "ValueError" in (found.traceback or "")
    assert failure_in("java.lang.OutOfMemoryError") is None


SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def test_written_rows_are_read_as_splits_and_go_on_from_a_position(tmp_path: Path) -> None:
    """S4.2."""
    task = WriteTask(str(tmp_path / "files"), {}, SCHEMA, "source 'x'")
    batch = pa.record_batch([pa.array([1, 2, 3], pa.int32()), pa.array(["a", "b", None])], names=["id", "name"])
    written = task.write([batch, batch.slice(0, 0), batch], "part-0.parquet")
    assert written is not None and written["rows"] == 6
    assert task.write([batch.slice(0, 0)], "part-1.parquet") is None
    splits = splits_of_files([str(tmp_path / "files" / "part-0.parquet")], SCHEMA, {}, 2)
    source = SparkFrame(lambda spark: spark.table("x"), schema=SCHEMA)
    reader = source.create_reader(SourceContext("x", 0, 1))
    reader.add_splits(splits)
    first = reader.poll(0).batch
    assert first is not None and first.schema.equals(SCHEMA) and first["id"].to_pylist()[:3] == [1, 2, 3]
    again = source.create_reader(SourceContext("x", 0, 1))
    again.add_splits(reader.snapshot())
    assert again.poll(0).state == "end"
    assert source.unavailable_splits(splits) == []
    (tmp_path / "files" / "part-0.parquet").unlink()
    assert [split_id for split_id, _ in source.unavailable_splits(splits)] == [splits[0].split_id]


def test_a_frame_without_rows_has_no_splits() -> None:
    assert splits_of_files([], SCHEMA, {}, 2) == []
    reader = SparkFrame(lambda spark: spark.table("x"), schema=SCHEMA).create_reader(SourceContext("x", 0, 1))
    reader.add_splits([])
    assert reader.poll(0).state == "end"


def test_a_column_that_is_not_as_declared_is_refused_by_name(tmp_path: Path) -> None:
    task = WriteTask(str(tmp_path), {}, SCHEMA, "source 'x'")
    batch = pa.record_batch([pa.array(["one"]), pa.array(["a"])], names=["id", "name"])
    with pytest.raises(PipelineError, match="column 'id' of the DataFrame cannot be converted to int64"):
        task.write([batch], "f.parquet")


@pytest.mark.parametrize(
    "make",
    [
        lambda: SparkTable(schema=SCHEMA),
        lambda: SparkTable("a", format="orc", schema=SCHEMA),
        lambda: SparkFrame("a table", schema=SCHEMA),  # type: ignore[arg-type]
        lambda: SparkFrame(print, schema=["id"]),  # type: ignore[arg-type]
        lambda: SparkTable(format="jdbc", options={"password": "x"}, schema=SCHEMA),
        lambda: SparkWriter(format="orc", mode="upsert"),  # type: ignore[arg-type]
        lambda: SparkWriter(format="orc", path="/a", table="b"),
    ],
)
def test_wrong_arguments_are_refused_at_once(make: Any) -> None:
    with pytest.raises(OptionError):
        make()


def test_a_writer_of_spark_stages_a_file_for_each_subtask_and_refuses_streaming(tmp_path: Path) -> None:
    sink = SparkWriter(format="parquet", path=str(tmp_path / "out"))
    sink.check(SCHEMA)
    with pytest.raises(PipelineError, match="no type for column 'u'"):
        sink.check(pa.schema([("u", pa.uint64())]))
    place = {"job_id": "j", "lineage": "l", "uid": "a/b", "subtask": 1, "parallelism": 2, "generation": 1}
    batch = pa.record_batch([pa.array([1]), pa.array(["a"])], schema=SCHEMA)
    staged = SinkContext(**place, run_id="r", schema=SCHEMA, staging=(str(tmp_path / "chk"), {}))  # type: ignore[arg-type]
    writer = sink.create_writer(staged)
    writer.write(batch)
    (handle,) = writer.prepare_commit(1)()
    assert pq.read_table(handle.data["url"]).to_pylist() == [{"id": 1, "name": "a"}]
    assert not (tmp_path / "out").exists()
    streaming = SinkContext(**place, run_id="r", schema=SCHEMA)  # type: ignore[arg-type]
    with pytest.raises(TidegateError, match="batch mode only"):
        sink.create_writer(streaming).write(batch)


@pytest.mark.parametrize(
    ("columns", "partition_by", "why"),
    [
        ([("a", pa.int64()), ("A", pa.int64())], (), "columns 'a', 'A' have the same name in Spark"),
        ([("a", pa.int64())], ("a",), "names all columns"),
        ([("a", pa.null())], (), "no type for column 'a'"),
    ],
)
def test_what_spark_could_not_write_is_refused_before_the_job_runs(columns: Any, partition_by: Any, why: str) -> None:
    sink = SparkWriter(format="parquet", path="/nowhere", partition_by=partition_by)
    with pytest.raises(PipelineError, match=why):
        sink.check(pa.schema(columns))


def test_a_commit_of_spark_that_has_ended_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S7.4: "append" would write the rows again."""
    written: list[Any] = []
    monkeypatch.setattr(SparkWriter, "publish", lambda _, rows: written.append(rows.files))
    place = {"job_id": "j", "lineage": "l", "uid": "out", "subtask": 0, "parallelism": 1, "generation": 1}
    staging = (str(tmp_path / "chk"), {})
    sink = SparkWriter(format="parquet", path=str(tmp_path / "out"), mode="append")
    staged = sink.create_writer(SinkContext(**place, run_id="r", schema=SCHEMA, staging=staging))  # type: ignore[arg-type]
    handles = staged.prepare_commit(1)()
    for _ in range(2):
        sink.create_writer(SinkContext(**place, run_id="r~", schema=SCHEMA)).commit(handles)  # type: ignore[arg-type]
    assert len(written) == 1


def test_batch_mode_takes_dynamic_allocation_and_keeps_the_partitions_it_asks_for() -> None:
    options = JobOptions(execution_mode="batch")
    conf = {"spark.dynamicAllocation.enabled": "true", "spark.sql.adaptive.enabled": "true"}
    spec = submission(job_id="j", master="local[2]", spark_conf=conf)
    settings = spark_settings(spec, options)
    assert settings["spark.sql.adaptive.enabled"] == "false"
    assert settings["spark.dynamicAllocation.enabled"] == "true"
    assert "spark.task.maxFailures" not in settings
