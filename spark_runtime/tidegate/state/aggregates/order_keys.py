"""Values of any sortable type as int64 that compare as they do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from tidegate.state.keys.key_bytes import CANONICAL_NAN_BITS, Int64s, fixed_values
from tidegate.state.keys.key_types import stored_array

_SIGN = np.int64(-(2**63))


def order_keys(array: pa.Array) -> Int64s:
    """Larger where the value is larger, equal where it is equal: NaN is greatest, -0.0 is 0.0. Comparable within this
    call. Anything where null."""
    array = stored_array(array)
    type_ = array.type
    if pt.is_floating(type_):
        return _of_floats(array.cast(pa.float64()))
    if pt.is_boolean(type_):
        return fixed_values(array.cast(pa.int8()))
    if pt.is_uint64(type_):
        return fixed_values(array) ^ _SIGN
    if pt.is_integer(type_) or pt.is_temporal(type_):
        return fixed_values(array)
    if pt.is_decimal(type_) and type_.bit_width < 128:
        array = array.cast(pa.decimal128(type_.precision, type_.scale))
    ranks: Int64s = pc.rank(array, tiebreaker="dense").to_numpy().astype(np.int64)
    return ranks


def _of_floats(array: pa.Array) -> Int64s:
    values: Any = array.to_numpy(zero_copy_only=False) + 0.0
    bits = values.view(np.int64)
    bits[np.isnan(values)] = CANONICAL_NAN_BITS
    keys: Int64s = np.where(bits < 0, ~(bits ^ _SIGN), bits)
    return keys
