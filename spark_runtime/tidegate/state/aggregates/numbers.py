"""`count`, `sum`, `min`, `max` and `mean` with the semantics of SQL (S5.1).

Numbers are kept in plain columns indexed by entry number. Decimal sums, and min and max of other types, are kept rows.

Null inputs are ignored; sum, min, max and mean of no values are null. Integers sum exactly in int64 or fail; floats sum
in order of arrival. NaN is greater than every number, as in Spark and DuckDB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from tidegate.errors import DataError
from tidegate.state.aggregates.aggregation import (
    AggregateArguments,
    AggregateFunction,
    AggregateState,
    Aggregation,
    Selection,
    StateColumns,
    is_number,
    is_numeric_type,
    is_sortable,
)
from tidegate.state.aggregates.ordered_rows import BestRows, Order
from tidegate.state.aggregates.row_log import Columns, RowLog, Rows, kept_columns, one_or_null, without_nulls
from tidegate.state.copy_on_write import Arrays, CopyOnWriteArrays, Entries
from tidegate.state.keys.key_bytes import Bytes, Int64s, fixed_values, valid_mask
from tidegate.state.keys.key_types import stored_type
from tidegate.state.numba_kernels import inlined, kernel

Numbers = npt.NDArray[np.int64] | npt.NDArray[np.uint64] | npt.NDArray[np.float64]
Function = Literal["count", "sum", "min", "max", "mean"]
MAX_DECIMAL_DIGITS = 38
"""Digits of a sum of decimals."""
_INT, _UINT, _FLOAT = np.dtype(np.int64), np.dtype(np.uint64), np.dtype(np.float64)


class SumOverflowError(DataError):
    """A sum of integers exceeds the range of int64."""

    code = "sum_overflow"


@dataclass(frozen=True)
class Values:
    """One aggregated column of a batch.

    Attributes:
        numbers: int64, uint64 or float64; arbitrary where null. None: the column is only counted.
        valid: 0 where null; None: no nulls.
    """

    numbers: Numbers | None
    valid: Bytes | None

    def part(self, start: int, stop: int) -> Values:
        """Return rows start..stop."""
        return Values(
            None if self.numbers is None else self.numbers[start:stop],
            None if self.valid is None else self.valid[start:stop],
        )


def read_values(array: pa.Array, function: Function) -> Values:
    """Return `array` in the form for `function`: times and dates as integers, mean in float64, uint64 unchanged."""
    valid = valid_mask(array).view(np.uint8) if array.null_count else None
    if function == "count":
        return Values(None, valid)
    if function == "mean" or pt.is_floating(array.type):
        return Values(_floats(array), valid)
    if pt.is_boolean(array.type):
        array = array.cast(pa.int8())
    numbers = fixed_values(array)
    return Values(numbers.view(np.uint64) if pt.is_uint64(array.type) else numbers, valid)


class Accumulator:
    """One aggregate of every entry, in arrays of `CopyOnWriteArrays`.

    Not safe for several threads. A snapshot writer may read a frozen version of the cells, with the function of
    `freeze`.
    """

    def __init__(
        self,
        name: str,
        function: Function,
        input_type: pa.DataType | None,
        output_type: pa.DataType,
        cells: CopyOnWriteArrays | None = None,
    ) -> None:
        """Create the aggregate.

        Args:
            name: name of the output column.
            input_type: type of the input column; None for a count of rows.
            output_type: type of the output column.
            cells: arrays to use, under names that begin with `name`; the caller touches the entries that are written.
        """
        self.name = name
        self.output_type = output_type
        self._function = function
        self.state_schema = _state_schema(name, function, input_type)
        self.reads = "presence" if function == "count" else "floats" if function == "mean" else "numbers"
        self._dtype, self._start, self._add = number_kernel(function, input_type)
        self._cells = cells or CopyOnWriteArrays(1)
        self._values = f"{name}/values"
        self._counts = f"{name}/counts"  # for mean
        self._seen = f"{name}/seen"  # 1 where a value has arrived; without this array: every entry has one
        self._cells.add(self._values, self._dtype, self._start)
        if function == "mean":
            self._cells.add(self._counts, np.int64)

    def grow(self, capacity: int) -> None:
        """Make room for entries 0..capacity - 1."""
        self._cells.grow(capacity)

    def read(self, columns: Sequence[pa.Array]) -> Values | None:
        """Return the one column; None for a count of rows."""
        return read_values(columns[0], self._function) if columns else None

    def add(self, entries: Entries, values: Values | None, known: int) -> None:
        """Add a row to each of `entries`.

        Args:
            entries: entry number of each row.
            values: the aggregated column; None for a count of rows.
            known: number of entries that had rows before this call.

        Raises:
            SumOverflowError: a sum of integers exceeds int64.
        """
        arrays = self._cells.arrays
        if self._function == "count":
            count_rows(entries, values, arrays[self._values])
            return
        assert values is not None and values.numbers is not None
        valid = values.valid
        if self._function == "mean":
            count_rows(entries, values, arrays[self._counts])
        # The array is added at the first null. Until then every known entry has a value.
        elif valid is not None and self._seen not in arrays:
            self._cells.add(self._seen, np.uint8)
            arrays[self._seen][:known] = 1
        if valid is not None:
            valid_rows = np.flatnonzero(valid)
            entries, numbers = entries[valid_rows], values.numbers[valid_rows]
        else:
            numbers = values.numbers
        if self._seen in arrays:
            arrays[self._seen][entries] = 1
        if self._add(entries, numbers, arrays[self._values]):
            raise sum_overflow(self.name)

    def merge(self, entries: Entries, columns: Sequence[pa.Array], known: int) -> None:
        """See `AggregateState`."""
        if self._function == "count":
            self._fold(_sum_ints, entries, _numbers(columns[0]), self._values)
        elif self._function == "mean":
            self._fold(_sum_floats, entries, _numbers(columns[0]), self._values)
            self._fold(_sum_ints, entries, _numbers(columns[1]), self._counts)
        else:
            state = columns[0]
            valid = valid_mask(state).view(np.uint8) if state.null_count else None
            self.add(entries, Values(_numbers(state), valid), known)

    def result(self, entries: Selection) -> pa.Array:
        """See `AggregateState`."""
        arrays = {name: array[entries] for name, array in self._cells.arrays.items()}
        part, missing = arrays[self._values], self._missing(arrays)
        if self._function == "mean":
            counts = arrays[self._counts]
            part = np.divide(part, counts, out=np.zeros(len(part)), where=counts != 0)
            missing = counts == 0 if not counts.all() else None
        return typed_numbers(part, missing, self.output_type)

    def state(self, entries: Selection) -> list[pa.Array]:
        """See `AggregateState`."""
        return self._state_columns({name: array[entries] for name, array in self._cells.arrays.items()})

    def freeze(self) -> StateColumns:
        """See `AggregateState`."""
        return lambda arrays, start, stop: self._state_columns(arrays)

    def _state_columns(self, arrays: Arrays) -> list[pa.Array]:
        """Return the state of the entries in `arrays`, which are slices of the live or frozen arrays."""
        if self._function == "mean":
            return [pa.array(arrays[self._values]), pa.array(arrays[self._counts])]
        return [pa.array(arrays[self._values], mask=self._missing(arrays))]

    def _fold(self, sum_: Callable[..., Any], entries: Entries, numbers: Numbers, name: str) -> None:
        if sum_(entries, numbers, self._cells.arrays[name]):
            raise sum_overflow(self.name)

    def _missing(self, arrays: Arrays) -> npt.NDArray[np.bool_] | None:
        if self._seen not in arrays:
            return None
        seen = arrays[self._seen]
        return None if seen.all() else seen == 0


def sum_overflow(name: str) -> SumOverflowError:
    """Return the error for a sum of integers that exceeds int64."""
    return SumOverflowError(
        f"sum {name!r} exceeds the range of 64-bit integers",
        cause="the values of one key in one window add up to more than 9.2e18 or less than -9.2e18",
        remedy="Cast the column to double before the sum",
    )


def count_rows(entries: Entries, values: Values | None, counts: Int64s) -> None:
    """Count a row for each of `entries`, or only rows whose value is not null."""
    if values is None or values.valid is None:
        _count(entries, counts)
    else:
        _count_valid(entries, values.valid, counts)


def number_kernel(
    function: Function, type_: pa.DataType | None
) -> tuple[np.dtype[Any], Any, Callable[..., bool | None]]:
    """Return the type of the numbers that an aggregate keeps, their start, and the kernel that adds rows to them.

    The kernel's arguments are entries, numbers and the array of the aggregate. It returns True if a sum overflows.
    """
    dtype = _dtype(function, type_)
    return dtype, _START[function](dtype), _KERNELS[function, dtype]


def _dtype(function: str, type_: pa.DataType | None) -> np.dtype[Any]:
    """Return the numpy type of the numbers that count, sum, min, max or mean keep."""
    if function == "mean" or (function != "count" and type_ is not None and pt.is_floating(type_)):
        return np.dtype(np.float64)
    if function in ("min", "max") and type_ is not None and pt.is_uint64(type_):
        return np.dtype(np.uint64)
    return np.dtype(np.int64)


def _state_schema(name: str, function: str, type_: pa.DataType | None) -> pa.Schema:
    """Return the state columns of count, sum, min, max or mean."""
    fields = [pa.field(f"{function}:{name}", pa.from_numpy_dtype(_dtype(function, type_)))]
    if function == "mean":
        fields.append(pa.field(f"mean_count:{name}", pa.int64()))
    return pa.schema(fields)


def _floats(array: pa.Array) -> npt.NDArray[np.float64]:
    wide = array.cast(pa.float64(), safe=False) if not pt.is_float64(array.type) else array
    buffer = wide.buffers()[1]
    return np.zeros(len(wide)) if buffer is None else np.frombuffer(buffer, np.float64, len(wide), wide.offset * 8)


def _numbers(state: pa.Array) -> Numbers:
    """Return a state column in the form for kernels; arbitrary where null."""
    buffer = state.buffers()[1]
    dtype = np.dtype(state.type.to_pandas_dtype())
    return np.zeros(len(state), dtype) if buffer is None else np.frombuffer(buffer, dtype, len(state), state.offset * 8)


def typed_numbers(values: Any, missing: npt.NDArray[np.bool_] | None, type_: pa.DataType) -> pa.Array:
    """Return numbers that an aggregate keeps as a column of `type_`, null where `missing`."""
    array = pa.array(np.ascontiguousarray(values), mask=missing)
    if array.type == type_:
        return array
    if pt.is_integer(type_) or pt.is_floating(type_) or pt.is_boolean(type_):
        return array.cast(type_, safe=False)
    return array.cast(pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)


def _start_of_min(dtype: np.dtype[Any]) -> Any:
    # NaN is greater than every number, so that it is the neutral start of min.
    return np.nan if dtype.kind == "f" else np.iinfo(dtype).max


def _start_of_max(dtype: np.dtype[Any]) -> Any:
    return -np.inf if dtype.kind == "f" else np.iinfo(dtype).min


_START: dict[str, Callable[[np.dtype[Any]], Any]] = {
    "count": lambda dtype: 0,
    "sum": lambda dtype: 0,
    "mean": lambda dtype: 0,
    "min": _start_of_min,
    "max": _start_of_max,
}


@inlined
def _is_nan(value: Any) -> Any:
    return value != value


@kernel("void(i4[], i8[]!)")
def _count(entries: Any, counts: Any) -> None:
    for i in range(len(entries)):
        counts[entries[i]] += 1


@kernel("void(i4[], u1[], i8[]!)")
def _count_valid(entries: Any, valid: Any, counts: Any) -> None:
    for i in range(len(entries)):
        counts[entries[i]] += valid[i] != 0


@kernel("b1(i4[], i8[], i8[]!)")
def _sum_ints(entries: Any, values: Any, sums: Any) -> Any:
    overflow = np.int64(0)
    for i in range(len(entries)):
        old = sums[entries[i]]
        new = old + values[i]
        # The sign bit becomes 1 where both operands have another sign than their sum, which is an overflow. One test at
        # the end replaces a branch for each row.
        overflow |= (old ^ new) & (values[i] ^ new)
        sums[entries[i]] = new
    return overflow < 0


@kernel("b1(i4[], u8[], i8[]!)")
def _sum_unsigned(entries: Any, values: Any, sums: Any) -> Any:
    overflow = np.int64(0)
    for i in range(len(entries)):
        value = np.int64(values[i])
        new = sums[entries[i]] + value
        overflow |= value | new  # sums of uint64 are never negative
        sums[entries[i]] = new
    return overflow < 0


@kernel("b1(i4[], f8[], f8[]!)")
def _sum_floats(entries: Any, values: Any, sums: Any) -> Any:
    for i in range(len(entries)):
        sums[entries[i]] += values[i]
    return False


@kernel("b1(i4[], i8[], i8[]!)", "b1(i4[], u8[], u8[]!)")
def _min(entries: Any, values: Any, least: Any) -> Any:
    for i in range(len(entries)):
        if values[i] < least[entries[i]]:
            least[entries[i]] = values[i]
    return False


@kernel("b1(i4[], i8[], i8[]!)", "b1(i4[], u8[], u8[]!)")
def _max(entries: Any, values: Any, greatest: Any) -> Any:
    for i in range(len(entries)):
        if values[i] > greatest[entries[i]]:
            greatest[entries[i]] = values[i]
    return False


@kernel("b1(i4[], f8[], f8[]!)")
def _min_floats(entries: Any, values: Any, least: Any) -> Any:
    for i in range(len(entries)):
        old = least[entries[i]]
        if values[i] < old or _is_nan(old):
            least[entries[i]] = values[i]
    return False


@kernel("b1(i4[], f8[], f8[]!)")
def _max_floats(entries: Any, values: Any, greatest: Any) -> Any:
    for i in range(len(entries)):
        if values[i] > greatest[entries[i]] or _is_nan(values[i]):
            greatest[entries[i]] = values[i]
    return False


_KERNELS: dict[tuple[str, np.dtype[Any]], Callable[..., bool | None]] = {
    ("count", _INT): _count,
    ("sum", _INT): lambda e, v, s: (_sum_unsigned if v.dtype == _UINT else _sum_ints)(e, v, s),
    ("sum", _FLOAT): _sum_floats,
    ("mean", _FLOAT): _sum_floats,
    ("min", _INT): _min,
    ("min", _UINT): _min,
    ("min", _FLOAT): _min_floats,
    ("max", _INT): _max,
    ("max", _UINT): _max,
    ("max", _FLOAT): _max_floats,
}


class DecimalSum:
    """An exact sum of decimals, with the widest precision of 128 bits."""

    def __init__(self, name: str, output: pa.DataType) -> None:
        self._name, self._output = name, output
        self._wide = pa.decimal256(76, output.scale)

    def rows(self, entries: Entries, columns: Sequence[pa.Array]) -> Rows:
        """See `Fold`."""
        arrays = [columns[0].cast(self._output)]
        return without_nulls(entries, arrays, arrays)

    def fold(self, entries: Entries, columns: Columns) -> Rows:
        """See `Fold`. Raises SumOverflowError."""
        # Summed in 256 bits, where no sum of a batch overflows. The cast back to 128 bits detects an overflow.
        table = pa.table({"entry": pa.array(entries), "value": columns[0].cast(self._wide)})
        sums = table.group_by("entry", use_threads=False).aggregate([("value", "sum")]).sort_by("entry")
        try:
            total = sums["value_sum"].combine_chunks().cast(self._output)
        except pa.ArrowInvalid as error:
            raise SumOverflowError(
                f"sum {self._name!r} exceeds the range of {self._output}",
                cause=str(error),
                remedy="Cast the column to double before the sum",
            ) from error
        return sums["entry"].to_numpy(), [total]

    def result(self, columns: Columns, offsets: Int64s) -> pa.Array:
        """See `Fold`."""
        return one_or_null(columns[0], offsets)


def _of_numbers(aggregation: Aggregation, cells: CopyOnWriteArrays) -> AggregateState:
    type_ = aggregation.types[0] if aggregation.types else None
    return Accumulator(aggregation.name, cast(Function, aggregation.function.name), type_, aggregation.output, cells)


def _columns_of_numbers(aggregation: Aggregation) -> pa.Schema:
    type_ = aggregation.types[0] if aggregation.types else None
    return _state_schema(aggregation.name, aggregation.function.name, type_)


def _columns_of_sum(aggregation: Aggregation) -> pa.Schema:
    if pt.is_decimal(aggregation.types[0]):
        return pa.schema([pa.field(f"sum:{aggregation.name}", aggregation.output)])
    return _columns_of_numbers(aggregation)


def _summing(aggregation: Aggregation, cells: CopyOnWriteArrays) -> AggregateState:
    if pt.is_decimal(aggregation.types[0]):
        return RowLog(aggregation, DecimalSum(aggregation.name, aggregation.output), is_list=False)
    return _of_numbers(aggregation, cells)


def _type_of_sum(types: Sequence[pa.DataType], arguments: AggregateArguments) -> pa.DataType | None:
    type_ = types[0]
    if pt.is_decimal(type_):
        return pa.decimal128(MAX_DECIMAL_DIGITS, type_.scale) if type_.bit_width <= 128 else None
    return (pa.int64() if pt.is_integer(type_) else pa.float64()) if is_number(type_) else None


def _extreme(name: str, order: Order) -> AggregateFunction:
    """Return min or max: of types that are not numbers, it keeps the first row in `order`."""

    def state_schema(aggregation: Aggregation) -> pa.Schema:
        is_plain = is_numeric_type(aggregation.types[0])
        return _columns_of_numbers(aggregation) if is_plain else kept_columns(aggregation)

    def accumulator(aggregation: Aggregation, cells: CopyOnWriteArrays) -> AggregateState:
        if is_numeric_type(aggregation.types[0]):
            return _of_numbers(aggregation, cells)
        return RowLog(aggregation, BestRows(aggregation, order, is_list=False), is_list=False)

    return AggregateFunction(
        name=name,
        result_type=lambda types, _: stored_type(types[0]) if is_sortable(types[0]) else None,
        state_schema=state_schema,
        accumulator=accumulator,
        any_order=True,
    )


def _of_booleans(function: AggregateFunction, word: str) -> AggregateFunction:
    """Return min or max for booleans: min is whether all are true, max is whether any is."""

    def compare_first(column: str, type_: pa.DataType) -> str:
        return f"compare the column first: .with_columns({column}=pc.field({column!r}) > 0)"

    return replace(
        function,
        result_type=lambda types, _: pa.bool_() if pt.is_boolean(types[0]) else None,
        word=word,
        takes="booleans",
        conversion=compare_first,
    )


COUNT = AggregateFunction(
    name="count",
    result_type=lambda types, _: pa.int64(),
    state_schema=_columns_of_numbers,
    accumulator=_of_numbers,
    needs_column=False,
    any_order=True,
)
SUM = AggregateFunction(
    name="sum",
    result_type=_type_of_sum,
    state_schema=_columns_of_sum,
    accumulator=_summing,
    any_order=True,
    takes="numbers and decimals",
)
MEAN = AggregateFunction(
    name="mean",
    result_type=lambda types, _: pa.float64() if is_number(types[0]) else None,
    state_schema=_columns_of_numbers,
    accumulator=_of_numbers,
    any_order=True,
    takes="numbers",
)
MIN = _extreme("min", Order(by_value=True))
MAX = _extreme("max", Order(by_value=True, descends=True))
BOOL_AND = _of_booleans(MIN, "bool_and")
BOOL_OR = _of_booleans(MAX, "bool_or")
