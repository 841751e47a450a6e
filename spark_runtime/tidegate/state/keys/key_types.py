"""Which types can be keys, and as what they are kept (S5.1). Light: the pipeline asks it too."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

KEY_TYPES_TEXT = "integers, floats, booleans, decimals, dates, times, timestamps, durations, strings or binary"
"""For messages."""


def is_key_type(type_: pa.DataType) -> bool:
    """Columns of this type can be keys: they have canonical bytes. Of a dictionary its values count."""
    if pt.is_dictionary(type_):
        return is_key_type(type_.value_type) and not pt.is_dictionary(type_.value_type)
    return is_fixed_key_type(type_) or is_variable_key_type(type_)


def is_fixed_key_type(type_: pa.DataType) -> bool:
    """Keys of this type have eight bytes a row."""
    return bool(
        pt.is_integer(type_)
        or pt.is_boolean(type_)
        or pt.is_floating(type_)
        or pt.is_timestamp(type_)
        or pt.is_date(type_)
        or pt.is_time(type_)
        or pt.is_duration(type_)
    )


def is_variable_key_type(type_: pa.DataType) -> bool:
    """Keys of this type have any number of bytes a row."""
    return is_text_type(type_) or is_bytes_type(type_) or bool(pt.is_decimal(type_))


def is_text_type(type_: pa.DataType) -> bool:
    """Strings."""
    return bool(pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_))


def is_bytes_type(type_: pa.DataType) -> bool:
    """Binary."""
    return bool(
        pt.is_binary(type_) or pt.is_large_binary(type_) or pt.is_binary_view(type_) or pt.is_fixed_size_binary(type_)
    )


def stored_type(type_: pa.DataType) -> pa.DataType:
    """The type in which states and results hold a key column: a dictionary's values, no views, else itself."""
    if pt.is_dictionary(type_):
        return stored_type(type_.value_type)
    if pt.is_string_view(type_):
        return pa.string()
    return pa.binary() if pt.is_binary_view(type_) else type_


def stored_field(field: pa.Field) -> pa.Field:
    """`field` with its stored type."""
    return field.with_type(stored_type(field.type))


def stored_array(array: pa.Array) -> pa.Array:
    """`array` in its stored type."""
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    type_ = stored_type(array.type)
    return array if array.type == type_ else array.cast(type_)
