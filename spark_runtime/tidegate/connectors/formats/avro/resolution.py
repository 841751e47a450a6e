"""Resolution of a writer's schema to a reader's, by Avro's rules: a program that decodes the writer's records.

Where the rules are silent, values keep their meaning: times are converted to a finer unit, and never read as another
type of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.connectors.formats.avro.avro_schema import NO_DEFAULT, AvroField, AvroType, default_array, values_of
from tidegate.connectors.formats.avro.columns import NO_OUTPUT, Column, ColumnLayout
from tidegate.connectors.formats.avro.decode_kernels import MAX_DEPTH
from tidegate.connectors.formats.avro.instructions import (
    ALWAYS,
    BOOLEAN,
    COPY,
    DECIMAL,
    END,
    ERROR,
    FIXED,
    FLOAT32,
    FLOAT64,
    INT,
    INT32,
    INT64,
    JUMP,
    LIST_BEGIN,
    LIST_NEXT,
    LONG,
    NOTHING,
    NULL_FIRST,
    NULL_REFUSED,
    NULL_SECOND,
    PLAIN,
    RANGE,
    SIZED,
    SYMBOL,
    UNION,
    UNRESOLVED,
    VALID,
    WIDENED,
    WIDTH,
)

_UNITS: Mapping[str, int] = {"millis": 10**3, "micros": 10**6, "nanos": 10**9}
"""Unit of a logical type of time -> units in a second."""
_WIDER: Mapping[str, tuple[str, ...]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
"""Type -> the types to which Avro promotes it, in the order in which branches of a union are tried."""


class UnresolvableError(ValueError):
    """Records of the writer's schema cannot be read by the reader's schema; the message gives the reason."""


@dataclass(frozen=True)
class Program:
    """A program for records of one writer's schema.

    Attributes:
        words, tables: see `instructions`.
        constants: id of a `Column` -> the default of a field that the writer does not have.
    """

    words: npt.NDArray[np.int64]
    tables: npt.NDArray[np.int64]
    constants: Mapping[int, pa.Array]


def compile_program(writer: AvroType, reader: AvroType, layout: ColumnLayout) -> Program:
    """Return the program that decodes records.

    Args:
        writer: schema of the records.
        reader: simplified schema of the columns.
        layout: columns of `reader`.

    Raises:
        UnresolvableError: no record of the writer can be read as one of the reader.
    """
    compiler = _Compiler(layout.skipped_domain)
    if writer.kind != "record":
        raise UnresolvableError(f"the writer's schema is a {writer.kind}, and not a record")
    compiler.record(writer, reader, layout.columns)
    compiler.emit(END)
    words = np.array(compiler.words, np.int64).reshape(-1)
    return Program(words, np.array([*compiler.tables, 0], np.int64), compiler.constants)


class _Compiler:
    def __init__(self, skipped_domain: int) -> None:
        self.words: list[list[int]] = []
        self.tables: list[int] = []
        self.constants: dict[int, pa.Array] = {}
        self._read: set[int] = set()
        self._skipped_domain = skipped_domain
        self._depth = 0

    def emit(
        self,
        op: int,
        *,
        store: int = NOTHING,
        column: Column | None = None,
        null: int = PLAIN,
        a: int = 0,
        b: int = 0,
    ) -> int:
        """Append an instruction, which the next one follows. Returns its number."""
        number = len(self.words)
        out, domain = (NO_OUTPUT, 0) if column is None else (column.out, column.domain)
        self.words.append([op, store, out, null, a, b, (number + 1) * WIDTH, domain])
        return number

    def _continue_here(self, number: int) -> None:
        self.words[number][6] = len(self.words) * WIDTH

    def record(self, writer: AvroType, reader: AvroType, columns: tuple[Column, ...]) -> None:
        """Read the fields of a record."""
        left = dict(zip((field.name for field in reader.fields), zip(reader.fields, columns)))
        for field in writer.fields:
            found = _field_of(field.name, reader, left)
            if found is None:
                self.skip(field.type)
            else:
                own, column = left.pop(found)
                self._read.add(id(column))
                try:
                    self.value(field.type, own.type, column)
                except UnresolvableError as error:
                    raise UnresolvableError(f"field {found!r}: {error}") from error
        for name, (field, column) in left.items():
            self.constants[id(column)] = _default(name, field)
        # Two records of a union may be read as one: a default fills the column of both.
        if self._read & self.constants.keys():
            raise UnresolvableError("two records of a union have different fields, and are read as the same record")

    def value(self, writer: AvroType, reader: AvroType, column: Column) -> None:
        """Read a value of any type."""
        if writer.kind != "union":
            self._plain(writer, reader, column, ALWAYS if column.nullable else PLAIN)
            return
        kinds = [branch.kind for branch in writer.inner]
        if len(kinds) == 2 and "null" in kinds and reader.is_nullable:
            null = NULL_FIRST if kinds[0] == "null" else NULL_SECOND
            self._plain(writer.inner[1 - kinds.index("null")], reader, column, null)
            return
        union = self.emit(UNION, a=len(self.tables), b=len(kinds))
        first = self.words[union][4]
        self.tables += [0] * len(kinds)
        ends = []
        for number, branch in enumerate(writer.inner):
            self.tables[first + number] = len(self.words) * WIDTH
            self._branch(branch, reader, column)
            ends.append(self.emit(JUMP))
        for end in ends:
            self._continue_here(end)

    def _branch(self, branch: AvroType, reader: AvroType, column: Column) -> None:
        if branch.kind == "null":
            if not reader.is_nullable:
                self.emit(ERROR, a=NULL_REFUSED)
            return
        words, tables, constants, read = len(self.words), len(self.tables), dict(self.constants), set(self._read)
        try:
            self._plain(branch, reader, column, ALWAYS if column.nullable else PLAIN)
        except UnresolvableError:
            # Other branches can be read, so only records with this branch are bad.
            del self.words[words:], self.tables[tables:]
            self.constants, self._read = constants, read
            self.emit(ERROR, a=UNRESOLVED)

    def _plain(self, writer: AvroType, reader: AvroType, column: Column, null: int) -> None:
        """Read a value whose type is no union; `null`: how the union around it was written."""
        if writer.kind == "null":
            if not reader.is_nullable:
                raise UnresolvableError("the writer's type is null, and the reader's schema does not allow null")
            return
        branches = values_of(reader)
        number = _matching(writer, branches)
        if column.kind.kind != "union":
            self._whole(writer, branches[number], column, null)
            return
        # Several types: a struct with one member for each.
        begin = self.emit(VALID, column=column, null=null)
        self._whole(writer, branches[number], column.children[number], ALWAYS)
        self._continue_here(begin)

    def _whole(self, writer: AvroType, reader: AvroType, column: Column, null: int) -> None:
        if writer.kind == "record":
            begin = self.emit(VALID, column=column, null=null)
            self.record(writer, reader, column.children)
            self._continue_here(begin)
        elif writer.kind in ("array", "map"):
            begin = self._begin_list(column, null, column.element_domain)
            if writer.kind == "map":
                self._leaf(AvroType("string"), AvroType("string"), column.children[0], PLAIN)
            self.value(writer.inner[0], reader.inner[0], column.children[-1])
            self._end_list(begin)
        else:
            self._leaf(writer, reader, column, null)

    def _begin_list(self, column: Column | None, null: int, elements: int) -> int:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UnresolvableError(f"more than {MAX_DEPTH} lists are nested")
        begin = self.emit(LIST_BEGIN, column=column, null=null, a=(len(self.words) + 1) * WIDTH, b=elements)
        return begin

    def _end_list(self, begin: int) -> None:
        self._depth -= 1
        end = self.emit(LIST_NEXT)
        self.words[end] = [*self.words[begin]]
        self.words[end][0], self.words[end][3] = LIST_NEXT, PLAIN
        self._continue_here(begin)
        self._continue_here(end)

    def _leaf(self, writer: AvroType, reader: AvroType, column: Column | None, null: int) -> None:
        op, store, a, b = _leaf_operands(writer, reader, column)
        if writer.kind == "enum" and column is not None:
            a, b = len(self.tables), len(writer.symbols)
            self.tables += _symbols(writer, reader)
        self.emit(op, store=store, column=column, null=null, a=a, b=b)

    def skip(self, writer: AvroType, null: int = PLAIN) -> None:
        """Read a value and store nothing."""
        if writer.kind == "null":
            return
        if writer.kind == "union":
            self._skip_union(writer)
        elif writer.kind == "record":
            begin = self.emit(VALID, null=null)
            for field in writer.fields:
                self.skip(field.type)
            self._continue_here(begin)
        elif writer.kind in ("array", "map"):
            begin = self._begin_list(None, null, self._skipped_domain)
            if writer.kind == "map":
                self._leaf(AvroType("string"), AvroType("string"), None, PLAIN)
            self.skip(writer.inner[0])
            self._end_list(begin)
        else:
            self._leaf(writer, writer, None, null)

    def _skip_union(self, writer: AvroType) -> None:
        union = self.emit(UNION, a=len(self.tables), b=len(writer.inner))
        first = self.words[union][4]
        self.tables += [0] * len(writer.inner)
        ends = []
        for number, branch in enumerate(writer.inner):
            self.tables[first + number] = len(self.words) * WIDTH
            self.skip(branch)
            ends.append(self.emit(JUMP))
        for end in ends:
            self._continue_here(end)


def _field_of(name: str, reader: AvroType, left: Mapping[str, object]) -> str | None:
    """Return the name of the reader's field for a writer's field; None: the reader has none."""
    if name in left:
        return name
    return next((field.name for field in reader.fields if name in field.aliases and field.name in left), None)


def _default(name: str, field: AvroField) -> pa.Array:
    if field.default is NO_DEFAULT:
        raise UnresolvableError(f"field {name!r} is not in the writer's schema, and has no default")
    try:
        return default_array(field.type, field.default)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, pa.ArrowException) as error:
        raise UnresolvableError(f"the default of field {name!r} does not fit its type") from error


def _matching(writer: AvroType, branches: tuple[AvroType, ...]) -> int:
    """Return the number of the reader's branch for a writer's type.

    A branch of the same name is preferred, then one of the same type, then one to which the type is promoted. Names of
    records are compared only to choose between branches.
    """
    named = [
        i for i, one in enumerate(branches) if one.kind == writer.kind and one.name and one.name == writer.name
    ] or [i for i, one in enumerate(branches) if one.kind == writer.kind and one.name and _same_name(writer, one)]
    if named:
        return named[0]
    for kind in (writer.kind, *_WIDER.get(writer.kind, ())):
        for i, branch in enumerate(branches):
            # A fixed or enum of another name is another type.
            if branch.kind == kind and kind not in ("fixed", "enum"):
                return i
    raise UnresolvableError(
        f"the writer's type {_text(writer)} is not {' or '.join(_text(one) for one in branches) or 'null'}"
    )


def _same_name(writer: AvroType, reader: AvroType) -> bool:
    return writer.name.rpartition(".")[2] in reader.names


def _text(kind: AvroType) -> str:
    return f"{kind.kind} {kind.name}" if kind.name else kind.logical or kind.kind


def _leaf_operands(writer: AvroType, reader: AvroType, column: Column | None) -> tuple[int, int, int, int]:
    """Return op, store, a and b of the instruction that reads a value without parts."""
    kind = writer.kind
    if kind in ("int", "long", "enum"):
        op = LONG if kind == "long" else INT
        if kind == "enum":
            return op, SYMBOL, 0, 0
        store = {"int": INT32, "long": INT64, "float": FLOAT32, "double": FLOAT64}[reader.kind]
        return op, store, 0, _factor(writer.logical, reader.logical)
    if kind in ("string", "bytes"):
        if reader.logical == "decimal":
            return SIZED, DECIMAL, 0, _decimal_width(writer, reader, column)
        if writer.logical == "decimal":
            raise UnresolvableError("a decimal cannot be read as bytes")
        return SIZED, RANGE, 0, 0
    if kind == "fixed":
        if writer.size != reader.size:
            raise UnresolvableError(f"the fixed type {writer.name!r} has {writer.size} bytes, and not {reader.size}")
        if reader.logical == "decimal":
            return FIXED, DECIMAL, writer.size, _decimal_width(writer, reader, column)
        return FIXED, COPY, writer.size, 0
    if kind == "boolean":
        return FIXED, BOOLEAN, 1, 0
    size = 4 if kind == "float" else 8
    return FIXED, COPY if reader.kind == kind else WIDENED, size, 0


def _decimal_width(writer: AvroType, reader: AvroType, column: Column | None) -> int:
    if writer.logical == "decimal" and (writer.scale != reader.scale or writer.precision > reader.precision):
        raise UnresolvableError(
            f"decimal({writer.precision}, {writer.scale}) cannot be read as decimal({reader.precision}, {reader.scale})"
        )
    return 0 if column is None else column.width


def _factor(writer: str, reader: str) -> int:
    """Return by what a number is multiplied, from the logical types."""
    if writer == reader or not writer or not reader:
        return 1
    one, _, unit = writer.rpartition("-")
    other, _, finer = reader.rpartition("-")
    factor = _UNITS.get(finer, 0) // _UNITS.get(unit, 1)
    if one != other or factor < 1:
        raise UnresolvableError(f"{writer} cannot be read as {reader}")
    return factor


def _symbols(writer: AvroType, reader: AvroType) -> list[int]:
    """Return the reader's number of each symbol of the writer; -1: it has none."""
    numbers = {symbol: number for number, symbol in enumerate(reader.symbols)}
    other = numbers.get(reader.default, -1) if reader.default is not None else -1
    return [numbers.get(symbol, other) for symbol in writer.symbols]
