"""Encoding of record batches as Avro records."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.connectors.formats.avro.avro_schema import (
    NO_DEFAULT,
    AvroType,
    arrow_type,
    default_array,
    simplified,
    values_of,
)
from tidegate.connectors.formats.avro.decode_kernels import MAX_DEPTH
from tidegate.connectors.formats.avro.encode_kernels import MAX_NUMBER_BYTES, encode_records
from tidegate.connectors.formats.avro.instructions import (
    COPY,
    DECIMAL,
    END,
    FIXED,
    INT,
    INT32,
    INT64,
    JUMP,
    LIST_BEGIN,
    LIST_NEXT,
    LONG,
    NOTHING,
    NULL_FIRST,
    NULL_SECOND,
    PLAIN,
    RANGE,
    SIZED,
    SYMBOL,
    UNION,
    VALID,
    WIDTH,
)
from tidegate.connectors.formats.encoded_records import CannotEncodeError
from tidegate.state.arrow.arrow_buffers import ranges_of, raw_fixed
from tidegate.state.keys.key_bytes import valid_mask

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]

_RECORDS = 0
_SPARE = 2
"""Factor by which the space for records may be larger than they are. Beyond it, they are copied to smaller space."""


def encoding_problem(type_: pa.DataType, kind: AvroType) -> str:
    """Return why a column of this type cannot be written as this Avro type; empty: it can."""
    branches = values_of(simplified(kind))
    if pt.is_dictionary(type_):
        return encoding_problem(type_.value_type, kind)
    if pt.is_null(type_):
        return "" if kind.is_nullable else f"null is no {kind.kind}"
    if len(branches) != 1:
        wanted = arrow_type(simplified(kind))
        return "" if type_ == wanted else f"a union of several types is written from {wanted}, and not from {type_}"
    own = branches[0]
    if own.kind == "record":
        return _record_problem(type_, own)
    if own.kind in ("array", "map"):
        return _list_problem(type_, own)
    return "" if _fits(type_, own) else f"{type_} cannot be written as {own.logical or own.kind} without loss"


def _record_problem(type_: pa.DataType, own: AvroType) -> str:
    if not pt.is_struct(type_):
        return f"{type_} is no record"
    fields = {field.name: field.type for field in type_}
    missing = [f.name for f in own.fields if f.name not in fields and f.default is NO_DEFAULT]
    if missing:
        return f"field {missing[0]!r} of the Avro schema has no column and no default"
    known = {field.name: field.type for field in own.fields}
    for name, inner in fields.items():
        if name not in known:
            return f"the Avro schema has no field {name!r}"
        if problem := encoding_problem(inner, known[name]):
            return f"field {name!r}: {problem}"
    return ""


def _list_problem(type_: pa.DataType, own: AvroType) -> str:
    if own.kind == "map":
        if not pt.is_map(type_) or not _fits(type_.key_type, AvroType("string")):
            return f"{type_} is no map with texts as keys"
        return encoding_problem(type_.item_type, own.inner[0])
    if not (pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_)):
        return f"{type_} is no list"
    return encoding_problem(type_.value_type, own.inner[0])


def _fits(type_: pa.DataType, own: AvroType) -> bool:
    """Return whether each value of a type without parts has a form in the Avro type. Types of time may differ in unit:
    a value that the Avro type cannot hold fails when it is written.
    """
    wanted = arrow_type(own)
    if type_ == wanted:
        return True
    if own.logical == "decimal":
        return bool(pt.is_decimal(type_)) and type_.scale == own.scale and type_.precision <= own.precision
    if pt.is_timestamp(wanted):
        return bool(pt.is_timestamp(type_)) and (type_.tz is None) == (wanted.tz is None)
    if pt.is_time(wanted) or pt.is_date(wanted):
        return bool(pt.is_time(type_) if pt.is_time(wanted) else pt.is_date(type_))
    if pt.is_integer(wanted):
        narrow = type_.bit_width < wanted.bit_width if pt.is_integer(type_) else False
        return narrow or bool(pt.is_signed_integer(type_) and type_.bit_width <= wanted.bit_width)
    if pt.is_floating(wanted):
        return bool(pt.is_floating(type_)) and type_.bit_width <= wanted.bit_width
    if pt.is_string(wanted):
        return bool(pt.is_large_string(type_) or pt.is_string_view(type_))
    if own.kind == "fixed":
        return bool(pt.is_binary(type_) or pt.is_large_binary(type_))  # their lengths are checked row by row
    if pt.is_binary(wanted):
        return bool(pt.is_large_binary(type_) or pt.is_binary_view(type_) or pt.is_fixed_size_binary(type_))
    return False


@dataclass(frozen=True)
class EncodedBlock:
    """Records of a batch: record i is data[offsets[i]:offsets[i + 1]]."""

    data: Bytes
    offsets: Int64s


class BatchEncoder:
    """Encodes batches as records of one schema.

    Args:
        kind: the schema, a record. The batches have a column for each field without default, and no others; see
            `encoding_problem`.
    """

    def __init__(self, kind: AvroType) -> None:
        self._kind = kind

    def encode(self, batch: pa.RecordBatch, head: int = 0) -> EncodedBlock:
        """Return the records. Args: head: bytes that are left free before each record.

        Raises:
            CannotEncodeError: a value does not fit the schema.
        """
        writing = _Writing()
        columns = dict(zip(batch.schema.names, batch.columns))
        writing.fields(self._kind, columns, batch.num_rows, _RECORDS)
        writing.emit(END)
        writing.bound += head * batch.num_rows
        out, offsets = np.empty(writing.bound, np.uint8), np.empty(batch.num_rows + 1, np.int64)
        program = np.array(writing.words, np.int64).reshape(-1)
        place = encode_records(
            out,
            offsets,
            batch.num_rows,
            head,
            program,
            np.array([*writing.tables, 0], np.int64),
            np.array([*writing.inputs, (0,) * 5], np.int64).reshape(-1),
            np.zeros(1 + writing.lists, np.int64),
            np.empty(MAX_DEPTH, np.int64),
        )
        if place >= 0:
            raise CannotEncodeError(writing.paths[place // WIDTH], "a null, or a value that the Avro type cannot hold")
        data = out[: offsets[-1]]
        return EncodedBlock(data.copy() if len(out) > _SPARE * len(data) else data, offsets)


class _Writing:
    """The program for one batch, with its inputs.

    Attributes:
        bound: most bytes that the records can have.
        paths: of each instruction the field that it writes.
    """

    def __init__(self) -> None:
        self.words: list[list[int]] = []
        self.tables: list[int] = []
        self.inputs: list[tuple[int, ...]] = []
        self.paths: list[str] = []
        self.lists = 0
        self.bound = 1
        self._depth = 0
        self._path: list[str] = []
        self._alive: list[Any] = []

    def emit(
        self,
        op: int,
        *,
        store: int = NOTHING,
        value: int = -1,
        null: int = PLAIN,
        a: int = 0,
        b: int = 0,
        domain: int = 0,
    ) -> int:
        """Append an instruction, which the next one follows. Returns its number."""
        number = len(self.words)
        self.words.append([op, store, value, null, a, b, (number + 1) * WIDTH, domain])
        self.paths.append(".".join(self._path))
        return number

    def _continue_here(self, number: int) -> None:
        self.words[number][6] = len(self.words) * WIDTH

    def fields(self, kind: AvroType, columns: dict[str, pa.Array], count: int, domain: int) -> None:
        """Write the fields of a record."""
        for field in kind.fields:
            self._path.append(field.name)
            array = columns.get(field.name)
            if array is None:
                array = default_array(simplified(field.type), field.default).take(pa.array(np.zeros(count, np.int64)))
            self._value(field.type, array, domain)
            self._path.pop()

    def _value(self, kind: AvroType, array: pa.Array, domain: int) -> None:
        if pt.is_dictionary(array.type):
            array = array.dictionary_decode()
        if kind.kind != "union":
            self._plain(kind, array, domain, PLAIN)
            return
        kinds = [branch.kind for branch in kind.inner]
        if len(kinds) == 2 and "null" in kinds:
            null = NULL_FIRST if kinds[0] == "null" else NULL_SECOND
            self._plain(kind.inner[1 - kinds.index("null")], array, domain, null)
        else:
            self._union(kind, array, domain)

    def _union(self, kind: AvroType, array: pa.Array, domain: int) -> None:
        """Write a union of several types: the first valid member of a struct, or the branch for a plain column."""
        branches = values_of(kind)
        members = array.flatten() if len(values_of(simplified(kind))) > 1 else [array]
        # A union such as int and long is read as one column, which the last and widest branch holds.
        own = (
            branches
            if len(members) > 1
            else (max(branches, key=lambda one: ("int", "long", "float", "double").index(one.kind)),)
        )
        choices: list[tuple[int, int, int]] = []
        ends = []
        union = self.emit(UNION, a=len(self.tables), b=len(members) + int(kind.is_nullable), domain=domain)
        self.tables += [0] * 3 * (len(members) + 1)
        for branch, member in zip(own, members):
            choices.append((self._input(_valid(member)), kind.inner.index(branch), len(self.words) * WIDTH))
            self._plain(branch, member, domain, PLAIN)
            ends.append(self.emit(JUMP))
        if kind.is_nullable:
            number = [branch.kind for branch in kind.inner].index("null")
            choices.append((self._input(0), number, len(self.words) * WIDTH))
        for end in ends:
            self._continue_here(end)
        first = self.words[union][4]
        self.tables[first : first + 3 * len(choices)] = [word for choice in choices for word in choice]
        self.bound += MAX_NUMBER_BYTES * len(array)

    def _plain(self, kind: AvroType, array: pa.Array, domain: int, null: int) -> None:
        self.bound += len(array)
        if kind.kind == "null":
            return
        if pt.is_null(array.type):
            array = pa.nulls(len(array), arrow_type(simplified(kind)))
        if kind.kind == "record":
            begin = self.emit(VALID, value=self._input(_valid(array)), null=null, domain=domain)
            self.fields(kind, dict(zip((f.name for f in array.type), array.flatten())), len(array), domain)
            self._continue_here(begin)
        elif kind.kind in ("array", "map"):
            self._list(kind, array, domain, null)
        else:
            self._leaf(kind, array, domain, null)

    def _list(self, kind: AvroType, array: pa.Array, domain: int, null: int) -> None:
        if kind.kind == "array":
            array = array.cast(pa.list_(array.type.value_type))
        offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        first, end = (int(offsets[0]), int(offsets[-1])) if len(array) else (0, 0)
        starts, lengths = np.ascontiguousarray(offsets[:-1] - first), np.diff(offsets)
        self.lists += 1
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise CannotEncodeError(".".join(self._path), f"more than {MAX_DEPTH} lists in lists")
        elements, depth = self.lists, (len(self.words) + 1) * WIDTH
        value = self._input(_valid(array), starts, 8, lengths)
        begin = self.emit(LIST_BEGIN, value=value, null=null, a=depth, b=elements, domain=domain)
        if kind.kind == "map":
            self._leaf(AvroType("string"), array.keys.slice(first, end - first), elements, PLAIN)
            inner = array.items.slice(first, end - first)
        else:
            inner = array.values.slice(first, end - first)
        self._value(kind.inner[0], inner, elements)
        last = self.emit(LIST_NEXT)
        self.words[last] = [*self.words[begin]]
        self.words[last][0], self.words[last][3] = LIST_NEXT, PLAIN
        self._continue_here(begin)
        self._continue_here(last)
        self._depth -= 1
        self.bound += 2 * MAX_NUMBER_BYTES * len(array)

    def _leaf(self, kind: AvroType, array: pa.Array, domain: int, null: int) -> None:
        op, store, size = _operands(kind)
        try:
            stored = _stored(kind, array)
        except pa.ArrowInvalid as error:
            raise CannotEncodeError(".".join(self._path), "a value that the Avro type cannot hold") from error
        if store == RANGE:
            starts, lengths, data = ranges_of(stored)
            lengths = np.maximum(lengths.astype(np.int64), 0)
            starts = np.ascontiguousarray(starts)
            value = self._input(_valid(stored), starts, 8, lengths, data)
            self.bound += (MAX_NUMBER_BYTES * len(array)) + int(lengths.sum())
            if op == FIXED and (lengths[valid_mask(stored)] != size).any():
                raise CannotEncodeError(".".join(self._path), f"a value that has not {size} bytes")
        else:
            width = 1 if pt.is_boolean(stored.type) else int(stored.type.bit_width) // 8
            values = raw_fixed(stored, np.dtype(f"V{width}")).view(np.uint8) if len(stored) else np.zeros(1, np.uint8)
            value = self._input(_valid(stored), np.ascontiguousarray(values), width)
            self.bound += (MAX_NUMBER_BYTES + width + size) * len(array)
        self.emit(op, store=store, value=value, null=null, a=size, domain=domain)

    def _input(
        self,
        valid: Bytes | int,
        values: Any = 0,
        width: int = 0,
        lengths: Any = 0,
        data: Any = 0,
    ) -> int:
        arrays = (valid, values, lengths, data)
        self._alive += arrays  # the kernel has only their addresses
        one, two, three, four = (0 if isinstance(array, int) else array.ctypes.data for array in arrays)
        self.inputs.append((one, two, width, three, four))
        return len(self.inputs) - 1


def _valid(array: pa.Array) -> Bytes | int:
    """Return a byte for each value, 0 where null; 0: none is null."""
    return np.ascontiguousarray(valid_mask(array)).view(np.uint8) if array.null_count else 0


def _operands(kind: AvroType) -> tuple[int, int, int]:
    """Return op, store and bytes of the instruction for a value without parts."""
    if kind.logical == "decimal":
        return (FIXED if kind.kind == "fixed" else SIZED), DECIMAL, kind.size
    sizes = {"boolean": 1, "float": 4, "double": 8, "fixed": kind.size}
    if kind.kind in sizes:
        return FIXED, RANGE if kind.kind == "fixed" else COPY, sizes[kind.kind]
    if kind.kind in ("int", "long"):
        return (INT, INT32, 0) if kind.kind == "int" else (LONG, INT64, 0)
    return (INT, SYMBOL, 0) if kind.kind == "enum" else (SIZED, RANGE, 0)


def _stored(kind: AvroType, array: pa.Array) -> pa.Array:
    """Return the values as the kernel reads them. Raises ArrowInvalid if the Avro type cannot hold one."""
    if kind.kind == "enum":
        numbers = {symbol: number for number, symbol in enumerate(kind.symbols)}
        texts = array.cast(pa.string()).dictionary_encode()
        known = pa.array([numbers.get(symbol, -1) for symbol in texts.dictionary.to_pylist()], pa.int32())
        return known.take(texts.indices)
    if kind.kind == "fixed" and not kind.logical:
        return array.cast(pa.binary())
    return array.cast(arrow_type(kind))
