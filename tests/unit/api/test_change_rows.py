"""Change rows in a pipeline: operators that would take each of them for a new row refuse them when it is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.compute import field as f

from tidegate import Discard, Pipeline, Stream, count, tumbling
from tidegate.change_rows import INSERT, change_kind_column, change_kind_field
from tidegate.connectors.datagen import DataGen
from tidegate.errors import PipelineError

SCHEMA = pa.schema([change_kind_field(), ("k", pa.int64()), ("ts", pa.timestamp("us"))])
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
