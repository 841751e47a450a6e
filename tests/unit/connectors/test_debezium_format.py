"""Debezium's events as change rows."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from tidegate.change_rows import change_kind_column, old_columns_of
from tidegate.connectors.formats.interface import DecodedRecords
from tidegate.errors import OptionError, PipelineError
from tidegate.formats import Avro, Debezium, Json, Raw

TABLE = {"id": "int64", "name": "string"}
ONE, TWO = {"id": 1, "name": "a"}, {"id": 1, "name": "b"}


def decoded(
    format_: Debezium, values: Sequence[Any], keys: Sequence[Any] | None = None, columns: Sequence[str] | None = None
) -> DecodedRecords:
    def encoded(events: Sequence[Any]) -> pa.Array:
        return pa.array(
            [one if one is None or isinstance(one, bytes) else json.dumps(one).encode() for one in events], pa.binary()
        )

    keys = [None] * len(values) if keys is None else keys
    return format_.create_decoder(columns).decode_records(encoded(keys), encoded(values))


def rows(found: DecodedRecords) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in found.batch.to_pylist()]


def test_events_become_change_rows_in_order() -> None:
    events = [
        {"op": "r", "after": ONE},
        {"op": "u", "before": ONE, "after": TWO},
        None,
        {"op": "d", "before": TWO},
        None,
        {"op": "c", "after": ONE},
    ]
    found = decoded(Debezium(Json(TABLE)), events)
    assert rows(found) == [
        (1, "a", "insert"),
        (1, "a", "update_before"),
        (1, "b", "update_after"),
        (1, "b", "delete"),
        (1, "a", "insert"),
    ]
    assert found.records is not None and found.records.to_pylist() == [0, 1, 1, 3, 5] and not found.bad
    assert change_kind_column(found.batch.schema) == "change_kind"


def test_the_options_say_which_columns_old_rows_have() -> None:
    key = Json({"id": "int64"})
    assert old_columns_of(Debezium(Json(TABLE)).schema()) is None
    assert old_columns_of(Debezium(Json(TABLE), updates="after").schema()) == frozenset()
    assert old_columns_of(Debezium(Json(TABLE), updates="after", key=key).schema()) == {"id"}


def test_events_with_and_without_the_wrapper_are_read() -> None:
    plain = {"op": "u", "before": ONE, "after": TWO, "ts_ms": 5}
    wrapped = {"schema": {"type": "struct", "fields": []}, "payload": plain}
    format_ = Debezium(Json(TABLE), metadata={"at": "ts_ms"})
    expected = [(1, "a", "update_before"), (1, "b", "update_after")]
    for events in ([plain, plain], [wrapped, wrapped], [plain, wrapped], [wrapped, plain]):
        found = decoded(format_, events)
        assert [row[:3] for row in rows(found)] == expected * 2
        assert {row[3] for row in rows(found)} == {datetime(1970, 1, 1, 0, 0, 0, 5_000, tzinfo=UTC)}


def test_an_update_can_give_only_the_new_row() -> None:
    events = [{"op": "u", "before": None, "after": TWO}, {"op": "u", "before": ONE, "after": TWO}]
    assert rows(decoded(Debezium(Json(TABLE), updates="after"), events)) == [(1, "b", "update_after")] * 2


def test_the_key_stands_for_a_deleted_row_that_the_event_lacks() -> None:
    events: list[Any] = [{"op": "d"}, {"op": "d", "before": TWO}, {"op": "d"}, {"op": "d"}, {"op": "c", "after": ONE}]
    keys: list[Any] = [{"id": 7}, {"id": 8}, {"schema": {}, "payload": {"id": 9}}, {"id": "x"}, b"no key"]
    found = decoded(Debezium(Json(TABLE), key=Json({"id": "int64"})), events, keys)
    assert rows(found) == [(7, None, "delete"), (1, "b", "delete"), (9, None, "delete"), (1, "a", "insert")]
    assert [(one.index, one.reason) for one in found.bad] == [
        (3, "the key of the record: field 'id' has a value that is no int64")
    ]


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        ({"op": "u", "after": TWO}, "REPLICA IDENTITY FULL"),
        ({"op": "d"}, "no key="),
        ({"op": "t"}, "truncated"),
        ({"op": "c"}, "no after"),
        ({"op": "m"}, "no op"),
        ({"a": 1}, "no op"),
        (b"{", "not one JSON object"),
        ({"op": "c", "after": {"id": "x"}}, "field 'after'"),
    ],
)
def test_a_bad_event_is_named_and_its_neighbours_are_read(event: Any, reason: str) -> None:
    found = decoded(Debezium(Json(TABLE)), [{"op": "c", "after": ONE}, event, {"op": "c", "after": TWO}])
    assert rows(found) == [(1, "a", "insert"), (1, "b", "insert")]
    assert found.records is not None and found.records.to_pylist() == [0, 2]
    assert [(one.index, reason in one.reason) for one in found.bad] == [(1, True)]


def test_a_truncated_table_can_be_ignored() -> None:
    found = decoded(Debezium(Json(TABLE), on_truncate="ignore"), [{"op": "t"}, {"op": "c", "after": ONE}])
    assert rows(found) == [(1, "a", "insert")] and not found.bad


def test_only_the_columns_that_are_used_are_made() -> None:
    format_ = Debezium(Json(TABLE), change_kind="kind", metadata={"lsn": "source.lsn", "db": "source.db"})
    assert format_.schema().names == ["id", "name", "kind", "db", "lsn"]
    event = {"op": "c", "after": ONE, "source": {"lsn": 5, "db": "shop", "table": "t"}}
    assert rows(decoded(format_, [event])) == [(1, "a", "insert", "shop", 5)]
    assert decoded(format_, [event, {"op": "x"}], columns=["kind", "lsn"]).batch.to_pylist() == [
        {"kind": "insert", "lsn": 5}
    ]
    empty = decoded(format_, [event, event], columns=[])
    assert empty.batch.num_rows == 2 and not empty.batch.num_columns


VALUE = {
    "type": "record",
    "name": "shop.Value",
    "fields": [{"name": "id", "type": "long"}, {"name": "name", "type": ["null", "string"], "default": None}],
}
ENVELOPE = {
    "type": "record",
    "name": "shop.Envelope",
    "fields": [
        {"name": "before", "type": ["null", VALUE], "default": None},
        {"name": "after", "type": ["null", "shop.Value"], "default": None},
        {
            "name": "source",
            "type": {
                "type": "record",
                "name": "Source",
                "fields": [{"name": "ts_ms", "type": "long"}, {"name": "db", "type": "string"}],
            },
        },
        {"name": "op", "type": "string"},
        {"name": "ts_ms", "type": ["null", "long"], "default": None},
    ],
}


def test_events_in_avro_are_read() -> None:
    schema = fastavro.parse_schema(json.loads(json.dumps(ENVELOPE)))
    values = []
    for event in ({"op": "c", "after": ONE}, {"op": "u", "before": ONE, "after": TWO}, {"op": "d", "before": TWO}):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, {"source": {"ts_ms": 3, "db": "shop"}, "ts_ms": 4, **event})
        values.append(out.getvalue())
    format_ = Debezium(Avro(json.dumps(ENVELOPE)), metadata={"db": "source.db", "at": "source.ts_ms"})
    assert format_.schema().field("at").type == pa.timestamp("ms", "UTC")
    found = decoded(format_, [*values, None, b"\xff"])
    moment = datetime(1970, 1, 1, 0, 0, 0, 3_000, tzinfo=UTC)
    assert rows(found) == [
        (1, "a", "insert", moment, "shop"),
        (1, "a", "update_before", moment, "shop"),
        (1, "b", "update_after", moment, "shop"),
        (1, "b", "delete", moment, "shop"),
    ]
    assert [one.index for one in found.bad] == [4]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Debezium(Raw()), "no envelope"),
        (lambda: Debezium(Json(TABLE), change_kind="name"), "'name' exists twice"),
        (lambda: Debezium(Json(TABLE), key=Json({"id": "string"})), "column 'id' of the key"),
        (lambda: Debezium(Avro(json.dumps(ENVELOPE)), metadata={"x": "source.nothing"}), "no 'source.nothing'"),
    ],
)
def test_a_value_or_key_that_does_not_fit_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        make().schema()


@pytest.mark.parametrize(
    "options",
    [{"updates": "before"}, {"on_truncate": "x"}, {"metadata": {"a": "b.c.d"}}, {"key": "id"}],
)
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Debezium(Json(TABLE), **options)
    with pytest.raises(OptionError, match="on_new_field"):
        Debezium(Json(TABLE, on_new_field="refuse"))
