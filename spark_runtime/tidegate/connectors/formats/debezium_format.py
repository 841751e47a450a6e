"""Debezium: events of a change-data-capture connector as change rows."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidegate.change_rows import CHANGE_KINDS, DELETE, INSERT, UPDATE_AFTER, UPDATE_BEFORE, change_kind_field
from tidegate.connectors.formats.decoded_rows import NONE, Indices, as_binary, empty, selected
from tidegate.connectors.formats.found_formats import formats_with_found, found_by_formats
from tidegate.connectors.formats.interface import (
    DecodedRecords,
    Format,
    RecordDecoder,
    RecordEncoder,
    UndecodableRecord,
)
from tidegate.connectors.formats.json_format import Json, JsonDecoder
from tidegate.connectors.found_schema import FoundSchema
from tidegate.errors import OptionError, PipelineError

Updates = Literal["both", "after"]
OnTruncate = Literal["refuse", "ignore"]

BEFORE, AFTER, OP, PAYLOAD = "before", "after", "op", "payload"

_TIMES = {"ts_ms": "ms", "ts_us": "us", "ts_ns": "ns"}
"""Name of a number of the envelope -> unit of the time that it is."""
_NUMBERS = frozenset({*_TIMES, "lsn", "xmin", "txId", "pos", "row", "server_id", "thread", "ord", "order"})
"""Names of the numbers in the envelope of Debezium's connectors. The other values are texts."""
_CREATE, _READ, _UPDATE, _DELETE, _TRUNCATE = "c", "r", "u", "d", "t"

_NO_OP = "the envelope has no op, or one that is unknown"
_NO_AFTER = "the event has no after"
_NO_BEFORE = (
    "the update has no before: set REPLICA IDENTITY FULL for the table, or use Debezium(updates='after') to read only "
    "the new row"
)
_NO_DELETED = "the delete has no before, and Debezium has no key= to read the key of the record"
_TRUNCATED = "the table was truncated, and change rows cannot express it"


@dataclass(frozen=True)
class _Metadata:
    """A value of the envelope as a column. Attributes: path: names from the envelope on."""

    column: str
    path: tuple[str, ...]


class Debezium(Format):
    """Events of Debezium as change rows: the columns of the table, and the kind of the change.

    A create or read (`c`, `r`) is an insert. An update (`u`) is the row before it and the row after it. A delete (`d`)
    is the deleted row. A record without a value (a tombstone) has no row. The column of the kind is declared as such,
    so that operators and sinks find it.

    Args:
        value: format of the values. `Json` has the columns of the table; the envelope may have the wrapper with
            `schema` and `payload`. Another format, such as `Avro`, has the envelope with `before`, `after` and `op`.
        key: format of the keys, with columns of the table. It is used for deletes without `before`. None: these are
            refused.
        updates: `both` (default): `before` must hold the complete row, also of deletes. `after`: an update gives only
            the row after it, and needs no `before`; then filters may use only the columns of `key`.
        on_truncate: `refuse` (default) the event of a truncated table (`t`), or `ignore` it.
        change_kind: name of the column with the kind. Default: `change_kind`.
        metadata: column -> value of the envelope, such as `{"changed_at": "source.ts_ms"}`. `ts_ms`, `ts_us` and
            `ts_ns` are timestamps in UTC.

    Raises:
        OptionError: an argument is wrong.
    """

    def __init__(
        self,
        value: Format,
        *,
        key: Format | None = None,
        updates: Updates = "both",
        on_truncate: OnTruncate = "refuse",
        change_kind: str = "change_kind",
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        for name, one, choices in (
            ("updates", updates, ("both", "after")),
            ("on_truncate", on_truncate, ("refuse", "ignore")),
        ):
            if one not in choices:
                remedy = f"Use {choices[0]!r} or {choices[1]!r}"
                raise OptionError(f"{name}={one!r} is unknown", where=f"Debezium({name}=)", remedy=remedy)
        if not isinstance(value, Format) or not (key is None or isinstance(key, Format)):
            raise OptionError(
                "value or key is no format",
                where="Debezium(value, key=)",
                remedy="Pass a format, such as Json(schema) or Avro(registry=, subject=)",
            )
        if any(isinstance(one, Json) and one.refuses_new_fields for one in (value, key)):
            raise OptionError(
                "Debezium's envelope has fields that the table does not have",
                where="Debezium(value, key=)",
                remedy="Omit on_new_field='refuse' in Json",
            )
        self._value, self._key = value, key
        self._updates, self._on_truncate, self._change_kind = updates, on_truncate, change_kind
        self._metadata = tuple(
            _Metadata(column, tuple(path.split("."))) for column, path in sorted((metadata or {}).items())
        )
        if any(not all(one.path) or len(one.path) > 2 for one in self._metadata):
            raise OptionError(
                "a path of the envelope is wrong",
                where="Debezium(metadata=)",
                remedy='Write it as "ts_ms" or "source.lsn"',
            )
        self.needs_keys = key is not None

    def schema(self) -> pa.Schema:
        """Return the columns of the table, the kind of the change, and the metadata.

        Raises:
            PipelineError: the value's schema is no envelope, the key has a column that the table does not have, or two
                columns have the same name.
        """
        envelope = self._envelope()
        row = _row_type(envelope, self._value)
        fields = [
            *(field.with_nullable(True) for field in row),
            change_kind_field(self._change_kind, old_columns=self._old_columns()),
            *(pa.field(one.column, _metadata_type(envelope, one, self._value)) for one in self._metadata),
        ]
        names = [field.name for field in fields]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise PipelineError(
                f"the column {doubled[0]!r} exists twice",
                where=self.describe(),
                cause="a column of the table has the name of the change kind, or of metadata",
                remedy="Pass other names as change_kind= or metadata=",
            )
        self._check_key(row)
        return pa.schema(fields)

    def _old_columns(self) -> Sequence[str] | Literal["all"]:
        if self._updates == "both":
            return "all"
        return self._key.schema().names if self._key is not None else ()

    def _check_key(self, row: pa.DataType) -> None:
        columns = {field.name: field.type for field in row}
        for field in self._key.schema() if self._key is not None else ():
            if columns.get(field.name) != field.type:
                raise PipelineError(
                    f"column {field.name!r} of the key is not the same in the table",
                    where=self.describe(),
                    cause=f"the key has {field.type}, the table {columns.get(field.name, 'no such column')}",
                    remedy="Declare the columns of the key with the names and types of the table",
                )

    def _envelope(self) -> pa.Schema:
        """Return the schema of the envelope."""
        if isinstance(self._value, Json):
            return _json_envelope(self._value.schema(), self._metadata)
        return self._value.schema()

    def found_schema(self) -> FoundSchema | None:
        """Return what the formats of the value and the key found."""
        return found_by_formats(self.schema(), self._formats())

    def with_found_schema(self, found: FoundSchema) -> Self:
        """Return the same format, with the schemas that the formats of the value and the key found before."""
        other = copy.copy(self)
        formats = formats_with_found(self._formats(), found)
        other._value, other._key = formats["value"], formats.get("key")
        return other

    def _formats(self) -> dict[str, Format]:
        return {"value": self._value, **({"key": self._key} if self._key is not None else {})}

    def create_decoder(self, columns: Sequence[str] | None = None) -> RecordDecoder:
        """Return a decoder."""
        envelope = self._envelope()
        wanted = [BEFORE, AFTER, OP, *(one.path[0] for one in self._metadata)]
        if isinstance(self._value, Json):
            values: RecordDecoder = _UnwrappedJson(envelope)
        else:
            values = self._value.create_decoder([name for name in envelope.names if name in wanted])
        keys: RecordDecoder | None = None
        if isinstance(self._key, Json):
            keys = _UnwrappedJson(self._key.schema())
        elif self._key is not None:
            keys = self._key.create_decoder()
        return _DebeziumDecoder(
            self.schema(),
            columns,
            values,
            keys,
            self._metadata,
            only_after=self._updates == "after",
            ignores_truncate=self._on_truncate == "ignore",
        )

    def check_encodable(self, schema: pa.Schema) -> None:
        """Raise PipelineError: events of Debezium are only read."""
        raise PipelineError(
            "Debezium's events can be read, and not written",
            where=self.describe(),
            remedy="Write change rows with Json, Avro or Protobuf",
        )

    def create_encoder(self, schema: pa.Schema) -> RecordEncoder:
        """See `check_encodable`."""
        self.check_encodable(schema)
        raise AssertionError("unreachable")

    def describe(self) -> str:
        """Return the format of the values."""
        return f"Debezium({self._value.describe()})"


def _json_envelope(row: pa.Schema, metadata: Iterable[_Metadata]) -> pa.Schema:
    image = pa.struct([field.with_nullable(True) for field in row])
    fields = {BEFORE: image, AFTER: image, OP: pa.string()}
    inside: dict[str, list[pa.Field]] = {}
    for path in dict.fromkeys(one.path for one in metadata):
        kind = pa.int64() if path[-1] in _NUMBERS else pa.string()
        if len(path) == 1:
            fields.setdefault(path[0], kind)
        else:
            inside.setdefault(path[0], []).append(pa.field(path[1], kind))
    return pa.schema({**{name: pa.struct(parts) for name, parts in inside.items()}, **fields})


def _row_type(envelope: pa.Schema, value: Format) -> pa.DataType:
    """Return the struct with the columns of the table."""
    types = {field.name: field.type for field in envelope}
    row = types.get(AFTER)
    if row is None or not pt.is_struct(row) or types.get(BEFORE) != row or types.get(OP) != pa.string():
        raise PipelineError(
            "the format of the values has no envelope of Debezium",
            where=value.describe(),
            cause=f"the columns are {', '.join(envelope.names)}; needed are before and after, of one type, and op",
            remedy="Pass Json with the columns of the table, or the Avro schema that Debezium registered",
        )
    return row


def _metadata_type(envelope: pa.Schema, one: _Metadata, value: Format) -> pa.DataType:
    kind = pa.struct(list(envelope))
    for name in one.path:
        number = kind.get_field_index(name) if pt.is_struct(kind) else -1
        if number < 0:
            raise PipelineError(
                f"the envelope has no {'.'.join(one.path)!r}",
                where=value.describe(),
                remedy="Correct the path in metadata=",
            )
        kind = kind.field(number).type
    is_time = one.path[-1] in _TIMES and kind == pa.int64()
    return pa.timestamp(_TIMES[one.path[-1]], "UTC") if is_time else kind


class _UnwrappedJson(RecordDecoder):
    """Decoder of JSON objects with or without the wrapper, an object with `schema` and `payload`."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        nullable = [field.with_nullable(True) for field in schema]
        self._decoder = JsonDecoder(pa.schema([*nullable, pa.field(PAYLOAD, pa.struct(nullable))]))

    def decode(self, values: pa.Array) -> DecodedRecords:
        """See `RecordDecoder`."""
        decoded = self._decoder.decode(values)
        wrapped = decoded.batch.column(PAYLOAD)
        plain = decoded.batch.columns[: len(self._schema)]
        if wrapped.null_count == len(wrapped):
            columns = plain
        elif not wrapped.null_count:
            columns = wrapped.flatten()
        else:
            places = np.arange(len(wrapped)) + len(wrapped) * wrapped.is_valid().to_numpy(zero_copy_only=False)
            columns = [pa.concat_arrays(both).take(pa.array(places)) for both in zip(plain, wrapped.flatten())]
        batch = pa.RecordBatch.from_arrays(columns, names=self._schema.names)
        return DecodedRecords(batch, decoded.records, decoded.bad)


class _DebeziumDecoder(RecordDecoder):
    def __init__(
        self,
        schema: pa.Schema,
        columns: Sequence[str] | None,
        values: RecordDecoder,
        keys: RecordDecoder | None,
        metadata: Sequence[_Metadata],
        *,
        only_after: bool,
        ignores_truncate: bool,
    ) -> None:
        self._schema = selected(schema, columns)
        self._row = schema.names[: len(schema) - 1 - len(metadata)]
        self._kind = schema.names[len(self._row)]
        self._values, self._keys, self._metadata = values, keys, {one.column: one.path for one in metadata}
        self._only_after, self._ignores_truncate = only_after, ignores_truncate

    def decode(self, values: pa.Array) -> DecodedRecords:
        """See `RecordDecoder`."""
        return self.decode_records(pa.nulls(len(values), pa.binary()), values)

    def decode_records(self, keys: pa.Array, values: pa.Array) -> DecodedRecords:
        """See `RecordDecoder`."""
        values = as_binary(values)
        there = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)).astype(np.int64)
        found = self._values.decode(values if len(there) == len(values) else values.take(pa.array(there)))
        bad = {int(there[one.index]): one.reason for one in found.bad}
        records = there if found.records is None else there[found.records.to_numpy()]
        events = _Events(found.batch, records)
        self._judge(events, as_binary(keys), bad)
        places, of_row, kinds = self._rows(events)
        columns = [self._column(field, events, places, of_row, kinds) for field in self._schema]
        if not len(self._schema):
            batch = pa.record_batch({"rows": pa.nulls(len(places))}).select([])
        else:
            batch = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        named = [UndecodableRecord(record, bad[record]) for record in sorted(bad)]
        return DecodedRecords(batch, pa.array(events.records[of_row]), named)

    def _judge(self, events: _Events, keys: pa.Array, bad: dict[int, str]) -> None:
        """Find the events that have no rows: add the bad ones to `bad`, and clear their op."""
        refuse = events.refuse
        known = np.isin(events.ops, (_CREATE, _READ, _UPDATE, _DELETE, _TRUNCATE))
        refuse(~known, _NO_OP, bad)
        if self._ignores_truncate:
            events.ops[events.ops == _TRUNCATE] = ""
        refuse(events.ops == _TRUNCATE, _TRUNCATED, bad)
        refuse(np.isin(events.ops, (_CREATE, _READ, _UPDATE)) & ~events.has_after, _NO_AFTER, bad)
        if not self._only_after:
            refuse((events.ops == _UPDATE) & ~events.has_before, _NO_BEFORE, bad)
        by_key = np.flatnonzero((events.ops == _DELETE) & ~events.has_before).astype(np.int64)
        if not len(by_key):
            return
        wanted = keys.take(pa.array(events.records[by_key]))
        if self._keys is None:
            refuse(np.isin(np.arange(len(events.ops)), by_key), _NO_DELETED, bad)
            return
        there = np.flatnonzero(wanted.is_valid().to_numpy(zero_copy_only=False)).astype(np.int64)
        found = self._keys.decode(wanted.take(pa.array(there)))
        decoded = there if found.records is None else there[found.records.to_numpy()]
        events.keys, events.by_key = found.batch, by_key[decoded]
        for one in found.bad:
            bad[int(events.records[by_key[there[one.index]]])] = f"the key of the record: {one.reason}"
        missing = np.setdiff1d(by_key, events.by_key)
        for place in missing.tolist():
            bad.setdefault(int(events.records[place]), _NO_DELETED)
        events.ops[missing] = ""

    def _rows(self, events: _Events) -> tuple[Indices, Indices, Indices]:
        """Return of each row: its place among all images, its event, and the number of its kind in `CHANGE_KINDS`."""
        size = len(events.ops)
        inserts, deletes = np.isin(events.ops, (_CREATE, _READ)), events.ops == _DELETE
        updates = events.ops == _UPDATE
        counts = (inserts | deletes).astype(np.int64) + updates * (1 if self._only_after else 2)
        of_row: Indices = np.repeat(np.arange(size, dtype=np.int64), counts)
        ends = np.cumsum(counts)
        is_last = np.zeros(len(of_row), np.bool_)
        is_last[ends[counts > 0] - 1] = True
        images = np.arange(size, dtype=np.int64)
        images[events.by_key] = 2 * size + np.arange(len(events.by_key))
        after = inserts[of_row] | (updates[of_row] & is_last)
        places: Indices = np.where(after, of_row + size, images[of_row])
        number = {kind: at for at, kind in enumerate(CHANGE_KINDS)}
        kinds = np.where(
            updates[of_row], np.where(is_last, number[UPDATE_AFTER], number[UPDATE_BEFORE]), number[DELETE]
        )
        return places, of_row, np.where(inserts[of_row], number[INSERT], kinds).astype(np.int64)

    def _column(self, field: pa.Field, events: _Events, places: Indices, of_row: Indices, kinds: Indices) -> pa.Array:
        if field.name == self._kind:
            return pa.array(CHANGE_KINDS, pa.string()).take(pa.array(kinds))
        if field.name in self._metadata:
            value = events.batch.column(self._metadata[field.name][0])
            if len(self._metadata[field.name]) > 1:
                value = value.flatten()[value.type.get_field_index(self._metadata[field.name][1])]
            return value.take(pa.array(of_row)).cast(field.type)
        number = self._row.index(field.name)
        return events.images(number, field).take(pa.array(places))


class _Events:
    """Envelopes of a batch.

    Attributes:
        records: the record of each.
        ops: their kinds; cleared if an event has no rows.
        has_before, has_after: whether they have a row before and after.
        keys, by_key: columns of keys, and the events whose row they are.
    """

    def __init__(self, batch: pa.RecordBatch, records: Indices) -> None:
        self.batch, self.records = batch, records
        ops = pc.fill_null(batch.column(OP), "").to_numpy(zero_copy_only=False).astype(object)
        self.ops: npt.NDArray[np.object_] = ops
        self._before, self._after = batch.column(BEFORE), batch.column(AFTER)
        self.has_before = self._before.is_valid().to_numpy(zero_copy_only=False)
        self.has_after = self._after.is_valid().to_numpy(zero_copy_only=False)
        self.keys, self.by_key = empty(pa.schema([])), NONE

    def refuse(self, wrong: npt.NDArray[np.bool_], reason: str, bad: dict[int, str]) -> None:
        """Add events to `bad`, and clear their ops."""
        if wrong.any():
            bad.update(dict.fromkeys(self.records[wrong].tolist(), reason))
            self.ops[wrong] = ""

    def images(self, number: int, field: pa.Field) -> pa.Array:
        """Return a column of the table: of all rows before, then of all rows after, then of the rows by key."""
        if field.name in self.keys.schema.names:
            by_key = self.keys.column(field.name)
        else:
            by_key = pa.nulls(len(self.by_key), field.type)
        return pa.concat_arrays([self._before.flatten()[number], self._after.flatten()[number], by_key])
