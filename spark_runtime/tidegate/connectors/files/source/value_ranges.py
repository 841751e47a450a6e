"""Values that a column stores, but that no text of its type means: infinite numbers, times beyond a day, year 0.

Arrow reads them without an error. Python, Spark and SQL have no such times, so they would fail far from the record.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

DAY_S = 86_400
FIRST_DAY, LAST_DAY = -719_162, 2_932_896
"""0001-01-01 and 9999-12-31 in days since 1970, the dates of Python, Spark and SQL."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def has_range(kind: pa.DataType) -> bool:
    """Return whether `is_in_range` checks values of this type."""
    if pa.types.is_struct(kind) or pa.types.is_list(kind):
        return any(has_range(kind.field(i).type) for i in range(kind.num_fields))
    return bool(pa.types.is_floating(kind)) or _bounds(kind) is not None


def is_in_range(column: pa.Array) -> bool:
    """Return whether all values are in the range of their type, also inside structs and lists.

    Floats must be finite, times of day within one day, dates and timestamps in the years 1 to 9999. Timestamps in
    nanoseconds are not checked: all of them are in these years.
    """
    kind = column.type
    if pa.types.is_struct(kind):
        return all(map(is_in_range, column.flatten()))
    if pa.types.is_list(kind):
        return is_in_range(column.flatten())
    if pa.types.is_floating(kind):
        return not pc.any(pc.is_inf(column)).as_py()
    bounds = _bounds(kind)
    if bounds is None or column.null_count == len(column):
        return True
    found = pc.min_max(column.view(pa.int32() if kind.bit_width == 32 else pa.int64())).as_py()
    return bool(bounds[0] <= found["min"] and found["max"] <= bounds[1])


def _bounds(kind: pa.DataType) -> tuple[int, int] | None:
    """Return the least and the largest value as the integers that Arrow stores; None: all are in range."""
    if pa.types.is_date32(kind):
        return FIRST_DAY, LAST_DAY
    if pa.types.is_date64(kind):
        return FIRST_DAY * DAY_S * 1_000, (LAST_DAY + 1) * DAY_S * 1_000 - 1
    if pa.types.is_time(kind):
        return 0, DAY_S * _PER_SECOND[kind.unit] - 1
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return FIRST_DAY * DAY_S * _PER_SECOND[kind.unit], (LAST_DAY + 1) * DAY_S * _PER_SECOND[kind.unit] - 1
    return None
