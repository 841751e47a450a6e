"""Tables of the Iceberg sink: columns, partitions, properties, and what is refused when the pipeline is built."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from iceberg_tables import TABLE, opened, rows_of, sqlite_catalog
from pyiceberg.catalog import Catalog
from pyiceberg.conversions import from_bytes
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, VoidTransform, parse_transform
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

from tidegate.change_rows import change_kind_field
from tidegate.connectors.iceberg.iceberg_sink import Iceberg
from tidegate.connectors.iceberg.table_partitions import PartitionTerm
from tidegate.connectors.transactions import SinkContext
from tidegate.errors import DataError, OptionError, PipelineError, TidegateError

LINEAGES = iter(range(1_000_000))


class Warehouse:
    """A catalog, and jobs that write to `TABLE` once each."""

    def __init__(self, folder: Path) -> None:
        self.properties = sqlite_catalog(folder)
        self.catalog: Catalog = opened(self.properties)

    @property
    def table(self) -> Table:
        return self.catalog.load_table(TABLE)

    def sink(self, **options: Any) -> Iceberg:
        return Iceberg(TABLE, catalog=self.properties, **options)

    def write(self, *batches: pa.RecordBatch, **options: Any) -> Table:
        """Write batches of one schema in one transaction, as a new job."""
        sink = self.sink(**{"create": True, **options})
        sink.check(batches[0].schema)
        writer = sink.create_writer(context(batches[0].schema))
        for batch in batches:
            writer.write(batch)
        writer.commit(through_json(writer.prepare_commit(1)()))
        writer.close()
        return self.table

    def read(self, *columns: str) -> list[dict[str, Any]]:
        rows: pa.Table = self.table.scan(selected_fields=columns or ("*",)).to_arrow()
        return rows.to_pylist()


def through_json(handles: Any) -> Any:
    return [type(h)(h.transaction_id, json.loads(json.dumps(dict(h.data)))) for h in handles]


def context(schema: pa.Schema) -> SinkContext:
    return SinkContext("job-1", f"lineage-{next(LINEAGES)}", "out", 0, 1, 1, "run-1", schema)


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)


@pytest.fixture
def warehouse(tmp_path: Path) -> Iterator[Warehouse]:
    made = Warehouse(tmp_path)
    yield made
    made.catalog.close()


EVERY_TYPE: Mapping[str, tuple[pa.Array, Any, str]] = {
    "bool": (pa.array([True]), True, "boolean"),
    "int8": (pa.array([-3], pa.int8()), -3, "int"),
    "uint16": (pa.array([65_535], pa.uint16()), 65_535, "int"),
    "uint32": (pa.array([2**32 - 1], pa.uint32()), 2**32 - 1, "long"),
    "int64": (pa.array([2**60]), 2**60, "long"),
    "float": (pa.array([0.5], pa.float32()), 0.5, "float"),
    "double": (pa.array([0.1]), 0.1, "double"),
    "decimal": (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), Decimal("1.25"), "decimal(9, 2)"),
    "string": (pa.array(["é"]), "é", "string"),
    "large": (pa.array(["x"], pa.large_string()), "x", "string"),
    "binary": (pa.array([b"\0x"]), b"\0x", "binary"),
    "fixed": (pa.array([b"abc"], pa.binary(3)), b"abc", "fixed[3]"),
    "date": (pa.array([date(1969, 12, 31)]), date(1969, 12, 31), "date"),
    "time": (pa.array([time(1, 2, 3)], pa.time32("s")), time(1, 2, 3), "time"),
    "seconds": (pa.array([datetime(2026, 1, 2)], pa.timestamp("s")), datetime(2026, 1, 2), "timestamp"),
    "zoned": (
        pa.array([datetime(2026, 1, 2, tzinfo=UTC)], pa.timestamp("us", "Europe/Berlin")),
        datetime(2026, 1, 2, tzinfo=UTC),
        "timestamptz",
    ),
    "list": (pa.array([[1, None]]), [1, None], "list<long>"),
    "struct": (pa.array([{"a": 1, "b": "x"}]), {"a": 1, "b": "x"}, "struct<"),
    "map": (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64())), [("k", 1)], "map<string, long>"),
}


@pytest.mark.parametrize("name", EVERY_TYPE)
def test_values_of_every_type_come_back_unchanged_and_null(warehouse: Warehouse, name: str) -> None:
    values, expected, kind = EVERY_TYPE[name]
    rows = batch(v=pa.concat_arrays([values, pa.nulls(1, values.type)]), n=pa.array([0, 1]))
    table = warehouse.write(rows)
    assert str(table.schema().find_field("v").field_type).startswith(kind)
    assert [row["v"] for row in warehouse.read()] == [expected, None]


def test_a_dictionary_is_stored_as_its_values(warehouse: Warehouse) -> None:
    warehouse.write(batch(v=pa.array(["x", "y", "x"]).dictionary_encode()))
    assert [row["v"] for row in warehouse.read()] == ["x", "y", "x"]


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ns"), pa.time64("ns"), pa.uint64(), pa.duration("s"), pa.null(), pa.decimal256(50, 2)]
)
def test_types_that_iceberg_lacks_are_refused_by_name(warehouse: Warehouse, kind: pa.DataType) -> None:
    with pytest.raises(PipelineError, match="column 'v': Iceberg has no type"):
        warehouse.sink(create=True).check(pa.schema([("v", kind)]))


def test_metrics_are_in_the_manifest_and_files_are_not_read_again(warehouse: Warehouse) -> None:
    table = warehouse.write(batch(n=pa.array([3, 1, None, 2]), s=pa.array(["b", "a", None, "c" * 40])))
    (task,) = table.scan().plan_files()
    n, s = (table.schema().find_field(name).field_id for name in ("n", "s"))
    file = task.file
    assert (file.record_count, file.value_counts[n], file.null_value_counts[n]) == (4, 4, 1)
    assert from_bytes(LongType(), file.lower_bounds[n]) == 1 and from_bytes(LongType(), file.upper_bounds[n]) == 3
    assert from_bytes(StringType(), file.upper_bounds[s]) == "c" * 15 + "d", "truncate(16), the default"
    assert list(table.scan(row_filter="n > 7").plan_files()) == []
    footer = pq.read_metadata(file.file_path.removeprefix("file://"))
    assert file.split_offsets and sum(file.column_sizes.values()) < file.file_size_in_bytes
    assert footer.row_group(0).column(0).compression == "ZSTD"


def test_properties_of_the_table_are_respected(warehouse: Warehouse) -> None:
    properties = {
        "write.parquet.compression-codec": "snappy",
        "write.metadata.metrics.default": "counts",
        "write.object-storage.enabled": "true",
        "write.target-file-size-bytes": "1",
    }
    rows = batch(n=pa.array(range(200_000)))
    table = warehouse.write(rows, rows, properties=properties)
    tasks = list(table.scan().plan_files())
    assert len(tasks) == 2, "a file ends at the target size"
    for task in tasks:
        path = task.file.file_path.removeprefix("file://")
        assert pq.read_metadata(path).row_group(0).column(0).compression == "SNAPPY"
        assert task.file.lower_bounds == {} and task.file.value_counts == {1: 200_000}
        assert "/data/" in path and len(Path(path).relative_to(warehouse.table.location()[7:]).parts) > 3


def test_rows_of_a_group_have_the_tables_sort_order(warehouse: Warehouse) -> None:
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "s", StringType()))
    order = SortOrder(SortField(1, IdentityTransform()))
    warehouse.catalog.create_table(TABLE, schema, sort_order=order)
    warehouse.write(batch(n=pa.array([3, 1, 2]), s=pa.array(["c", "a", "b"])))
    (task,) = warehouse.table.scan().plan_files()
    assert pq.read_table(task.file.file_path.removeprefix("file://"))["n"].to_pylist() == [1, 2, 3]
    assert task.file.sort_order_id is None


def test_names_that_avro_does_not_accept_are_kept(warehouse: Warehouse) -> None:
    schema = Schema(NestedField(1, "1 n", LongType()), NestedField(2, "é-s", StringType()))
    order = SortOrder(SortField(1, IdentityTransform()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
    warehouse.catalog.create_table(TABLE, schema, sort_order=order, partition_spec=spec)
    warehouse.write(batch(**{"1 n": pa.array([3, 1]), "é-s": pa.array(["a", "a"])}))
    assert warehouse.read() == [{"1 n": 1, "é-s": "a"}, {"1 n": 3, "é-s": "a"}]


# ------------------------------------------------------------ existing tables


def test_columns_are_matched_by_name_and_missing_ones_are_null(warehouse: Warehouse) -> None:
    warehouse.write(batch(a=pa.array([1]), b=pa.array(["x"])))
    warehouse.write(batch(b=pa.array(["y"]), a=pa.array([2], pa.int8())))
    warehouse.write(batch(a=pa.array([3])))
    rows = sorted(warehouse.read(), key=lambda row: row["a"])
    assert rows == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": None}]


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"a": pa.array(["x"])}, "type string does not fit long"),
        ({"t": pa.array([datetime(2026, 1, 1, tzinfo=UTC)])}, "with a time zone, the table has timestamp"),
        ({"a": pa.array([1]), "c": pa.array([1])}, "the table has no column 'c'; its columns are a, t"),
    ],
)
def test_what_a_table_cannot_store_is_refused_by_name(warehouse: Warehouse, columns: Any, why: str) -> None:
    warehouse.write(batch(a=pa.array([1]), t=pa.array([datetime(2026, 1, 1)])))
    with pytest.raises(PipelineError, match=why):
        warehouse.sink().check(batch(**columns).schema)


def test_all_problems_are_in_one_error(warehouse: Warehouse) -> None:
    warehouse.catalog.create_table(
        TABLE, Schema(NestedField(1, "n", LongType(), required=True), NestedField(2, "t", TimestampType()))
    )
    with pytest.raises(PipelineError, match="for 3 reasons.*no column 'x'.*'n' of the table is required") as caught:
        warehouse.sink().check(pa.schema([("x", pa.int64()), ("t", pa.timestamp("ns"))]))
    assert "'t': Iceberg has no type for timestamp[ns]" in str(caught.value)


def test_new_columns_are_added_if_the_sink_may(warehouse: Warehouse) -> None:
    warehouse.write(batch(a=pa.array([1])))
    rows = batch(a=pa.array([2]), b=pa.array(["x"]), s=pa.array([{"i": 1}]))
    warehouse.sink(evolve="add_columns").check(rows.schema)
    assert warehouse.table.schema().column_names == ["a"], "a check changes nothing"
    warehouse.write(rows, evolve="add_columns")
    assert sorted(warehouse.read(), key=lambda row: row["a"]) == [
        {"a": 1, "b": None, "s": None},
        {"a": 2, "b": "x", "s": {"i": 1}},
    ]


def test_nulls_in_a_required_column_are_refused_before_anything_is_published(warehouse: Warehouse) -> None:
    warehouse.catalog.create_table(TABLE, Schema(NestedField(1, "n", LongType(), required=True)))
    warehouse.write(batch(n=pa.array([1])))
    with pytest.raises(DataError, match="2 rows have null in column 'n'"):
        warehouse.write(batch(n=pa.array([2, None, None])))
    assert rows_of(warehouse.catalog) == [1]


def test_a_value_outside_the_range_of_its_type_is_refused(warehouse: Warehouse) -> None:
    far = pa.array([2**62], pa.int64()).cast(pa.timestamp("ms"))
    with pytest.raises(DataError, match="column 't' cannot be stored as timestamp"):
        warehouse.write(batch(t=far))


def test_tables_that_pyiceberg_cannot_write_are_refused(warehouse: Warehouse) -> None:
    schema = Schema(NestedField(1, "n", LongType()))
    warehouse.catalog.create_table(TABLE, schema, properties={"write.format.default": "orc"})
    with pytest.raises(PipelineError, match="not written as Parquet.*orc"):
        warehouse.sink().check(pa.schema([("n", pa.int64())]))


def test_a_newer_format_version_is_refused(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse.write(batch(n=pa.array([1])))
    monkeypatch.setattr(Table, "format_version", property(lambda _: 3))
    with pytest.raises(PipelineError, match="format version 3"):
        warehouse.sink().check(pa.schema([("n", pa.int64())]))


def test_format_version_1_is_written_and_rewound(warehouse: Warehouse) -> None:
    schema = Schema(NestedField(1, "n", LongType()))
    warehouse.catalog.create_table(TABLE, schema, properties={"format-version": "1"})
    rows = batch(n=pa.array([1]))
    ctx = context(rows.schema)
    writer = warehouse.sink().create_writer(ctx)
    writer.write(rows)
    writer.commit(through_json(writer.prepare_commit(2)()))
    assert rows_of(warehouse.catalog) == [1]
    warehouse.sink().rewind_to(ctx, 1)()
    assert rows_of(warehouse.catalog) == []


def test_a_missing_table_or_namespace_is_an_error_with_a_remedy(warehouse: Warehouse) -> None:
    schema = pa.schema([("n", pa.int64())])
    with pytest.raises(PipelineError, match="create=True"):
        warehouse.sink().check(schema)
    with pytest.raises(PipelineError, match="namespace"):
        Iceberg("other.numbers", catalog=warehouse.properties, create=True).check(schema)


def test_change_rows_are_refused_with_the_reason(warehouse: Warehouse) -> None:
    with pytest.raises(PipelineError, match="cannot apply change rows.*changes_as_rows"):
        warehouse.sink(create=True).check(pa.schema([("n", pa.int64()), change_kind_field()]))


def test_existing_rows_are_refused_or_kept(warehouse: Warehouse) -> None:
    schema = pa.schema([("n", pa.int64())])
    strict = warehouse.sink(if_exists="error")
    strict.check_fresh_start(context(schema))
    warehouse.write(batch(n=pa.array([1])))
    with pytest.raises(PipelineError, match="already holds rows"):
        strict.check_fresh_start(context(schema))
    warehouse.sink().check_fresh_start(context(schema))
    own = context(schema)
    warehouse.table.delete("n = 1")
    strict.check_fresh_start(own)
    assert strict.existing_output() == "refuses the start if there are rows (if_exists=error)"
    assert warehouse.sink().existing_output() == "keeps the rows that are there (if_exists=default)"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"evolve": "yes"}, "evolve='yes'"),
        ({"if_exists": "overwrite"}, "if_exists='overwrite'"),
        ({"partition_by": "week(t)"}, "'week\\(t\\)' is not a partition term"),
        ({"partition_by": "bucket(t)"}, "not a partition term"),
        ({"partition_by": ["a", "a"]}, "repeated"),
        ({"catalog": {}}, "catalog is empty"),
        ({"catalog": {"type": "sql", "uri": "sqlite:///catalog.db"}}, "is relative"),
        ({"catalog": {"type": "rest", "credential": "id:hush"}}, "plain text"),
        ({"catalog": {"s3.secret-access-key": "hush"}}, "plain text"),
    ],
)
def test_a_wrong_option_is_an_error_at_once(options: dict[str, Any], what: str) -> None:
    with pytest.raises(OptionError, match=what):
        Iceberg(TABLE, **{"catalog": {"type": "sql"}, **options})
    with pytest.raises(OptionError, match="not the name"):
        Iceberg("numbers", catalog={"type": "sql"})


def test_the_identity_is_the_place_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = {"type": "sql", "uri": "secret:env/CATALOG_URI"}
    assert str(Iceberg(TABLE, catalog=catalog).identity()) == "Iceberg('secret:env/CATALOG_URI', 'shop.numbers')"
    branch = Iceberg(TABLE, catalog={"uri": "https://me@catalog/"}, branch="audit")
    assert branch.identity().place == ("https://catalog/", "shop.numbers", "audit")


def test_errors_show_no_secret(warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CATALOG_URI", "postgresql+psycopg://etl:hushhush@127.0.0.1:1/none")
    sink = Iceberg(TABLE, catalog={"type": "sql", "uri": "secret:env/CATALOG_URI", "warehouse": "file:///nowhere"})
    with pytest.raises(TidegateError) as caught:
        sink.check(pa.schema([("n", pa.int64())]))
    assert "hushhush" not in str(caught.value) and "secret:env/CATALOG_URI" in str(caught.value)


# ------------------------------------------------------------ partitions

MOMENTS = [datetime(1969, 12, 31, 23), datetime(1970, 1, 1), datetime(2026, 11, 28, 3, 4), None]
PARTITIONED: Mapping[str, tuple[pa.Array, str, list[Any]]] = {
    "year": (pa.array(MOMENTS, pa.timestamp("us")), "year(v)", [-1, 0, 56, None]),
    "month": (pa.array(MOMENTS, pa.timestamp("us")), "month(v)", [-1, 0, 682, None]),
    "day": (pa.array(MOMENTS, pa.timestamp("us")), "days(v)", [-1, 0, 20785, None]),
    "hour": (pa.array(MOMENTS, pa.timestamp("us")), "hour(v)", [-1, 0, 498843, None]),
    "day of a zone": (pa.array([MOMENTS[2]], pa.timestamp("us", "UTC")), "day(v)", [20785]),
    "day of a date": (pa.array([date(1969, 12, 31), date(2026, 11, 28)]), "day(v)", [-1, 20785]),
    "month of a date": (pa.array([date(1969, 12, 31), date(2026, 11, 28)]), "month(v)", [-1, 682]),
    "identity of a date": (pa.array([date(1970, 1, 3), None]), "v", [2, None]),
    "identity of a decimal": (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), "identity(v)", [Decimal("1.25")]),
    "identity of a bool": (pa.array([True, False]), "v", [True, False]),
    "identity of text": (pa.array(["a/b", "", None]), "v", ["a/b", "", None]),
    "truncated text": (pa.array(["abcdef", "abx", None]), "truncate(2, v)", ["ab", None]),
    "truncated numbers": (pa.array([17, -1]), "truncate(10, v)", [10, -10]),
    "binary": (pa.array([b"ab"]), "v", [b"ab"]),
}


@pytest.mark.parametrize("name", PARTITIONED)
def test_files_are_in_the_partition_of_their_rows(warehouse: Warehouse, name: str) -> None:
    values, term, expected = PARTITIONED[name]
    table = warehouse.write(batch(v=values, n=pa.array(range(len(values)))), partition_by=term)
    found = [task.file.partition[0] for task in table.scan().plan_files()]
    assert sorted(found, key=repr) == sorted(expected, key=repr)
    assert sorted(row["n"] for row in warehouse.read("n")) == list(range(len(values)))
    again = PartitionTerm.parse(term)
    assert table.spec().fields[0].name == again.name and str(table.spec().fields[0].transform) == again.notation


def test_buckets_are_those_of_the_specification(warehouse: Warehouse) -> None:
    """Appendix B of the specification has these hashes."""
    transform = parse_transform("bucket[2147483647]").transform(LongType())
    assert transform(34) == 2017239379
    values = pa.array([34, 35, None, 34])
    table = warehouse.write(batch(v=values, day=pa.array(["a", "b", "a", "b"])), partition_by=["bucket(16, v)", "day"])
    found = sorted(
        ((tuple(t.file.partition[n] for n in range(2)), t.file.record_count) for t in table.scan().plan_files()),
        key=repr,
    )
    bucket = parse_transform("bucket[16]").transform(LongType())
    expected = [(bucket(34), "a"), (bucket(35), "b"), (None, "a"), (bucket(34), "b")]
    assert found == sorted((((key), 1) for key in expected), key=repr)
    assert len(list(table.scan(row_filter="v == 35").plan_files())) == 1


def test_partition_terms_must_fit_columns_and_table(warehouse: Warehouse) -> None:
    schema = pa.schema([("t", pa.timestamp("us")), ("n", pa.int64())])
    for term, why in (("day(x)", "does not exist"), ("day(n)", "does not apply to a column of type long")):
        with pytest.raises(PipelineError, match=why):
            warehouse.sink(create=True, partition_by=term).check(schema)
    warehouse.write(batch(t=pa.array([datetime(2026, 1, 1)]), n=pa.array([1])), partition_by=["day(t)", "bucket(4, n)"])
    warehouse.sink(partition_by=["day(t)", "bucket(4, n)"]).check(schema)
    warehouse.sink().check(schema)
    with pytest.raises(PipelineError, match=r"partitioned differently.*\['day\(t\)', 'bucket\(4, n\)'\]"):
        warehouse.sink(partition_by="hour(t)").check(schema)


def test_a_transaction_from_before_a_change_of_the_partitioning_is_committed(warehouse: Warehouse) -> None:
    """Its files keep the partitioning for which they were written; later files have the new one."""
    rows = batch(n=pa.array([1, 2, 3]), s=pa.array(["a", "b", "a"]))
    ctx = context(rows.schema)
    first = warehouse.sink(create=True, partition_by="s").create_writer(ctx)
    first.write(rows)
    old = through_json(first.prepare_commit(1)())
    with warehouse.table.update_spec() as update:
        update.remove_field("s")
        update.add_field("n", parse_transform("bucket[2]"), "n_bucket")
    second = warehouse.sink().create_writer(replace(ctx, run_id="run-2"))
    second.write(rows)
    new = through_json(second.prepare_commit(2)())
    second.commit(old)
    second.commit(new)
    assert rows_of(warehouse.catalog) == [1, 1, 2, 2, 3, 3]
    assert {task.file.spec_id for task in warehouse.table.scan().plan_files()} == {0, 1}
    assert len(list(warehouse.table.scan(row_filter="s == 'b'").plan_files())) < 4


def test_a_removed_partition_field_of_a_version_1_table_is_null(warehouse: Warehouse) -> None:
    schema = Schema(NestedField(1, "n", LongType()), NestedField(2, "s", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, VoidTransform(), "s"))
    warehouse.catalog.create_table(TABLE, schema, partition_spec=spec)
    warehouse.write(batch(n=pa.array([1]), s=pa.array(["a"])))
    assert rows_of(warehouse.catalog) == [1]
