"""Types that can be keys, and their stored form (S5.1). Imports no kernels: building a pipeline needs this module."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

KEY_TYPES_TEXT = "integers, floats, booleans, decimals, dates, times, timestamps, durations, strings or binary"
"""Key types, for messages."""


def is_key_type(type_: pa.DataType) -> bool:
    """Return whether the type has canonical bytes, so that its columns can be keys. For a dictionary, its values
    decide.
    """
    if pt.is_dictionary(type_):
        return is_key_type(type_.value_type) and not pt.is_dictionary(type_.value_type)
    return is_fixed_key_type(type_) or is_variable_key_type(type_)


def is_fixed_key_type(type_: pa.DataType) -> bool:
    """Return whether keys of this type have eight bytes a row."""
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
    """Return whether keys of this type have any number of bytes a row."""
    return is_text_type(type_) or is_bytes_type(type_) or bool(pt.is_decimal(type_))


def is_text_type(type_: pa.DataType) -> bool:
    """Return whether the type is a string type."""
    return bool(pt.is_string(type_) or pt.is_large_string(type_) or pt.is_string_view(type_))


def is_bytes_type(type_: pa.DataType) -> bool:
    """Return whether the type is a binary type."""
    return bool(
        pt.is_binary(type_) or pt.is_large_binary(type_) or pt.is_binary_view(type_) or pt.is_fixed_size_binary(type_)
    )


def stored_type(type_: pa.DataType) -> pa.DataType:
    """Return the type in which states and results hold a key column: a dictionary's value type, no view, or itself."""
    if pt.is_dictionary(type_):
        return stored_type(type_.value_type)
    if pt.is_string_view(type_):
        return pa.string()
    return pa.binary() if pt.is_binary_view(type_) else type_


def stored_field(field: pa.Field) -> pa.Field:
    """Return `field` with its stored type."""
    return field.with_type(stored_type(field.type))


def stored_array(array: pa.Array) -> pa.Array:
    """Return `array` in its stored type."""
    if pt.is_dictionary(array.type):
        array = array.dictionary_decode()
    type_ = stored_type(array.type)
    return array if array.type == type_ else array.cast(type_)
