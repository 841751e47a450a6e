"""Upserts and change rows in Delta and Iceberg tables: what readers see, whoever writes and whatever fails (S7.4)."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders.delta_tables import actions_of
from hypothesis import given, settings
from hypothesis import strategies as st
from iceberg_tables import delete_positions
from upserted_tables import CHANGES, KINDS, ROWS, Change, Upserted, UpsertedDelta, UpsertedIceberg

from tidegate.change_rows import change_kind_field
from tidegate.connectors import row_spool
from tidegate.connectors.delta import copy_on_write as delta_files
from tidegate.connectors.delta.delta_log import DeltaLog
from tidegate.connectors.delta.delta_sink import Delta
from tidegate.connectors.iceberg import copy_on_write as iceberg_files
from tidegate.connectors.iceberg import iceberg_upsert_writer
from tidegate.connectors.iceberg.iceberg_sink import Iceberg
from tidegate.connectors.leftovers import NeededTransactions
from tidegate.connectors.quarantine import Quarantine
from tidegate.connectors.upserts import staged_groups
from tidegate.connectors.upserts.key_set import KeySet
from tidegate.connectors.upserts.newest_rows import ChangeSpool
from tidegate.errors import DataError, OptionError, OutageError, PipelineError, SinkConflictError, TidegateError
from tidegate.jobs.history.verdicts import WithheldRange
from tidegate.jobs.stores.store_registry import open_store

Make = Callable[..., Upserted]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def made(schema: pa.Schema = CHANGES, **options: Any) -> Upserted:
        return KINDS[request.param](tmp_path, schema, **options)

    return made


def rows(*numbers: int, v: str = "new") -> list[Change]:
    return [("insert", n, f"shop {n % 3}", v) for n in numbers]


# ------------------------------------------------------------ rows


def test_the_last_row_of_a_key_wins_within_a_checkpoint_and_over_earlier_ones(make: Make) -> None:
    table = make()
    writer = table.writer()
    table.commit(writer, 1, ("insert", 1, "a", "x"), ("insert", 2, "a", "x"), ("update_after", 1, "b", "y"))
    assert table.rows() == [(1, "b", "y"), (2, "a", "x")]
    table.commit(writer, 2, ("update_before", 2, "a", "x"), ("update_after", 2, "a", "z"), ("insert", 3, "c", None))
    assert table.rows() == [(1, "b", "y"), (2, "a", "z"), (3, "c", None)]
    table.commit(writer, 3, ("delete", 1, None, None), ("update_before", 3, "c", None), ("update_after", 4, "c", "x"))
    assert table.rows() == [(2, "a", "z"), (4, "c", "x")], "the update has moved key 3 to key 4"
    table.commit(writer, 4, ("delete", 9, None, None), ("insert", 2, "a", "q"), ("delete", 2, None, None))
    assert table.rows() == [(4, "c", "x")]
    assert table.left_staged() == []


def test_plain_rows_are_upserts(make: Make) -> None:
    table = make(ROWS)
    writer = table.writer()
    table.commit(writer, 1, (1, "a", "x"), (2, "a", "x"))
    table.commit(writer, 2, (2, "b", "y"), (3, "b", "y"), (2, "b", "z"))
    assert table.rows() == [(1, "a", "x"), (2, "b", "z"), (3, "b", "y")]


def test_a_checkpoint_that_only_deletes_unknown_keys_is_recorded_and_changes_no_row(make: Make) -> None:
    table = make()
    writer = table.writer()
    handles = table.staged(writer, 1, ("delete", 1, None, None))
    writer.commit(handles)
    writer.commit(handles)
    assert table.rows() == []
    table.commit(writer, 2, *rows(1))
    writer.commit(handles)
    assert table.rows() == [(1, "shop 1", "new")], "the deletion is committed, and is not repeated"


def test_a_fresh_start_with_change_rows_needs_an_empty_table_unless_rows_are_to_stay(make: Make) -> None:
    table = make()
    ctx = replace(table.context(), lineage="other")
    table.sink().check_fresh_start(ctx)
    table.commit(table.writer(), 1, *rows(1))
    with pytest.raises(PipelineError, match="already holds rows.*Empty the target; or set if_exists="):
        table.sink().check_fresh_start(ctx)
    table.sink(if_exists="append").check_fresh_start(ctx)
    table.sink().check_fresh_start(replace(ctx, schema=ROWS))
    with pytest.raises(PipelineError, match="already holds rows"):
        table.sink(if_exists="error").check_fresh_start(replace(ctx, schema=ROWS))
    with pytest.raises(OptionError, match="if_exists='replace' is unknown"):
        table.sink(if_exists="replace")


def test_one_version_has_all_changes_of_a_checkpoint(make: Make) -> None:
    """Also when several files of the table, and several new ones, are affected."""
    table = make(target_file_size="1 KiB")
    writer = table.writer()
    for checkpoint_id in (1, 2, 3):
        table.commit(writer, checkpoint_id, *rows(*range(10 * checkpoint_id, 10 * checkpoint_id + 10)))
    before = table.versions()
    table.commit(writer, 4, *rows(11, 21, 31, v="changed"), ("delete", 12, None, None), *rows(99))
    assert table.versions() == before + 1
    found = {row[0]: row[2] for row in table.rows()}
    assert sorted(found) == sorted({*range(10, 40), 99} - {12})
    assert {n for n, v in found.items() if v == "changed"} == {11, 21, 31}


def test_a_row_moves_to_another_partition(make: Make) -> None:
    """The partition column is no part of the key, and null is a partition."""
    table = make(partition_by="shop")
    writer = table.writer()
    table.commit(writer, 1, ("insert", 1, "a/b %", "x"), ("insert", 2, None, "x"), ("insert", 3, "a/b %", "x"))
    table.commit(writer, 2, ("update_after", 1, None, "y"), ("update_after", 2, "a/b %", "y"))
    assert table.rows() == [(1, None, "y"), (2, "a/b %", "y"), (3, "a/b %", "x")]
    table.commit(writer, 3, ("delete", 3, None, None), ("delete", 2, None, None), ("delete", 1, None, None))
    assert table.rows() == []


def test_keys_of_several_columns_and_a_partition_column_in_the_key(make: Make) -> None:
    table = make(key=("shop", "k"), partition_by="shop")
    writer = table.writer()
    table.commit(writer, 1, *[("insert", k, shop, "x") for k in (1, 2) for shop in ("a", "b", "c d")])
    table.commit(writer, 2, ("delete", 1, "b", None), ("update_after", 2, "c d", "y"), ("insert", 2, "e", "y"))
    wanted = {(k, shop): "x" for k in (1, 2) for shop in ("a", "b", "c d")}
    del wanted[1, "b"]
    wanted |= {(2, "c d"): "y", (2, "e"): "y"}
    assert table.rows() == sorted(((*key, v) for key, v in wanted.items()), key=repr)


def test_delta_refuses_an_empty_text_in_a_partition_column(tmp_path: Path) -> None:
    """The log has the same text for it as for null, so that a key would never be found again."""
    for kind in (pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())):
        schema = pa.schema([change_kind_field(), ("k", kind), ("v", pa.int64())])
        writer = UpsertedDelta(tmp_path, schema, partition_by="k").writer()
        batch = pa.RecordBatch.from_arrays([["insert"] * 2, pa.array(["a", ""], kind), [1, 2]], schema=schema)
        with pytest.raises(DataError, match="1 rows have an empty text in partition column 'k'"):
            writer.write(batch)
    table = UpsertedDelta(tmp_path, partition_by="shop")
    writer = table.writer()
    with pytest.raises(DataError, match="partition column 'shop'"):
        writer.write(table.batch([("insert", 1, "", "x")]))
    table.commit(writer, 1, ("insert", 1, None, "x"), ("insert", 2, "a", ""), ("delete", 1, "", None))
    assert table.rows() == [(2, "a", "")], "the row of a deletion is not stored"
    appender = UpsertedDelta(tmp_path / "appended", ROWS, partition_by="shop", mode="append", key=()).writer()
    with pytest.raises(DataError, match="partition column 'shop'"):
        appender.write(pa.RecordBatch.from_arrays([[1], [""], ["x"]], schema=ROWS))


def test_iceberg_stores_an_empty_text_in_a_partition_column(tmp_path: Path) -> None:
    table = UpsertedIceberg(tmp_path, key=("shop", "k"), partition_by="shop")
    writer = table.writer()
    for checkpoint_id in (1, 2):
        table.commit(writer, checkpoint_id, ("insert", 1, "", f"{checkpoint_id}"))
    assert table.rows() == [(1, "", "2")]
    table.commit(writer, 3, ("delete", 1, "", None))
    assert table.rows() == []


FAR_DAYS = [2_932_897, -900_000, 0, 2_932_896]
"""Days since 1970-01-01 of years 10000, -495, 1970 and 9999: Python has no dates for the first two."""


def live_files(table: Upserted) -> list[str]:
    if isinstance(table, UpsertedDelta):
        return table.written.file_uris()
    assert isinstance(table, UpsertedIceberg)
    tasks = table.catalog.load_table(table.name).scan().plan_files()
    return [task.file.file_path.removeprefix("file://") for task in tasks]


def values(table: Upserted) -> list[int]:
    """Column `v` of the live files: delta-rs and Python cannot show the other columns."""
    return sorted(v for file in live_files(table) for v in pq.read_table(file, columns=["v"])["v"].to_pylist())


FAR_KINDS = (pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"))
FAR = [
    *((where, kind) for where in ("key", "value") for kind in FAR_KINDS),
    # Delta has no partitions of timestamps.
    ("partition", pa.date32()),
]


@pytest.mark.parametrize(("where", "kind"), FAR, ids=str)
def test_dates_and_times_outside_the_calendar_of_python(make: Make, kind: pa.DataType, where: str) -> None:
    number = pa.array(FAR_DAYS, pa.int32()) if pa.types.is_date(kind) else pa.array([d * 10**11 for d in FAR_DAYS])
    far, keys = number.cast(kind), pa.array(range(4), pa.int64())
    schema = pa.schema([change_kind_field(), ("k", kind if where == "key" else pa.int64()), ("v", pa.int64())])
    options = {}
    if where != "key":
        schema = schema.append(pa.field("at", kind))
        options = {"partition_by": "at"} if where == "partition" else {}
    table = make(schema, **options)
    writer = table.writer()

    def batch(v: int) -> pa.RecordBatch:
        columns = [["insert"] * 4, far if where == "key" else keys, [v] * 4, *([] if where == "key" else [far])]
        return pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=schema)

    if where == "partition" and isinstance(table, UpsertedIceberg):
        writer.write(batch(1))
        with pytest.raises(DataError, match="outside years 1 to 9999 in partition 'at'"):
            writer.prepare_commit(1)()
        return
    for checkpoint_id in (1, 2):
        writer.write(batch(checkpoint_id))
        writer.commit(writer.prepare_commit(checkpoint_id)())
    assert values(table) == [2] * 4
    writer.write(batch(3).slice(0, 1))
    writer.commit(writer.prepare_commit(3)())
    assert values(table) == [2, 2, 2, 3]
    table.rewind(1)()
    assert values(table) == [1] * 4


def test_far_dates_of_another_program_do_not_disturb_upserts_in_delta(tmp_path: Path) -> None:
    schema = pa.schema([change_kind_field(), ("k", pa.date32()), ("v", pa.int64()), ("p", pa.date32())])
    table = UpsertedDelta(tmp_path, schema, partition_by="p")
    writer = table.writer()
    table.commit(writer, 1, ("insert", date(2020, 1, 1), 1, None))
    far = pa.array(FAR_DAYS[:2], pa.int32()).cast(pa.date32())
    table.append(pa.table({"k": far, "v": [7, 8], "p": far}))
    table.commit(writer, 2, ("insert", date(2020, 1, 1), 2, None))
    assert values(table) == [2, 7, 8]
    writer.write(pa.RecordBatch.from_arrays([["delete"], far[:1], [0], pa.nulls(1, pa.date32())], schema=schema))
    writer.commit(writer.prepare_commit(3)())
    assert values(table) == [2, 8]


def test_a_key_with_a_dot_is_not_confused_with_a_field_of_a_structure(make: Make) -> None:
    schema = pa.schema([change_kind_field(), ("a.b", pa.int64()), ("a", pa.struct([("b", pa.int64())]))])
    table = make(schema, key="a.b")
    if isinstance(table, UpsertedIceberg):
        with pytest.raises(PipelineError, match="multiple fields for name a.b"):
            table.sink().check(schema)
        return
    writer = table.writer()
    for n in (1, 2):
        table.commit(writer, n, ("insert", 1, {"b": 100 * n}), ("insert", n + 10, {"b": n}))
    assert table.rows() == [(1, {"b": 200}), (11, {"b": 1}), (12, {"b": 2})]


def test_a_null_among_the_values_of_a_dictionary_is_no_key(make: Make) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema([change_kind_field(), ("k", kind), ("v", pa.int64())])
    keys = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), pa.array(["a", None]))
    with pytest.raises(DataError, match="1 rows have null in key column 'k'"):
        make(schema).writer().write(pa.RecordBatch.from_arrays([["insert"] * 2, keys, [1, 2]], schema=schema))


def test_partitions_with_long_texts(make: Make) -> None:
    """Names of folders are cut, and stay different."""
    table = make(partition_by="shop")
    writer = table.writer()
    long = ["ä" * 300 + end for end in "xy"]
    for v in "12":
        table.commit(writer, int(v), *(("insert", n, shop, v) for n, shop in enumerate(long)))
    assert table.rows() == [(0, long[0], "2"), (1, long[1], "2")]
    files = [file for file in table.folder.rglob("*.parquet") if "shop=" in str(file)]
    assert len({file.parent for file in files}) == 2


def test_a_key_of_partition_columns_alone_replaces_whole_partitions(make: Make) -> None:
    table = make(key="shop", partition_by="shop")
    writer = table.writer()
    table.commit(writer, 1, ("insert", 1, "a", "x"), ("insert", 2, "b", "x"))
    table.commit(writer, 2, ("insert", 3, "a", "y"), ("delete", 0, "b", None))
    assert table.rows() == [(3, "a", "y")]


def stored(table: Upserted) -> list[dict[str, Any]]:
    """The rows in the live data files, as any reader of Parquet sees them."""
    found = [row for file in live_files(table) for row in pq.read_table(file).to_pylist()]
    return sorted(found, key=lambda row: int(row["k"]))


def test_the_other_rows_of_a_rewritten_file_keep_their_values(make: Make) -> None:
    """Null and empty differ, at any depth."""
    item = pa.struct([("x", pa.int32())])
    kinds = [pa.list_(item), pa.map_(pa.string(), item), pa.list_(pa.list_(item)), pa.struct([("l", pa.list_(item))])]
    schema = pa.schema([change_kind_field(), ("k", pa.int64()), *((f"c{n}", kind) for n, kind in enumerate(kinds))])
    table = make(schema)
    writer = table.writer()
    table.commit(
        writer,
        1,
        ("insert", 1, None, None, None, None),
        ("insert", 2, [], [], [], {"l": None}),
        ("insert", 3, [{"x": 1}, None], [("a", None), ("b", {"x": None})], [None, [], [{"x": 2}]], {"l": []}),
        ("insert", 4, None, None, None, None),
    )
    before = stored(table)
    assert before[0] == {"k": 1, "c0": None, "c1": None, "c2": None, "c3": None}
    table.commit(writer, 2, ("delete", 4, None, None, None, None))
    assert len(table.rest_files()) == 1 and stored(table) == before[:3]


def test_rows_of_another_program_with_the_same_key_are_replaced_all(make: Make) -> None:
    """The table need not be unique by the key."""
    table = make()
    table.others((1, "a", "theirs"), (1, "b", "theirs"), (2, "a", "theirs"))
    table.others((1, "c", "theirs"), (None, None, "no key"))
    writer = table.writer()
    table.commit(writer, 1, ("update_after", 1, "a", "ours"))
    assert table.rows() == [(1, "a", "ours"), (2, "a", "theirs"), (None, None, "no key")]


NESTED = pa.schema(
    [
        pa.field("k", pa.decimal128(9, 2)),
        pa.field("tags", pa.list_(pa.string())),
        pa.field("place", pa.struct([("x", pa.int32()), ("names", pa.list_(pa.string()))])),
        pa.field("more", pa.map_(pa.string(), pa.int64())),
        pa.field("at", pa.timestamp("us", "UTC")),
        pa.field("raw", pa.binary()),
        pa.field("day", pa.date32()),
        pa.field("kind of shop", pa.dictionary(pa.int32(), pa.string())),
    ]
)


def test_rows_that_stay_keep_values_of_every_type(make: Make) -> None:
    names = ["kind" if name == "kind of shop" else name for name in NESTED.names]
    schema = pa.schema([field.with_name(name) for field, name in zip(NESTED, names, strict=True)])
    table = make(schema)

    def row(n: int) -> Change:
        place = {"x": n, "names": ["p", None]} if n % 2 else None
        moment = datetime(2026, 1, n, 1, 2, 3, 456789, UTC)
        return (Decimal(n) / 4, ["a", None, "b"], place, [("m", n)], moment, b"\0\1", date(2026, 1, n), "shop")

    writer = table.writer()
    table.commit(writer, 1, *[row(n) for n in range(1, 7)])
    before = {one["k"]: one for one in table.table().to_pylist()}
    changed = list(row(3))
    changed[1] = None
    table.commit(writer, 2, tuple(changed))
    after = {one["k"]: one for one in table.table().to_pylist()}
    assert len(table.rest_files()) == 1, "the other rows were written again"
    assert after.pop(Decimal("0.75"))["tags"] is None
    before.pop(Decimal("0.75"))
    assert after == before


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.string(), ["", "a", "ü"]),
        (pa.binary(), [b"", b"\0", b"a"]),
        (pa.bool_(), [True, False]),
        (pa.date32(), [date(1969, 12, 31), date(2026, 1, 1)]),
        (pa.timestamp("us", "UTC"), [datetime(1969, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, 1, 1, 999, UTC)]),
        (pa.int8(), [-128, 127]),
        (pa.dictionary(pa.int8(), pa.string()), ["x", "y"]),
        (pa.decimal128(38, 0), [Decimal(10) ** 37, Decimal(-1)]),
    ],
)
def test_keys_of_every_type_are_found(make: Make, kind: pa.DataType, values: list[Any]) -> None:
    schema = pa.schema([pa.field("k", kind), pa.field("v", pa.string())])
    table = make(schema)
    writer = table.writer()
    table.commit(writer, 1, *[(value, "old") for value in values])
    table.commit(writer, 2, (values[0], "new"))
    assert {row[0]: row[1] for row in table.rows()} == {**dict.fromkeys(values, "old"), values[0]: "new"}
    assert len(table.rows()) == len(values)


# ------------------------------------------------------------ refusals


@pytest.mark.parametrize("sink", [Delta, Iceberg])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"mode": "replace"}, "mode='replace' is unknown"),
        ({"mode": "upsert"}, "mode='upsert' does not allow an empty key"),
        ({"key": "k"}, r"mode='append' does not allow key=\['k'\]"),
        ({"mode": "upsert", "key": ["k", "k"]}, "a key column is repeated"),
    ],
)
def test_options_that_do_not_fit_are_refused(sink: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        sink("shop.t", **({"catalog": {"type": "sql"}} if sink is Iceberg else {}), **options)


def test_records_without_a_usable_key_are_refused_when_the_pipeline_is_built(make: Make) -> None:
    sink = make(key=("k", "nowhere", "f")).sink()
    schema = CHANGES.append(pa.field("f", pa.float64()))
    with pytest.raises(PipelineError) as caught:
        sink.check(schema)
    assert "no key column 'nowhere'" in str(caught.value) and "'f' of type double cannot be a key" in str(caught.value)
    with pytest.raises(PipelineError, match="appends rows, and cannot apply change rows"):
        make(mode="append", key=()).sink().check(CHANGES)
    make().sink().check(CHANGES)


def test_columns_that_only_the_table_has_are_refused_because_their_values_would_be_lost(make: Make) -> None:
    table = make()
    table.append(pa.table({"k": pa.array([1]), "shop": ["a"], "v": ["x"], "more": ["kept"]}))
    with pytest.raises(PipelineError, match="columns that the records lack"):
        table.sink().check(CHANGES)


def test_a_null_key_and_an_unknown_kind_fail_before_anything_is_staged(make: Make) -> None:
    table = make()
    writer = table.writer()
    with pytest.raises(DataError, match="1 rows have null in key column 'k'"):
        writer.write(table.batch([*rows(1), ("insert", None, "a", "x")]))
    with pytest.raises(DataError, match="kind of change 'upsert' is unknown"):
        writer.write(table.batch([("upsert", 1, "a", "x")]))


@pytest.mark.parametrize("name", ["delta.appendOnly", "delta.enableDeletionVectors"])
def test_a_delta_table_whose_rows_cannot_be_replaced_is_refused(tmp_path: Path, name: str) -> None:
    table = UpsertedDelta(tmp_path)
    table.others((1, "a", "x"))
    log = Path(table.path) / "_delta_log"
    metadata = next(action["metaData"] for action in actions_of(log / f"{0:020}.json") if "metaData" in action)
    features = ["deletionVectors", "appendOnly"]
    entry: list[dict[str, Any]] = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": features[:1]}},
        {"metaData": {**metadata, "configuration": {name: "true"}}},
    ]
    entry[0]["protocol"]["writerFeatures"] = features
    (log / f"{1:020}.json").write_text("\n".join(map(json.dumps, entry)))
    with pytest.raises(PipelineError, match=f"rows of the Delta table cannot be replaced.*{name}=true"):
        table.sink().check(CHANGES)
    table.sink(mode="append", key=()).check(ROWS)


# ------------------------------------------------------------ files


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_cannot_hold_a_key_are_not_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their statistics; and files without a match are not written again."""
    table = KINDS[kind](tmp_path)
    writer = table.writer()
    for checkpoint_id in range(1, 6):
        table.commit(writer, checkpoint_id, *rows(*range(100 * checkpoint_id, 100 * checkpoint_id + 20, 2)))
    files = {path for path in tmp_path.rglob("*.parquet") if "_tidegate" not in path.parts}
    read: list[str] = []
    module = delta_files if kind == "Delta" else iceberg_files
    whole: Any = module.KeyedFiles._read  # type: ignore[attr-defined]

    def counted(self: Any, *given: Any) -> Any:
        read.append(str(given))
        return whole(self, *given)

    monkeypatch.setattr(module.KeyedFiles, "_read", counted)  # type: ignore[attr-defined]
    table.commit(writer, 6, ("delete", 302, None, None), ("insert", 405, "a", "between the keys of a file"))
    assert len(read) == 3, "two files are searched, one is read for its other rows"
    added = {path for path in tmp_path.rglob("*.parquet") if "_tidegate" not in path.parts} - files
    assert len(added) == 2 and len(table.rows()) == 50


def test_many_rows_of_a_checkpoint_wait_on_disk(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows; the keys stay in memory."""
    monkeypatch.setattr(row_spool, "MEMORY_BYTES", 10_000)
    table = make()
    writer = table.writer()
    for first in range(0, 5000, 100):
        writer.write(table.batch(rows(*(n % 1700 for n in range(first, first + 100)), v=str(first))))
    table.commit(writer, 1)
    found = {row[0]: row[2] for row in table.rows()}
    wanted = {n % 1700: str(n // 100 * 100) for n in range(5000)}
    assert found == wanted and len(table.rows()) == 1700


def test_a_changed_key_and_a_file_that_lost_all_its_rows_leave_no_empty_file(make: Make) -> None:
    table = make()
    writer = table.writer()
    table.commit(writer, 1, *rows(1, 2))
    table.commit(writer, 2, *rows(1, 2, v="again"))
    assert table.rest_files() == []
    assert [row[2] for row in table.rows()] == ["again", "again"]


# ------------------------------------------------------------ other writers and lost answers


class Interruption:
    """Does something at the first attempts of a commit."""

    def __init__(self, table: Upserted, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attempts = 0
        self.before: Callable[[int], None] = lambda attempt: None
        self.after: Callable[[int], None] = lambda attempt: None
        if isinstance(table, UpsertedDelta):
            change: Any = DeltaLog.change
            monkeypatch.setattr(DeltaLog, "change", lambda *given: self.around(lambda: change(*given)))
        else:
            append = iceberg_upsert_writer.append_files
            monkeypatch.setattr(
                iceberg_upsert_writer, "append_files", lambda *given: self.around(lambda: append(*given))
            )

    def around(self, do: Callable[[], Any]) -> Any:
        self.attempts += 1
        attempt = self.attempts
        self.before(attempt)
        made = do()
        self.after(attempt)
        return made


def test_rows_that_another_program_appends_during_a_commit_are_replaced_too(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt fails, and the files are searched again; files that it wrote and that are not needed are deleted."""
    table = make()
    writer = table.writer()
    table.commit(writer, 1, *rows(1, 2, 3))
    interruption = Interruption(table, monkeypatch)

    def append(attempt: int) -> None:
        if attempt == 1:
            table.others((1, "theirs", "x"), (7, "theirs", "x"))
        if attempt == 2:
            table.others((8, "theirs", "x"))

    interruption.before = append
    table.commit(writer, 2, ("update_after", 1, "a", "ours"))
    assert interruption.attempts == 3
    assert [row[:2] for row in table.rows()] == [
        (1, "a"),
        (2, "shop 2"),
        (3, "shop 0"),
        (7, "theirs"),
        (8, "theirs"),
    ]
    assert len(table.rest_files()) == 1, "files of failed attempts are deleted"


def test_rows_that_appear_after_the_search_are_found_by_the_next_attempt(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit demands the version that was searched."""
    table = make()
    writer = table.writer()
    table.commit(writer, 1, *rows(1, 2))
    module = delta_files if isinstance(table, UpsertedDelta) else iceberg_files
    search: Any = module.KeyedFiles.affected  # type: ignore[attr-defined]
    searches: list[Any] = []

    def overtaken(*given: Any) -> Any:
        searches.append(search(*given))
        if len(searches) == 1:
            table.others((1, "theirs", "x"))
        return searches[-1]

    monkeypatch.setattr(module.KeyedFiles, "affected", overtaken)  # type: ignore[attr-defined]
    table.commit(writer, 2, ("delete", 1, None, None))
    assert len(searches) == 2 and [row[0] for row in table.rows()] == [2]


def test_rows_that_another_program_deletes_by_position_during_a_commit_stay_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same data file is affected in both attempts, but fewer of its rows stay in the second."""
    table = UpsertedIceberg(tmp_path)
    writer = table.writer()
    table.commit(writer, 1, *rows(0, 1, 2, 3, 4))
    interruption = Interruption(table, monkeypatch)

    def delete(attempt: int) -> None:
        if attempt <= 2:
            written = table.catalog.load_table(table.name)
            (task,) = written.scan().plan_files()
            delete_positions(written, f"deletes-{attempt}", task.file.file_path, [attempt])

    interruption.before = delete
    table.commit(writer, 2, ("update_after", 3, "a", "ours"))
    assert interruption.attempts == 3
    assert [(row[0], row[2]) for row in table.rows()] == [(0, "new"), (3, "ours"), (4, "new")]
    assert len(table.rest_files()) == 1, "files of failed attempts are deleted"


def test_a_compaction_during_a_commit_loses_nothing(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make()
    writer = table.writer()
    for checkpoint_id in (1, 2, 3):
        table.commit(writer, checkpoint_id, *rows(checkpoint_id, 10 + checkpoint_id))
    interruption = Interruption(table, monkeypatch)
    interruption.before = lambda attempt: table.compact() if attempt == 1 else None
    table.commit(writer, 4, ("delete", 11, None, None), ("insert", 2, "a", "y"))
    assert interruption.attempts == 2
    assert [row[0] for row in table.rows()] == [1, 12, 13, 2, 3]


def test_an_attempt_whose_answer_is_lost_is_not_repeated(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make()
    writer = table.writer()
    table.commit(writer, 1, *rows(1, 2))
    interruption = Interruption(table, monkeypatch)

    def lose(attempt: int) -> None:
        raise RuntimeError("the answer is lost")

    interruption.after = lose
    handles = table.staged(writer, 2, ("delete", 1, None, None), ("insert", 3, "a", "x"))
    with pytest.raises(RuntimeError):
        writer.commit(handles)
    interruption.after = lambda attempt: None
    assert [row[0] for row in table.rows()] == [2, 3]
    table.others((1, "theirs", "later"))
    table.identity.run = 2
    again = table.writer()
    again.commit(handles)
    assert interruption.attempts == 1
    assert [row[0] for row in table.rows()] == [1, 2, 3], "the deletion was not repeated"
    assert table.left_staged() == []


def test_a_commit_that_is_refused_every_time_is_given_up_and_can_be_repeated(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make()
    writer = table.writer()
    table.commit(writer, 1, *rows(1, 2))
    with monkeypatch.context() as patched:
        interruption = Interruption(table, patched)
        interruption.before = lambda attempt: table.others((100 + attempt, "theirs", "x"))
        handles = table.staged(writer, 2, ("delete", 1, None, None))
        with pytest.raises(OutageError, match="in 10 attempts"):
            writer.commit(handles)
    writer.commit(handles)
    assert len(table.rows()) == 11


@pytest.mark.parametrize("seed", range(3))
def test_rows_equal_a_model_whatever_crashes_and_whoever_commits(make: Make, seed: int) -> None:
    """S7.4, S9.2: two subtasks with own keys; crashes before and after commits; zombies that commit again."""
    chosen = random.Random(seed)
    table = make(partition_by="shop" if seed % 2 else ())
    model: dict[int, Change] = {}
    writers = [table.writer(subtask, 2) for subtask in (0, 1)]
    old: list[Any] = []
    for checkpoint_id in range(1, 25):
        handles = []
        for subtask, writer in enumerate(writers):
            changes: list[Change] = []
            for _ in range(chosen.choice([0, 1, 5, 40])):
                k = 2 * chosen.randrange(30) + subtask
                if chosen.random() < 0.3:
                    changes.append(("delete", k, None, None))
                    model.pop(k, None)
                else:
                    changes.append(("insert", k, f"shop {chosen.randrange(3)}", f"{checkpoint_id}"))
                    model[k] = changes[-1][1:]
            handles.append(table.staged(writer, checkpoint_id, *changes))
        accident = chosen.choice(["none", "none", "crash", "half", "zombie"])
        if accident == "half":
            writers[chosen.randrange(2)].commit(handles[0])
        if accident in ("crash", "half"):
            old += writers
            table.identity.run += 1
            writers = [table.writer(subtask, 2) for subtask in (0, 1)]
        for writer, mine in zip(writers, handles, strict=True):
            writer.commit(mine)
            writer.recover(checkpoint_id)
        if accident == "zombie" and old:
            old[chosen.randrange(len(old))].commit(handles[chosen.randrange(2)])
        if chosen.random() < 0.2:
            table.compact()
        assert table.rows() == sorted(model.values(), key=repr), f"after checkpoint {checkpoint_id}, {accident}"
    assert table.left_staged() == []


# ------------------------------------------------------------ subtasks


def test_one_version_has_the_changes_of_all_subtasks(make: Make) -> None:
    table = make()
    writers = [table.writer(subtask, 3) for subtask in range(3)]
    for checkpoint_id in (1, 2):
        handles = [
            table.staged(w, checkpoint_id, *rows(n, 10 + n, v=str(checkpoint_id))) for n, w in enumerate(writers)
        ]
        before = table.versions() if checkpoint_id > 1 else None
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda pair: pair[0].commit(pair[1]), zip(writers, handles, strict=True)))
        if before is not None:
            # Whoever does not wait for the leader commits itself.
            assert before < table.versions() <= before + 3
    assert [row[2] for row in table.rows()] == ["2"] * 6
    handles = [table.staged(w, 3, *rows(n, v="3")) for n, w in enumerate(writers)]
    before = table.versions()
    for writer, mine in zip(writers, handles, strict=True):
        writer.commit(mine)
    assert table.versions() == before + 1, "the leader commits for all"
    assert table.left_staged() == []


def test_a_subtask_waits_for_its_leader_and_then_commits_itself(make: Make) -> None:
    table = make()
    first, second = (table.writer(subtask, 2) for subtask in (0, 1))
    handles = [table.staged(writer, 1, *rows(n)) for n, writer in enumerate((first, second))]
    waits: list[float] = []
    second._wait = waits.append  # type: ignore[attr-defined]
    second.commit(handles[1])
    assert staged_groups.LEADER_TIMEOUT_S <= sum(waits) < staged_groups.LEADER_TIMEOUT_S + 1
    assert max(waits) == staged_groups.LONGEST_POLL_S
    assert len(table.rows()) == 2, "its group has the leader's rows, too"
    first.commit(handles[0])
    assert len(table.rows()) == 2


def test_rows_of_one_key_in_two_subtasks_are_never_stored_twice(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    """The pipeline breaks the rule that a key passes through one subtask: one row is stored, and the log names it."""
    table = make()
    writers = [table.writer(subtask, 2) for subtask in (0, 1)]
    handles = [table.staged(writer, 1, *rows(1, 10 + n, v=str(n))) for n, writer in enumerate(writers)]
    for writer, mine in zip(writers, handles, strict=True):
        writer.commit(mine)
    assert [row[0] for row in table.rows()] == [1, 10, 11]
    assert "repartition the stream by the key" in caplog.text


# ------------------------------------------------------------ waiting checkpoints (S7.8)


def test_several_waiting_checkpoints_are_applied_in_their_order(make: Make) -> None:
    table = make()
    writer = table.writer()
    handles = [
        *table.staged(writer, 1, *rows(1, 2, v="1")),
        *table.staged(writer, 2, ("delete", 1, None, None), *rows(2, v="2")),
        *table.staged(writer, 3, *rows(1, v="3")),
    ]
    writer.commit([handles[2], handles[0], handles[1]])
    assert [(row[0], row[2]) for row in table.rows()] == [(1, "3"), (2, "2")]


def test_checkpoints_that_wait_since_another_parallelism_are_committed_first(make: Make) -> None:
    """Key 1 was in subtask 0 of 1, and is in subtask 1 of 2 now. Their older rows belong to subtask 0."""
    table = make()
    waiting = table.staged(table.writer(), 1, *rows(1, 2, v="old"))
    table.identity.run = 2
    first, second = (table.writer(subtask, 2) for subtask in (0, 1))
    first.recover(1, waiting)
    second.recover(1)
    mine, others = table.staged(second, 2, *rows(1, v="new")), table.staged(first, 2, *rows(2, v="new"))
    waits: list[float] = []

    def wait(pause: float) -> None:
        waits.append(pause)
        if len(waits) == 3:
            first.commit([*waiting, *others])

    second._wait = wait  # type: ignore[attr-defined]
    second.commit(mine)
    assert len(waits) == 3
    assert [(row[0], row[2]) for row in table.rows()] == [(1, "new"), (2, "new")]
    assert table.left_staged() == []


def test_an_older_checkpoint_that_nobody_commits_is_an_error(make: Make) -> None:
    table = make()
    waiting = table.staged(table.writer(), 1, *rows(1, v="old"))
    table.identity.run = 2
    first, second = (table.writer(subtask, 2) for subtask in (0, 1))
    first.recover(1, waiting)
    mine = table.staged(second, 2, *rows(1, v="new"))
    with pytest.raises(OutageError, match="rows of checkpoint 1 are not committed, so the upsert cannot begin"):
        second.commit(mine)
    first.commit(waiting)
    second.commit(mine)
    assert [row[2] for row in table.rows()] == ["new"]


def test_a_wait_ends_with_the_run(make: Make) -> None:
    table = make()
    first, second = (table.writer(subtask, 2) for subtask in (0, 1))
    table.staged(first, 1, *rows(0))
    handles = table.staged(second, 1, *rows(1))
    waiting = threading.Event()
    closing = second._closing  # type: ignore[attr-defined]

    def wait(_: float) -> None:
        waiting.set()
        closing.wait(60)

    second._wait = wait  # type: ignore[attr-defined]
    with ThreadPoolExecutor(1) as thread:
        committed = thread.submit(second.commit, handles)
        assert waiting.wait(60)
        second.close()
        with pytest.raises(OutageError, match="its run ends"):
            committed.result(60)


def test_rejected_upserts_move_to_quarantine_with_their_keys(make: Make, tmp_path: Path) -> None:
    table = make()
    writer = table.writer()
    table.commit(writer, 1, *rows(1, 2))
    handles = table.staged(writer, 2, ("delete", 1, None, None), *rows(3))
    staged = table.sink().staged(table.context(), 2, handles[0])
    assert staged.rows == 1 and pq.read_table(staged.paths[0].removeprefix("file://"))["k"].to_pylist() == [3]
    into = Quarantine(open_store(str(tmp_path / "root")), "job/quarantine", WithheldRange(1, (2,), "anna", "wrong"))
    for _ in range(2):
        table.sink().quarantine(table.context(), handles, into)
    with pytest.raises(TidegateError):
        writer.commit(handles)
    (keys,) = (tmp_path / "root").rglob("_keys/*.parquet")
    assert sorted(pq.read_table(keys)["k"].to_pylist()) == [1, 3]
    table.commit(writer, 3, *rows(4))
    assert [row[0] for row in table.rows()] == [1, 2, 4]


def test_a_collection_keeps_the_files_of_transactions_that_wait(make: Make) -> None:
    table = make()
    writer = table.writer()
    table.commit(writer, 1, *rows(1))
    waiting, lost = table.staged(writer, 2, ("delete", 1, None, None)), table.staged(writer, 3, *rows(9))
    needed = NeededTransactions(waiting, 1, datetime.max.replace(tzinfo=UTC))
    assert table.sink().collect(table.context(), needed).found
    with pytest.raises(TidegateError):
        writer.commit(lost)
    writer.commit(waiting)
    assert table.rows() == []


# ------------------------------------------------------------ the mode is changed


def test_appends_that_wait_are_appended_after_a_change_to_upserts(make: Make) -> None:
    table = make(ROWS)
    appender = table.writer(mode="append", key=())
    waiting = table.staged(appender, 1, (1, "a", "x"), (1, "b", "x"))
    table.identity.run = 2
    writer = table.writer()
    writer.recover(1, waiting)
    writer.commit(waiting)
    assert len(table.rows()) == 2
    table.commit(writer, 2, (1, "c", "y"))
    assert table.rows() == [(1, "c", "y")]


def test_upserts_that_wait_are_refused_after_a_change_to_appends(make: Make) -> None:
    table = make(ROWS)
    waiting = table.staged(table.writer(), 1, (1, "a", "x"))
    table.identity.run = 2
    appender = table.writer(mode="append", key=())
    with pytest.raises(SinkConflictError, match="staged with mode='upsert'"):
        appender.commit(waiting)


# ------------------------------------------------------------ parts


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 5), st.sampled_from("abc"), st.booleans())),
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 6)), st.sampled_from("abcd"), st.booleans()), min_size=1),
)
def test_a_set_of_keys_equals_a_set(keys: list[Any], searched: list[Any]) -> None:
    schema = pa.schema([("n", pa.int64()), ("s", pa.string()), ("b", pa.bool_())])
    table = pa.table([pa.array([k[i] for k in keys], f.type) for i, f in enumerate(schema)], schema=schema)
    found = KeySet(table).holds([pa.array([k[i] for k in searched], f.type) for i, f in enumerate(schema)])
    assert found.tolist() == [key in set(keys) for key in searched]
    assert KeySet(table).count == len(set(keys))


def test_bounds_leave_out_files_between_and_beside_the_keys() -> None:
    keys = KeySet(pa.table({"n": pa.array([1, 5, 9]), "s": ["a", "b", "c"]}))
    assert keys.bounds() == {"n": (1, 9), "s": ("a", "c")}
    assert keys.may_be_within({}) and keys.may_be_within({"n": (5, 5)}) and keys.may_be_within({"n": (0, 1)})
    assert not keys.may_be_within({"n": (6, 8)})
    assert not keys.may_be_within({"n": (10, 12)})
    assert not keys.may_be_within({"n": (1, 1), "s": ("b", "c")}), "no key is within both"


@settings(deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from(["insert", "update_after", "update_before", "delete"]), st.integers(0, 5)),
            min_size=1,
        ),
        min_size=1,
    )
)
def test_the_newest_rows_equal_a_dictionary(batches: list[list[tuple[str, int]]]) -> None:
    schema = pa.schema([change_kind_field("kind"), pa.field("row", pa.int64()), pa.field("number", pa.int64())])
    keys = pa.schema([pa.field("row", pa.int64(), nullable=False)])
    spool = ChangeSpool(schema, keys, "", "here")
    wanted: dict[int, int | None] = {}
    number = 0
    for batch in batches:
        columns: list[list[Any]] = [[], [], []]
        for kind, key in batch:
            for column, value in zip(columns, (kind, key, number), strict=True):
                column.append(value)
            wanted[key] = None if kind in ("delete", "update_before") else number
            number += 1
        arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
        spool.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
    newest = spool.newest()
    found = [row for chunk in newest.rows() for row in chunk.to_pylist()]
    assert {row["row"]: row["number"] for row in found} == {k: n for k, n in wanted.items() if n is not None}
    assert [row["number"] for row in found] == sorted(row["number"] for row in found)
    assert sorted(newest.keys["row"].to_pylist()) == sorted(wanted)


def test_an_identity_names_the_key(make: Make) -> None:
    assert make(key=("shop", "k")).sink().identity().options["key"] == ["shop", "k"]
    plain = make(mode="append", key=())
    assert replace(plain.sink().identity(), options={}) == replace(make().sink().identity(), options={})


def test_iceberg_equality_deletes_of_another_program_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = UpsertedIceberg(tmp_path)
    writer = table.writer()
    table.commit(writer, 1, *rows(1))
    from pyiceberg.table import DataScan

    def refuse(self: DataScan) -> None:
        raise ValueError("PyIceberg does not yet support equality deletes")

    handles = table.staged(writer, 2, *rows(1, v="later"))
    with monkeypatch.context() as patched:
        patched.setattr(DataScan, "plan_files", refuse)
        with pytest.raises(SinkConflictError, match="cannot be replaced.*equality deletes"):
            writer.commit(handles)
    writer.commit(handles)
    assert [row[2] for row in table.rows()] == ["later"]


def test_a_column_that_another_program_adds_while_the_job_runs_stops_the_upserts(make: Make) -> None:
    """Its values would be lost."""
    table = make()
    writer = table.writer()
    table.commit(writer, 1, *rows(1))
    if isinstance(table, UpsertedIceberg):
        from pyiceberg.types import StringType

        with table.catalog.load_table(table.name).update_schema() as update:
            update.add_column("more", StringType())
    else:
        from deltalake.schema import Field, PrimitiveType

        assert isinstance(table, UpsertedDelta)
        table.written.alter.add_columns([Field("more", PrimitiveType("string"))])
    handles = table.staged(writer, 2, *rows(1, v="later"))
    with pytest.raises(PipelineError, match="columns that the records lack"):
        writer.commit(handles)
    assert [row[2] for row in table.rows()] == ["new"]
