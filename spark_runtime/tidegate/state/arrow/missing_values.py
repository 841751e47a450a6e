"""Nulls of pandas and numpy, `NaT` and `NA`, which pyarrow reads as dates of the year 1 or refuses.

NaN is not null here: it is a number (S5.1).
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

PLAIN_TYPES = frozenset(
    {type(None), bool, int, float, str, bytes, bytearray, decimal.Decimal, dt.date, dt.datetime, dt.time, dt.timedelta}
)
"""Python's own types, of which only None is null."""
_FINER_UNITS = ("ns", "ps", "fs", "as")


def is_missing(value: Any) -> bool:
    """Return whether the value is None, `pandas.NaT`, `pandas.NA`, or a `NaT` of numpy. Needs no pandas."""
    if value is None:
        return True
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return type(value).__name__ in ("NaTType", "NAType") and type(value).__module__.startswith("pandas.")


def python_time(value: np.datetime64 | np.timedelta64) -> Any:
    """Return the Python value, which has microseconds; finer units are cut off, as in pandas."""
    unit = np.datetime_data(value.dtype)[0]
    return value.astype(f"{value.dtype.kind}8[us]").item() if unit in _FINER_UNITS else value.item()


def arrow_array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Return `pa.array(values, type_)` with missing values as null, also nested ones. Raises what `pa.array` raises."""
    if any(type(value) not in PLAIN_TYPES for value in values):
        values = [_without_missing(value) for value in values]
    return pa.array(values, type_)


def _without_missing(value: Any) -> Any:
    if type(value) in PLAIN_TYPES:
        return value
    if isinstance(value, dict):
        return {_without_missing(key): _without_missing(one) for key, one in value.items()}
    if isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.dtype == np.object_):
        return [_without_missing(one) for one in value]
    if is_missing(value):
        return None
    # pyarrow refuses a column that mixes times of numpy with others, and rows of several calls may do so.
    return python_time(value) if isinstance(value, np.datetime64 | np.timedelta64) else value
