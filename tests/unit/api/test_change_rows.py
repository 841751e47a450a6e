"""Change rows in a pipeline: operators that would take each of them for a new row refuse them when it is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.compute import field as f

from tidegate import Discard, Pipeline, Stream, count, tumbling
from tidegate.change_rows import INSERT, change_kind_column, change_kind_field, old_columns_of
from tidegate.connectors.datagen import DataGen
from tidegate.errors import PipelineError

SCHEMA = pa.schema([change_kind_field(old_columns=["k"]), ("k", pa.int64()), ("ts", pa.timestamp("us"))])
COMPLETE = SCHEMA.set(0, change_kind_field(old_columns="all"))
UNKNOWN = SCHEMA.set(0, change_kind_field())
PLAIN = pa.schema([("k", pa.int64()), ("ts", pa.timestamp("us")), ("name", pa.string())])


def read(p: Pipeline, schema: pa.Schema, uid: str) -> Stream:
    return p.read(DataGen(lambda n: {}, schema, rows=1), uid=uid).with_watermark("ts", "0 s")


REFUSED: dict[str, Callable[[Stream, Stream], Any]] = {
    "windows": lambda changes, _: changes.group_by("k").window(tumbling("1 s")).agg(n=count(), uid="op"),
    "aggregate": lambda changes, _: changes.group_by("k").agg(n=count(), uid="op"),
    "deduplicate": lambda changes, _: changes.deduplicate("k", uid="op"),
    "join": lambda changes, plain: changes.join(plain, on="k", suffix="_right", uid="op"),
    "table of a broadcast join": lambda changes, plain: plain.join(
        changes.broadcast(), on="k", suffix="_right", uid="op"
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_operators_that_would_count_a_deletion_as_a_new_row_refuse_changes(name: str) -> None:
    p = Pipeline()
    changes, plain = read(p, SCHEMA, "changes"), read(p, PLAIN, "plain")
    plain.write(Discard(), uid="others")
    REFUSED[name](changes, plain).write(Discard(), uid="out")
    with pytest.raises(PipelineError, match="'op' cannot process change rows.*'change_kind'.*Keep the inserted rows"):
        p.build()


def test_rows_keep_their_kind_of_change_through_filters_selections_and_lookups() -> None:
    p = Pipeline()
    changes, plain = (
        read(p, SCHEMA, "changes"),
        read(p, PLAIN.remove(1).append(pa.field("ts", pa.timestamp("us"))), "t"),
    )
    kept = changes.filter(f("k") > 1).select("change_kind", "k")
    joined = kept.join(plain.select("k", "name").broadcast(), on="k", uid="names")
    joined.write(Discard(), uid="out")
    p.build()
    assert change_kind_column(joined.schema) == "change_kind"


def test_inserted_rows_without_the_column_are_rows_like_others() -> None:
    p = Pipeline()
    inserts = read(p, SCHEMA, "changes").filter(f("change_kind") == INSERT).select("k", "ts")
    inserts.group_by("k").agg(n=count(), uid="op").write(Discard(), uid="out")
    p.build()


def test_a_log_of_changes_is_a_stream_of_rows_like_others() -> None:
    p = Pipeline()
    log = read(p, SCHEMA, "changes").changes_as_rows()
    assert (log.schema.names, change_kind_column(log.schema)) == (SCHEMA.names, None)
    log.group_by("change_kind").agg(n=count(), uid="op").write(Discard(), uid="out")
    p.build()
    with pytest.raises(PipelineError, match="the stream has no change rows.*Leave out changes_as_rows"):
        log.changes_as_rows()


def test_a_union_of_changes_has_changes_and_refuses_plain_rows() -> None:
    p = Pipeline()
    first, second = read(p, SCHEMA, "first"), read(p, SCHEMA, "second")
    assert change_kind_column(first.union(second).schema) == "change_kind"
    for one, other in [(first, second.changes_as_rows()), (second.changes_as_rows(), first)]:
        with pytest.raises(PipelineError, match="'change_kind' has the kind of change in one stream of the union"):
            one.union(other)


NAMES = pa.schema([("k", pa.int64()), ("name", pa.string())])
TIMES = pa.schema([("ts", pa.timestamp("us")), ("name", pa.string())])


def built(schema: pa.Schema, then: Callable[[Pipeline, Stream], Stream]) -> None:
    p = Pipeline()
    then(p, read(p, schema, "changes")).write(Discard(), uid="out")
    p.build()


def lookup(schema: pa.Schema, on: str, how: str, **options: Any) -> Callable[[Pipeline, Stream], Stream]:
    def joined(p: Pipeline, changes: Stream) -> Stream:
        other = p.read(DataGen(lambda n: {}, schema, rows=1), uid="table")
        return changes.join(other.broadcast(), on=on, how=how, uid="lookup", **options)  # type: ignore[arg-type]

    return joined


DROPS: dict[str, Callable[[Pipeline, Stream], Stream]] = {
    "filter": lambda _, changes: changes.filter(f("ts").is_valid()),
    "filter on key and value": lambda _, changes: changes.filter((f("k") > 1) & f("ts").is_valid()),
    "after a union": lambda p, changes: changes.union(read(p, COMPLETE, "second")).filter(f("ts").is_valid()),
    "a renamed value": lambda _, changes: changes.select("change_kind", k=f("ts")).filter(f("k").is_valid()),
    "a key with other values": lambda _, changes: changes.with_columns(k=f("ts").cast(pa.int64())).filter(f("k") > 1),
    "after another filter": lambda _, changes: changes.filter(f("k") > 1).filter(f("ts").is_valid()),
    "without the kind later": lambda _, changes: changes.filter(f("ts").is_valid()).select("k"),
    "after a sink": lambda _, changes: changes.write_through(Discard(), uid="log").filter(f("ts").is_valid()),
    "inner lookup": lookup(TIMES, "ts", "inner"),
    "semi lookup": lookup(TIMES, "ts", "semi"),
    "anti lookup": lookup(TIMES, "ts", "anti"),
    "condition of a lookup": lookup(NAMES, "k", "inner", where=f("ts").is_valid()),
    "after a lookup by a value": lambda p, changes: lookup(TIMES, "ts", "left")(p, changes).filter(f("name") == "a"),
}


@pytest.mark.parametrize("name", DROPS)
def test_an_operator_that_would_drop_deletions_is_refused_unless_old_rows_are_complete(name: str) -> None:
    for schema in (SCHEMA, UNKNOWN):
        with pytest.raises(PipelineError, match="would drop deletions of change rows.*REPLICA IDENTITY FULL"):
            built(schema, DROPS[name])
    if name != "after a union":
        built(COMPLETE, DROPS[name])


KEEPS: dict[str, Callable[[Pipeline, Stream], Stream]] = {
    "filter on the key": lambda _, changes: changes.filter(f("k") * 2 == 4),
    "a renamed key": lambda _, changes: changes.select("change_kind", "ts", id=f("k")).filter(f("id") > 1),
    "computed from the key": lambda _, changes: changes.with_columns(part=f("k") * 7).filter(f("part") == 1),
    "the kind in the condition": lambda _, changes: changes.filter(f("ts").is_valid() | (f("change_kind") == "delete")),
    "a log": lambda _, changes: changes.changes_as_rows().filter(f("ts").is_valid()),
    "lookup by the key": lookup(NAMES, "k", "inner"),
    "after a lookup by the key": lambda p, changes: lookup(NAMES, "k", "inner")(p, changes).filter(f("name") == "a"),
    "left lookup by a value": lookup(TIMES, "ts", "left"),
    "after a union": lambda p, changes: changes.union(read(p, COMPLETE, "second")).filter(f("k") > 1),
    "a function that declares old rows": lambda _, changes: changes.map_in_arrow(lambda rows: rows, COMPLETE).filter(
        f("ts").is_valid()
    ),
}


@pytest.mark.parametrize("name", KEEPS)
def test_conditions_on_the_key_and_declared_decisions_are_accepted(name: str) -> None:
    built(SCHEMA, KEEPS[name])


def test_a_function_without_a_declaration_may_have_changed_the_key() -> None:
    with pytest.raises(PipelineError, match="a filter on k would drop deletions.*no columns that are known"):
        built(SCHEMA, lambda _, changes: changes.map_in_arrow(lambda rows: rows, UNKNOWN).filter(f("k") > 1))


def test_what_a_source_declares_about_old_rows() -> None:
    assert old_columns_of(SCHEMA) == {"k"} and old_columns_of(COMPLETE) is None
    assert old_columns_of(UNKNOWN) == frozenset() == old_columns_of(PLAIN)
    # Metadata of Arrow's schemas may be lost, and then nothing is known.
    assert old_columns_of(pa.schema([SCHEMA.field(0).remove_metadata()])) == frozenset()
