"""Arrow columns as lists of Python values: what `to_pylist` gives, faster where numpy or a cast can do it."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import Any

import pyarrow as pa
import pyarrow.types as pt


def python_values(array: pa.Array) -> list[Any]:
    """The values of `array.to_pylist()`."""
    type_ = array.type
    if pt.is_timestamp(type_) and type_.unit != "ns":
        return _times(array)
    plain = pt.is_integer(type_) or pt.is_boolean(type_) or pt.is_float64(type_) or pt.is_string(type_)
    if plain and not array.null_count:
        return array.to_numpy(zero_copy_only=False).tolist()
    return array.to_pylist()


def _times(array: pa.Array) -> list[dt.datetime | None]:
    zone = array.type.tz
    naive = array.cast(pa.timestamp("us", zone)).cast(pa.int64())
    times = naive.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False).astype("datetime64[us]").tolist()
    if zone is None:
        return times
    try:
        known = zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):  # such as +02:00
        return array.to_pylist()
    if zone == "UTC":
        return [None if time is None else time.replace(tzinfo=known) for time in times]
    return [None if time is None else time.replace(tzinfo=dt.UTC).astimezone(known) for time in times]
