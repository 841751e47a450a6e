"""Columns of a stream as records of a topic: key, value, headers, partition, time, topic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidegate.change_rows import CHANGE_KINDS, DELETE, UPDATE_BEFORE, change_kind_column
from tidegate.connectors.formats.interface import Format, RecordEncoder
from tidegate.connectors.kafka.sink.staged_records import HEADERS_TYPE, PARTITION, STAGED_SCHEMA, TIMESTAMP
from tidegate.errors import DataError, PipelineError

Changes = Literal["upsert", "encode"]
RECORD_OVERHEAD_BYTES, HEADER_OVERHEAD_BYTES = 36, 10
"""Bytes that the client adds at most to a record and to each header before it compares with `message.max.bytes`."""
_KINDS = pa.array(CHANGE_KINDS)
_BYTES_TYPES = (
    pt.is_string,
    pt.is_large_string,
    pt.is_string_view,
    pt.is_binary,
    pt.is_large_binary,
    pt.is_binary_view,
    pt.is_fixed_size_binary,
)


@dataclass(frozen=True)
class RecordColumns:
    """Which columns become which part of a record.

    Attributes:
        value: format of the value, or the name of a column that holds it.
        value_columns: columns that the format gets; None: all that have no other part.
        key: columns of the key; without `key_format`, at most one, which holds it.
        headers: one column of maps or of lists of key and value; or columns that are headers themselves.
        partition, timestamp, topic: columns, or None.
        changes: what happens to a stream with a kind of change.
    """

    value: Format | str
    value_columns: tuple[str, ...] | None = None
    key: tuple[str, ...] = ()
    key_format: Format | None = None
    headers: tuple[str, ...] = ()
    partition: str | None = None
    timestamp: str | None = None
    topic: str | None = None
    changes: Changes = "upsert"

    def kind_column(self, schema: pa.Schema) -> str | None:
        """Return the column with the kind of change by which rows become tombstones; None: there is none."""
        return change_kind_column(schema) if self.changes == "upsert" else None

    def columns_of_value(self, schema: pa.Schema) -> list[str]:
        """Return the columns that are encoded to the value."""
        if isinstance(self.value, str):
            return [self.value]
        if self.value_columns is not None:
            return list(self.value_columns)
        other = {self.partition, self.timestamp, self.topic, self.kind_column(schema), *self.headers}
        return [name for name in schema.names if name not in other]

    def check(self, schema: pa.Schema, where: str) -> None:
        """Check that records can be made of rows of this schema. Args: where: the sink, for errors.

        Raises:
            PipelineError: with all problems of the columns; or the problem of a format.
        """
        problems = self._problems(schema)
        if problems:
            raise PipelineError(
                "the columns cannot become records of a topic",
                where=where,
                cause="; ".join(problems),
                remedy="Change the options of the sink, or the columns with select() and with_columns()",
            )
        if isinstance(self.value, Format):
            self.value.check_encodable(selected(schema, self.columns_of_value(schema)))
        if self.key_format is not None:
            self.key_format.check_encodable(selected(schema, self.key))

    def _problems(self, schema: pa.Schema) -> list[str]:
        named = [*self.key, *self.headers, *self.columns_of_value(schema), self.partition, self.timestamp, self.topic]
        missing = sorted({name for name in named if name is not None and name not in schema.names})
        if missing:
            return [f"there is no column {', '.join(map(repr, missing))}; the columns are {', '.join(schema.names)}"]
        if len(set(schema.names)) != len(schema.names):
            return ["two columns have the same name"]
        problems = []
        if isinstance(self.value, str) and not is_bytes(schema.field(self.value).type):
            problems.append(_no_bytes("value", schema.field(self.value), "a value= format"))
        if not self.columns_of_value(schema):
            problems.append("no column is left for the value")
        if self.key and self.key_format is None and not is_bytes(schema.field(self.key[0]).type):
            problems.append(_no_bytes("key", schema.field(self.key[0]), "key_format="))
        kind = self.kind_column(schema)
        if kind is not None and not self.key:
            problems.append(
                f"column {kind!r} holds kinds of change, so a key is needed: pass key=, or changes='encode' if the "
                "format writes the kind"
            )
        problems += self._problems_of_places(schema)
        return problems

    def _problems_of_places(self, schema: pa.Schema) -> list[str]:
        problems = []
        if self.partition is not None and not pt.is_integer(schema.field(self.partition).type):
            problems.append(f"partition column {self.partition!r} is no integer")
        if self.timestamp is not None:
            kind = schema.field(self.timestamp).type
            if not pt.is_timestamp(kind) and kind != pa.int64():
                problems.append(f"timestamp column {self.timestamp!r} is neither a timestamp nor int64 milliseconds")
        if self.topic is not None and not is_text(schema.field(self.topic).type):
            problems.append(f"topic column {self.topic!r} is no text")
        for name in self.headers:
            kind = schema.field(name).type
            if not (is_bytes(kind) or (len(self.headers) == 1 and is_header_list(kind))):
                problems.append(
                    f"headers column {name!r} has type {kind}; use text or bytes, or a single column that is a map or "
                    "a list of structs of key and value"
                )
        return problems


def selected(schema: pa.Schema, names: Sequence[str]) -> pa.Schema:
    """Return the schema of some columns."""
    return pa.schema([schema.field(name) for name in names])


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds texts."""
    kind = kind.value_type if pt.is_dictionary(kind) else kind
    return bool(pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Return whether a column of this type holds texts or bytes."""
    kind = kind.value_type if pt.is_dictionary(kind) else kind
    return any(check(kind) for check in _BYTES_TYPES)


def is_header_list(kind: pa.DataType) -> bool:
    """Return whether a value of this type holds all headers of a record."""
    if pt.is_map(kind):
        return is_text(kind.key_type) and is_bytes(kind.item_type)
    if not (pt.is_list(kind) or pt.is_large_list(kind)) or not pt.is_struct(kind.value_type):
        return False
    fields = list(kind.value_type)
    return [f.name for f in fields] == ["key", "value"] and is_text(fields[0].type) and is_bytes(fields[1].type)


def _no_bytes(part: str, field: pa.Field, option: str) -> str:
    return f"{part} column {field.name!r} has type {field.type}, not text or bytes; cast it, or pass {option}"


class RecordsOfRows:
    """Encodes batches of rows to batches of `STAGED_SCHEMA`. Used on the slot's loop.

    Args:
        max_record_bytes: `message.max.bytes`. A larger record would make its transaction fail after the checkpoint is
            complete, so it is refused before.
        where: the sink, for errors.

    Attributes:
        keyed: records have keys.
    """

    def __init__(self, columns: RecordColumns, schema: pa.Schema, max_record_bytes: int, where: str) -> None:
        self._columns = columns
        self._where = where
        self._limit_bytes = max_record_bytes
        self._kind = columns.kind_column(schema)
        self._value_columns = columns.columns_of_value(schema)
        self._value: RecordEncoder | None = None
        if isinstance(columns.value, Format):
            self._value = columns.value.create_encoder(selected(schema, self._value_columns))
        self._key: RecordEncoder | None = None
        if columns.key_format is not None:
            self._key = columns.key_format.create_encoder(selected(schema, columns.key))
        self.keyed = bool(columns.key)

    def encode(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the records; fewer than rows if some rows are the state before an update.

        Raises:
            DataError: a row cannot be a record.
            PipelineError, OutageError: see `RecordEncoder.encode`.
        """
        deletes: pa.Array | None = None
        if self._kind is not None:
            batch, deletes = self._changes(batch)
        columns = self._columns
        key, value = self._keys(batch), self._values(batch, deletes)
        if columns.key and value.null_count and key.null_count:
            lonely = pc.and_(pc.is_null(value), pc.is_null(key))
            self._refuse(lonely, "has neither a key nor a value, so it deletes nothing", "key")
        headers = self._headers(batch)
        self._check_sizes(key, value, headers)
        made = [
            _nulls(batch, pa.string()) if columns.topic is None else plain(batch[columns.topic]).cast(pa.string()),
            self._partitions(batch),
            self._timestamps(batch),
            key,
            value,
            headers,
        ]
        return pa.record_batch(made, schema=STAGED_SCHEMA)

    def _changes(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array | None]:
        """Return the rows without states before an update, and which of them are deletes; None: none is."""
        kinds = plain(batch[self._kind])
        self._refuse(pc.invert(pc.is_in(kinds, _KINDS)), "has an unknown kind of change", str(self._kind))
        before = pc.equal(kinds, UPDATE_BEFORE)
        if pc.any(before).as_py():
            batch = batch.filter(pc.invert(before))
            kinds = plain(batch[self._kind])
        deletes = pc.equal(kinds, DELETE)
        return batch, deletes if pc.any(deletes).as_py() else None

    def _values(self, batch: pa.RecordBatch, deletes: pa.Array | None) -> pa.Array:
        # Deleted rows often lack columns that the format requires, so they are not encoded.
        rows = batch if deletes is None else batch.filter(pc.invert(deletes))
        if self._value is None:
            encoded = to_binary(rows[self._value_columns[0]])
        else:
            encoded = self._value.encode(rows.select(self._value_columns))
        if deletes is None:
            return encoded
        is_deleted = deletes.to_numpy(zero_copy_only=False)
        return encoded.take(pa.array(np.cumsum(~is_deleted) - 1, pa.int64(), mask=is_deleted))

    def _keys(self, batch: pa.RecordBatch) -> pa.Array:
        if not self._columns.key:
            return _nulls(batch, pa.binary())
        if self._key is not None:
            return self._key.encode(batch.select(list(self._columns.key)))
        keys = to_binary(batch[self._columns.key[0]])
        if self._kind is not None and keys.null_count:
            self._refuse(pc.is_null(keys), "has no key", self._columns.key[0])
        return keys

    def _headers(self, batch: pa.RecordBatch) -> pa.Array:
        names = self._columns.headers
        if not names:
            return _nulls(batch, HEADERS_TYPE)
        if len(names) == 1 and is_header_list(batch.schema.field(names[0]).type):
            made = batch[names[0]].cast(HEADERS_TYPE)
            if made.flatten().field(0).null_count:
                self._refuse(pc.is_null(made.flatten().field(0)), "has a header without a name", names[0])
            return made
        return _headers_of(names, [to_binary(batch[name]) for name in names], batch.num_rows)

    def _partitions(self, batch: pa.RecordBatch) -> pa.Array:
        name = self._columns.partition
        if name is None:
            return _nulls(batch, pa.int32())
        found = batch[name]
        self._refuse(pc.less(found, 0), f"has a negative {PARTITION}", name)
        self._refuse(pc.greater(found, np.iinfo(np.int32).max), f"has too large a {PARTITION}", name)
        return found.cast(pa.int32())

    def _timestamps(self, batch: pa.RecordBatch) -> pa.Array:
        name = self._columns.timestamp
        if name is None:
            return _nulls(batch, pa.int64())
        found = batch[name]
        if pt.is_timestamp(found.type):
            found = found.cast(pa.timestamp("ms", found.type.tz), safe=False).cast(pa.int64())
        # Kafka's own mark for "no time" is negative.
        self._refuse(pc.less(found, 0), f"has a negative {TIMESTAMP}", name)
        return found

    def _check_sizes(self, key: pa.Array, value: pa.Array, headers: pa.Array) -> None:
        parts = (pc.fill_null(pc.binary_length(part), 0).cast(pa.int64()) for part in (key, value))
        sizes = pc.add(RECORD_OVERHEAD_BYTES, pc.add(*parts))
        if headers.null_count < len(headers):
            sizes = pc.add(sizes, pa.array(_sizes_of_headers(headers)))
        too_large = pc.greater(sizes, self._limit_bytes)
        if pc.any(too_large).as_py():
            raise DataError(
                f"a record of {pc.max(sizes).as_py()} bytes is too large for the topic",
                where=self._where,
                cause=f"message.max.bytes is {self._limit_bytes}",
                remedy="Raise message.max.bytes in settings= and max.message.bytes of the topic, or make the rows "
                "smaller",
            )

    def _refuse(self, wrong: pa.Array, what: str, column: str) -> None:
        if pc.any(wrong).as_py():
            raise DataError(
                f"a row {what}",
                where=f"{self._where}, column {column!r}",
                cause=f"{pc.sum(wrong).as_py()} of {len(wrong)} rows of a batch",
                remedy="Fix or filter such rows upstream of the sink",
            )


def plain(column: pa.Array) -> pa.Array:
    """Return the column without dictionary encoding."""
    return column.dictionary_decode() if pt.is_dictionary(column.type) else column


def to_binary(column: pa.Array) -> pa.Array:
    """Return texts or bytes as `binary`."""
    column = plain(column)
    if pt.is_string_view(column.type) or pt.is_large_string(column.type):
        column = column.cast(pa.string())
    return column.cast(pa.binary())


def _nulls(batch: pa.RecordBatch, kind: pa.DataType) -> pa.Array:
    return pa.nulls(batch.num_rows, kind)


def _headers_of(names: Sequence[str], columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """Return one header for each column whose value is not null."""
    width = len(names)
    order = np.arange(rows * width).reshape(width, rows).T.reshape(-1)
    values = pa.concat_arrays(columns).take(pa.array(order))
    is_there = pc.is_valid(values)
    lengths = is_there.to_numpy(zero_copy_only=False).reshape(rows, width).sum(axis=1)
    keys = pa.array(list(names), pa.string()).take(pa.array(np.tile(np.arange(width), rows)))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    entries = pa.StructArray.from_arrays(
        [keys.filter(is_there), values.filter(is_there)], fields=list(HEADERS_TYPE.value_type)
    )
    return pa.ListArray.from_arrays(offsets, entries, type=HEADERS_TYPE)


def _sizes_of_headers(headers: pa.Array) -> np.ndarray:
    """Return the bytes of all headers of each record."""
    entries = headers.flatten()
    names, values = (pc.fill_null(pc.binary_length(entries.field(n)), 0) for n in (0, 1))
    each = pc.add(HEADER_OVERHEAD_BYTES, pc.add(names, values))
    total = np.concatenate([[0], np.cumsum(each.to_numpy(zero_copy_only=False), dtype=np.int64)])
    lengths = pc.fill_null(pc.list_value_length(headers), 0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)
    return total[ends] - total[ends - lengths]
