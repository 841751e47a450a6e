"""Converts rows of a Spark schema: between the tuples of a StatefulProcessor and the Arrow columns that store them.

The intermediate form is the *kept* form of a value, which Arrow accepts directly: times as microseconds since the
epoch, structs as dicts, maps as pairs, all else as in Python. Flat numbers, strings and booleans are the same in all
three forms.
"""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import math
import sys
import zoneinfo
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from pyspark.sql import types as st

from tidegate.errors import PipelineError
from tidegate.state.arrow.missing_values import PLAIN_TYPES, is_missing, python_time
from tidegate.state.keys.key_types import is_key_type

_PACKAGE = "tidegate."
Kept: TypeAlias = tuple[Any, ...]
Change: TypeAlias = Callable[[Any], Any]

_NAN = math.nan
_UTC = dt.UTC
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=_UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_SHORTEST, _LONGEST = dt.timedelta(days=-106_751_991), dt.timedelta(microseconds=2**63 - 1)
"""Limits of day-time intervals: 64 bits of microseconds. For negative values pyarrow first multiplies whole days, so
the last day must be whole."""
_FLAT: dict[type[st.DataType], pa.DataType] = {
    st.BooleanType: pa.bool_(),
    st.ByteType: pa.int8(),
    st.ShortType: pa.int16(),
    st.IntegerType: pa.int32(),
    st.LongType: pa.int64(),
    st.FloatType: pa.float32(),
    st.DoubleType: pa.float64(),
    st.StringType: pa.string(),
    st.BinaryType: pa.binary(),
    st.DateType: pa.date32(),
    st.TimestampType: pa.timestamp("us", "UTC"),
    st.TimestampNTZType: pa.timestamp("us"),
    st.DayTimeIntervalType: pa.duration("us"),
}
_EXACT: dict[type[st.DataType], type] = {
    st.BooleanType: bool,
    **dict.fromkeys((st.ByteType, st.ShortType, st.IntegerType, st.LongType), int),
    st.DoubleType: float,
    st.StringType: str,
    st.BinaryType: bytes,
}
"""Python types whose values are their own kept form, except numbers out of range and invalid texts."""
SPARK_TYPES_TEXT = (
    "booleans, integers, floats, decimals, strings, binary, dates, timestamps, day-time intervals, and arrays, maps "
    "and structs of these"
)
"""List of types for error messages."""
_UNFIT = (ValueError, ArithmeticError, TypeError, AttributeError)
"""Errors of a conversion for a value of another type: ValueTypeError, and errors of the value's own methods."""


def calling_line() -> str:
    """Return `file:line` of the innermost frame outside this package; `unknown` if there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "unknown"


def python_values(array: pa.Array) -> list[Any]:
    """Return the values of `array.to_pylist()`, faster for common types."""
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
    micros = naive.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False).astype("datetime64[us]")
    if zone == "UTC":
        epoch = dt.datetime(1970, 1, 1, tzinfo=zoneinfo.ZoneInfo(zone))
        # A sum takes half as long as `replace`.
        return [None if since is None else epoch + since for since in micros.view("timedelta64[us]").tolist()]
    times: list[dt.datetime | None] = micros.tolist()
    if zone is None:
        return times
    try:
        known = zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError):  # such as +02:00
        return array.to_pylist()
    return [None if time is None else time.replace(tzinfo=dt.UTC).astimezone(known) for time in times]


class ValueTypeError(ValueError):
    """A value does not have the required type."""


def arrow_type(type_: st.DataType) -> pa.DataType | None:
    """Return the Arrow type of a Spark type, as in Spark's own conversion; None: it is not supported."""
    if type(type_) in _FLAT:
        return _FLAT[type(type_)]
    if isinstance(type_, st.DecimalType):
        return pa.decimal128(type_.precision, type_.scale)
    if isinstance(type_, st.ArrayType):
        inner = arrow_type(type_.elementType)
        return None if inner is None else pa.list_(pa.field("element", inner))
    if isinstance(type_, st.MapType):
        key, value = arrow_type(type_.keyType), arrow_type(type_.valueType)
        return None if key is None or value is None else pa.map_(key, value)
    if isinstance(type_, st.StructType):
        fields = [(field.name, arrow_type(field.dataType)) for field in type_.fields]
        return None if any(inner is None for _, inner in fields) else pa.struct(fields)
    return None


def arrow_schema(schema: st.StructType, what: str, where: str, *, nullable: bool) -> pa.Schema:
    """Return the Arrow columns of a Spark schema.

    Args:
        what: for errors.
        nullable: True: all columns are nullable; False: as in the schema.

    Raises:
        PipelineError: a type is not supported; names the column.
    """
    fields: list[pa.Field] = []
    for field in schema.fields:
        type_ = arrow_type(field.dataType)
        if type_ is None:
            raise PipelineError(
                f"column {field.name!r} of {what} has the unsupported type {field.dataType.simpleString()}",
                where=where,
                remedy=f"Use {SPARK_TYPES_TEXT}",
            )
        fields.append(pa.field(field.name, type_, nullable=nullable or field.nullable))
    return pa.schema(fields)


class SparkRowCodec:
    """Converts rows of one schema.

    Attributes:
        schema: of the Arrow columns, all nullable.
    """

    def __init__(self, spark: st.StructType, what: str, where: str, *, as_key: bool = False) -> None:
        """Args: what, where: for errors. as_key: rows are map keys, which must be hashable: no nested types."""
        self.schema = arrow_schema(spark, what, where, nullable=True)
        self._what, self._where = what, where
        types = [field.dataType for field in spark.fields]
        if as_key:
            wrong = next((field for field in self.schema if not is_key_type(field.type)), None)
            if wrong is not None:
                raise PipelineError(
                    f"column {wrong.name!r} of {what} is of type {wrong.type}, which cannot be part of a map key",
                    where=where,
                    remedy="Use booleans, numbers, decimals, strings, binary, dates or timestamps",
                )
        self._accept = [_accept(type_, as_key) for type_ in types]
        self._give = [_give(type_) for type_ in types]
        self._load = [_load(type_, as_key) for type_ in types]
        self._as_is = not any(self._give)
        self._exact = tuple([_exact(type_, as_key) for type_ in types])
        self._limits = [(i, *_limits(type_)) for i, type_ in enumerate(types) if isinstance(type_, st.IntegralType)]
        self._texts = [i for i, exact in enumerate(self._exact) if exact is str]

    def accepted(self, value: Any) -> Kept:
        """Convert a row of the processor to its kept form: a tuple, list, Row or array, by position. A text is accepted
        as the row of a single text column.

        Raises:
            PipelineError: it does not match; names the column and the processor's line.
        """
        if type(value) is tuple and tuple(map(type, value)) == self._exact and self._fits(value):
            return value
        if not isinstance(value, tuple | list):
            value = self._as_row(value)
        if len(value) != len(self._accept):
            names = ", ".join(self.schema.names)
            raise self._refused(
                f"the value has {len(value)} fields, but {len(self._accept)} are declared",
                f"Pass a tuple with one value for each of: {names}",
            )
        try:
            return tuple([accept(one) for accept, one in zip(self._accept, value, strict=True)])
        except _UNFIT:
            pass
        for name, accept, one in zip(self.schema.names, self._accept, value, strict=True):
            try:
                accept(one)
            except _UNFIT as error:
                beyond = isinstance(error, ArithmeticError)
                why = "the value is outside the range of that type" if beyond else error
                raise self._refused(
                    f"column {name!r} is {self.schema.field(name).type}, but got {one!r}: {why}",
                    "Convert the value, or declare the column with another type",
                ) from None
        raise AssertionError("the values are valid one by one")

    def _fits(self, row: Kept) -> bool:
        """Return whether a row of exact types is its own kept form. Most rows are; this takes a third of the time."""
        for i, least, most in self._limits:
            if not least <= row[i] <= most:
                return False
        for i in self._texts:  # noqa: SIM110 - a generator takes longer than the checks
            if not row[i].isascii():
                return False
        return True

    def _as_row(self, value: Any) -> tuple[Any, ...]:
        """Convert other values that PySpark accepts: it iterates over a text, and so accepts a text of one
        character."""
        if isinstance(value, str) and self.schema.types == [pa.string()]:
            return (value,)
        if hasattr(value, "__iter__") and not isinstance(value, str | bytes | bytearray | dict | set | frozenset):
            return tuple(value)
        raise self._refused(f"the value is a {type(value).__name__}, not a row", "Pass a tuple, such as (count,)")

    def accepted_list(self, values: Any) -> list[Kept]:
        """Convert several rows to kept form. Raises PipelineError if one does not match, or if there is none, as in
        Spark."""
        rows = [self.accepted(value) for value in values]
        if not rows:
            raise self._refused("the list is empty, which Spark refuses too", "Call clear() to empty the state")
        return rows

    def given(self, kept: Kept) -> tuple[Any, ...]:
        """Return the row for the processor. It is a copy that the processor may change."""
        if self._as_is:
            return kept
        return tuple(
            [one if give is None or one is None else give(one) for give, one in zip(self._give, kept, strict=True)]
        )

    def batch(self, rows: Sequence[Kept]) -> pa.RecordBatch:
        """Convert kept rows to columns."""
        columns = zip(*rows, strict=True) if rows else [()] * len(self.schema)
        arrays = [pa.array(list(column), field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def rows(self, batch: pa.RecordBatch) -> list[Kept]:
        """Convert columns to kept rows."""
        columns = [load(array) for load, array in zip(self._load, batch.columns, strict=True)]
        return list(zip(*columns, strict=True))

    def _refused(self, cause: str, remedy: str) -> PipelineError:
        return PipelineError(
            f"the value does not fit {self._what}",
            where=f"{self._where}, {calling_line()}",
            cause=cause,
            remedy=remedy,
        )


# ------------------------------------------------------------ from the processor


def _accept(type_: st.DataType, as_key: bool) -> Change:
    """Return the conversion from a processor's value to the kept form; it raises ValueTypeError.

    Null is None, and the null values of pandas and numpy; also NaN if the type has none, as in Spark.
    """
    accept = _accept_value(type_, as_key)
    has_nan = isinstance(type_, st.FloatType | st.DoubleType | st.StringType)
    never_null = PLAIN_TYPES - ({type(None)} if has_nan else {type(None), float, decimal.Decimal})

    def nullable(value: Any) -> Any:
        if type(value) in never_null:
            return accept(value)
        if is_missing(value):
            return None
        is_number = not has_nan and isinstance(value, float | np.floating | decimal.Decimal)
        return None if is_number and value != value else accept(value)

    return nullable


def _exact(type_: st.DataType, as_key: bool) -> type | None:
    """Return the Python type whose values are their own kept form, except numbers out of range and texts that may not
    be valid; None: there is none."""
    if isinstance(type_, st.DoubleType) and as_key:
        return None
    return _EXACT.get(type(type_))


def _limits(type_: st.IntegralType) -> tuple[int, int]:
    bits = {st.ByteType: 8, st.ShortType: 16, st.IntegerType: 32}.get(type(type_), 64)
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _accept_value(type_: st.DataType, as_key: bool) -> Change:
    if isinstance(type_, st.IntegralType):
        return functools.partial(_whole, *_limits(type_))
    if isinstance(type_, st.FractionalType) and not isinstance(type_, st.DecimalType):
        narrow = isinstance(type_, st.FloatType)
        return functools.partial(_fraction, narrow, as_key)
    if isinstance(type_, st.DecimalType):
        return functools.partial(_decimal, type_.precision, decimal.Decimal(1).scaleb(-type_.scale))
    if isinstance(type_, st.ArrayType):
        element = _accept(type_.elementType, False)
        return lambda value: [element(one) for one in _elements(value)]
    if isinstance(type_, st.MapType):
        key, item = _accept(type_.keyType, False), _accept(type_.valueType, False)
        return functools.partial(_map, key, item)
    if isinstance(type_, st.StructType):
        fields = {field.name: _accept(field.dataType, False) for field in type_.fields}
        return functools.partial(_struct, fields)
    return _ACCEPT_FLAT[type(type_)]


def _plain(value: Any, types: tuple[type, ...]) -> Any:
    """Return `value`, converted from numpy or pandas if needed, if it is of one of `types`."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        value = python_time(value)
    elif hasattr(value, "to_pydatetime"):
        value = value.to_pydatetime(warn=False)
    elif hasattr(value, "to_pytimedelta"):
        value = value.to_pytimedelta()
    if isinstance(value, types) and not (isinstance(value, bool) and bool not in types):
        return value
    if hasattr(value, "tolist"):
        converted = value.tolist()
        if isinstance(converted, types) and not (isinstance(converted, bool) and bool not in types):
            return converted
    raise ValueTypeError(f"the value is of type {type(value).__name__}")


def _whole(least: int, most: int, value: Any) -> int:
    number: int = value if type(value) is int else _plain(value, (int,))
    if not least <= number <= most:
        raise ValueTypeError(f"the value is not in {least}..{most}")
    return number


def _fraction(narrow: bool, as_key: bool, value: Any) -> float:
    number = value if type(value) is float else float(_plain(value, (float, int)))
    if narrow:
        number = pa.scalar(number, pa.float32()).as_py()
    return _key_number(number) if as_key else number


def _key_number(number: float) -> float:
    """Normalise a number so that equal numbers are one map key: 0.0 and -0.0, and every NaN."""
    return _NAN if number != number else number + 0.0


def _decimal(precision: int, step: decimal.Decimal, value: Any) -> decimal.Decimal:
    number = _plain(value, (decimal.Decimal,))
    with decimal.localcontext(prec=76, rounding=decimal.ROUND_HALF_UP):
        number = number.quantize(step)
    if len(number.as_tuple().digits) > precision:
        raise ValueTypeError(f"the number has more than {precision} digits")
    return number


def _text(value: Any) -> str:
    """Convert to text; numbers as the JVM writes them, as in Spark."""
    if isinstance(value, str):
        if not value.isascii():
            value.encode()  # raises ValueError for a lone surrogate, which is not valid text
        return str(value)
    plain = _plain(value, (bool, int, float, decimal.Decimal))
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return _jvm_text(float(plain)) if isinstance(plain, float) else str(plain)


def _jvm_text(number: float) -> str:
    if number != number or math.isinf(number):
        return "NaN" if number != number else "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return repr(number)
    sign, digits, exponent = decimal.Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int), "the number is not finite"
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{exponent + len(digits) - 1}"


def _binary(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(_plain(value, (bytes, bytearray, memoryview)))


def _instant(value: Any) -> int:
    """Convert an instant; a time without a zone is in this process's zone, as in PySpark's worker."""
    moment = _plain(value, (dt.datetime,))
    if moment.year in (dt.MINYEAR, dt.MAXYEAR):
        moment.astimezone()  # raises OverflowError if the local time, as which it is read again, does not exist
    return (moment.astimezone(_UTC) - _EPOCH_UTC) // _MICROSECOND


def _wall_time(value: Any) -> int:
    """Convert a wall-clock time; its zone is ignored, as in PySpark."""
    moment = _plain(value, (dt.datetime,))
    return (moment.replace(tzinfo=None) - _EPOCH) // _MICROSECOND


def _date(value: Any) -> dt.date:
    day = _plain(value, (dt.date,))
    return day.date() if isinstance(day, dt.datetime) else day


def _interval(value: Any) -> dt.timedelta:
    """Convert an interval. Python's range is 300 times larger than 64-bit microseconds, the range of Arrow and
    Spark."""
    length: dt.timedelta = _plain(value, (dt.timedelta,))
    if not _SHORTEST <= length <= _LONGEST:
        raise ValueTypeError("the interval exceeds 64 bits of microseconds, about 292,000 years")
    return length


def _elements(value: Any) -> Any:
    """Return the elements of an array one by one: numpy would return numbers for times in nanoseconds."""
    return value if isinstance(value, np.ndarray) and value.ndim == 1 else _plain(value, (list, tuple))


def _map(key: Change, item: Change, value: Any) -> list[tuple[Any, Any]]:
    pairs = [(key(k), item(v)) for k, v in _plain(value, (dict,)).items()]
    if any(k is None for k, _ in pairs):
        raise ValueTypeError("a key of the map is null")
    return pairs


def _struct(fields: dict[str, Change], value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {name: accept(value.get(name)) for name, accept in fields.items()}
    values = _plain(value, (tuple, list))
    if len(values) != len(fields):
        raise ValueTypeError(f"the struct has {len(values)} values, but {len(fields)} fields")
    return {name: accept(one) for (name, accept), one in zip(fields.items(), values, strict=True)}


_ACCEPT_FLAT: dict[type[st.DataType], Change] = {
    st.BooleanType: lambda value: value if type(value) is bool else _plain(value, (bool,)),
    st.StringType: _text,
    st.BinaryType: _binary,
    st.DateType: _date,
    st.TimestampType: _instant,
    st.TimestampNTZType: _wall_time,
    st.DayTimeIntervalType: _interval,
}

# ------------------------------------------------------------ to the processor


def _give(type_: st.DataType) -> Change | None:
    """Return the conversion from the kept form to a processor's value; None: they are equal.

    Times are naive, as in Spark; instants are local times of the process.
    """
    if isinstance(type_, st.TimestampType):
        return lambda value: (_EPOCH_UTC + value * _MICROSECOND).astimezone().replace(tzinfo=None)
    if isinstance(type_, st.TimestampNTZType):
        return lambda value: _EPOCH + value * _MICROSECOND
    if isinstance(type_, st.ArrayType):
        element = _given(type_.elementType)
        return lambda value: [element(one) for one in value]
    if isinstance(type_, st.MapType):
        key, item = _given(type_.keyType), _given(type_.valueType)
        return lambda value: {key(k): item(v) for k, v in value}
    if isinstance(type_, st.StructType):
        fields = [(field.name, _given(field.dataType)) for field in type_.fields]
        row = st.Row(*type_.names)
        return lambda value: row(*[give(value[name]) for name, give in fields])
    return None


def _given(type_: st.DataType) -> Change:
    give = _give(type_)
    return lambda value: value if value is None or give is None else give(value)


# ------------------------------------------------------------ from Arrow


def _load(type_: st.DataType, as_key: bool) -> Callable[[pa.Array], list[Any]]:
    """Return the conversion of an Arrow column to the kept form."""
    if isinstance(type_, st.TimestampType | st.TimestampNTZType):
        return lambda array: python_values(array.cast(pa.int64()))
    if as_key and isinstance(type_, st.FloatType | st.DoubleType):
        return lambda array: [None if one is None else _key_number(one) for one in array.to_pylist()]
    if isinstance(type_, st.ArrayType | st.MapType | st.StructType):
        loaded = _loaded(type_)
        return lambda array: [loaded(one) for one in array.to_pylist()]
    return python_values


def _loaded(type_: st.DataType) -> Change:
    """Return the conversion from Arrow's Python values to the kept form."""
    change = _loaded_value(type_)
    return lambda value: None if value is None else change(value)


def _loaded_value(type_: st.DataType) -> Change:
    if isinstance(type_, st.ArrayType):
        element = _loaded(type_.elementType)
        return lambda value: [element(one) for one in value]
    if isinstance(type_, st.MapType):
        key, item = _loaded(type_.keyType), _loaded(type_.valueType)
        return lambda value: [(key(k), item(v)) for k, v in value]
    if isinstance(type_, st.StructType):
        fields = [(field.name, _loaded(field.dataType)) for field in type_.fields]
        return lambda value: {name: load(value[name]) for name, load in fields}
    if isinstance(type_, st.TimestampType):
        return _instant
    return _wall_time if isinstance(type_, st.TimestampNTZType) else lambda value: value
