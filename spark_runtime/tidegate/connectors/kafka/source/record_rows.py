"""Rows of Kafka records: columns of the formats, columns of metadata, and the records that cannot be decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.connectors.files.source.bad_records import MAX_SHOWN_BYTES
from tidegate.connectors.formats.interface import DecodedRecords, Format, RecordDecoder
from tidegate.connectors.kafka.cluster import load_confluent_kafka
from tidegate.errors import OptionError, PipelineError

METADATA: Mapping[str, pa.DataType] = {
    "key": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("ms", tz="UTC"),
    "headers": pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
"""Columns that a source can add -> their types."""
VALUE = "value"
"""The column with the bytes of the value, without a format."""
BAD_RECORDS_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("raw", pa.binary()),
        ("reason", pa.string()),
    ]
)
"""Rows of the side output `bad_records`: the bytes of the value (or of the key, if the reason begins with "key: ")."""


@dataclass(frozen=True)
class RowShape:
    """Which columns the rows of a source have. No I/O in its constructor.

    Attributes:
        value, key: formats; value None: the column `value` with the bytes; key None: no columns.
        metadata: name in `METADATA` -> name of the column.
        columns: the columns that the job uses; None: all.
    """

    value: Format | None
    key: Format | None
    metadata: Mapping[str, str]
    columns: frozenset[str] | None = None

    def schema(self) -> pa.Schema:
        """Return all columns: of the value, of the key, of metadata.

        Raises:
            PipelineError: two have one name.
        """
        named = [
            *((field, "the value") for field in self._value_schema()),
            *((field, "the key") for field in (self.key.schema() if self.key is not None else ())),
            *((pa.field(name, METADATA[of]), f"with_columns= ({of})") for of, name in self.metadata.items()),
        ]
        origins: dict[str, str] = {}
        for field, origin in named:
            if field.name in origins:
                raise PipelineError(
                    f"two columns have the name {field.name!r}",
                    where="Kafka()",
                    cause=f"it is a column of {origins[field.name]} and of {origin}",
                    remedy='Name columns of metadata with with_columns={"timestamp": "kafka_timestamp"}, '
                    "or rename a column of a format",
                )
            origins[field.name] = origin
        return pa.schema([field for field, _ in named])

    def _value_schema(self) -> pa.Schema:
        return pa.schema([(VALUE, pa.binary())]) if self.value is None else self.value.schema()

    def uses(self, column: str) -> bool:
        """Return whether the job uses a column."""
        return self.columns is None or column in self.columns


def metadata_columns(wanted: Sequence[str] | Mapping[str, str]) -> dict[str, str]:
    """Parse `with_columns`. Raises OptionError for an unknown name."""
    pairs = dict(wanted) if isinstance(wanted, Mapping) else {name: name for name in wanted}
    unknown = [name for name in pairs if name not in METADATA]
    if unknown or isinstance(wanted, str):
        raise OptionError(
            f"with_columns={wanted!r} is unknown",
            where="Kafka(with_columns=)",
            remedy=f"Use a list of {', '.join(map(repr, METADATA))}, or a mapping from them to names of columns",
        )
    return pairs


@dataclass(frozen=True)
class BadRecord:
    """One record that cannot be decoded."""

    offset: int
    raw: bytes | None
    reason: str


@dataclass(frozen=True)
class Rows:
    """Rows of some messages, and the messages that have none because they cannot be decoded."""

    batch: pa.RecordBatch
    bad: Sequence[BadRecord]


class RowBuilder:
    """Turns messages of one partition into rows. Called on the slot's loop."""

    def __init__(self, shape: RowShape) -> None:
        self._shape = shape
        whole = shape.schema()
        self._schema = pa.schema([field for field in whole if shape.uses(field.name)])
        self._value = None if shape.value is None else _decoder(shape.value, shape)
        self._key = None if shape.key is None else _decoder(shape.key, shape)
        self._needs_keys = shape.value is not None and shape.value.needs_keys

    def rows(self, topic: str, partition: int, messages: Sequence[Any]) -> Rows:
        """Return the rows.

        Raises:
            OutageError, PipelineError: see `RecordDecoder.decode`.
        """
        kind = load_confluent_kafka().Message
        n = len(messages)
        columns: dict[str, pa.Array] = {}
        bad: dict[int, tuple[Callable[[Any], bytes | None], str]] = {}
        records: pa.Array | None = None
        if self._value is not None:
            decoded = self._value.decode_records(
                _binary(kind.key, messages) if self._needs_keys else pa.nulls(n, pa.binary()),
                _binary(kind.value, messages),
            )
            records = decoded.records
            columns |= dict(zip(decoded.batch.schema.names, decoded.batch.columns, strict=True))
            bad |= {record.index: (kind.value, record.reason) for record in decoded.bad}
            rows = decoded.batch.num_rows
        else:
            rows = n
            if self._shape.uses(VALUE):
                columns[VALUE] = _binary(kind.value, messages)
        kept = None if records is None else np.asarray(records)
        if self._key is not None:
            keys = self._key.decode(_binary(kind.key, messages))
            bad_keys = [record for record in keys.bad if record.index not in bad]
            if bad_keys:
                mask = ~np.isin(np.arange(n) if kept is None else kept, [record.index for record in bad_keys])
                columns = {name: column.filter(pa.array(mask)) for name, column in columns.items()}
                kept = np.flatnonzero(mask) if kept is None else kept[mask]
                bad |= {record.index: (kind.key, f"key: {record.reason}") for record in bad_keys}
            columns |= _of_keys(keys, n, kept)
        taken = None if kept is None else pa.array(kept, pa.int64())
        rows = rows if taken is None else len(taken)
        for name, column in self._metadata(kind, topic, partition, messages):
            columns[name] = column if taken is None else column.take(taken)
        arrays = [columns[name] for name in self._schema.names]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        return Rows(batch, [_bad(messages[i], *bad[i]) for i in sorted(bad)])

    def _metadata(self, kind: Any, topic: str, partition: int, messages: Sequence[Any]) -> list[tuple[str, pa.Array]]:
        found: list[tuple[str, pa.Array]] = []
        for of, name in self._shape.metadata.items():
            if not self._shape.uses(name):
                continue
            if of == "key":
                column = _binary(kind.key, messages)
            elif of == "topic":
                column = pa.repeat(pa.scalar(topic, pa.string()), len(messages))
            elif of == "partition":
                column = pa.repeat(pa.scalar(partition, pa.int32()), len(messages))
            elif of == "offset":
                column = pa.array(np.fromiter(map(kind.offset, messages), np.int64, len(messages)))
            elif of == "timestamp":
                # The type 0 means that the record has no time.
                times = [at_ms if how else None for how, at_ms in map(kind.timestamp, messages)]
                column = pa.array(times, pa.int64()).cast(METADATA[of])
            else:
                column = pa.array([headers or [] for headers in map(kind.headers, messages)], METADATA[of])
            found.append((name, column))
        return found


def _decoder(format_: Format, shape: RowShape) -> RecordDecoder:
    names = format_.schema().names
    used = [name for name in names if shape.uses(name)]
    # Without any column, the number of rows would be unknown.
    return format_.create_decoder(None if len(used) == len(names) else used or names[:1])


def _binary(get: Callable[[Any], bytes | None], messages: Sequence[Any]) -> pa.Array:
    return pa.array(list(map(get, messages)), pa.binary())


def _of_keys(keys: DecodedRecords, n: int, kept: Any) -> dict[str, pa.Array]:
    """Return the columns of the keys for rows that come from the records `kept`; None: from each record.

    A key has one row. Nulls take the place of a row that the format leaves out.
    """
    batch = keys.batch
    if keys.records is not None:
        of_record = np.full(n, -1, np.int64)
        of_record[np.asarray(keys.records)[::-1]] = np.arange(len(keys.records))[::-1]
        rows = of_record if kept is None else of_record[kept]
        batch = batch.take(pa.array(rows, pa.int64(), mask=rows < 0))
    elif kept is not None:
        batch = batch.take(pa.array(kept, pa.int64()))
    return dict(zip(batch.schema.names, batch.columns, strict=True))


def _bad(message: Any, get: Callable[[Any], bytes | None], reason: str) -> BadRecord:
    return BadRecord(message.offset(), get(message), reason)


def bad_batch(topic: str, partition: int, records: Sequence[BadRecord]) -> pa.RecordBatch:
    """Return records of one partition as rows of the side output."""
    columns = [
        pa.array([topic] * len(records), pa.string()),
        pa.array([partition] * len(records), pa.int32()),
        pa.array([record.offset for record in records], pa.int64()),
        pa.array([record.raw for record in records], pa.binary()),
        pa.array([record.reason for record in records], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=BAD_RECORDS_SCHEMA)


def undecodable(topic: str, partition: int, record: BadRecord) -> PipelineError:
    """Return the error for `on_bad_record="fail"`."""
    raw = record.raw or b""
    shown = raw[:MAX_SHOWN_BYTES].decode("utf-8", "backslashreplace") + ("..." if len(raw) > MAX_SHOWN_BYTES else "")
    return PipelineError(
        "a record of the topic cannot be decoded",
        where=f"{topic}-{partition}, offset {record.offset}",
        cause=f"{record.reason}; the bytes are {shown!r}",
        remedy='Correct the format, or set on_bad_record="skip" or "dead_letter"',
    )
