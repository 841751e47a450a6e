"""The Delta sink's tables: types, partitions, statistics, and what is refused before the start."""

from __future__ import annotations

import builtins
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Schema
from deltalake.schema import Field, PrimitiveType

from tidegate.change_rows import change_kind_field
from tidegate.connectors.delta.delta_log import DeltaLog, log_options
from tidegate.connectors.delta.delta_sink import Delta
from tidegate.connectors.files.sink import file_writer
from tidegate.connectors.files.sink.hive_partitions import MAX_FOLDER_CHARACTERS, by_partition
from tidegate.connectors.interface import SinkWriter
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import MissingExtraError, OptionError, PipelineError
from tidegate.testing.one_sink_job import TestWriter

SCHEMA = TestWriter.schema


def context(schema: pa.Schema) -> SinkContext:
    return SinkContext("job-1", "lineage-1", "out", 0, 1, 1, "run-1", schema)


def write(folder: Path, table: pa.Table, **options: Any) -> SinkWriter:
    """All batches of the table as one committed transaction, into a table that then takes more of them."""
    sink = Delta(folder, **options)
    sink.check(table.schema)
    writer = sink.create_writer(context(table.schema))
    for batch in table.to_batches():
        writer.write(batch)
    writer.commit(writer.prepare_commit(1)())
    sink.check(table.schema)
    return writer


def add_actions(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "_delta_log" / f"{1:020}.json").read_text().splitlines()
    return [entry["add"] for entry in map(json.loads, lines) if "add" in entry]


def test_types_that_delta_stores_otherwise_keep_their_values(tmp_path: Path) -> None:
    moment = datetime(2024, 5, 1, 12, 30, 0, 123000, tzinfo=UTC)
    table = pa.table(
        {
            "at_ms": pa.array([moment], pa.timestamp("ms", "UTC")),
            "at_paris": pa.array([moment], pa.timestamp("us", "Europe/Paris")),
            "at_s": pa.array([datetime(2024, 5, 1)], pa.timestamp("s")),
            "word": pa.array(["a"]).dictionary_encode(),
            "long": pa.array(["b"], pa.large_string()),
            "four": pa.array([b"abcd"], pa.binary(4)),
            "nested": pa.array([[{"x": [1, None]}]]),
            "pairs": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
            "price": pa.array([1], pa.decimal128(12, 2)),
        }
    )
    write(tmp_path, table)
    stored = DeltaTable(tmp_path).to_pyarrow_table()
    assert stored.schema.field("at_ms").type == pa.timestamp("us", "UTC")
    (found,), (given,) = stored.to_pylist(), table.to_pylist()
    assert found == {**given, "at_paris": moment}


LOCAL = pa.timestamp("us")
HIDDEN = [
    pa.map_(pa.string(), LOCAL),
    pa.map_(pa.string(), pa.list_(pa.struct([("t", LOCAL)]))),
    pa.struct([("m", pa.map_(pa.string(), LOCAL))]),
]


@pytest.mark.parametrize("kind", HIDDEN, ids=str)
def test_a_table_that_no_reader_could_open_is_not_created(tmp_path: Path, kind: pa.DataType) -> None:
    """delta-rs does not find a timestamp without zone in a map, so it does not declare the table's feature."""
    schema = pa.schema([("n", pa.int64()), ("hidden", kind)])
    with pytest.raises(PipelineError, match="cannot be created.*only inside maps.*'hidden'"):
        Delta(tmp_path).check(schema)
    writer = Delta(tmp_path).create_writer(context(schema))
    writer.write(pa.record_batch([[1], pa.nulls(1, kind)], schema=schema))
    with pytest.raises(PipelineError, match="cannot be created"):
        writer.commit(writer.prepare_commit(1)())
    assert not (tmp_path / "_delta_log").exists()
    write(tmp_path / "shown", pa.table([[1], pa.nulls(1, kind), pa.nulls(1, LOCAL)], names=["n", "hidden", "shown"]))
    assert DeltaTable(tmp_path / "shown").to_pyarrow_table().num_rows == 1


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(LOCAL),
        pa.list_(pa.list_(LOCAL)),
        pa.list_(pa.struct([("t", LOCAL)])),
        pa.struct([("s", pa.struct([("t", LOCAL)]))]),
        pa.map_(pa.string(), pa.timestamp("us", "UTC")),
    ],
    ids=str,
)
def test_nested_timestamps_are_written(tmp_path: Path, kind: pa.DataType) -> None:
    write(tmp_path, pa.table([[1], pa.nulls(1, kind)], names=["n", "nested"]))
    assert DeltaTable(tmp_path).to_pyarrow_table().num_rows == 1


def test_rows_are_filed_by_partition_and_read_back_with_their_values(tmp_path: Path) -> None:
    table = pa.table(
        {
            "word": ["a", "b ü/=%", None, "a", "x" * 300, "b ü/=%"],
            "n": pa.array(range(6), pa.int64()),
            "on": [date(2024, 1, 1), None, date(2024, 1, 2), date(2024, 1, 1), None, None],
            "yes": [True, False, None, True, True, False],
            "k": pa.array([1, -2, None, 1, 3, -2], pa.int32()),
        }
    )
    by = ["word", "on", "yes", "k"]
    write(tmp_path, table, partition_by=by)
    read = DeltaTable(tmp_path).to_pyarrow_table().select(table.column_names)
    assert read.sort_by("n").to_pylist() == table.to_pylist()
    assert DeltaTable(tmp_path).to_pyarrow_table(filters=[("word", "=", "b ü/=%")])["n"].to_pylist() == [1, 5]
    folders = sorted(str(file.parent.relative_to(tmp_path)) for file in tmp_path.glob("word*/**/*.parquet"))
    assert len(folders) == 4
    assert "word=a/on=2024-01-01/yes=true/k=1" in folders
    assert "word=b%20%C3%BC%2F%3D%25/on=__HIVE_DEFAULT_PARTITION__/yes=false/k=-2" in folders
    assert all(len(part) <= MAX_FOLDER_CHARACTERS for folder in folders for part in folder.split("/"))
    assert {"word": "a", "on": "2024-01-01", "yes": "true", "k": "1"} in [
        add["partitionValues"] for add in add_actions(tmp_path)
    ]
    (one, *_) = tmp_path.glob("word=a/**/*.parquet")
    assert pq.read_schema(one).names == ["n"], "partition columns are in the log alone"


def test_rows_keep_their_order_within_a_partition_and_null_is_one() -> None:
    batch = pa.record_batch({"k": ["b", None, "a", "b", None], "n": pa.array(range(5))})
    parts = {values: rows["n"].to_pylist() for values, rows in by_partition(batch, ["k"])}
    assert parts == {("a",): [2], ("b",): [0, 3], (None,): [1, 4]}
    ((values, whole),) = by_partition(batch.slice(1, 1), ["k"])
    assert (values, whole.column_names, whole["n"].to_pylist()) == ((None,), ["n"], [1])


def test_more_partitions_than_files_may_be_open_are_written_completely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_writer, "OPEN_FILES", 3)
    monkeypatch.setattr(file_writer, "WAITING_BYTES", 100)
    table = pa.table({"k": [n % 7 for n in range(140)], "n": list(range(140))})
    write(tmp_path, pa.Table.from_batches(table.to_batches(max_chunksize=20)), partition_by="k", target_file_rows=6)
    read = DeltaTable(tmp_path).to_pyarrow_table().select(["k", "n"])
    assert read.sort_by("n").to_pylist() == table.to_pylist()


def test_statistics_tell_rows_nulls_and_bounds_but_nothing_that_misleads(tmp_path: Path) -> None:
    moments = [datetime(2024, 1, 1, 0, 0, 0, 1), datetime(2023, 1, 1), None]
    table = pa.table(
        {
            "n": pa.array([3, 1, None], pa.int64()),
            "f": [float("nan"), 1.0, 2.0],
            "short": ["b", "a", "b"],
            "long": ["x" * 40, "a", None],
            "on": [date(2024, 1, 2), date(2024, 1, 1), None],
            "utc": pa.array(moments, pa.timestamp("us", "UTC")),
            "local": pa.array(moments, pa.timestamp("us")),
            "nothing": pa.array([None, None, None], pa.int64()),
            "far": pa.array([2**62, 0, 1], pa.timestamp("us", "UTC")),
            "a.b": [1, 2, 3],
            "s": [{"x": 1}, {"x": 2}, None],
        }
    )
    write(tmp_path, table)
    (add,) = add_actions(tmp_path)
    assert json.loads(add["stats"]) == {
        "numRecords": 3,
        "nullCount": {
            **dict.fromkeys(["f", "short", "far"], 0),
            **dict.fromkeys(["n", "long", "on", "utc", "local"], 1),
            "nothing": 3,
        },
        "minValues": {
            "n": 1,
            "short": "a",
            "long": "a",
            "on": "2024-01-01",
            "utc": "2023-01-01T00:00:00.000000Z",
            "local": "2023-01-01T00:00:00.000000",
        },
        "maxValues": {
            "n": 3,
            "short": "b",
            "on": "2024-01-02",
            "utc": "2024-01-01T00:00:00.000001Z",
            "local": "2024-01-01T00:00:00.000001",
        },
    }


def test_readers_that_skip_files_by_statistics_find_every_row(tmp_path: Path) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    at = pc.add(pa.scalar(start, pa.timestamp("us", "UTC")), pa.array(range(30)).cast(pa.duration("us")))
    write(tmp_path, pa.table({"n": list(range(30)), "at": at, "s": [f"{n:02}" for n in range(30)]}), target_file_rows=1)
    table = DeltaTable(tmp_path)
    edge = at[7].as_py()
    for column, value in (("n", 7), ("at", edge), ("s", "07")):
        assert table.to_pyarrow_table(filters=[(column, "=", value)])["n"].to_pylist() == [7]
        assert sorted(table.to_pyarrow_table(filters=[(column, ">=", value)])["n"].to_pylist()) == list(range(7, 30))


def make_table(folder: Path, schema: pa.Schema = SCHEMA, **options: Any) -> DeltaTable:
    return DeltaTable.create(folder, schema=Schema.from_arrow(schema), **options)


def with_constraint(folder: Path) -> None:
    make_table(folder).alter.add_constraint({"positive": "n >= 0"})


def with_generated_column(folder: Path) -> None:
    field = Field("n", PrimitiveType("long"), metadata={"delta.invariants": '{"expression":{"expression":"n > 3"}}'})
    DeltaTable.create(folder, schema=Schema([field]))


def with_files(folder: Path) -> None:
    folder.mkdir()
    pq.write_table(pa.table({"n": [1]}), folder / "x.parquet")


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (lambda f: make_table(f, pa.schema([("n", pa.int32())])), "does not fit the records.*n: int32.*n: int64"),
        (lambda f: make_table(f, pa.schema([("m", pa.int64())])), "does not fit the records"),
        (
            lambda f: make_table(f, SCHEMA.append(pa.field("d", pa.string())), partition_by=["d"]),
            "other partition columns.*'d'",
        ),
        (lambda f: make_table(f, pa.schema([pa.field("n", pa.int64(), False)])), "must not be null"),
        (
            lambda f: make_table(f, SCHEMA.append(pa.field("m", pa.int64(), False))),
            "column 'm' of the Delta table must not be null",
        ),
        (with_constraint, "delta.constraints.positive"),
        (with_generated_column, "delta.invariants"),
        (
            lambda f: make_table(f, configuration={"delta.setTransactionRetentionDuration": "interval 1 day"}),
            "setTransactionRetentionDuration",
        ),
        (with_files, "not a Delta table"),
        (lambda f: f.write_text("x"), "is a file"),
    ],
)
def test_a_table_or_folder_that_cannot_be_appended_to_is_refused_with_its_path(
    tmp_path: Path, prepare: Callable[[Path], Any], said: str
) -> None:
    prepare(tmp_path / "out")
    with pytest.raises(PipelineError, match=said) as caught:
        Delta(tmp_path / "out").check(SCHEMA)
    assert str(tmp_path / "out") in str(caught.value)


def test_a_table_with_more_columns_in_another_order_takes_the_records(tmp_path: Path) -> None:
    make_table(tmp_path, pa.schema([("more", pa.string()), ("n", pa.int64())]))
    write(tmp_path, pa.table({"n": [1, 2]}))
    assert DeltaTable(tmp_path).to_pyarrow_table().to_pylist() == [{"more": None, "n": 1}, {"more": None, "n": 2}]


def test_a_table_that_changed_meanwhile_refuses_the_commit_and_keeps_what_is_staged(tmp_path: Path) -> None:
    """S7.4: loud, and nothing is lost: another schema between the check and the first commit."""
    sink = Delta(tmp_path / "out")
    sink.check(SCHEMA)
    writer = sink.create_writer(TestWriter().context())
    writer.write(pa.record_batch({"n": [1, 2]}))
    handles = writer.prepare_commit(1)()
    make_table(tmp_path / "out", pa.schema([("n", pa.string())]))
    with pytest.raises(PipelineError, match="does not fit the records"):
        writer.commit(handles)
    assert len(list((tmp_path / "out").rglob("*.staged"))) == 1


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (pa.field("odd", pa.uint16()), "'odd' of type uint16"),
        (pa.field("odd", pa.timestamp("ns")), "'odd' of type timestamp"),
        (pa.field("odd", pa.struct([("x", pa.time32("s"))])), "'odd' of type time32"),
        (pa.field("od d", pa.int64()), "'od d' is not a valid name"),
        (pa.field("N", pa.int64()), r"not unique.*\['N', 'n'\]"),
    ],
)
def test_a_column_that_delta_cannot_hold_is_refused_by_name(tmp_path: Path, field: pa.Field, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        Delta(tmp_path).check(SCHEMA.append(field))


@pytest.mark.parametrize(
    ("by", "said"),
    [
        ("x", "column 'x', which does not exist"),
        ("f", "'f' of type double"),
        (["n", "f"], "cannot be a partition column"),
    ],
)
def test_a_column_that_cannot_partition_is_refused_by_name(tmp_path: Path, by: str | list[str], said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        Delta(tmp_path, partition_by=by).check(SCHEMA.append(pa.field("f", pa.float64())))


def test_partitioning_by_every_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="every column"):
        Delta(tmp_path, partition_by="n").check(SCHEMA)


def test_change_rows_are_refused_because_the_sink_appends(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="cannot apply change rows.*'kind'"):
        Delta(tmp_path).check(SCHEMA.append(change_kind_field("kind")))


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any) -> Any:
        if name == "deltalake":
            raise ModuleNotFoundError("No module named 'deltalake'")
        return real(name, *args)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r"tidegate\[delta\]"):
        Delta(tmp_path).check(SCHEMA)


def test_a_bad_option_or_place_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="target_file_rows"):
        Delta(tmp_path, target_file_rows=0)
    with pytest.raises(OptionError, match="partition_by"):
        Delta(tmp_path, partition_by=["n", "n"])
    with pytest.raises(PipelineError, match="local folders and S3"):
        Delta("memory://x").check(SCHEMA)
    with pytest.raises(PipelineError, match="'requester_pays'"):
        Delta("s3://bucket/x", storage_options={"requester_pays": True}).check(SCHEMA)


def test_storage_options_are_said_in_the_words_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_TEST_KEY", "hidden")
    given = {
        "key": "me",
        "secret": "secret:env/TIDEGATE_TEST_KEY",
        "client_kwargs": {"endpoint_url": "http://127.0.0.1:1", "region_name": "eu-west-1"},
        "default_block_size": 1,
    }
    assert log_options("s3://bucket/x", given) == {
        "aws_conditional_put": "etag",
        "aws_access_key_id": "me",
        "aws_secret_access_key": "hidden",
        "aws_endpoint_url": "http://127.0.0.1:1",
        "aws_region": "eu-west-1",
        "aws_allow_http": "true",
    }
    assert log_options("/local", {"auto_mkdir": True}) == {}


def test_a_secret_is_never_described_nor_told_in_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_TEST_KEY", "hidden")
    options = {"secret": "secret:env/TIDEGATE_TEST_KEY"}
    assert "hidden" not in Delta("s3://bucket/x", storage_options=options).describe()
    log = DeltaLog("s3://bucket/x", "s3://bucket/x", log_options("s3://bucket/x", options), SCHEMA, [])
    error = OSError("denied\n  \x1b[31m↳\x1b[0m for hidden\n   0: <unknown>\n   1: x")
    assert log.error_text(error) == "denied ↳ for ***"
