"""Raw: the bytes of a record as one column."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidegate.connectors.formats.decoded_rows import NONE, Indices, as_binary, assemble, kept_records, selected
from tidegate.connectors.formats.interface import DecodedRecords, Format, RecordDecoder, RecordEncoder
from tidegate.connectors.formats.utf8 import invalid_texts
from tidegate.errors import OptionError, PipelineError

NO_TEXT = "the value is not UTF-8 text"

_TYPES: Mapping[str, pa.DataType] = {
    "binary": pa.binary(),
    "string": pa.string(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
}
"""Types of the column. Numbers are big endian, as Kafka's own serializers for Java write them."""


@dataclass(frozen=True)
class Raw(Format):
    """The bytes of a record, as one column. Bytes and text are not copied.

    Attributes:
        name: name of the column. Default: `value`.
        type: `binary` (default), `string` (UTF-8), or a big-endian number as Kafka's serializers for Java write it:
            `int16`, `int32`, `int64`, `float32`, `float64`.

    Raises:
        OptionError: the name is empty, or the type is unknown.
    """

    name: str = "value"
    type: str = "binary"

    def __post_init__(self) -> None:
        if not self.name:
            raise OptionError("the name of the column is empty", where="Raw(name=)", remedy='Use a name like "value"')
        if self.type not in _TYPES:
            raise OptionError(
                f"the type {self.type!r} is unknown", where="Raw(type=)", remedy=f"Use one of {', '.join(_TYPES)}"
            )

    def schema(self) -> pa.Schema:
        """Return the one column."""
        return pa.schema([(self.name, _TYPES[self.type])])

    def create_decoder(self, columns: Sequence[str] | None = None) -> RecordDecoder:
        """Return a decoder. Without any column, it still refuses what is no text or number."""
        return _RawDecoder(self.schema(), columns)

    def check_encodable(self, schema: pa.Schema) -> None:
        """Check that the rows have exactly this column, of this type."""
        wanted = self.schema()
        if schema.names != wanted.names or schema.types != wanted.types:
            raise PipelineError(
                f"the rows are not the one column {wanted.field(0).name!r} of type {wanted.field(0).type}",
                where=self.describe(),
                cause=f"the rows have {', '.join(f'{f.name}: {f.type}' for f in schema) or 'no column'}",
                remedy="Select and cast the column before the sink, or name it with Raw(name=, type=)",
            )

    def create_encoder(self, schema: pa.Schema) -> RecordEncoder:
        """Return an encoder."""
        self.check_encodable(schema)
        return _RawEncoder(self)

    def describe(self) -> str:
        """Return name and type."""
        return f"Raw({self.name!r}, {self.type})"


class _RawDecoder(RecordDecoder):
    def __init__(self, schema: pa.Schema, columns: Sequence[str] | None) -> None:
        self._type = schema.field(0).type
        self._schema, self._columns = schema, selected(schema, columns).names

    def decode(self, values: pa.Array) -> DecodedRecords:
        """See `RecordDecoder`."""
        values = as_binary(values)
        bad: dict[int, str] = {}
        if self._type == pa.binary():
            column = values
        elif self._type == pa.string():
            bad = dict.fromkeys(invalid_texts(values).tolist(), NO_TEXT)
            good = values if not bad else _without(values, bad)
            column = pa.Array.from_buffers(pa.string(), len(good), good.buffers(), good.null_count, good.offset)
        else:
            column, bad = _numbers(values, self._type)
        if not bad:
            return DecodedRecords(self._batch(column))
        return assemble(len(values), self._batch(column), kept_records(len(values), bad), NONE, bad)

    def _batch(self, column: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([column], schema=self._schema).select(self._columns)


def _without(values: pa.Array, bad: Mapping[int, str]) -> pa.Array:
    return values.take(pa.array(kept_records(len(values), bad)))


def _numbers(values: pa.Array, kind: pa.DataType) -> tuple[pa.Array, dict[int, str]]:
    """Return the numbers of the records that have the bytes of one, and the other records."""
    width = kind.bit_width // 8
    lengths = values.fill_null(b"\0" * width).cast(pa.binary())
    sizes = np.diff(np.frombuffer(lengths.buffers()[1], np.int32, len(lengths) + 1, lengths.offset * 4))
    wrong: Indices = np.flatnonzero(sizes != width).astype(np.int64)
    bad = {int(at): f"the value has {sizes[at]} bytes, and {kind} has {width}" for at in wrong}
    good = _without(values, bad) if bad else values
    whole = good.fill_null(b"\0" * width) if good.null_count else good
    if not len(whole):
        return pa.array([], kind), bad
    first = np.frombuffer(whole.buffers()[1], np.int32, 1, whole.offset * 4)[0]
    dtype = np.dtype(kind.to_pandas_dtype())
    raw = np.frombuffer(whole.buffers()[2], dtype.newbyteorder(">"), len(whole), int(first))
    numbers = raw.astype(dtype) if sys.byteorder == "little" else raw
    mask = good.is_null().to_numpy(zero_copy_only=False) if good.null_count else None
    return pa.array(numbers, kind, mask=mask), bad


class _RawEncoder(RecordEncoder):
    def __init__(self, format_: Raw) -> None:
        self._format = format_

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """See `RecordEncoder`."""
        column = batch.column(0)
        if column.null_count:
            raise PipelineError(
                f"column {self._format.name!r} has a null, which has no bytes",
                where=self._format.describe(),
                remedy="Filter out the rows with null before the sink, or replace null by a value",
            )
        if column.type in (pa.binary(), pa.string()):
            return pa.Array.from_buffers(pa.binary(), len(column), column.buffers(), 0, column.offset)
        numbers = column.to_numpy(zero_copy_only=False)
        raw = numbers.astype(numbers.dtype.newbyteorder(">"))
        offsets = np.arange(len(column) + 1, dtype=np.int32) * raw.dtype.itemsize
        return pa.Array.from_buffers(pa.binary(), len(column), [None, pa.py_buffer(offsets), pa.py_buffer(raw)])
