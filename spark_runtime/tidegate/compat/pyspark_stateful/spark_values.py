"""Rows of a Spark schema: the tuples that a StatefulProcessor gives and takes, and the Arrow columns they are kept as.

In between lies the *kept* form of a value, which enters Arrow as it is: times as microseconds since the epoch, structs
as dicts, maps as pairs, the rest as Python has it. Flat numbers, strings and booleans are themselves in all three.
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


def calling_line() -> str:
    """`file:line` of the innermost frame outside this package; `unknown` when there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith(_PACKAGE):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return "unknown"


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


Kept: TypeAlias = tuple[Any, ...]
Change: TypeAlias = Callable[[Any], Any]

_NAN = math.nan
_UTC = dt.UTC
_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=_UTC)
_MICROSECOND = dt.timedelta(microseconds=1)
_SHORTEST, _LONGEST = dt.timedelta(days=-106_751_991), dt.timedelta(microseconds=2**63 - 1)
"""Of day-time intervals: 64 bits of microseconds; below zero pyarrow multiplies whole days first, and takes no part of
the last one."""
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
SPARK_TYPES_TEXT = (
    "booleans, integers, floats, decimals, strings, binary, dates, timestamps, day-time intervals, and arrays, maps "
    "and structs of these"
)
"""For messages."""


class ValueTypeError(ValueError):
    """A value that is not of the type it is given for."""


def arrow_type(type_: st.DataType) -> pa.DataType | None:
    """The Arrow type of a Spark type, as Spark's own conversion has it; None: it is not taken."""
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
    """Arrow columns of a Spark schema.

    Args:
        what: for errors.
        nullable: all columns are, whatever the schema says; else as it says.

    Raises:
        PipelineError: a type that is not taken, naming the column.
    """
    fields: list[pa.Field] = []
    for field in schema.fields:
        type_ = arrow_type(field.dataType)
        if type_ is None:
            raise PipelineError(
                f"column {field.name!r} of {what} is of type {field.dataType.simpleString()}, which is not taken",
                where=where,
                remedy=f"Use {SPARK_TYPES_TEXT}",
            )
        fields.append(pa.field(field.name, type_, nullable=nullable or field.nullable))
    return pa.schema(fields)


_UNFIT = (ValueError, ArithmeticError, TypeError, AttributeError)
"""What a conversion raises for a value that is not of the type: ValueTypeError, and others of the value's own."""


class SparkRowCodec:
    """Rows of one schema.

    Attributes:
        schema: of the Arrow columns, all nullable.
    """

    def __init__(self, spark: st.StructType, what: str, where: str, *, as_key: bool = False) -> None:
        """Args: what, where: for errors. as_key: rows are map keys, which must be hashed: no nested types."""
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

    def accepted(self, value: Any) -> Kept:
        """The kept form of a row that the processor gives: a tuple, list, Row or array, by position; a text stands for
        the row of a single text column.

        Raises:
            PipelineError: it does not fit, naming the column and the processor's line.
        """
        if not isinstance(value, tuple | list):
            value = self._as_row(value)
        if len(value) != len(self._accept):
            names = ", ".join(self.schema.names)
            raise self._refused(f"it has {len(value)} values", f"Give a tuple of one value for each of: {names}")
        try:
            return tuple([accept(one) for accept, one in zip(self._accept, value, strict=True)])
        except _UNFIT:
            pass
        for name, accept, one in zip(self.schema.names, self._accept, value, strict=True):
            try:
                accept(one)
            except _UNFIT as error:
                beyond = isinstance(error, ArithmeticError)
                why = "it is beyond what that type holds" if beyond else error
                raise self._refused(
                    f"column {name!r} takes {self.schema.field(name).type}, and got {one!r}: {why}",
                    "Convert the value, or declare the column of another type",
                ) from None
        raise AssertionError("the values fit one by one")

    def _as_row(self, value: Any) -> tuple[Any, ...]:
        """Of what else PySpark takes: it walks through a text, and so takes one of a single character."""
        if isinstance(value, str) and self.schema.types == [pa.string()]:
            return (value,)
        if hasattr(value, "__iter__") and not isinstance(value, str | bytes | bytearray | dict | set | frozenset):
            return tuple(value)
        raise self._refused(f"it is a {type(value).__name__}", "Give a tuple, such as (count,)")

    def accepted_list(self, values: Any) -> list[Kept]:
        """The kept form of several rows; PipelineError when one does not fit, or there is none, as in Spark."""
        rows = [self.accepted(value) for value in values]
        if not rows:
            raise self._refused("the list is empty, which Spark refuses too", "Call clear() to empty it")
        return rows

    def given(self, kept: Kept) -> tuple[Any, ...]:
        """The row as the processor sees it; its own, to change as it likes."""
        if self._as_is:
            return kept
        return tuple(
            [one if give is None or one is None else give(one) for give, one in zip(self._give, kept, strict=True)]
        )

    def batch(self, rows: Sequence[Kept]) -> pa.RecordBatch:
        """Kept rows as columns."""
        columns = zip(*rows, strict=True) if rows else [()] * len(self.schema)
        arrays = [pa.array(list(column), field.type) for column, field in zip(columns, self.schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def rows(self, batch: pa.RecordBatch) -> list[Kept]:
        """Columns as kept rows."""
        columns = [load(array) for load, array in zip(self._load, batch.columns, strict=True)]
        return list(zip(*columns, strict=True))

    def _refused(self, cause: str, remedy: str) -> PipelineError:
        return PipelineError(
            f"{self._what} cannot take what it was given",
            where=f"{self._where}, {calling_line()}",
            cause=cause,
            remedy=remedy,
        )


# ------------------------------------------------------------ from the processor


def _accept(type_: st.DataType, as_key: bool) -> Change:
    """From what a processor gives to the kept form; ValueTypeError. Null is None and what pandas and numpy have for
    it; NaN too, where a type has none, as in Spark."""
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


def _accept_value(type_: st.DataType, as_key: bool) -> Change:
    if isinstance(type_, st.IntegralType):
        bits = {st.ByteType: 8, st.ShortType: 16, st.IntegerType: 32}.get(type(type_), 64)
        return functools.partial(_whole, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
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
    """`value`, or what numpy or pandas hold for it, of one of `types`."""
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
    raise ValueTypeError(f"a {type(value).__name__} is not of that type")


def _whole(least: int, most: int, value: Any) -> int:
    number: int = value if type(value) is int else _plain(value, (int,))
    if not least <= number <= most:
        raise ValueTypeError(f"it is beyond {least} and {most}")
    return number


def _fraction(narrow: bool, as_key: bool, value: Any) -> float:
    number = value if type(value) is float else float(_plain(value, (float, int)))
    if narrow:
        number = pa.scalar(number, pa.float32()).as_py()
    return _key_number(number) if as_key else number


def _key_number(number: float) -> float:
    """Equal numbers are one map key: 0.0 and -0.0, and every NaN."""
    return _NAN if number != number else number + 0.0


def _decimal(precision: int, step: decimal.Decimal, value: Any) -> decimal.Decimal:
    number = _plain(value, (decimal.Decimal,))
    with decimal.localcontext(prec=76, rounding=decimal.ROUND_HALF_UP):
        number = number.quantize(step)
    if len(number.as_tuple().digits) > precision:
        raise ValueTypeError(f"it has more than {precision} digits")
    return number


def _text(value: Any) -> str:
    """Numbers as the JVM writes them, as in Spark."""
    if isinstance(value, str):
        if not value.isascii():
            value.encode()  # a lone surrogate is no text, and raises ValueError
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
    assert isinstance(exponent, int), "it is finite"
    rest = "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{digits[0]}.{rest}E{exponent + len(digits) - 1}"


def _binary(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(_plain(value, (bytes, bytearray, memoryview)))


def _instant(value: Any) -> int:
    """A time without a zone is one of this process, as in PySpark's worker."""
    moment = _plain(value, (dt.datetime,))
    if moment.year in (dt.MINYEAR, dt.MAXYEAR):
        moment.astimezone()  # OverflowError: the local time, as which it is read again, does not exist
    return (moment.astimezone(_UTC) - _EPOCH_UTC) // _MICROSECOND


def _wall_time(value: Any) -> int:
    """What its clock shows: a zone is left out, as in PySpark."""
    moment = _plain(value, (dt.datetime,))
    return (moment.replace(tzinfo=None) - _EPOCH) // _MICROSECOND


def _date(value: Any) -> dt.date:
    day = _plain(value, (dt.date,))
    return day.date() if isinstance(day, dt.datetime) else day


def _interval(value: Any) -> dt.timedelta:
    """Python's own reach 300 times as far as 64 bits of microseconds, in Arrow and in Spark."""
    length: dt.timedelta = _plain(value, (dt.timedelta,))
    if not _SHORTEST <= length <= _LONGEST:
        raise ValueTypeError("it is beyond 64 bits of microseconds, some 292,000 years")
    return length


def _elements(value: Any) -> Any:
    """Those of an array, one by one: numpy would give numbers for times in nanoseconds."""
    return value if isinstance(value, np.ndarray) and value.ndim == 1 else _plain(value, (list, tuple))


def _map(key: Change, item: Change, value: Any) -> list[tuple[Any, Any]]:
    pairs = [(key(k), item(v)) for k, v in _plain(value, (dict,)).items()]
    if any(k is None for k, _ in pairs):
        raise ValueTypeError("a key is null")
    return pairs


def _struct(fields: dict[str, Change], value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {name: accept(value.get(name)) for name, accept in fields.items()}
    values = _plain(value, (tuple, list))
    if len(values) != len(fields):
        raise ValueTypeError(f"it has {len(values)} values for {len(fields)} fields")
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
    """From the kept form to what a processor sees; None: they are one. Times as Spark gives them: naive, those with
    a zone as local times of the process."""
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
    """An Arrow column in the kept form."""
    if isinstance(type_, st.TimestampType | st.TimestampNTZType):
        return lambda array: python_values(array.cast(pa.int64()))
    if as_key and isinstance(type_, st.FloatType | st.DoubleType):
        return lambda array: [None if one is None else _key_number(one) for one in array.to_pylist()]
    if isinstance(type_, st.ArrayType | st.MapType | st.StructType):
        loaded = _loaded(type_)
        return lambda array: [loaded(one) for one in array.to_pylist()]
    return python_values


def _loaded(type_: st.DataType) -> Change:
    """From Arrow's Python values to the kept form."""
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
