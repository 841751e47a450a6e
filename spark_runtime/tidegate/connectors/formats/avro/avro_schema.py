"""Avro schemas as Python values, and their equivalents in Arrow. Source: the Avro specification, version 1.12."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from tidegate.errors import PipelineError

PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NO_DEFAULT = object()
"""Default of a field without one: null is a value."""
MAX_NESTING = 64
"""Most types inside each other, unions not counted. Each level takes some frames of Python's stack, which ends at 1,000
by default, here and in the programs of other readers. JSON's limit is similar."""
MAX_DECIMAL_DIGITS = 76
"""Digits of Arrow's largest decimal, of 32 bytes."""
_LONGEST_DECIMAL128 = 38

_TIMES: Mapping[str, tuple[str, pa.DataType]] = {
    "date": ("int", pa.date32()),
    "time-millis": ("int", pa.time32("ms")),
    "time-micros": ("long", pa.time64("us")),
    "timestamp-millis": ("long", pa.timestamp("ms", "UTC")),
    "timestamp-micros": ("long", pa.timestamp("us", "UTC")),
    "timestamp-nanos": ("long", pa.timestamp("ns", "UTC")),
    "local-timestamp-millis": ("long", pa.timestamp("ms")),
    "local-timestamp-micros": ("long", pa.timestamp("us")),
    "local-timestamp-nanos": ("long", pa.timestamp("ns")),
}
"""Logical type -> the type that stores it, and its equivalent."""
_PLAIN: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}


@dataclass(frozen=True)
class AvroField:
    """A field of a record. `default`: its JSON value, or `NO_DEFAULT`."""

    name: str
    type: AvroType
    default: Any = NO_DEFAULT
    aliases: tuple[str, ...] = ()


@dataclass(frozen=True)
class AvroType:
    """A type of an Avro schema.

    Attributes:
        kind: a primitive type, or `record`, `enum`, `array`, `map`, `fixed`, `union`.
        logical: logical type that tidegate knows and that is valid here; empty: none.
        name: full name of a record, enum or fixed.
        inner: branches of a union; the type of the elements of an array, or of the values of a map.
        symbols, default: of an enum; `default` None: no default.
        size: bytes of a fixed.
        depth: number of types inside each other, with this one. Unions are not counted.
    """

    kind: str
    logical: str = ""
    precision: int = 0
    scale: int = 0
    name: str = ""
    aliases: tuple[str, ...] = ()
    fields: tuple[AvroField, ...] = ()
    inner: tuple[AvroType, ...] = ()
    symbols: tuple[str, ...] = ()
    default: str | None = None
    size: int = 0
    depth: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        inner = max((one.depth for one in (*self.inner, *(own.type for own in self.fields))), default=0)
        object.__setattr__(self, "depth", inner + (self.kind != "union"))

    @property
    def is_nullable(self) -> bool:
        """Return whether null is a value of the type."""
        return self.kind == "null" or any(branch.kind == "null" for branch in self.inner if self.kind == "union")

    @property
    def names(self) -> frozenset[str]:
        """Return the name and the aliases, without namespaces: resolution compares these."""
        return frozenset(name.rpartition(".")[2] for name in (self.name, *self.aliases))


def parse_avro(text: str, *, where: str, named: Sequence[str] = ()) -> AvroType:
    """Return the type that the JSON text of a schema describes.

    Args:
        where: the schema's place, for errors.
        named: texts of schemas whose named types this one uses, in an order in which each uses only earlier ones.

    Raises:
        PipelineError: the text is no Avro schema, or the schema is recursive.
    """
    parser = _Parser(where)
    for other in named:
        parser.parse(other)
    return parser.parse(text)


class _Parser:
    def __init__(self, where: str) -> None:
        self._where = where
        self._known: dict[str, AvroType | None] = {}

    def parse(self, text: str) -> AvroType:
        try:
            found = self._type(self._declared(text), "")
        except RecursionError:
            raise self._too_deep() from None
        if found.depth > MAX_NESTING:
            raise self._too_deep()
        return found

    def _declared(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            # A schema of one word needs no quotes in the registry of Confluent.
            if text.strip() not in PRIMITIVES:
                raise self._error("it is not JSON") from error
            return text.strip()

    def _too_deep(self) -> PipelineError:
        return PipelineError(
            f"the Avro schema nests more than {MAX_NESTING} types",
            where=self._where,
            remedy="Use Raw(), and decode the records in a process of your own",
        )

    def _error(self, cause: str) -> PipelineError:
        return PipelineError("the Avro schema is invalid", where=self._where, cause=cause, remedy="Correct the schema")

    def _type(self, declared: Any, space: str) -> AvroType:
        if isinstance(declared, str):
            return self._named(declared, space)
        if isinstance(declared, list):
            return self._union(declared, space)
        if not isinstance(declared, dict) or "type" not in declared:
            raise self._error(f"a {type(declared).__name__} is no type")
        kind = declared["type"]
        if not isinstance(kind, str):
            return self._type(kind, space)
        if kind in ("array", "map"):
            inner = declared.get("items" if kind == "array" else "values")
            return AvroType(kind, inner=(self._type(inner, space),))
        if kind in ("record", "error", "enum", "fixed"):
            return self._new(kind, declared, space)
        found = self._named(kind, space)
        return _with_logical(found, declared) if kind in PRIMITIVES else found

    def _named(self, name: str, space: str) -> AvroType:
        if name in PRIMITIVES:
            return AvroType(name)
        for full in (name, f"{space}.{name}") if "." in name or not space else (f"{space}.{name}", name):
            if full in self._known:
                found = self._known[full]
                if found is None:
                    raise PipelineError(
                        f"the Avro type {full!r} contains itself",
                        where=self._where,
                        cause="Arrow has no recursive types",
                        remedy="Use Raw(), and decode the records in a process of your own",
                    )
                return found
        raise self._error(f"the type {name!r} is not defined")

    def _union(self, declared: list[Any], space: str) -> AvroType:
        branches = tuple(self._type(branch, space) for branch in declared)
        kinds = [branch.name or branch.kind for branch in branches]
        if not branches or len(set(kinds)) < len(kinds) or "union" in kinds:
            raise self._error("a union is empty, nested, or has a type twice")
        return AvroType("union", inner=branches)

    def _new(self, kind: str, declared: dict[str, Any], space: str) -> AvroType:
        name = declared.get("name")
        if not isinstance(name, str) or not name:
            raise self._error(f"a {kind} has no name")
        if "." in name:
            own = name.rpartition(".")[0]
        else:
            own = declared.get("namespace", space) or ""
            name = f"{own}.{name}" if own else name
        if name in self._known:
            raise self._error(f"the type {name!r} is defined twice")
        aliases = tuple(declared.get("aliases", ()))
        self._known[name] = None
        if kind == "enum":
            symbols = tuple(declared.get("symbols", ()))
            if not symbols or len(set(symbols)) < len(symbols):
                raise self._error(f"the enum {name!r} has no symbols, or has one twice")
            found = AvroType(kind, name=name, aliases=aliases, symbols=symbols, default=declared.get("default"))
        elif kind == "fixed":
            size = declared.get("size")
            if not isinstance(size, int) or size < 0:
                raise self._error(f"the size of the fixed type {name!r} is {size!r}")
            found = _with_logical(AvroType(kind, name=name, aliases=aliases, size=size), declared)
        else:
            fields = tuple(self._field(field, own) for field in declared.get("fields", ()))
            if len({field.name for field in fields}) < len(fields):
                raise self._error(f"the record {name!r} has a field twice")
            found = AvroType("record", name=name, aliases=aliases, fields=fields)
        self._known[name] = found
        return found

    def _field(self, declared: Any, space: str) -> AvroField:
        if not isinstance(declared, dict) or not isinstance(declared.get("name"), str):
            raise self._error("a field has no name")
        kind = declared.get("type")
        # A logical type may stand beside the type of a field, too.
        if isinstance(kind, str) and kind in PRIMITIVES and "logicalType" in declared:
            kind = declared
        aliases = tuple(declared.get("aliases", ()))
        return AvroField(declared["name"], self._type(kind, space), declared.get("default", NO_DEFAULT), aliases)


def _with_logical(found: AvroType, declared: Mapping[str, Any]) -> AvroType:
    """Return the type with its logical type. By Avro's rules, one that is unknown or invalid is ignored."""
    logical = declared.get("logicalType", "")
    if logical in _TIMES and _TIMES[logical][0] == found.kind:
        return replace(found, logical=logical)
    if logical == "decimal" and found.kind in ("bytes", "fixed"):
        precision, scale = declared.get("precision", 0), declared.get("scale", 0)
        if isinstance(precision, int) and isinstance(scale, int) and 0 < precision <= MAX_DECIMAL_DIGITS:
            if 0 <= scale <= precision:
                return replace(found, logical=logical, precision=precision, scale=scale)
    return found


def simplified(kind: AvroType) -> AvroType:
    """Return the type in which a union of int and long is a long, and a union of float and double a double.

    A union of one type is that type. The result describes columns, not bytes.
    """
    if kind.kind == "record":
        return replace(kind, fields=tuple(replace(f, type=simplified(f.type)) for f in kind.fields))
    inner = tuple(map(simplified, kind.inner))
    if kind.kind != "union":
        return replace(kind, inner=inner)
    plain = [branch for branch in inner if branch.kind != "null"]
    wide = {"int long": "long", "double float": "double"}.get(" ".join(sorted(branch.kind for branch in plain)))
    if wide and not any(branch.logical for branch in plain):
        plain = [AvroType(wide)]
    if len(plain) == len(inner) == 1:
        return plain[0]
    return replace(kind, inner=(*(branch for branch in inner if branch.kind == "null"), *plain))


def values_of(kind: AvroType) -> tuple[AvroType, ...]:
    """Return the types of the values that are not null: the branches of a union, or the type itself."""
    branches = kind.inner if kind.kind == "union" else (kind,)
    return tuple(branch for branch in branches if branch.kind != "null")


def arrow_type(kind: AvroType) -> pa.DataType:
    """Return the equivalent in Arrow of a simplified type."""
    if kind.kind == "union":
        branches = values_of(kind)
        if len(branches) < 2:
            return arrow_type(branches[0]) if branches else pa.null()
        return pa.struct([pa.field(f"member{i}", arrow_type(branch)) for i, branch in enumerate(branches)])
    if kind.logical == "decimal":
        large = kind.precision > _LONGEST_DECIMAL128
        return (pa.decimal256 if large else pa.decimal128)(kind.precision, kind.scale)
    if kind.logical:
        return _TIMES[kind.logical][1]
    if kind.kind == "record":
        return pa.struct([arrow_field(field.name, field.type) for field in kind.fields])
    if kind.kind == "array":
        return pa.list_(arrow_field("item", kind.inner[0]))
    if kind.kind == "map":
        return pa.map_(pa.string(), arrow_field("value", kind.inner[0]))
    return pa.binary(kind.size) if kind.kind == "fixed" else _PLAIN[kind.kind]


def arrow_field(name: str, kind: AvroType) -> pa.Field:
    """Return the column of a simplified type; nullable if null is a value of the type."""
    return pa.field(name, arrow_type(kind), nullable=kind.is_nullable)


def default_array(kind: AvroType, default: Any) -> pa.Array:
    """Return a default as an array of one value, of the type `arrow_type(kind)`.

    Raises:
        ValueError, TypeError, KeyError, ArrowException: the default is no value of the type.
    """
    whole = arrow_type(kind)
    if kind.kind == "union":
        return _union_default(kind, default, whole)
    if kind.kind == "null":
        if default is not None:
            raise ValueError("the default of null is not null")
        return pa.nulls(1)
    if kind.kind == "record":
        fields = [default_array(f.type, default.get(f.name, f.default)) for f in kind.fields]
        return pa.StructArray.from_arrays(fields, fields=list(whole)) if fields else pa.array([{}], whole)
    if kind.kind in ("array", "map"):
        elements = list(default.values()) if kind.kind == "map" else list(default)
        parts = [default_array(kind.inner[0], element) for element in elements]
        inner = pa.concat_arrays([pa.array([], arrow_type(kind.inner[0])), *parts])
        offsets = pa.array([0, len(parts)], pa.int32())
        if kind.kind == "array":
            return pa.ListArray.from_arrays(offsets, inner, type=whole)
        return pa.MapArray.from_arrays(offsets, pa.array(list(default), pa.string()), inner, type=whole)
    if kind.kind in ("bytes", "fixed"):
        raw = default.encode("latin-1")
        if kind.logical == "decimal":
            import decimal

            digits = decimal.Context(prec=MAX_DECIMAL_DIGITS)
            number = digits.create_decimal(int.from_bytes(raw, "big", signed=True)).scaleb(-kind.scale, digits)
            return pa.array([number], whole)
        return pa.array([raw], whole)
    if kind.kind == "enum" and default not in kind.symbols:
        raise ValueError("the default is no symbol of the enum")
    return pa.array([default], _PLAIN[kind.kind]).cast(whole)


def _union_default(kind: AvroType, default: Any, whole: pa.DataType) -> pa.Array:
    if default is None and kind.is_nullable:
        return pa.nulls(1, whole)
    branches = values_of(kind)
    for number, branch in enumerate(branches):
        try:
            found = default_array(branch, default)
        except (ValueError, TypeError, KeyError, AttributeError, pa.ArrowException):
            continue
        if len(branches) == 1:
            return found
        members = [found if i == number else pa.nulls(1, field.type) for i, field in enumerate(whole)]
        return pa.StructArray.from_arrays(members, fields=list(whole))
    raise ValueError("the default fits no branch of the union")
