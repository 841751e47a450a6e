"""Columns that a decoding kernel writes: their buffers, and the Arrow arrays made of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.connectors.formats.avro.avro_schema import AvroType, arrow_type, values_of
from tidegate.connectors.formats.avro.instructions import BAD_DECIMAL, BAD_TIME, REASONS
from tidegate.connectors.formats.raw_format import NO_TEXT
from tidegate.connectors.formats.utf8 import invalid_ranges
from tidegate.state.arrow.arrow_buffers import bitmap
from tidegate.state.byte_words import gather_bytes

NO_OUTPUT = -1
RECORDS = 0
"""Domain of the values of which each record has one."""
_SECONDS_PER_DAY = 86_400

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Column:
    """A column, or a nested one, as it is decoded.

    Attributes:
        kind: its Avro type: not a union, unless of several types other than null.
        type: its Arrow type.
        nullable: whether null is one of its values.
        out: number of its output; `NO_OUTPUT`: it has only children.
        domain: its values are the records (`RECORDS`), or the elements of one list.
        children: fields of a record; members of a union; the elements of a list; keys and values of a map.
        element_domain: of a list or map: the domain of its elements.
    """

    kind: AvroType
    type: pa.DataType
    nullable: bool
    out: int
    domain: int
    children: tuple[Column, ...] = ()
    element_domain: int = RECORDS

    @property
    def outs(self) -> int:
        """Return the number of outputs: texts and bytes have their lengths in a second one."""
        return 2 if self.is_range else int(self.out != NO_OUTPUT)

    @property
    def is_range(self) -> bool:
        """Return whether its values are ranges of bytes."""
        return bool(pt.is_string(self.type) or pt.is_binary(self.type)) and self.kind.kind != "enum"

    @property
    def width(self) -> int:
        """Return the bytes of a value in the output."""
        if self.is_range or self.kind.kind in ("array", "map"):
            return 8
        if self.kind.kind in ("record", "union", "null"):
            return 0
        if self.kind.kind == "enum":
            return 4
        return 1 if pt.is_boolean(self.type) else int(self.type.bit_width) // 8


@dataclass
class ColumnLayout:
    """Columns of a schema, with the numbers of their outputs and domains.

    Args:
        schema: a simplified record.
    """

    schema: AvroType
    columns: tuple[Column, ...] = field(init=False)
    outs: list[Column] = field(init=False, default_factory=list)
    lists: dict[int, Column] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.columns = tuple(self._column(one.type, RECORDS) for one in self.schema.fields)

    @property
    def domains(self) -> int:
        """Return the number of domains. One more, without outputs, counts elements of lists that are skipped."""
        return 2 + len(self.lists)

    @property
    def skipped_domain(self) -> int:
        """Return the number of that last domain."""
        return 1 + len(self.lists)

    def _column(self, kind: AvroType, domain: int) -> Column:
        whole, branches = arrow_type(kind), values_of(kind)
        nullable = kind.is_nullable
        own = kind if len(branches) > 1 else (branches[0] if branches else AvroType("null"))
        out = len(self.outs)
        column = Column(own, whole, nullable, out, domain)
        self.outs += [column] * column.outs
        children: tuple[Column, ...] = ()
        elements = RECORDS
        if own.kind == "record":
            children = tuple(self._column(one.type, domain) for one in own.fields)
        elif own.kind == "union":
            children = tuple(self._column(AvroType("union", inner=(AvroType("null"), b)), domain) for b in branches)
        elif own.kind in ("array", "map"):
            elements = 1 + len(self.lists)
            self.lists[elements] = column
            keys = (self._column(AvroType("string"), elements),) if own.kind == "map" else ()
            children = (*keys, self._column(own.inner[0], elements))
        return Column(own, whole, nullable, out, domain, children, elements)


class Outputs:
    """Buffers of all outputs.

    Args:
        capacity: the most values of each domain.
    """

    def __init__(self, layout: ColumnLayout, capacity: Int64s) -> None:
        self.capacity = capacity
        self._valid = [np.zeros(capacity[column.domain], np.uint8) for column in layout.outs]
        self._values = [np.zeros(capacity[column.domain] * column.width, np.uint8) for column in layout.outs]
        words = [
            (valid.ctypes.data, values.ctypes.data, column.width, column.domain)
            for valid, values, column in zip(self._valid, self._values, layout.outs)
        ]
        self.words = np.array(words, np.int64).reshape(-1)

    def valid(self, out: int, count: int) -> npt.NDArray[np.uint8]:
        """Return the bytes that are 1 where a value is valid."""
        return self._valid[out][:count]

    def values(self, out: int, dtype: Any, count: int) -> npt.NDArray[Any]:
        """Return the values of an output."""
        return self._values[out].view(dtype)[:count]


class ColumnReader:
    """Makes Arrow arrays of outputs.

    Args:
        data: the bytes that ranges refer to.
        counts: the number of values of each domain.
        constants: column -> the value of a field that the writer does not have, as an array of one value.

    Attributes:
        invalid: numbers of the records with a value that its column cannot hold -> reason.
    """

    def __init__(
        self,
        layout: ColumnLayout,
        outputs: Outputs,
        data: npt.NDArray[np.uint8],
        counts: Int64s,
        constants: Mapping[int, pa.Array],
    ) -> None:
        self._layout, self._outputs, self._data, self._counts = layout, outputs, data, counts
        self._constants = constants
        self.invalid: dict[int, str] = {}

    def array(self, column: Column) -> pa.Array:
        """Return all values of a column."""
        count = int(self._counts[column.domain])
        if id(column) in self._constants:
            return _repeated(self._constants[id(column)], count)
        kind = column.kind.kind
        if kind == "null":
            return pa.nulls(count, column.type)
        valid = self._outputs.valid(column.out, count) if column.nullable else np.ones(count, np.uint8)
        if kind in ("record", "union"):
            children = [self.array(child) for child in column.children]
            if not children:
                return pa.array([{} if one else None for one in valid.tolist()], column.type)
            mask = None if valid.all() else pa.array(valid == 0)
            return pa.StructArray.from_arrays(children, fields=list(column.type), mask=mask)
        mask = bitmap(valid) if column.nullable else None
        if kind in ("array", "map"):
            return self._list(column, count, mask)
        if column.is_range:
            return self._ranges(column, count, mask)
        if kind == "enum":
            numbers = self._outputs.values(column.out, np.int32, count)
            numbers = pa.Array.from_buffers(pa.int32(), count, [mask, pa.py_buffer(np.maximum(numbers, 0))])
            return pa.array(column.kind.symbols, pa.string()).take(numbers)
        values = self._outputs.values(column.out, np.uint8, count * column.width)
        if pt.is_boolean(column.type):
            return pa.Array.from_buffers(
                column.type, count, [mask, pa.py_buffer(np.packbits(values, bitorder="little"))]
            )
        array = pa.Array.from_buffers(column.type, count, [mask, pa.py_buffer(values)])
        if pt.is_decimal(column.type) or pt.is_time(column.type):
            self._check(column, array)
        return array

    def check(self, column: Column) -> None:
        """Find the invalid values of a column that is not needed."""
        for one in _nested(column):
            if id(one) in self._constants:
                continue
            count = int(self._counts[one.domain])
            if one.is_range and pt.is_string(one.type):
                self._check_texts(one, *self._places(one, count))
            elif pt.is_decimal(one.type) or pt.is_time(one.type):
                self.array(one)

    def _places(self, column: Column, count: int) -> tuple[Int64s, Int64s]:
        starts = self._outputs.values(column.out, np.int64, count)
        return starts, self._outputs.values(column.out + 1, np.int64, count)

    def _ranges(self, column: Column, count: int, mask: pa.Buffer | None) -> pa.Array:
        starts, lengths = self._places(column, count)
        if pt.is_string(column.type):
            self._check_texts(column, starts, lengths)
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        data = gather_bytes(self._data, starts, lengths)
        return pa.Array.from_buffers(column.type, count, [mask, pa.py_buffer(offsets), pa.py_buffer(data)])

    def _check_texts(self, column: Column, starts: Int64s, lengths: Int64s) -> None:
        self._refuse(column, invalid_ranges(self._data, starts, lengths), NO_TEXT)

    def _check(self, column: Column, array: pa.Array) -> None:
        """Find decimals with too many digits, and times that are in no day."""
        if pt.is_time(column.type):
            per_day = _SECONDS_PER_DAY * (10**3 if column.type.unit == "ms" else 10**6)
            numbers = self._outputs.values(column.out, np.int32 if column.width == 4 else np.int64, len(array))
            self._refuse(column, np.flatnonzero((numbers < 0) | (numbers >= per_day)), REASONS[BAD_TIME])
            return
        try:
            array.validate(full=True)
        except pa.ArrowInvalid:
            limit = 10**column.kind.precision
            raw = self._outputs.values(column.out, np.uint8, len(array) * column.width).reshape(len(array), -1)
            wide = [abs(int.from_bytes(one.tobytes(), "little", signed=True)) >= limit for one in raw]
            self._refuse(column, np.flatnonzero(wide), REASONS[BAD_DECIMAL])

    def _refuse(self, column: Column, places: Int64s, reason: str) -> None:
        if len(places):
            for record in self._records(column.domain, places).tolist():
                self.invalid.setdefault(record, reason)

    def _records(self, domain: int, places: Int64s) -> Int64s:
        """Return the records of the values at some places of a domain."""
        while domain != RECORDS:
            column = self._layout.lists[domain]
            counts = self._outputs.values(column.out, np.int64, int(self._counts[column.domain]))
            places = np.searchsorted(np.cumsum(counts), places, side="right").astype(np.int64)
            domain = column.domain
        return places

    def _list(self, column: Column, count: int, mask: pa.Buffer | None) -> pa.Array:
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(self._outputs.values(column.out, np.int64, count), out=offsets[1:])
        children = [self.array(child) for child in column.children]
        if column.kind.kind == "map":
            entries = pa.struct([column.type.key_field, column.type.item_field])
            children = [pa.StructArray.from_arrays(children, fields=list(entries))]
        return pa.Array.from_buffers(column.type, count, [mask, pa.py_buffer(offsets)], children=children)


def _nested(column: Column) -> Iterator[Column]:
    yield column
    for child in column.children:
        yield from _nested(child)


def _repeated(value: pa.Array, count: int) -> pa.Array:
    return value.take(pa.array(np.zeros(count, np.int64)))


def column_schema(schema: AvroType) -> pa.Schema:
    """Return the Arrow schema of a simplified record. All columns can be null: a record may have no value."""
    return pa.schema([pa.field(one.name, arrow_type(one.type)) for one in schema.fields])
