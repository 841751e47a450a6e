"""The Avro schema of rows of an Arrow schema, for sinks that register one."""

from __future__ import annotations

import re
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from tidegate.connectors.formats.encoded_records import CannotEncodeError

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_UNITS = {"ms": "millis", "us": "micros", "ns": "nanos"}
_INT_BITS = 32


def derived_schema(schema: pa.Schema, name: str) -> dict[str, Any]:
    """Return the Avro schema, as JSON, of rows of an Arrow schema.

    A column that allows null becomes a union of null and its type, with the default null.

    Args:
        name: full name of the record.

    Raises:
        CannotEncodeError: a type has no equivalent, or a name is not allowed in Avro.
    """
    space, _, own = name.rpartition(".")
    fields = [_field(field, own, field.name) for field in schema]
    return {"type": "record", "name": own, **({"namespace": space} if space else {}), "fields": fields}


def _field(field: pa.Field, prefix: str, path: str) -> dict[str, Any]:
    if _NAME.fullmatch(field.name) is None:
        raise CannotEncodeError(path, "Avro allows letters, digits and _ in names, and no digit at the beginning")
    kind = _type(field.type, f"{prefix}_{field.name}", path)
    if not field.nullable or kind == "null":
        return {"name": field.name, "type": kind}
    return {"name": field.name, "type": ["null", kind], "default": None}


def _type(type_: pa.DataType, name: str, path: str) -> Any:
    if pt.is_dictionary(type_):
        return _type(type_.value_type, name, path)
    if pt.is_struct(type_):
        return {"type": "record", "name": name, "fields": [_field(f, name, f"{path}.{f.name}") for f in type_]}
    if pt.is_list(type_) or pt.is_large_list(type_) or pt.is_fixed_size_list(type_):
        return {"type": "array", "items": _element(type_.value_field, name, path)}
    if pt.is_map(type_) and (pt.is_string(type_.key_type) or pt.is_large_string(type_.key_type)):
        return {"type": "map", "values": _element(type_.item_field, name, path)}
    plain = _plain(type_)
    if plain is not None:
        return plain
    if pt.is_decimal(type_) and 0 <= type_.scale <= type_.precision:
        return {"type": "bytes", "logicalType": "decimal", "precision": type_.precision, "scale": type_.scale}
    if pt.is_timestamp(type_) and type_.unit in _UNITS:
        local = "local-" if type_.tz is None else ""
        return {"type": "long", "logicalType": f"{local}timestamp-{_UNITS[type_.unit]}"}
    if pt.is_date32(type_):
        return {"type": "int", "logicalType": "date"}
    if pt.is_time(type_) and type_.unit in ("ms", "us"):
        return {"type": "int" if type_.unit == "ms" else "long", "logicalType": f"time-{_UNITS[type_.unit]}"}
    raise CannotEncodeError(path, f"Avro has no type for {type_}")


def _element(field: pa.Field, name: str, path: str) -> Any:
    kind = _type(field.type, f"{name}_item", path)
    return ["null", kind] if field.nullable and kind != "null" else kind


def _plain(type_: pa.DataType) -> str | None:
    """Return the primitive type; None: another kind."""
    if pt.is_boolean(type_):
        return "boolean"
    if pt.is_integer(type_):
        if type_ == pa.uint64():
            return None
        fits = type_.bit_width < _INT_BITS or type_ == pa.int32()
        return "int" if fits else "long"
    if pt.is_floating(type_):
        return "double" if pt.is_float64(type_) else "float"
    if pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_):
        return "string"
    if pt.is_binary(type_) or pt.is_large_binary(type_) or pt.is_fixed_size_binary(type_) or pt.is_binary_view(type_):
        return "bytes"
    return "null" if pt.is_null(type_) else None
